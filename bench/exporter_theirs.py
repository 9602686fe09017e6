"""prometheus_client's own exporter of the folder in ``PROMETHEUS_MULTIPROC_DIR``."""

from __future__ import annotations

import socketserver
import sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.multiprocess import MultiProcessCollector


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    with make_server(
        "127.0.0.1", int(sys.argv[1]), make_wsgi_app(registry), Server, handler_class=Quiet
    ) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
