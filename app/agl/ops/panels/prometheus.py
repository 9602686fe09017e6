"""The one way to Prometheus: six read-only endpoints, with limits on time, points and size."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import aiohttp

from agl.ops.panels.steps import MAX_POINTS
from agl.ops.panels.timerange import MAX_RANGE, TimeRange
from agl.ops.shapes import items, mapping, texts

T = TypeVar("T")
Kind = Literal["down", "query", "limit"]

ENDPOINTS = {
    "query": "POST",
    "query_range": "POST",
    "labels": "GET",
    "label_values": "GET",
    "series": "GET",
    "rules": "GET",
    "alerts": "GET",
}
"""Everything that is ever asked of Prometheus; ``label_values`` is ``/label/NAME/values``."""


class PrometheusError(Exception):
    """Prometheus has not given what was asked for.

    Attributes:
        kind: ``down`` (no answer), ``query`` (it refused the query), ``limit`` (one of ours).
    """

    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """What one question may cost.

    Attributes:
        seconds: Time Prometheus may take, connecting included.
        answer_bytes: Size of an answer.
        expression: Characters of a query.
        at_once: Questions under way at once; more wait for their turn.
        remembered: Seconds for which an answer is given again to the same question.
    """

    seconds: float = 30.0
    answer_bytes: int = 64 << 20
    expression: int = 20_000
    at_once: int = 8
    remembered: float = 2.0


@dataclass(frozen=True)
class Series:
    """One series; ``values[i]`` is at ``start + i * step``, ``None`` where there is none.

    Infinite values are the texts ``+Inf`` and ``-Inf``, since JSON has no number for them.
    """

    labels: dict[str, str]
    values: list[float | str | None]


@dataclass(frozen=True)
class Answer:
    """Series of a query, and what Prometheus warned of."""

    series: list[Series]
    warnings: list[str] = field(default_factory=list[str])


@dataclass
class PrometheusReader:
    """Asks one Prometheus. Use it within one event loop; close the session yourself.

    Attributes:
        url: Where Prometheus is, with its path prefix if it has one.
        session: What to ask with.
        limits: What a question may cost.
    """

    url: str
    session: aiohttp.ClientSession
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        self._turn = asyncio.Semaphore(self.limits.at_once)
        self._kept: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    async def range(self, expression: str, span: TimeRange, step: float) -> Answer:
        """The series of ``expression`` over ``span``. Raises PrometheusError."""
        points = math.floor(span.seconds / step) + 1
        if points > MAX_POINTS:
            raise PrometheusError(
                f"{points} points are more than the {MAX_POINTS} of one query", "limit"
            )
        if span.seconds > MAX_RANGE + step:
            raise PrometheusError(f"more than {MAX_RANGE / 86400:.0f} days", "limit")
        parameters = {
            "query": self._checked(expression),
            "start": _number(span.start),
            "end": _number(span.end),
            "step": _number(step),
        }

        def read(data: Any) -> list[Series]:
            return _matrix(mapping(data), span.start, step, points)

        return Answer(*await self._ask("query_range", parameters, read))

    async def instant(self, expression: str, at: float) -> Answer:
        """The value of every series at one moment. Raises PrometheusError."""
        parameters = {"query": self._checked(expression), "time": _number(at)}
        return Answer(*await self._ask("query", parameters, _vector))

    async def clock(self) -> float:
        """Prometheus' own time, in seconds since the epoch. Raises PrometheusError."""
        found, _ = await self._ask("query", {"query": "time()"}, _vector)
        return float(found[0].values[0] or 0)

    async def label_names(self, span: TimeRange, matcher: str = "") -> list[str]:
        """All label names. Raises PrometheusError."""
        parameters = {**_rounded(span), **({"match[]": matcher} if matcher else {})}
        found, _ = await self._ask("labels", parameters, _texts)
        return found

    async def label_values(self, label: str, span: TimeRange, matcher: str = "") -> list[str]:
        """Values of one label, of the series that ``matcher`` selects. Raises PrometheusError."""
        if not label.replace("_", "a").isalnum() or not label.isascii():
            raise PrometheusError(f"{label[:40]!r} is not a label's name", "query")
        parameters = {**_rounded(span), **({"match[]": matcher} if matcher else {})}
        found, _ = await self._ask("label_values", parameters, _texts, label)
        return found

    async def series(self, matcher: str, span: TimeRange) -> list[dict[str, str]]:
        """Labels of the series that ``matcher`` selects. Raises PrometheusError."""
        parameters = {**_rounded(span), "match[]": self._checked(matcher)}
        found, _ = await self._ask("series", parameters, items)
        return found

    async def rules(self) -> list[dict[str, Any]]:
        """The groups of rules. Raises PrometheusError."""
        found, _ = await self._ask("rules", {}, lambda data: items(mapping(data)["groups"]))
        return found

    async def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing now. Raises PrometheusError."""
        found, _ = await self._ask("alerts", {}, lambda data: items(mapping(data)["alerts"]))
        return found

    def _checked(self, expression: str) -> str:
        if not expression.strip():
            raise PrometheusError("the query is empty", "query")
        if len(expression) > self.limits.expression:
            raise PrometheusError(
                f"the query has {len(expression)} characters, more than the"
                f" {self.limits.expression} that are allowed; select fewer values above",
                "limit",
            )
        return expression

    async def _ask(
        self,
        endpoint: str,
        parameters: Mapping[str, str],
        read: Callable[[Any], T],
        label: str = "",
    ) -> tuple[T, list[str]]:
        """The answer, asked once for everybody who asks the same at the same time."""
        key = json.dumps([endpoint, label, parameters], sort_keys=True)
        now = time.monotonic()
        self._kept = {
            name: kept for name, kept in self._kept.items() if kept[0] > now or not kept[1].done()
        }
        if key not in self._kept:
            task = asyncio.ensure_future(self._fetch(endpoint, parameters, read, label))
            task.add_done_callback(_looked_at)
            self._kept[key] = (now + self.limits.remembered, task)
        # One who hangs up does not take the answer from the others.
        return await asyncio.shield(cast("Awaitable[tuple[T, list[str]]]", self._kept[key][1]))

    async def _fetch(
        self, endpoint: str, parameters: Mapping[str, str], read: Callable[[Any], T], label: str
    ) -> tuple[T, list[str]]:
        path = f"label/{label}/values" if endpoint == "label_values" else endpoint
        method = ENDPOINTS[endpoint]
        in_body = method == "POST"
        try:
            async with (
                self._turn,
                asyncio.timeout(self.limits.seconds),
                self.session.request(
                    method,
                    f"{self.url}/api/v1/{path}",
                    allow_redirects=False,
                    data=parameters if in_body else None,
                    params=None if in_body else parameters,
                ) as response,
            ):
                body = await self._body(response)
                status = response.status
        except TimeoutError:
            raise PrometheusError(
                f"Prometheus took longer than {self.limits.seconds:g} s; choose a shorter range or"
                " select less",
                "limit",
            ) from None
        except (aiohttp.ClientError, OSError) as exc:
            raise PrometheusError(f"Prometheus does not answer: {_reason(exc)}", "down") from exc
        # Large answers are read beside the event loop, which serves everybody.
        return await asyncio.to_thread(_judged, status, body, read)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > self.limits.answer_bytes:
                raise PrometheusError(
                    f"the answer is larger than {self.limits.answer_bytes >> 20} MiB; choose a"
                    " shorter range or select less",
                    "limit",
                )
        return bytes(body)


def _looked_at(task: asyncio.Future[Any]) -> None:
    """An error nobody waits for any more is no news for the log."""
    if not task.cancelled():
        task.exception()


def _judged(status: int, body: bytes, read: Callable[[Any], T]) -> tuple[T, list[str]]:
    try:
        answer = mapping(json.loads(body))
    except ValueError:
        answer = {}
    if answer.get("status") == "error":
        raise PrometheusError(str(answer.get("error") or "no reason given"), "query")
    if status != 200 or answer.get("status") != "success":
        raise PrometheusError(f"Prometheus answered {status}, which is no result", "down")
    try:
        result = read(answer.get("data"))
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise PrometheusError("what answered is not Prometheus' API", "down") from exc
    return result, texts(answer.get("warnings"))


def _texts(data: Any) -> list[str]:
    return texts(data)


def _matrix(data: dict[str, Any], start: float, step: float, points: int) -> list[Series]:
    if data.get("resultType") != "matrix":
        raise PrometheusError(f"a {data.get('resultType')} cannot be drawn over time", "query")
    found: list[Series] = []
    for item in items(data["result"]):
        values: list[float | str | None] = [None] * points
        samples: list[list[Any]] = item.get("values") or []
        for moment, text in samples:
            index = round((moment - start) / step)
            if 0 <= index < points:
                values[index] = _value(text)
        if samples:
            found.append(Series(_labels(item), values))
        elif item.get("histograms"):
            raise PrometheusError(
                "native histograms cannot be drawn; use histogram_quantile or histogram_count",
                "query",
            )
    return found


def _vector(data: Any) -> list[Series]:
    data = mapping(data)
    kind, result = data.get("resultType"), data.get("result")
    if kind in {"scalar", "string"} and isinstance(result, list):
        return [Series({}, [_value(cast("list[Any]", result)[1])])]
    if kind != "vector":
        raise PrometheusError(f"a {kind} has no value at one moment", "query")
    return [
        Series(_labels(item), [_value(item["value"][1])])
        for item in items(result)
        if "value" in item
    ]


def _labels(item: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in mapping(item.get("metric")).items()}


def _value(text: str) -> float | str | None:
    value = float(text)
    if math.isnan(value):
        return None
    return text if math.isinf(value) else value


def _number(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _rounded(span: TimeRange) -> dict[str, str]:
    """Whole minutes, so that the values of variables are asked for once a minute at most."""
    return {
        "start": str(math.floor(span.start / 60) * 60),
        "end": str(math.ceil(span.end / 60) * 60),
    }


def _reason(exc: Exception) -> str:
    if isinstance(exc, aiohttp.ClientConnectorError):
        number = exc.os_error.errno
        told = os.strerror(number) if number and number > 0 else str(exc.os_error)
        return f"{exc.host}:{exc.port}: {told}"
    return str(exc) or type(exc).__name__
