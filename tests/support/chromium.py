"""Debian's Chromium without a window, spoken to over its own DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
LIMIT = 60.0


def find_chromium() -> str:
    """Its path. Raises FileNotFoundError when there is none."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("chromium is missing - run tests/lab/browser/ensure.sh")


@dataclass
class Page:
    """One tab."""

    socket: aiohttp.ClientWebSocketResponse
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _refusals: int = 0
    _number: int = 0
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def listen(self) -> None:
        async for message in self.socket:
            content = json.loads(message.data)
            if "id" in content:
                waiting = self._waiting.pop(content["id"], None)
                if waiting and not waiting.done():
                    waiting.set_result(content)
            elif content["method"] == "Fetch.requestPaused":
                await self._refuse_or_not(content["params"]["requestId"])
            else:
                self._note(content["method"], content["params"])

    async def _refuse_or_not(self, request: str) -> None:
        self._refusals -= 1
        if self._refusals >= 0:
            await self._send("Fetch.failRequest", requestId=request, errorReason="ConnectionReset")
        else:
            await self._send("Fetch.continueRequest", requestId=request)

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", details["text"])
            self.errors.append(thrown[:300])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            entry = parameters["entry"]
            if entry.get("source") != "network":
                self.errors.append(entry["text"][:300])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    async def _send(self, method: str, **parameters: Any) -> asyncio.Future[Any]:
        self._number += 1
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = waiting
        await self.socket.send_json({"id": self._number, "method": method, "params": parameters})
        return waiting

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = await asyncio.wait_for(await self._send(method, **parameters), LIMIT)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, what: str = "") -> Any:
        """Waits until an expression is true and returns it."""
        limit = asyncio.get_running_loop().time() + LIMIT
        while True:
            found = await self.run(script)
            if found:
                return found
            assert asyncio.get_running_loop().time() < limit, (
                f"after {LIMIT:.0f} s not yet: {what or script}; errors: {self.errors}"
            )
            await asyncio.sleep(0.05)

    async def size(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def refusing(self, pattern: str, times: int) -> AsyncIterator[None]:
        """Ends the first requests of addresses like this within the block, as a network does."""
        self._refusals = times
        await self.call("Network.setCacheDisabled", cacheDisabled=True)
        await self.call("Fetch.enable", patterns=[{"urlPattern": pattern}])
        try:
            yield
        finally:
            await self.call("Fetch.disable")
            await self.call("Network.setCacheDisabled", cacheDisabled=False)

    async def open(self, url: str) -> None:
        self.errors.clear()
        self.requests.clear()
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def press(self, key: str, *, shift: bool = False) -> None:
        """A key going down and up, as a keyboard sends it."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}.get(key, 0)
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        kind = "keyDown" if text else "rawKeyDown"
        await self.call("Input.dispatchKeyEvent", type=kind, text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def mouse(self, kind: str, x: float, y: float) -> None:
        """``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        pressed = kind != "mouseMoved"
        await self.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y,
            button="left" if pressed else "none", clickCount=1 if pressed else 0,
        )  # fmt: skip

    async def picture(self, path: Path, *, whole: bool = False) -> Path:
        """A PNG of what is in sight, or of the whole page."""
        answer = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        return await asyncio.to_thread(_write, path, base64.b64decode(answer["data"]))


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A Chromium with one tab; it ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                address = await _first_tab(session, port)
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await page.call(f"{domain}.enable")
                    yield page
                    listening.cancel()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    limit = asyncio.get_running_loop().time() + LIMIT
    while True:
        assert process.returncode is None, f"chromium ended with code {process.returncode}"
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int((await asyncio.to_thread(file.read_text)).splitlines()[0])
        assert asyncio.get_running_loop().time() < limit, "chromium did not start within 60 s"
        await asyncio.sleep(0.05)


async def _first_tab(session: aiohttp.ClientSession, port: int) -> str:
    limit = asyncio.get_running_loop().time() + LIMIT
    while True:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
        if tabs:
            return tabs[0]["webSocketDebuggerUrl"]
        assert asyncio.get_running_loop().time() < limit, "chromium has no tab"
        await asyncio.sleep(0.05)
