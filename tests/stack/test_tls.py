"""The store of the bundle over HTTPS, with a certificate that openssl makes."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bundle import ROOT, Stack, clone_to, docker, leftovers

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

VARIABLES = {
    "COMPOSE_PROJECT_NAME": "agl-tls-test",
    "AGL_PORT": "15847",
    "AGL_SUBNET": "172.31.247.0/24",
    "AGL_GATEWAY": "172.31.247.1",
    "AGL_TLS_CERT": "./secrets/tls-cert.pem",
    "AGL_TLS_KEY": "./secrets/tls-key.pem",
}


@pytest.fixture(scope="module", name="secure")
def secure_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = clone_to(tmp_path_factory.mktemp("tls") / "clone")
    images = ROOT / "compose" / ".env.images"
    if images.is_file():
        shutil.copyfile(images, root / "compose" / ".env.images")
    make_certificate(root / "compose" / "secrets")
    bundle = Stack(root, {**os.environ, **VARIABLES})
    try:
        yield bundle
    finally:
        bundle.script("down", "--volumes")
    assert leftovers(bundle.project) == {"containers": [], "volumes": [], "networks": []}


def make_certificate(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", "tls-key.pem", "-out", "tls-cert.pem", "-days", "2"]
    command += ["-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    (folder / "tls-key.pem").chmod(0o600)


def test_the_store_is_served_over_https(secure: Stack) -> None:
    said = secure.script("up", "store", "--yes")
    address = f"127.0.0.1:{VARIABLES['AGL_PORT']}"
    assert f"https://{address}" in said
    trusting = ssl.create_default_context(
        cafile=secure.root / "compose" / "secrets" / "tls-cert.pem"
    )
    with httpx.Client(base_url=f"https://{address}", verify=trusting, timeout=60) as http:
        assert http.get("/v1/agl/health").json()["status"] == "ok"
        assert http.get("/v1/agl/statistics").json()["total_rollouts"] == 0
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}/v1/agl/health", timeout=60)

    assert f"https://{address}" in secure.script("status")
    listing = docker(
        *("run", "--rm", "--volume", f"{secure.project}_secrets:/s:ro", "--entrypoint", "stat"),
        *("--user", "0", secure.container("app")["Config"]["Image"]),
        *("-c", "%n %a %u", "/s/tls-cert", "/s/tls-key"),
    )
    assert listing.split("\n")[:2] == ["/s/tls-cert 400 10001", "/s/tls-key 400 10001"]


def test_a_file_that_is_no_certificate_is_named(secure: Stack) -> None:
    cert = secure.root / "compose" / "secrets" / "tls-cert.pem"
    cert.write_text("not a certificate\n")
    with pytest.raises(AssertionError, match="holds no certificate in PEM form"):
        secure.script("up", "store", "--yes")
