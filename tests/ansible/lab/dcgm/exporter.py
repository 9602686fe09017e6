"""A stand-in for dcgm-exporter: serves each field of its list once a GPU."""

from __future__ import annotations

import argparse
import socket
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def fields(path: Path) -> list[str]:
    """Names of the fields that are metrics."""
    lines = (line.split(",") for line in path.read_text().splitlines() if line[:1] not in "#")
    return [parts[0].strip() for parts in lines if parts[1].strip() != "label"]


def page(names: list[str]) -> str:
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout
    gpus = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines()]
    host = socket.gethostname()
    return "".join(
        f'{name}{{gpu="{number}",UUID="{uuid}",Hostname="{host}"}} 40\n'
        for name in names
        for number, uuid in enumerate(gpus)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-f", type=Path, required=True)
    parser.add_argument("-c", type=int, required=True)
    options = parser.parse_args()
    names = fields(options.f)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page(names).encode())

    ThreadingHTTPServer(("", 9400), Handler).serve_forever()


if __name__ == "__main__":
    main()
