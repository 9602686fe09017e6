#!/opt/lab/bin/python
"""LAB STAND-IN, not MongoDB: SecantusDB behind mongod's command line, for trials and tests only.

It behaves as mongod does where the bundle relies on it: it demands a readable key file with strict
permissions, asks for a password as soon as there is a user, lets a client on the loopback address
do anything until then (the localhost exception), and is a replica set of one member, whose name is
``secantus`` whatever is asked for, under the container's host name.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from secantus import rbac
from secantus.server import SecantusDBServer

REPLICA_SET = "secantus"
PORT = 27017

logger = logging.getLogger("lab-stand-in")


class Server(SecantusDBServer):
    """SecantusDB with mongod's localhost exception, found under the name of this container."""

    def __init__(self, **options: Any) -> None:
        self._peer = threading.local()
        self._has_users = False
        super().__init__(**options)

    @property
    def address(self) -> tuple[str, int]:
        """What ``hello`` tells clients to connect to."""
        if self._socket is None:
            raise RuntimeError("server is not started")
        return socket.gethostname(), self.port

    @property
    def require_auth(self) -> bool:
        """Whether the client that is being served has to log in."""
        if not self._has_users:
            self._has_users = bool(self.storage.list_users(limit=1))
        return self._has_users or not getattr(self._peer, "local", False)

    @require_auth.setter
    def require_auth(self, _: bool) -> None:
        """The base class sets it; here it follows from users and client."""

    def _handle_client(self, conn: socket.socket, addr: tuple[str, int]) -> None:
        self._peer.local = ipaddress.ip_address(addr[0]).is_loopback
        super()._handle_client(conn, addr)


def check_key_file(path: Path) -> None:
    """Refuse what mongod refuses. Exits with 1."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = "".join(path.read_text("ascii").split())
    except OSError as error:
        sys.exit(f"mongod (lab stand-in): cannot read key file {path}: {error.strerror}")
    if mode & 0o077:
        sys.exit(f"mongod (lab stand-in): permissions on {path} are too open")
    if not 6 <= len(key) <= 1024 or not all(c.isalnum() or c in "+/=" for c in key):
        sys.exit(f"mongod (lab stand-in): {path} is no key: 6 to 1024 base64 characters")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mongod", description=__doc__, allow_abbrev=False)
    parser.add_argument("--replSet", required=True, dest="replica_set")
    parser.add_argument("--keyFile", required=True, type=Path, dest="key_file")
    parser.add_argument("--dbpath", default="/data/db")
    parser.add_argument("--bind_ip_all", action="store_true")
    parser.add_argument("--wiredTigerCacheSizeGB", type=float, default=0.25, dest="cache_gb")
    parser.add_argument("--oplogSize", type=int, default=990, metavar="MB")
    parser.add_argument("--nounixsocket", action="store_true")
    return parser.parse_args(argv)


def main() -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("secantus").setLevel(logging.WARNING)
    options = parse(sys.argv[1:])
    check_key_file(options.key_file)
    # With MongoDB the role covers the sizes of every database.
    rbac.BUILT_IN_ROLES["clusterMonitor"].actions |= {rbac.A_DB_STATS, rbac.A_COLL_STATS}
    if options.replica_set != REPLICA_SET:
        sys.exit(f"mongod (lab stand-in): --replSet can only be {REPLICA_SET}")
    server = Server(
        host="0.0.0.0" if options.bind_ip_all else "127.0.0.1",
        port=PORT,
        storage_path=options.dbpath,
        replica_set_name=REPLICA_SET,
        enable_test_commands=False,
        cache_size=f"{max(64, int(options.cache_gb * 1024))}M",
        # MongoDB journals what it acknowledges; the bulkWrite of the stand-in drops ``j: true``.
        sync_on_commit=True,
    )

    def stop(_: int, __: FrameType | None) -> None:
        server.stop()
        logger.warning("The lab stand-in has stopped.")
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.start()
    logger.warning("This is a LAB STAND-IN (SecantusDB), not MongoDB: for trials and tests only.")
    server.wait()


main()
