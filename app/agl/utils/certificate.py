"""Checks a TLS certificate and its key before a server needs them.

Uses the standard library alone and runs on Python 3.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agl.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path


class Names(NamedTuple):
    """What an error calls the two."""

    cert: str = "argument --tls-cert"
    key: str = "argument --tls-key"


OPTIONS = Names()


def check_certificate(cert: Path | None, key: Path | None, names: Names = OPTIONS) -> None:
    """Nothing to say when both can be used, or when there is no certificate.

    Args:
        cert: PEM file with the certificate chain.
        key: PEM file with the private key; ``None`` means that it is in ``cert``.

    Raises:
        EnvironmentFault: A file is missing, unreadable or no PEM, or the two do not match.
    """
    if cert is None:
        return
    _read(names.cert, cert)
    if key is not None:
        _read(names.key, key)
    _load(cert, key or cert, names)


def _read(name: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as exc:
        raise EnvironmentFault(
            f"{name}: {file} cannot be read ({exc.strerror})",
            remedy="name a PEM file that this user can read",
        ) from exc


def _load(cert: Path, key: Path, names: Names) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise EnvironmentFault(
                f"{names.key}: the key in {key} is not that of the certificate in {cert}",
                remedy="name the key that the certificate was made for",
            ) from exc
        raise _no_pem(cert, key, names) from exc
    except _EncryptedKeyError as exc:
        raise EnvironmentFault(
            f"{names.key}: the key in {key} is encrypted",
            remedy="decrypt it (openssl pkey -in KEY -out NEWKEY) and protect the file instead",
        ) from exc


def _no_pem(cert: Path, key: Path, names: Names) -> EnvironmentFault:
    import ssl

    name, file, what = names.cert, cert, "certificate"
    try:
        ssl.PEM_cert_to_DER_cert(_block(cert))
    except ValueError:
        pass
    else:
        name, file, what = names.key, key, "private key"
    return EnvironmentFault(
        f"{name}: {file} holds no {what} in PEM form",
        remedy="PEM starts with a line like -----BEGIN CERTIFICATE-----",
    )


def _block(cert: Path) -> str:
    text = cert.read_text("ascii", "replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, found, rest = text.partition(begin)
    if not found:
        raise ValueError("no certificate")
    return f"{begin}{rest.partition(end)[0]}{end}"


class _EncryptedKeyError(Exception):
    """A password would be needed."""


def _no_password() -> str:
    raise _EncryptedKeyError
