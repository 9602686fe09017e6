"""Routes that parse bytes once and answer with bytes, and the index that finds them.

A :class:`WireRoute` is declared and documented like any FastAPI route, but runs as plain ASGI: its
parameters are read from path, query string and body by pydantic in one step each, and what the
endpoint returns is serialised once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import parse_qsl, unquote

from fastapi import params
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agl.store.rest.body import header, read_body
from agl.store.rest.errors import MAX_REPEATED_BODY, Reply, RequestInvalidError
from agl.store.rest.pages import dump_in_slices, is_long_page
from agl.store.rest.replays import KEY_HEADER, Replays
from agl.store.rest.waiting import WaitingRoom
from agl.store.rest.wire import RETRY_HEADER, ErrorBody, dump
from agl.utils.ownership import share_objects

Method = Literal["GET", "POST"]
Endpoint = Callable[..., Awaitable[Any]]

MATCH_KEY = "agl.match"
STATUS_KEY = "agl.status"
"""Where the layers find the status of the answer, once it has started; 0 until then."""

_AGAIN = RETRY_HEADER.lower().encode()


async def send_reply(scope: MutableMapping[str, Any], send: Send, reply: Reply) -> None:
    """Send an answer, in one go unless it is long, and note its status."""
    scope[STATUS_KEY] = reply.status
    headers = [
        (b"content-type", reply.media_type),
        (b"content-length", b"%d" % (len(reply.body) + sum(map(len, reply.rest)))),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if not reply.rest:
        await send({"type": "http.response.body", "body": reply.body})
        return
    for part in (reply.body, *reply.rest):
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body"})


class _QueryPart:
    """One model filled from the query string; a repeated key makes a list where one is wanted."""

    def __init__(self, name: str, model: type[BaseModel]) -> None:
        self.name = name
        self._model = model
        self._lists = frozenset(
            key for key, info in model.model_fields.items() if _is_list(info.annotation)
        )

    def parse(self, query: bytes) -> BaseModel:
        values: dict[str, Any] = {}
        for key, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if key in self._lists:
                values.setdefault(key, []).append(value)
            else:
                values[key] = value
        try:
            return self._model.model_validate(values)
        except ValidationError as error:
            raise RequestInvalidError.from_validation(error, "query") from None


class _BodyPart:
    """One value parsed from the JSON body; a missing body means the default, if there is one."""

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        self.name = name
        self._default = default
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def parse(self, raw: bytes, content_type: str | None) -> Any:
        if not raw or raw == b"null":
            if self._default is inspect.Parameter.empty:
                raise RequestInvalidError([_problem("missing", "Field required", None)])
            return self._default
        if not _is_json(content_type):
            raise RequestInvalidError([_not_json(raw)])
        try:
            return self._validated(raw)
        except ValidationError as error:
            raise RequestInvalidError.from_validation(error, "body", raw) from None

    def _validated(self, raw: bytes) -> Any:
        """Validate; each fault found in JSON holds a copy of its place, so not in large ones."""
        if len(raw) <= MAX_REPEATED_BODY:
            return self._adapter.validate_json(raw)
        try:
            value = from_json(raw)
        except ValueError:
            return self._adapter.validate_json(raw)  # raises, in the usual form
        return self._adapter.validate_python(value)


class WireRoute(APIRoute):
    """A documented route that runs as plain ASGI.

    The endpoint's parameters are path parameters (``str``), at most one ``Query()`` model and at
    most one body; it may instead take the whole :class:`~starlette.requests.Request` and return a
    :class:`~starlette.responses.Response`. With ``waiting`` the endpoint may take long on purpose:
    it is cancelled when the client leaves or the server stops, and timed apart. With ``replays`` a
    request that brings an ``Idempotency-Key`` is carried out once, however often it is sent. A
    request that says that it may have been carried out already goes to ``again``, if there is one.
    """

    def __init__(
        self,
        method: Method,
        path: str,
        endpoint: Endpoint,
        *,
        status: int = 200,
        errors: tuple[int, ...] = (),
        waiting: WaitingRoom | None = None,
        replays: Replays | None = None,
        again: Endpoint | None = None,
        openapi_extra: dict[str, Any] | None = None,
        response_class: type[Response] | None = None,
        include_in_schema: bool = True,
    ) -> None:
        extra: dict[str, Any] = {"response_class": response_class} if response_class else {}
        super().__init__(
            path,
            endpoint,
            methods=[method],
            status_code=status,
            responses={code: {"model": ErrorBody} for code in errors},
            openapi_extra=openapi_extra,
            include_in_schema=include_in_schema,
            response_model=None
            if response_class
            else inspect.signature(endpoint, eval_str=True).return_annotation,
            **extra,
        )
        self.method = method
        self.success_status = status
        self.takes_request = False
        self._call = endpoint
        self.waiting = waiting
        self.replays = replays
        self.timers: dict[int, Callable[[float], None]] = {}
        """What takes the seconds of its requests, by the status of the answer."""

        self._again = again
        self._query: _QueryPart | None = None
        self._body: _BodyPart | None = None
        self._read_signature(endpoint)
        self.app = self._serve_request if self.takes_request else self._serve

    def _read_signature(self, endpoint: Endpoint) -> None:
        for name, parameter in inspect.signature(endpoint, eval_str=True).parameters.items():
            annotation = parameter.annotation
            if annotation is Request:
                self.takes_request = True
            elif query_model := _query_model(annotation):
                self._query = _QueryPart(name, query_model)
            elif name not in self.param_convertors:
                self._body = _BodyPart(name, annotation, parameter.default)

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response = await self._call(Request(scope, receive))
        await response(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        arguments: dict[str, Any] = dict(scope["path_params"])
        if self._query is not None:
            arguments[self._query.name] = self._query.parse(scope["query_string"])
        if self._body is not None:
            raw = await read_body(scope, receive)
            arguments[self._body.name] = self._body.parse(raw, header(scope, b"content-type"))
        again = header(scope, _AGAIN) is not None
        call = self._again if again and self._again is not None else self._call
        with share_objects():  # what came as bytes belongs to nobody else, and leaves as bytes
            if self.replays is not None and (key := header(scope, KEY_HEADER)) is not None:
                reply = await self.replays.once(
                    scope["path"],
                    key,
                    lambda: self._reply(call, arguments),
                    sent_again=again,
                )
            elif self.waiting is not None:
                result = await self.waiting.wait(call(**arguments), receive)
                reply = Reply(self.success_status, dump(result))
            else:
                reply = await self._reply(call, arguments)
        await send_reply(scope, send, reply)

    async def _reply(self, call: Endpoint, arguments: dict[str, Any]) -> Reply:
        result = await call(**arguments)
        if is_long_page(result):
            body, *rest = await dump_in_slices(result)
            return Reply(self.success_status, body, rest=rest)
        return Reply(self.success_status, dump(result))


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _query_model(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is not Annotated:
        return None
    kind, *metadata = get_args(annotation)
    return kind if any(isinstance(item, params.Query) for item in metadata) else None


def _is_json(content_type: str | None) -> bool:
    if content_type == "application/json":
        return True
    main, _, sub = (content_type or "").partition(";")[0].strip().lower().partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))


def _problem(kind: str, message: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "loc": ("body",), "msg": message, "input": value}


def _not_json(raw: bytes) -> dict[str, Any]:
    return _problem(
        "model_attributes_type",
        "Input should be a valid dictionary or object to extract fields from",
        raw.decode("utf-8", "replace"),
    )


@dataclass(frozen=True, slots=True)
class Match:
    """What a path is. ``route`` is ``None`` when the path does not take this method."""

    template: str
    route: WireRoute | None = None
    path_params: dict[str, str] = field(default_factory=dict[str, str])
    allow: str = ""


@dataclass(slots=True)
class _Template:
    segments: tuple[str, ...]
    template: str
    routes: dict[str, WireRoute] = field(default_factory=dict[str, WireRoute])
    fixed: dict[str, Match] = field(default_factory=dict[str, Match])
    """By method, for a path without parameters."""

    def params(self, segments: list[str]) -> dict[str, str] | None:
        found: dict[str, str] = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted[:1] == "{" and given:
                found[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return found


class RouteIndex:
    """Finds the route of a path without trying them all; fixed paths win over templates."""

    def __init__(self, routes: Sequence[WireRoute]) -> None:
        """Take routes in; the first one of a path and method wins."""
        self._fixed: dict[str, _Template] = {}
        self._open: dict[int, list[_Template]] = {}
        self.routes = tuple(routes)
        for route in routes:
            entry = self._entry(route.path)
            entry.routes.setdefault(route.method, route)
            entry.fixed.setdefault(route.method, Match(route.path, route))

    def _entry(self, path: str) -> _Template:
        segments = tuple(path.split("/"))
        if "{" not in path:
            return self._fixed.setdefault(path, _Template(segments, path))
        same_length = self._open.setdefault(len(segments), [])
        for entry in same_length:
            if entry.template == path:
                return entry
        same_length.append(_Template(segments, path))
        return same_length[-1]

    def resolve(self, scope: Mapping[str, Any]) -> Match | None:
        """The match of a request; ``None`` for a path nobody declared here."""
        method: str = scope["method"]
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        fixed = self._fixed.get(path)
        if fixed is not None and (match := fixed.fixed.get(method)) is not None:
            return match
        return self._resolve_open(method, _segments(scope, path), fixed)

    def _resolve_open(
        self, method: str, segments: list[str], fixed: _Template | None
    ) -> Match | None:
        others = [fixed] if fixed is not None else []
        for entry in self._open.get(len(segments), ()):
            found = entry.params(segments)
            if found is None:
                continue
            if method in entry.routes:
                return Match(entry.template, entry.routes[method], found)
            others.append(entry)
        if not others:
            return None
        methods = sorted({name for entry in others for name in entry.routes})
        return Match(others[0].template, allow=", ".join(methods))


def _segments(scope: Mapping[str, Any], path: str) -> list[str]:
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return path.split("/")
    prefix: str = scope.get("root_path", "")  # an id may hold a slash, so split before unquoting
    return [unquote(part) for part in raw.decode("latin-1").removeprefix(prefix).split("/")]


def match_of(scope: MutableMapping[str, Any]) -> Match | None:
    """The match that the outermost middleware found."""
    return scope[MATCH_KEY]
