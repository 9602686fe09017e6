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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, servers, turns, given))
        thread.start()
        try:
            yield listener.getsockname()[1], given
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(
    listener: socket.socket,
    servers: list[tuple[str, int]],
    turns: Iterator[int],
    given: list[int],
) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        number = next(turns)
        given[number] += 1
        server = socket.create_connection(servers[number])
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=_carry, args=(source, target), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
