"""The rollout document: a rollout, all its attempts, its place in the queue and its deadline.

It is the unit of atomicity. A decision is one read of it and one compare-and-set: the update
matches only the version that was read and writes absolute values, so it can be sent twice.

=================  =============================================================================
``attempts``       documents of the attempts, in the order in which they were started; never
                   shortened, so the place of an attempt is its name
``queued_at``      when it entered the queue last: its place there, while its status is waiting
``deadline``       when the watchdog has to look at it, or null
``running_since``  when its latest attempt began, or null unless it is under way
``lacks_spans``    true until it has had a span; missing where nobody knows
``lacks_reward``   the same for a span with a reward
``version``        token of the last decision; heartbeats do not change it
``previous``       tokens before it, by which a decision sent twice is recognised
``request``        mark of the request that started the latest attempt; missing where it had no key
``told``           the latest attempt whose claim was told when it was asked for again
``finish``         written with a status that finishes it, for those who follow the change stream
=================  =============================================================================

Documents of agent-lightning 0.3 have none of these. Their attempts come from a collection of their
own and are embedded with the first decision; without ``queued_at`` they are first in the queue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, cast

from bson import ObjectId

from agl.store.collection.mongo.documents import (
    WRAPPED_KEY,
    from_document,
    model_fields,
    sealed,
    some_fields,
)
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.single_write import Write
from agl.store.collection.writes import WriteBatch
from agl.types import (
    ENDED_STATUSES,
    FINISHED_STATUSES,
    QUEUING_STATUSES,
    Attempt,
    Rollout,
    RolloutMode,
    RolloutStatus,
)
from agl.types.state import JUDGED_STATUSES, mode_name
from agl.utils.ownership import replace
from agl.utils.request_ids import request_ids

ROLLOUTS = "rollouts"
LIGHT: Mapping[str, int] = {"input": 0, "metadata": 0}
"""Projection for decisions that hand out no rollout."""

_ROLLOUT_FIELDS = tuple(Rollout.model_fields)
_NOTES = (
    "queued_at",
    "deadline",
    "running_since",
    "request",
    "told",
    "lacks_spans",
    "lacks_reward",
)
_HEARTBEAT = ("last_heartbeat_time",)
_TOKENS_KEPT = 6
_SHOWS_LIFE_ONLY = ["running", *sorted(ENDED_STATUSES), "timeout"]
"""What may become of a running attempt, without its heartbeat meaning anything else then."""

_UNSET = object()

_clock_mutex = threading.Lock()
_last_tick = 0.0
_TICK = 1e-6


def tick() -> float:
    """Seconds since the epoch; later than every other tick of this process."""
    global _last_tick
    with _clock_mutex:
        _last_tick = max(time.time(), _last_tick + _TICK)
        return _last_tick


class Root:
    """A rollout document as it was read."""

    __slots__ = (
        "attempts",
        "deadline",
        "document_id",
        "embedded",
        "lacks_reward",
        "lacks_spans",
        "light",
        "previous",
        "queued_at",
        "request",
        "rollout",
        "running_since",
        "told",
        "version",
    )

    def __init__(
        self,
        document: Mapping[str, Any],
        attempts: Sequence[Attempt] | None = None,
        rollout: Rollout | None = None,
    ) -> None:
        self.document_id: ObjectId = document["_id"]
        self.version: str | None = document.get("version")
        self.previous: list[str] = document.get("previous", [])
        self.queued_at: float | None = document.get("queued_at")
        self.deadline: Any = document.get("deadline", _UNSET)
        self.running_since: Any = document.get("running_since", _UNSET)
        self.request: str | None = document.get("request")
        self.told: str | None = document.get("told")
        self.lacks_spans: bool = document.get("lacks_spans", False)
        self.lacks_reward: bool = document.get("lacks_reward", False)
        self.embedded = "attempts" in document
        self.light = "input" not in document
        self.rollout = _rollout(document) if rollout is None else rollout
        found = attempts if attempts is not None else _attempts(document)
        self.attempts = found

    def without_input(self) -> Root:
        """The same without input and metadata of the rollout, as a light read has it."""
        if self.light:
            return self
        light = copy(self)
        light.light = True
        light.rollout = replace(self.rollout, input=None, metadata=None)
        return light

    def heard(self, attempt_id: str, when: float) -> Root:
        """The same after a heartbeat, unless it has a later one."""
        place = self.place(attempt_id)
        if place is None or (self.attempts[place].last_heartbeat_time or 0.0) >= when:
            return self
        later = copy(self)
        later.attempts = list(self.attempts)
        later.attempts[place] = replace(self.attempts[place], last_heartbeat_time=when)
        return later

    @property
    def rollout_id(self) -> str:
        return self.rollout.rollout_id

    @property
    def latest(self) -> Attempt | None:
        """The attempt with the highest sequence id; the later one of equals."""
        if not self.attempts:
            return None
        last = self.attempts[-1]
        if len(self.attempts) == 1 or self.attempts[-2].sequence_id < last.sequence_id:
            return last
        return max(reversed(self.attempts), key=lambda attempt: attempt.sequence_id)

    def place(self, attempt_id: str) -> int | None:
        """Where an attempt is in the array."""
        for place in range(len(self.attempts) - 1, -1, -1):
            if self.attempts[place].attempt_id == attempt_id:
                return place
        return None

    def attempt(self, attempt_id: str) -> Attempt | None:
        place = self.place(attempt_id)
        return None if place is None else self.attempts[place]

    def shows(self, token: str) -> bool:
        """Whether the decision with this token was carried out."""
        return token == self.version or token in self.previous


def _rollout(document: Mapping[str, Any]) -> Rollout:
    values = {name: document[name] for name in _ROLLOUT_FIELDS if name in document}
    values.setdefault("input", None)  # left out of the projection
    if WRAPPED_KEY in document:
        values[WRAPPED_KEY] = True
    return from_document(values, Rollout)


def _attempts(document: Mapping[str, Any]) -> list[Attempt]:
    found = cast("list[Mapping[str, Any]]", document.get("attempts", []))
    return [from_document(one, Attempt) for one in found]


def new_token() -> str:
    return os.urandom(9).hex()


class Pace(NamedTuple):
    """What the clock does to a rollout under way."""

    deadline: float | None
    running_since: float | None


NOT_UNDER_WAY = Pace(None, None)


class Creation:
    """A rollout that is to be stored, with its attempts."""

    def __init__(self, partition_id: str, rollout: Rollout) -> None:
        self.rollout = rollout
        self.document_id = new_id()
        self.attempts: list[Attempt] = []
        self.queued_at: float | None = None
        self.pace = NOT_UNDER_WAY
        self._fresh: dict[str, Any] = {
            "_id": self.document_id,
            "partition_id": partition_id,
            "lacks_spans": True,
            "lacks_reward": True,
            "version": new_token(),
            "previous": [],
        }

    def write(self) -> Write:
        """The insert.

        Raises:
            InvalidRequestError: it cannot be stored, or is too large.
        """
        document: dict[str, Any] = {
            **self._fresh,
            **model_fields(self.rollout),
            "attempts": [model_fields(attempt) for attempt in self.attempts],
            **self._paced(),
        }
        raw = sealed(document, f"Rollout {self.rollout.rollout_id}")
        return Write(ROLLOUTS, raw, size=len(raw.raw))

    def _paced(self) -> dict[str, float | None]:
        return {"queued_at": self.queued_at, **self.pace._asdict()}

    def after(self) -> Root:
        """The document once it is stored."""
        known: dict[str, Any] = {**self._fresh, **self._paced(), "attempts": (), "input": None}
        return Root(known, self.attempts, self.rollout)

    def delta(self) -> dict[str, int]:
        return _figures(self.rollout.status, self.rollout.mode, self.attempts, True, True)


class SignOfLife(NamedTuple):
    """A heartbeat."""

    write: Write
    attempt: Attempt
    """As it was read."""

    when: float | None


class Decision:
    """What one decision changes in a stored rollout document."""

    def __init__(self, partition_id: str, root: Root) -> None:
        self._partition_id = partition_id
        self.root = root
        self.token = new_token()
        self._rollout = root.rollout
        self._attempts = list(root.attempts)
        self._sets: dict[str, Any] = {}
        self._beats: dict[int, float | None] = {}
        self._lacks_spans = root.lacks_spans
        self._lacks_reward = root.lacks_reward
        self._whole_attempts = False
        self.guards_heartbeat = False
        """Refuse to decide if the latest attempt has shown life in the meantime."""

    @property
    def compares(self) -> bool:
        """Whether it changes more than heartbeats."""
        return bool(self._sets) or self._whole_attempts

    def change_rollout(self, rollout: Rollout, fields: Sequence[str]) -> None:
        self._sets.update(some_fields(rollout, fields))
        values = {field: getattr(rollout, field) for field in fields}
        self._rollout = replace(self._rollout, **values)

    def change_attempt(self, attempt: Attempt, fields: Sequence[str]) -> None:
        place = self.root.place(attempt.attempt_id)
        if place is None:
            raise LookupError(f"{attempt.attempt_id} is no attempt of {self.root.rollout_id}")
        values = {field: getattr(attempt, field) for field in fields}
        self._attempts[place] = replace(self._attempts[place], **values)
        if not self.root.embedded:
            self._whole_attempts = True
        elif tuple(fields) == _HEARTBEAT:
            self._beats[place] = attempt.last_heartbeat_time
        else:
            self._set_attempt(place, some_fields(attempt, fields))

    def _set_attempt(self, place: int, values: Mapping[str, Any]) -> None:
        self._sets.update({f"attempts.{place}.{name}": value for name, value in values.items()})

    def add_attempt(self, attempt: Attempt) -> None:
        self._attempts.append(attempt)
        if self.root.embedded:
            self._sets[f"attempts.{len(self._attempts) - 1}"] = model_fields(attempt)
        else:
            self._whole_attempts = True
        ids = request_ids()
        mark = None if ids is None else ids.mark
        if mark != self.root.request:
            self._sets["request"] = mark

    def enter_queue(self) -> None:
        """Take a place at the end of the queue, unless it waits there already."""
        if self.root.rollout.status not in QUEUING_STATUSES:
            self._sets["queued_at"] = tick()

    def tell(self) -> None:
        """Note that somebody is told of the latest attempt."""
        if self.root.latest is not None:
            self._sets["told"] = self.root.latest.attempt_id

    def set_pace(self, pace: Pace) -> None:
        if pace.deadline != self.root.deadline:
            self._sets["deadline"] = pace.deadline
        if pace.running_since != self.root.running_since:
            self._sets["running_since"] = pace.running_since

    def had_span(self, *, reward: bool) -> None:
        """Note the first span, and the first with a reward."""
        if self._lacks_spans:
            self._lacks_spans = self._sets["lacks_spans"] = False
        if reward and self._lacks_reward:
            self._lacks_reward = self._sets["lacks_reward"] = False

    def write(self) -> Write:
        """The update.

        Raises:
            InvalidRequestError: it cannot be stored, or is too large.
        """
        root = self.root
        values = dict(self._sets)
        if self._whole_attempts:
            values["attempts"] = [model_fields(attempt) for attempt in self._attempts]
        else:
            for place, when in self._beats.items():
                values[f"attempts.{place}.last_heartbeat_time"] = when
        if root.deadline is _UNSET:
            values.setdefault("deadline", None)
        values["version"] = self.token
        values["previous"] = self._previous()
        if self._rollout.status in FINISHED_STATUSES and "status" in self._sets:
            values["finish"] = {
                "partition_id": self._partition_id,
                "rollout_id": root.rollout_id,
                "version": self.token,
            }
        match: dict[str, Any] = {
            "_id": root.document_id,
            "version": {"$in": [root.version, self.token]},
        }
        if self.guards_heartbeat and root.embedded and root.latest is not None:
            place = root.place(root.latest.attempt_id)
            match[f"attempts.{place}.last_heartbeat_time"] = root.latest.last_heartbeat_time
        raw = sealed({"$set": values}, f"Rollout {root.rollout_id}")
        return Write(ROLLOUTS, raw, match, size=len(raw.raw))

    def _previous(self) -> list[str]:
        return [v for v in (self.root.version, *self.root.previous) if v][:_TOKENS_KEPT]

    def after(self) -> Root:
        """The document once this is written."""
        after = copy(self.root)
        after.version, after.previous = self.token, self._previous()
        after.embedded = after.embedded or self._whole_attempts
        after.rollout = self._rollout
        after.attempts = self._attempts
        for place, when in self._beats.items():
            if self._attempts[place].last_heartbeat_time != when:
                self._attempts[place] = replace(self._attempts[place], last_heartbeat_time=when)
        for name in _NOTES:
            setattr(after, name, self._sets.get(name, getattr(after, name)))
        return after

    def beat_key(self, place: int) -> Hashable:
        """By which heartbeats of an attempt are joined."""
        return self.root.document_id, place, self.root.attempts[place].status

    def add_heartbeat(self, place: int, when: float) -> None:
        """Note a heartbeat that came before the decision, unless that has a later one."""
        field = f"attempts.{place}.last_heartbeat_time"
        stored = self.root.attempts[place].last_heartbeat_time
        if self._whole_attempts or field in self._sets or place in self._beats:
            return
        if stored is None or stored < when:
            self._beats[place] = when

    def _sign_of_life(self, place: int, when: float | None) -> Write:
        path = f"attempts.{place}"
        status = self.root.attempts[place].status
        field = f"{path}.last_heartbeat_time"
        same = status if status != "running" else {"$in": _SHOWS_LIFE_ONLY}
        return Write(
            ROLLOUTS,
            {"$set": {field: when}},
            {"_id": self.root.document_id, f"{path}.status": same},
            merge=self.beat_key(place),
            again={"$max": {field: when}},
        )

    def signs_of_life(self) -> list[SignOfLife]:
        """One update for each attempt that showed life, where nothing else changes."""
        return [
            SignOfLife(self._sign_of_life(place, when), self.root.attempts[place], when)
            for place, when in self._beats.items()
        ]

    def delta(self) -> dict[str, int]:
        """How the totals change."""
        root = self.root
        before = _figures(
            root.rollout.status,
            root.rollout.mode,
            root.attempts,
            root.lacks_spans,
            root.lacks_reward,
        )
        after = _figures(
            self._rollout.status,
            self._rollout.mode,
            self._attempts,
            self._lacks_spans,
            self._lacks_reward,
        )
        names = dict.fromkeys((*before, *after))
        changes = {name: after.get(name, 0) - before.get(name, 0) for name in names}
        return {name: number for name, number in changes.items() if number}


def _figures(
    status: RolloutStatus,
    mode: RolloutMode | None,
    attempts: Sequence[Attempt],
    lacks_spans: bool,
    lacks_reward: bool,
) -> dict[str, int]:
    """What one document adds to the totals; the names are those of ``totals.py``."""
    name = mode_name(mode)
    figures = {f"rollouts:{status}:{name}": 1}
    if attempts:
        figures["attempts"] = len(attempts)
        for attempt in attempts:
            key = f"attempts:{attempt.status}"
            figures[key] = figures.get(key, 0) + 1
            if attempt.sequence_id > 1:
                figures["retries"] = figures.get("retries", 0) + 1
    if status in JUDGED_STATUSES:
        if lacks_spans:
            figures[f"without_spans:{name}"] = 1
        if lacks_reward:
            figures[f"without_reward:{name}"] = 1
    return figures


class Decisions:
    """A batch of writes, sorted by the documents they belong to."""

    def __init__(
        self,
        partition_id: str,
        batch: WriteBatch,
        roots: Mapping[str, Root],
        paces: Mapping[str, Pace],
    ) -> None:
        self._partition_id = partition_id
        self._roots = roots
        self.creations: dict[str, Creation] = {}
        self.decisions: dict[str, Decision] = {}
        self._fill(batch)
        for rollout_id, pace in paces.items():
            if rollout_id in self.creations:
                self.creations[rollout_id].pace = pace
            elif rollout_id in roots:
                self._decision(rollout_id).set_pace(pace)

    def had_span(self, rollout_id: str, *, reward: bool) -> None:
        """Note a span that is stored with these writes, if it is the first of its kind."""
        root = self._roots[rollout_id]
        if root.lacks_spans or (reward and root.lacks_reward):
            self._decision(rollout_id).had_span(reward=reward)

    def _fill(self, batch: WriteBatch) -> None:
        for rollout in batch.new_rollouts:
            self.creations[rollout.rollout_id] = Creation(self._partition_id, rollout)
        for rollout_id in batch.enqueue:
            self.creations[rollout_id].queued_at = tick()
        for attempt in batch.new_attempts:
            creation = self.creations.get(attempt.rollout_id)
            if creation is not None:
                creation.attempts.append(attempt)
            else:
                self._decision(attempt.rollout_id).add_attempt(attempt)
        for fields, rollouts in batch.rollouts.items():
            for rollout in rollouts:
                self._decision(rollout.rollout_id).change_rollout(rollout, fields)
        for fields, attempts in batch.attempts.items():
            for attempt in attempts:
                self._decision(attempt.rollout_id).change_attempt(attempt, fields)
        for rollout_id in batch.requeue:
            self._decision(rollout_id).enter_queue()

    def _decision(self, rollout_id: str) -> Decision:
        decision = self.decisions.get(rollout_id)
        if decision is None:
            root = self._roots[rollout_id]
            decision = self.decisions[rollout_id] = Decision(self._partition_id, root)
        return decision
