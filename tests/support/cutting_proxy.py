"""A TCP proxy that can cut the connection between a request and its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ports import free_port

LOOPBACK = "127.0.0.1"


class CuttingProxy:
    """Passes bytes on. An answer to a request whose line holds ``lose`` is lost ``times`` times."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self.port = free_port(LOOPBACK)
        self.lose = ""
        self.times = 0
        self.lost: list[str] = []

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def lose_answers(self, to: str, times: int = 1) -> None:
        self.lose, self.times = to, times

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(LOOPBACK, self._upstream)
        try:
            while request := await reader.read(2**16):
                line = request.split(b"\r\n", 1)[0].decode("latin-1")
                up_writer.write(request)
                answer = await self._answer(up_reader)
                if self.times and self.lose in line:
                    self.times -= 1
                    self.lost.append(line)
                    return
                writer.write(answer)
                await writer.drain()
        finally:
            for end in (writer, up_writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
        )
        return head + await reader.readexactly(int(fields[b"content-length"]))


@asynccontextmanager
async def cutting_proxy(endpoint: str) -> AsyncGenerator[CuttingProxy]:
    """A proxy before a server on loopback; requests must fit into one packet."""
    proxy = CuttingProxy(int(endpoint.rpartition(":")[2]))
    server = await asyncio.start_server(proxy.serve, LOOPBACK, proxy.port)
    try:
        yield proxy
    finally:
        server.close()
