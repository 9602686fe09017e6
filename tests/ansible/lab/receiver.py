"""Takes pages: receiver.py PORT FILE. Every body becomes a line of FILE."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with Path(sys.argv[2]).open("a") as file:
            file.write(" ".join(body.split()) + "\n")
        self.send_response(200)
        self.end_headers()


HTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
