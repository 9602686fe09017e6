"""Head and body of an answer in one packet, over a real connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from agl.utils.joined_answers import JoiningProtocol
from agl.utils.server_runners import LauncherServer

LARGE = b"x" * 200_000


async def app(scope: Any, receive: Any, send: Any) -> None:
    path = scope["path"]
    if path == "/upload":
        received = await receive()
        assert received["body"] == b"hello"
    headers = [(b"content-type", b"text/plain")]
    if path in ("/small", "/upload"):
        headers.append((b"content-length", b"2"))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if path == "/broken":
        raise RuntimeError("after the head")
    if path == "/stream":
        for part in (b"HTTP/1.1 200 OK\r\n\r\n", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    body = {"/small": b"ok", "/upload": b"ok", "/large": LARGE}.get(path, b"")
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=JoiningProtocol, lifespan="off", log_config=None)
        server = LauncherServer(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
        server.stop_soon()
        await task


async def exchange(port: int, request: bytes) -> list[bytes]:
    """The packets of the answer, as they come off the socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    packets: list[bytes] = []
    while packet := await reader.read(1 << 20):
        packets.append(packet)
    writer.close()
    return packets


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()


async def test_a_small_answer_is_one_packet() -> None:
    async with serving() as port:
        packets = await exchange(port, get("/small"))
    assert len(packets) == 1
    assert packets[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert packets[0].endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/large", LARGE + b"\r\n0\r\n\r\n"),
        ("/stream", b"13\r\nHTTP/1.1 200 OK\r\n\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"),
        ("/empty", b"\r\n\r\n0\r\n\r\n"),
    ],
)
async def test_other_answers_arrive_whole(path: str, end: bytes) -> None:
    async with serving() as port:
        answer = b"".join(await exchange(port, get(path)))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(end)


async def test_an_answer_to_head_has_no_body() -> None:
    async with serving() as port:
        answer = b"".join(await exchange(port, get("/small", "HEAD")))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


async def test_a_head_without_a_body_is_sent_before_the_end() -> None:
    async with serving() as port:
        answer = b"".join(await exchange(port, get("/broken")))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


async def test_who_waits_for_continue_gets_it() -> None:
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /upload HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n"
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello")
        assert (await reader.read()).endswith(b"\r\n\r\nok")
        writer.close()


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with serving() as port:
        first = get("/small").replace(b"connection: close\r\n", b"")
        answer = b"".join(await exchange(port, first + first + get("/small")))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(b"\r\n\r\nok") == 3
