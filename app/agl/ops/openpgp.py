"""Fingerprints of OpenPGP public keys, computed without gpg.

Just enough of RFC 4880 to answer one question before a repository is trusted: which primary
keys are in this file?
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

_PUBLIC_KEY = 6
_VERSION_4 = 4
_NEW_FORMAT = 0x40


def primary_fingerprints(data: bytes) -> list[str]:
    """Fingerprints (40 upper-case hex digits) of every version 4 primary key in ``data``.

    ``data`` is binary or ASCII-armoured. Raises ValueError when it is not OpenPGP data, or when
    it has a primary key of another version, whose fingerprint this does not compute.
    """
    return [_fingerprint(body) for tag, body in _packets(_dearmor(data)) if tag == _PUBLIC_KEY]


def _fingerprint(body: bytes) -> str:
    if not body or body[0] != _VERSION_4:
        raise ValueError("a key that is not of version 4")
    framed = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(framed, usedforsecurity=False).hexdigest().upper()


def _dearmor(data: bytes) -> bytes:
    if not data.lstrip().startswith(b"-----BEGIN PGP PUBLIC KEY BLOCK-----"):
        return data
    if data.count(b"-----BEGIN") != 1:
        raise ValueError("more than one armoured block")
    lines = [line.strip() for line in data.strip().splitlines()]
    start = lines.index(b"") + 1 if b"" in lines else 1
    encoded = [line for line in lines[start:] if line and not line.startswith((b"=", b"-"))]
    try:
        return base64.b64decode(b"".join(encoded), validate=True)
    except binascii.Error as error:
        raise ValueError(f"broken armour: {error}") from None


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        header = data[position]
        if not header & 0x80:
            raise ValueError("not OpenPGP data")
        if header & _NEW_FORMAT:
            tag = header & 0x3F
            length, position = _new_length(data, position + 1)
        else:
            tag = (header >> 2) & 0x0F
            length, position = _old_length(data, position + 1, header & 0x03)
        body = data[position : position + length]
        if len(body) != length:
            raise ValueError("OpenPGP data ends early")
        yield tag, body
        position += length


def _old_length(data: bytes, position: int, kind: int) -> tuple[int, int]:
    if kind == 3:
        raise ValueError("a packet without a length")
    size = 1 << kind
    return int.from_bytes(data[position : position + size], "big"), position + size


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    first = data[position] if position < len(data) else 0
    if first < 192:
        return first, position + 1
    if first < 224:
        return ((first - 192) << 8) + data[position + 1] + 192, position + 2
    if first == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
    raise ValueError("a packet in partial lengths")
