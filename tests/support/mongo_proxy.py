"""A TCP proxy before MongoDB that loses answers, or loses or holds requests, of one kind."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

import pymongo

LOOPBACK = "127.0.0.1"
_LENGTH = struct.Struct("<i")


class MongoProxy:
    """Passes messages on; connections are cut where a message is to be lost."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._upstream = primary_of(uri)
        self._tls = _tls_of(uri)
        self.port = 0
        self._word = b""
        self._times = 0
        self._before = False
        self._keeps: tuple[bytes, asyncio.Future[int]] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.lost = 0
        self._held = b""
        self._passing = 0
        self._go_on = asyncio.Event()
        self.holding = asyncio.Event()

    @property
    def uri(self) -> str:
        """The server's, with its user and password, and this proxy in its place."""
        url = urlsplit(self._uri)
        login, at, _ = url.netloc.rpartition("@")
        options = {name: value for name, value in parse_qsl(url.query) if not _of_way(name)}
        query = urlencode({**options, "directConnection": "true"})
        return f"mongodb://{login}{at}{LOOPBACK}:{self.port}{url.path or '/'}?{query}"

    def lose(self, command: str, *, times: int, before: bool = False) -> None:
        """Cut the connection after the server has carried out ``command``, or ``before`` that."""
        self._word, self._times, self._before = command.encode(), times, before

    def hold(self, command: str, collection: str, *, passes: int = 0) -> None:
        """Pass no more than so many of these commands on before :meth:`release`.

        ``holding`` is set when there is one that waits.
        """
        name = collection.encode() + b"\0"
        self._held = b"\x02" + command.encode() + b"\0" + _LENGTH.pack(len(name)) + name
        self._passing = passes

    def release(self) -> None:
        """Let what was held go on, and hold nothing more."""
        self._held = b""
        self._go_on.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, until :meth:`close`."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._ends.add(writer)

    async def close(self) -> None:
        """End what is still connected."""
        while serving := list(self._serving):
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
        # Also of those that were ended before they began, or that nobody reads from.
        for writer in self._ends:
            writer.transport.abort()
        await asyncio.sleep(0)  # until that is done

    def keep(self, command: str) -> asyncio.Future[int]:
        """Keep the answer to the next ``command`` from whoever sent it, for good.

        Returns when the server has carried it out: the sender's port.
        """
        kept = asyncio.get_running_loop().create_future()
        self._keeps = command.encode(), kept
        return kept

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream, ssl=self._tls)
        self._ends.add(up_writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._exchange(reader, writer, up_reader, up_writer)
        finally:
            ends = (writer, up_writer)
            for end in ends:
                end.close()
            for end in ends:
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        answers = asyncio.create_task(self._answers(up_reader, writer))
        try:
            while True:
                request = await _message(reader)
                await self._released(request)
                loses = self._times > 0 and self._word in request[:100]
                kept = self._kept(request)
                if loses:
                    self._times -= 1
                    self.lost += 1
                    if self._before:
                        return
                if loses or kept is not None:
                    await _cancelled(answers)  # nobody else may read what comes now
                up_writer.write(request)
                await up_writer.drain()
                if loses or kept is not None:
                    await _message(up_reader)  # it was carried out, and nobody learns of it
                    if kept is not None:
                        kept.set_result(writer.get_extra_info("peername")[1])
                        await reader.read()
                    return
        finally:
            await _cancelled(answers)

    async def _released(self, request: bytes) -> None:
        if not self._held or self._held not in request[:100]:
            return
        if self._passing > 0:
            self._passing -= 1
            return
        self.holding.set()
        await self._go_on.wait()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()

    def _kept(self, request: bytes) -> asyncio.Future[int] | None:
        if self._keeps is None or self._keeps[0] not in request[:100]:
            return None
        (_, kept), self._keeps = self._keeps, None
        return kept


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_LENGTH.size)
    (length,) = _LENGTH.unpack(head)
    return head + await reader.readexactly(length - _LENGTH.size)


def _of_way(option: str) -> bool:
    """Whether an option of a connection string says how a server is found and reached."""
    return option.lower().startswith(("replicaset", "direct", "tls", "ssl"))


def primary_of(uri: str) -> tuple[str, int]:
    """The host and port that a client with this connection string writes to."""
    with pymongo.MongoClient[dict[str, object]](uri) as client:
        client.admin.command("ping")
        assert client.address is not None
        return client.address


def _tls_of(uri: str) -> ssl.SSLContext | None:
    options = {name.lower(): value for name, value in parse_qsl(urlsplit(uri).query)}
    by_default = "true" if uri.startswith("mongodb+srv:") else "false"
    if options.get("tls", options.get("ssl", by_default)) != "true":
        return None
    return ssl.create_default_context(cafile=options.get("tlscafile"))


@asynccontextmanager
async def mongo_proxy(uri: str) -> AsyncGenerator[MongoProxy]:
    """A proxy before the server of a URI, the primary if it is a replica set."""
    proxy = MongoProxy(uri)
    server = await asyncio.start_server(proxy.accept, LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
