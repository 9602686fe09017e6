"""A TCP proxy that gives each new connection to the next of several servers."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def turns_proxy(servers: list[tuple[str, int]]) -> Iterator[tuple[int, list[int]]]:
    """The port it listens on, and for each server how many connections it was given."""
    given = [0] * len(servers)
    turns = itertools.cycle(range(len(servers)))
    connections: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            number = next(turns)
            given[number] += 1
            connection = threading.Thread(target=_serve, args=(client, servers[number]))
            connections.append(connection)
            connection.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1], given
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *connections):
                thread.join(60)


def _serve(client: socket.socket, address: tuple[str, int]) -> None:
    with client, socket.create_connection(address) as server:
        back = threading.Thread(target=_carry, args=(server, client))
        back.start()
        _carry(client, server)
        back.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
