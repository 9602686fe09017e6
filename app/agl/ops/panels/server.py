"""``agl panels``: the web server. It reads; there is nothing in it that could change anything."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from agl import __version__
from agl.ops.panels import alerts, assets, views
from agl.ops.panels.boards import Board, Library
from agl.ops.panels.prometheus import PrometheusError, PrometheusReader
from agl.ops.panels.timerange import TimeError, TimeRange, parse_range
from agl.ops.shapes import mapping

logger = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEALTH = "/api/health"
REALM = 'Basic realm="agl panels", charset="UTF-8"'
DEFAULT_WIDTH = 600
_TO_A_FILE = re.compile(r"\[([^\]]+)\]\((?:\.\./)?([\w-]+)\.md\)")
_LOOPBACK = re.compile(r"(localhost|.*\.localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """What the server shows and to whom.

    Attributes:
        library: The dashboards.
        prometheus: Address of Prometheus.
        scrape: Its scrape interval in seconds.
        home: uid of the dashboard that ``/`` leads to; the list of all when there is none.
        password: What visitors are asked for; ``None`` for nothing.
        runbooks: Folder of the runbooks (NAME.md) that alerts link to; ``None`` for none.
    """

    library: Library
    prometheus: str
    scrape: float
    home: str
    password: str | None
    runbooks: Path | None = None


def create_app(site: Site) -> web.Application:
    """The application; its session to Prometheus opens and closes with it."""
    app = web.Application(middlewares=[_hardened, _guard(site.password)])
    pages = _Pages(site)
    app.cleanup_ctx.append(pages.session)
    app.add_routes(
        [
            web.get("/", pages.home),
            web.get("/dashboards", pages.page),
            web.get("/d/{uid}", pages.page),
            web.get("/d/{uid}/{slug}", pages.page),
            web.get("/runbooks", pages.page),
            web.get("/runbooks/{name}", pages.page),
            web.get(HEALTH, pages.health),
            web.get("/static/{name:[\\w./-]+}", pages.static),
            web.get("/api/boards", pages.boards),
            web.get("/api/boards/{uid}", pages.board),
            web.get("/api/boards/{uid}/data", pages.data),
            web.get("/api/boards/{uid}/annotations", pages.annotations),
            web.get("/api/alerts", pages.alerts),
            web.get("/api/runbooks", pages.runbooks),
            web.get("/api/runbooks/{name}", pages.runbook),
        ]
    )
    return app


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._reader: PrometheusReader | None = None

    async def session(self, _: web.Application) -> AsyncIterator[None]:
        # An own jar and no proxy: the address given is the one that is asked.
        async with aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:
            self._reader = PrometheusReader(self._site.prometheus, session)
            yield

    @property
    def reader(self) -> PrometheusReader:
        assert self._reader is not None, "the application has not been started"  # noqa: S101
        return self._reader

    async def home(self, _: web.Request) -> web.StreamResponse:
        board = self._site.library.get(self._site.home)
        raise web.HTTPFound(board.path_of_page if board else "/dashboards")

    async def page(self, request: web.Request) -> web.Response:
        text, policy = assets.live_page()
        uid = request.match_info.get("uid")
        known = uid is None or self._site.library.get(uid) is not None
        return web.Response(
            text=text,
            content_type="text/html",
            status=200 if known else 404,
            headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"},
        )

    async def health(self, _: web.Request) -> web.Response:
        return _json({"database": "none", "version": __version__, "application": "agl panels"})

    async def static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        content = assets.files().get(name)
        if content is None:
            raise web.HTTPNotFound
        response = web.Response(body=content)
        response.headers["Content-Type"] = assets.TYPES[name[name.rindex(".") :]]
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        response.enable_compression()
        return response

    async def boards(self, _: web.Request) -> web.Response:
        found = self._site.library.boards()
        return _json(
            {
                "problem": self._site.library.problem,
                "boards": [
                    {
                        "uid": board.uid,
                        "title": board.title,
                        "path": board.path_of_page,
                        "tags": board.tags,
                        "description": board.description,
                        "problem": board.problem,
                    }
                    for board in found
                ],
            }
        )

    async def board(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        return _json(view.as_json())

    async def data(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        panel = view.panel(request.query.get("panel", ""))
        if panel is None:
            raise _refused(404, "the dashboard has changed: this panel is gone; reload the page")
        width = request.query.get("width", "")
        points = int(width) if width.isdecimal() and len(width) < 6 else DEFAULT_WIDTH
        return _json(
            await views.panel_data(
                panel, view.span, points, self.reader, self._site.scrape, time.time()
            )
        )

    async def annotations(self, request: web.Request) -> web.Response:
        view = await self._view(request)
        return _json(
            await alerts.board_events(
                view.board, view.scope, view.span, self.reader, self._site.scrape
            )
        )

    async def alerts(self, _: web.Request) -> web.Response:
        return _json({"alerts": await alerts.current(self.reader)})

    async def runbooks(self, _: web.Request) -> web.Response:
        return _json({"runbooks": sorted(self._runbooks())})

    async def runbook(self, request: web.Request) -> web.Response:
        # Looked up among what is there, so that no name leads out of the folder.
        name = request.match_info["name"]
        runbooks = self._runbooks()
        path = runbooks.get(name)
        if path is None:
            raise _refused(404, f"there is no runbook {name!r}; /runbooks lists all")
        text = linked(path.read_text("utf-8", errors="replace"), runbooks)
        return _json({"name": name, "text": text})

    def _runbooks(self) -> dict[str, Path]:
        folder = self._site.runbooks
        return {} if folder is None else {path.stem: path for path in folder.glob("*.md")}

    async def _view(self, request: web.Request) -> views.View:
        board = self._board(request.match_info["uid"])
        return await views.look(board, _span(request.query, board), _chosen(request), self.reader)

    def _board(self, uid: str) -> Board:
        board = self._site.library.get(uid)
        if board is None:
            raise _refused(404, f"there is no dashboard {uid!r}; /dashboards lists all")
        if board.problem:
            raise _refused(422, board.problem)
        return board


def _span(query: Mapping[str, str], board: Board) -> TimeRange:
    saved = mapping(board.content.get("time"))
    start = query.get("from") or str(saved.get("from") or "now-6h")
    end = query.get("to") or str(saved.get("to") or "now")
    return parse_range(start, end, time.time())


def _chosen(request: web.Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.query.items():
        if name.startswith("var-"):
            found.setdefault(name.removeprefix("var-"), []).append(value)
    return found


def _json(content: Any, status: int = 200) -> web.Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    response = web.Response(text=text, content_type="application/json", status=status)
    response.headers["Cache-Control"] = "no-store"
    if len(text) > 2048:
        response.enable_compression()
    return response


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _refused(status: int, reason: str) -> _Refused:
    return _Refused(status, reason)


def linked(text: str, runbooks: Container[str]) -> str:
    """A runbook whose links to others, which are files in the repository, lead to their pages.

    A link to a file that is not served is only its text.
    """

    def link(found: re.Match[str]) -> str:
        words, name = found.groups()
        return f"[{words}](/runbooks/{name})" if name in runbooks else words

    return _TO_A_FILE.sub(link, text)


@web.middleware
async def _hardened(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as JSON with their reason, and the headers that every answer carries."""
    try:
        response = await handler(request)
    except web.HTTPException as exc:
        response = exc
    except _Refused as exc:
        response = _json({"error": str(exc)}, exc.status)
    except TimeError as exc:
        response = _json({"error": str(exc)}, 400)
    except PrometheusError as exc:
        response = _json({"error": str(exc), "kind": exc.kind}, 502)
    except Exception:
        logger.exception("%s %s failed.", request.method, request.path)
        response = _json({"error": "the server failed; its log says why"}, 500)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Referrer-Policy", "same-origin")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'")
    if isinstance(response, web.HTTPException):
        raise response
    return response


def _guard(password: str | None) -> Any:
    """Who may look: whoever knows the password, or, without one, this machine alone."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == HEALTH:
            return await handler(request)
        if password is None:
            # A page elsewhere whose name was pointed at this machine shows its own name here.
            if not _LOOPBACK.fullmatch(request.headers.get("Host", "")):
                raise _refused(
                    403,
                    "without --auth-file only loopback names are answered, such as localhost",
                )
        elif not _knows(request.headers.get("Authorization", ""), password):
            response = _json({"error": "a password is needed"}, 401)
            response.headers["WWW-Authenticate"] = REALM
            return response
        return await handler(request)

    return guard


def _knows(header: str, password: str) -> bool:
    """Basic with any user and the password, or Bearer."""
    scheme, _, carried = header.partition(" ")
    shown = carried.strip()
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(shown.encode(), password.encode())
