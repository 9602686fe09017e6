"""A TCP proxy before MongoDB that loses answers, or requests, of one kind."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_LENGTH = struct.Struct("<i")


class MongoProxy:
    """Passes messages on; connections are cut where a message is to be lost."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self.port = 0
        self._word = b""
        self._times = 0
        self._before = False
        self._keeps: tuple[bytes, asyncio.Future[int]] | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.lost = 0

    @property
    def uri(self) -> str:
        return f"mongodb://{LOOPBACK}:{self.port}/?directConnection=true"

    def lose(self, command: str, *, times: int, before: bool = False) -> None:
        """Cut the connection after the server has carried out ``command``, or ``before`` that."""
        self._word, self._times, self._before = command.encode(), times, before

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, until :meth:`close`."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """End what is still connected."""
        for task in (serving := list(self._serving)):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def keep(self, command: str) -> asyncio.Future[int]:
        """Keep the answer to the next ``command`` from whoever sent it, for good.

        Returns when the server has carried it out: the sender's port.
        """
        kept = asyncio.get_running_loop().create_future()
        self._keeps = command.encode(), kept
        return kept

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(LOOPBACK, self._upstream)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._exchange(reader, writer, up_reader, up_writer)
        finally:
            for end in (writer, up_writer):
                end.close()
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


@asynccontextmanager
async def mongo_proxy(uri: str) -> AsyncGenerator[MongoProxy]:
    """A proxy before the server of a URI on loopback."""
    port = urlsplit(uri).port
    assert port is not None
    proxy = MongoProxy(port)
    server = await asyncio.start_server(proxy.accept, LOOPBACK, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
