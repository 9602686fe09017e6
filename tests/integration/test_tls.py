"""The store over HTTPS, with certificates that openssl makes."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from ports import free_port
from processes import BIN, make_certificate
from rest_support import LOOPBACK, launcher_args

from agl.cli.store import parse
from agl.errors import EnvironmentFault, UsageError
from agl.probe import main as probe
from agl.store.client_server import LightningStoreClient, LightningStoreServer
from agl.store.memory import InMemoryLightningStore
from agl.utils.certificate import check_certificate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")


@pytest.fixture(scope="module", name="pair")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "own")


@pytest.fixture
def trusted(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trust the certificate, as SSL_CERT_FILE does for a whole process."""
    trusting = ssl.create_default_context(cafile=pair[0])
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting)
    yield


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("mode", ["asyncio", "thread", "mp"])
async def test_https_in_every_mode(pair: tuple[Path, Path], mode: str) -> None:
    class Shared(InMemoryLightningStore):
        @property
        def capabilities(self):  # type: ignore[no-untyped-def] # as the base class has it
            return {**super().capabilities, "zero_copy": True}

    server = LightningStoreServer(
        Shared(thread_safe=True),
        launcher_args=launcher_args(
            launch_mode=mode, ssl_certfile=str(pair[0]), ssl_keyfile=str(pair[1])
        ),
        api_token="t",
    )
    assert server.endpoint.startswith("https://")
    await server.start()
    client = LightningStoreClient(server.otlp_traces_endpoint().removesuffix("/v1/traces"))
    assert (await client.statistics())["name"] == "Shared"
    await client.close()
    plain = LightningStoreClient(server.endpoint.replace("https", "http"), retry_delays=())
    with pytest.raises(aiohttp.ClientError):
        await plain.statistics()
    await plain.close()
    await server.stop()


async def test_a_certificate_nobody_vouches_for(pair: tuple[Path, Path]) -> None:
    server = LightningStoreServer(
        InMemoryLightningStore(),
        launcher_args=launcher_args(ssl_certfile=str(pair[0]), ssl_keyfile=str(pair[1])),
    )
    await server.start()
    client = LightningStoreClient(server.endpoint, retry_delays=())
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await client.statistics()
    await client.close()
    await server.stop()


async def test_a_certificate_that_the_client_was_given(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """By a name that the certificate does not have, as inside a bundle."""
    other, _ = make_certificate(tmp_path, "other")
    server = LightningStoreServer(
        InMemoryLightningStore(),
        launcher_args=launcher_args(ssl_certfile=str(pair[0]), ssl_keyfile=str(pair[1])),
    )
    await server.start()
    url = server.endpoint.replace(LOOPBACK, "localhost")
    client = LightningStoreClient(url, retry_delays=(), certificate=pair[0])
    assert (await client.state()).queue_depth == 0
    await client.close()
    stranger = LightningStoreClient(url, retry_delays=(), certificate=other)
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await stranger.state()
    await stranger.close()
    await server.stop()


def fault(cert: Path, key: Path | None) -> str:
    with pytest.raises(EnvironmentFault) as raised:
        check_certificate(cert, key)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_files_that_cannot_be_used(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    check_certificate(None, None)
    check_certificate(cert, key)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    check_certificate(both, None)

    missing, junk = tmp_path / "missing", tmp_path / "junk"
    junk.write_bytes(b"\x00junk")
    assert fault(missing, key).startswith(f"argument --tls-cert: {missing} cannot be read (No such")
    assert fault(cert, missing).startswith(f"argument --tls-key: {missing} cannot be read (No such")
    assert fault(tmp_path, key).startswith(f"argument --tls-cert: {tmp_path} cannot be read (Is a")
    assert fault(junk, key).startswith(f"argument --tls-cert: {junk} holds no certificate")
    assert fault(cert, junk).startswith(f"argument --tls-key: {junk} holds no private key")
    assert fault(cert, None).startswith(f"argument --tls-key: {cert} holds no private key")
    _, other = make_certificate(tmp_path, "other")
    assert "is not that of the certificate" in fault(cert, other)
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:x"]
    locked.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    assert "is encrypted" in fault(cert, locked)


def test_a_key_alone_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="there is no --tls-cert"):
        parse(["--tls-key", "k"], "agl store")


def test_the_command_serves_https(pair: tuple[Path, Path]) -> None:
    port = free_port(LOOPBACK)
    command = [str(BIN / "agl"), "store", "--host", LOOPBACK, "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--tls-cert", str(pair[0]), "--tls-key", str(pair[1])],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = f"https://{LOOPBACK}:{port}/v1/agl/health"
        deadline = time.monotonic() + 20
        while probe([url, "--timeout", "1"]) != 0:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in log
