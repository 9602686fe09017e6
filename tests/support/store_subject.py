"""A store under test that is spoken to in tokens, so that several can be compared.

Real ids are replaced by ``ro-1``, ``at-1``, ``rs-1`` in the order in which they are first seen.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from agl.errors import InvalidRequestError
from agl.store.base import LightningStore
from agl.store.memory import InMemoryLightningStore
from agl.store.mongo import MongoLightningStore
from agl.types import (
    EnqueueRolloutRequest,
    NamedResources,
    PaginatedResult,
    RolloutConfig,
    Span,
)

Run = Callable[[Awaitable[Any]], Any]
Backend = InMemoryLightningStore | MongoLightningStore

_REAL_ID = re.compile(r"\b(ro|at|rs)-[0-9a-f]{8,12}\b")
_TOKEN = re.compile(r"^(ro|at|rs)-[0-9]{1,5}$")
_RESOURCES: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


class InjectedFault(Exception):
    """The backend failed because the test wanted it to."""


class Failure(str):
    """The outcome of a call that raised."""


class Faults:
    """Lets one call on the collections of a backend fail, before it does anything."""

    POINTS = (
        "rollouts.find",
        "rollouts.query",
        "attempts.find",
        "attempts.find_newest",
        "attempts.query",
        "workers.find",
        "rollout_queue.peek",
        "span_sequence_ids.inc_many",
        "span_sequence_ids.chmax_many",
        "spans.insert_missing",
        "resources.upsert",
        "write",
    )

    def __init__(self, backend: Backend) -> None:
        self.armed: str | None = None
        self.struck = False
        if isinstance(backend, InMemoryLightningStore):
            for point in self.POINTS:
                self._wrap(backend, point)

    def _wrap(self, backend: InMemoryLightningStore, point: str) -> None:
        owner: Any = backend.collections
        *path, name = point.split(".")
        for part in path:
            owner = getattr(owner, part)
        inner = getattr(owner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.armed == point:
                self.armed, self.struck = None, True
                raise InjectedFault(point)
            return await inner(*args, **kwargs)

        setattr(owner, name, call)


class Subject:
    """One store; ``run`` carries out a coroutine."""

    def __init__(self, store: LightningStore, backend: Backend, run: Run) -> None:
        self.store = store
        self.backend = backend
        self.faults = Faults(backend)
        self._run = run
        self._tokens: dict[str, str] = {}
        self._real: dict[str, str] = {}
        self._counts = {"ro": 0, "at": 0, "rs": 0}

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result in plain values and tokens, or a :class:`Failure`.

        Raises:
            InjectedFault: the one that was armed.
        """
        real_args = [self._to_real(method, "", value) for value in args]
        real_kwargs = {key: self._to_real(method, key, value) for key, value in kwargs.items()}
        try:
            result = self._run(getattr(self.store, method)(*real_args, **real_kwargs))
        except (ValidationError, InvalidRequestError):
            return Failure("invalid")
        except InjectedFault:
            raise
        except Exception as error:
            return Failure(f"{type(error).__name__}: {self._named(str(error))}")
        return self.plain(result)

    def content(self) -> dict[str, Any]:
        """Everything in the backend, read without waking the watchdog."""
        c = self.backend.collections
        content: dict[str, Any] = {
            name: self.plain(self._run(getattr(c, name).query()))["items"]
            for name in ("rollouts", "attempts", "spans", "workers", "resources")
        }
        content["queue"] = sorted(self._named(key) for key in self._run(c.rollout_queue.peek(9999)))
        return content

    def counters(self, rollout_ids: list[str]) -> dict[str, int]:
        """The span counters that exist."""
        c = self.backend.collections.span_sequence_ids
        found = {key: self._run(c.get(self._real.get(key, key))) for key in rollout_ids}
        return {key: number for key, number in found.items() if number is not None}

    def plain(self, value: Any) -> Any:
        """Without models and real ids."""
        if isinstance(value, PaginatedResult):
            return {"items": self.plain(list(value.items)), "total": value.total}
        if isinstance(value, BaseModel):
            return self.plain(value.model_dump())
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return self._named(value) if isinstance(value, str) else value

    def _named(self, text: str) -> str:
        return _REAL_ID.sub(lambda found: self._token(found[0]), text)

    def _token(self, real: str) -> str:
        if real not in self._tokens:
            kind = real[:2]
            self._counts[kind] += 1
            token = f"{kind}-{self._counts[kind]}"
            self._tokens[real], self._real[token] = token, real
        return self._tokens[real]

    def _to_real(self, method: str, key: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._real.get(value, value) if _TOKEN.match(value) else value
        if isinstance(value, list | tuple):
            return type(value)(self._to_real(method, key, item) for item in value)
        if not isinstance(value, dict):
            return value
        if key == "config":
            return RolloutConfig(**value)
        if "trace_id" in value:
            return Span(**{name: self._to_real("", "", item) for name, item in value.items()})
        if method in ("add_resources", "update_resources"):
            return _RESOURCES.validate_python(value)
        if method == "enqueue_many_rollouts":
            fields = {name: self._to_real("", name, item) for name, item in value.items()}
            return EnqueueRolloutRequest(**fields)
        return value
