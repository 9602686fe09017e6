"""How a section writes what was decided in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, cast

from agl.errors import (
    BackendError,
    DuplicatedPrimaryKeyError,
    StoreError,
    TooLargeError,
)
from agl.store.collection.mongo.documents import model_fields, sealed, some_fields
from agl.store.collection.mongo.errors import TOO_LARGE_CODES, limit_exceeded
from agl.store.collection.mongo.heartbeats import Beat, may_wait
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.known_roots import guard
from agl.store.collection.mongo.lane import ConflictError, Lane
from agl.store.collection.mongo.numbers import SectionNumbers, mark, raised
from agl.store.collection.mongo.roots import ROLLOUTS, Creation, Decision, Decisions, Pace, Root
from agl.store.collection.mongo.single_write import Outcome, Write
from agl.store.collection.mongo.views import AttemptView, QueueView, RootView
from agl.store.collection.writes import Fields, WriteBatch
from agl.types import ResourcesUpdate, Span, Worker
from agl.types.span import has_reward

if TYPE_CHECKING:
    from agl.store.collection.mongo.section import Section

SpanKey = tuple[str, str, str]


class Call:
    """What all tries of one call remember."""

    __slots__ = ("stored",)

    def __init__(self) -> None:
        self.stored: set[SpanKey] = set()
        """Spans that an earlier try has stored."""


class _Outgoing:
    """Writes, and what to do with what becomes of each."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.checks: list[Callable[[Outcome], None]] = []
        self.delta: dict[str, int] = {}

    def add(self, write: Write, check: Callable[[Outcome], None]) -> None:
        self.writes.append(write)
        self.checks.append(check)

    def count(self, delta: Mapping[str, int]) -> None:
        for name, number in delta.items():
            self.delta[name] = self.delta.get(name, 0) + number


class _Results:
    """What became of the writes of one decision."""

    def __init__(self) -> None:
        self.error: StoreError | None = None
        self.undone: dict[str, int] = {}
        self.beaten: list[Decision] = []
        """Decisions whose document had another version; or they met their own work."""

        self.outdated = False
        """What was decided on is no longer so: a sign of life or a guard matched nothing."""

    def fail(self, error: StoreError, delta: Mapping[str, int]) -> None:
        self.error = self.error or error
        self.undo(delta)

    def undo(self, delta: Mapping[str, int]) -> None:
        for name, number in delta.items():
            self.undone[name] = self.undone.get(name, 0) + number


class SectionWrites:
    """The writing half of a section."""

    def __init__(self, call: Call) -> None:
        section = cast("Section", self)
        self._rollouts = RootView(section)
        self._attempts = AttemptView(section)
        self._queue = QueueView(section)
        self._numbers = SectionNumbers(section)
        self._call = call
        self._paces: dict[str, Pace] = {}
        self._numbers_to_raise: dict[str, int] = {}
        self._guards: list[Write] = []
        self._guards_heartbeat = False
        self.guessed: set[str] = set()
        """Rollouts whose documents have not been read for this, but were known."""

    @abstractmethod
    async def lane(self) -> Lane: ...

    @abstractmethod
    def known_roots(self) -> Mapping[str, Root]: ...

    @abstractmethod
    def forget(self, rollout_ids: Iterable[str]) -> None: ...

    @abstractmethod
    def note(self, operation: str, collection: str, started: float) -> None: ...

    # What belongs to the next write

    def plan_pace(self, rollout_id: str, pace: Pace) -> None:
        """When a rollout's attempt began and the watchdog has to look, as of the next write."""
        self._paces[rollout_id] = pace

    def guard_heartbeats(self) -> None:
        """Refuse what was decided on an attempt that has shown life in the meantime."""
        self._guards_heartbeat = True

    async def latest_resources_id(self, *, many: bool) -> str | None:
        """Id of the latest resources; for many rollouts as last seen, guarded by the next write."""
        head = (await self.lane()).head
        if not many:
            return await head.read()
        resources_id = await head.guess()
        self._guards.append(head.guard(resources_id))
        return resources_id

    def raise_number_later(self, rollout_id: str, number: int) -> None:
        """Have a span number raised with the spans that bring it, or at the end of the section."""
        self._numbers_to_raise[rollout_id] = number

    # Writing

    async def write(self, batch: WriteBatch) -> None:
        await self.write_with_spans(batch, ())

    async def write_with_spans(self, batch: WriteBatch, spans: Sequence[Span]) -> list[Span]:
        """Carry out a decision and store spans with it; returns those newly stored.

        Raises:
            ConflictError: another decision was faster.
            DuplicatedPrimaryKeyError: the id of a new rollout is taken.
            InvalidRequestError: a value cannot be stored, or is too large.
        """
        started = perf_counter()
        lane = await self.lane()
        decisions = Decisions(lane.partition_id, batch, self.known_roots(), self._paces)
        for span in spans:
            decisions.had_span(span.rollout_id, reward=has_reward(span))
        if len(decisions.creations) > 1:
            await self._create_together(lane, decisions)
            return []
        outgoing, results = _Outgoing(), _Results()
        new: dict[SpanKey, bool] = {}
        for creation in decisions.creations.values():
            _add_creation(lane, outgoing, results, creation)
        for decision in decisions.decisions.values():
            decision.guards_heartbeat = self._guards_heartbeat
            if decision.compares:
                _add_decision(lane, outgoing, results, decision)
            else:
                _add_signs_of_life(lane, outgoing, results, decision)
        for fields, workers in batch.workers.items():
            for worker in workers:
                outgoing.add(_worker_write(lane.partition_id, worker, fields), results_of(results))
        self._add_guards(outgoing, results, decisions)
        first = self._add_spans(lane, outgoing, results, spans, new)
        self._add_marks(lane, outgoing, results)
        if not outgoing.writes:  # an earlier try has stored the spans, their heartbeats wait
            self._numbers_to_raise.clear()
            return [span for key, span in first.items() if new.get(key)]
        outcomes = await lane.submit(outgoing.writes, outgoing.delta)
        for check, outcome in zip(outgoing.checks, outcomes, strict=True):
            check(outcome)
        await self._note_numbers(lane, new, first)
        await self._settle(lane, results)
        self.forget(decisions.decisions)
        self.note("write", ROLLOUTS, started)
        return [span for key, span in first.items() if new.get(key)]

    def _add_spans(
        self,
        lane: Lane,
        outgoing: _Outgoing,
        results: _Results,
        spans: Sequence[Span],
        new: dict[SpanKey, bool],
    ) -> dict[SpanKey, Span]:
        first: dict[SpanKey, Span] = {}
        for span in spans:
            first.setdefault(_key(span), span)
        for key, span in first.items():
            if key in self._call.stored:
                new[key] = True
                continue
            document = {
                "_id": new_id(),
                "partition_id": lane.partition_id,
                **model_fields(span),
            }
            raw = sealed(document, f"Span {span.span_id}")

            def check(outcome: Outcome, key: SpanKey = key) -> None:
                if outcome.inserted:
                    new[key] = True
                    self._call.stored.add(key)
                elif outcome.duplicate:
                    results.undo({"spans": 1})
                else:
                    results.fail(_error(outcome), {"spans": 1})

            outgoing.add(Write("spans", raw, size=len(raw.raw)), check)
            outgoing.count({"spans": 1})
        return first

    def _add_guards(self, outgoing: _Outgoing, results: _Results, decisions: Decisions) -> None:
        """Conditions on the documents that were not read and that no decision compares."""

        def check(outcome: Outcome) -> None:
            if outcome.code is not None:
                results.fail(_error(outcome), {})
            elif not outcome.matched:
                results.outdated = True

        for rollout_id in self.guessed:
            decision = decisions.decisions.get(rollout_id)
            if decision is None or not decision.compares:
                outgoing.add(guard(self.known_roots()[rollout_id]), check)

    async def _settle(self, lane: Lane, results: _Results) -> None:
        beaten = results.beaten
        if results.outdated:
            lane.known.forget(self.guessed)
        lane.known.forget(decision.root.rollout_id for decision in beaten)
        if beaten:
            beaten = await _not_carried_out(lane, beaten)
        for decision in beaten:
            results.undo(decision.delta())
        lane.totals.take_back({n: k for n, k in results.undone.items() if k})
        if results.error is not None:
            raise results.error
        if beaten or results.outdated:
            raise ConflictError
        self.guessed.clear()

    async def _create_together(self, lane: Lane, decisions: Decisions) -> None:
        """All or none, in one transaction."""
        writes = [*self._guards, *(one.write() for one in decisions.creations.values())]
        delta: dict[str, int] = {}
        for creation in decisions.creations.values():
            for name, number in creation.delta().items():
                delta[name] = delta.get(name, 0) + number
        try:
            await lane.transact(writes, delta)
        except ConflictError:
            lane.head.forget()
            raise

    def _add_marks(self, lane: Lane, outgoing: _Outgoing, results: _Results) -> None:
        """With the first span of a rollout: that its spans tell the highest number."""
        for rollout_id, number in self._numbers_to_raise.items():
            if lane.numbers.is_marked(rollout_id):
                continue

            def check(outcome: Outcome, rollout_id: str = rollout_id) -> None:
                if outcome.inserted or outcome.matched:
                    lane.numbers.learn_mark(rollout_id)
                elif not outcome.duplicate:
                    results.fail(_error(outcome), {})

            root = self.known_roots().get(rollout_id)
            if root is not None and not root.lacks_spans:  # it has a number, or a mark
                write = raised(lane.partition_id, rollout_id, number, marked=True)
            else:  # an insert costs a server less
                write = mark(lane.partition_id, rollout_id, number)
            outgoing.add(write, check)

    async def _note_numbers(
        self, lane: Lane, new: Mapping[SpanKey, bool], spans: Mapping[SpanKey, Span]
    ) -> None:
        """Raise the numbers that the stored spans do not tell."""
        dropped = {span.rollout_id for key, span in spans.items() if not new.get(key)}
        for rollout_id in list(self._numbers_to_raise):
            if lane.numbers.is_marked(rollout_id) and rollout_id not in dropped:
                del self._numbers_to_raise[rollout_id]
        await self.finish(marked=True)

    async def finish(self, *, marked: bool = False) -> None:
        """Raise the numbers that wait: they count even where the spans were refused."""
        numbers, self._numbers_to_raise = self._numbers_to_raise, {}
        if not numbers:
            return
        lane = await self.lane()
        writes = [raised(lane.partition_id, *one, marked=marked) for one in numbers.items()]
        await lane.submit(writes, {})
        for rollout_id, number in numbers.items():
            lane.numbers.learn(rollout_id, number)
            if marked:
                lane.numbers.learn_mark(rollout_id)

    async def put_resources(
        self, update: ResourcesUpdate, stored: ResourcesUpdate | None, request: str | None
    ) -> None:
        """Store resources and make them the latest, in one transaction.

        Args:
            update: What to store.
            stored: What it replaces.
            request: By which it is known again if the request comes once more.

        Raises:
            ConflictError: somebody else has written them since they were read.
        """
        lane = await self.lane()
        document = {
            "partition_id": lane.partition_id,
            **model_fields(update),
            "request": request,
        }
        what = f"Resources {update.resources_id}"
        if stored is None:
            write = Write("resources", sealed({"_id": new_id(), **document}, what))
        else:
            match = {
                "partition_id": lane.partition_id,
                "resources_id": update.resources_id,
                "version": stored.version,
            }
            write = Write("resources", sealed({"$set": document}, what), match)
        try:
            await lane.transact(
                [write, lane.head.move(update.resources_id, update.update_time)], {}
            )
        except DuplicatedPrimaryKeyError:
            raise ConflictError from None
        lane.head.moved(update.resources_id)


async def _not_carried_out(lane: Lane, beaten: Sequence[Decision]) -> list[Decision]:
    """Those of the decisions that really were beaten: a write sent twice may meet its own work."""
    ids = [decision.root.rollout_id for decision in beaten]
    now = await lane.loader.load_many(ids, light=True)
    return [
        decision
        for decision in beaten
        if (root := now.get(decision.root.rollout_id)) is None or not root.shows(decision.token)
    ]


def _key(span: Span) -> SpanKey:
    return span.rollout_id, span.attempt_id, span.span_id


def _error(outcome: Outcome) -> StoreError:
    if outcome.code in TOO_LARGE_CODES:
        return TooLargeError(limit_exceeded())
    return BackendError(f"MongoDB refused a write (code {outcome.code})")


def results_of(results: _Results) -> Callable[[Outcome], None]:
    """A check for writes that depend on nothing."""

    def check(outcome: Outcome) -> None:
        if outcome.code is not None:
            results.fail(_error(outcome), {})

    return check


def _add_creation(lane: Lane, outgoing: _Outgoing, results: _Results, creation: Creation) -> None:
    delta = creation.delta()

    def check(outcome: Outcome) -> None:
        if outcome.inserted:
            lane.loader.learn(creation.rollout.rollout_id, creation.document_id)
            lane.known.learn(creation.after())
            return
        if outcome.duplicate:
            rollout_id = creation.rollout.rollout_id
            taken = DuplicatedPrimaryKeyError(f"Rollout {rollout_id} is already stored")
            results.fail(taken, delta)
        else:
            results.fail(_error(outcome), delta)

    outgoing.add(creation.write(), check)
    outgoing.count(delta)


def _add_decision(lane: Lane, outgoing: _Outgoing, results: _Results, decision: Decision) -> None:
    delta = decision.delta()
    beats = _waiting_beats(lane, decision)

    def check(outcome: Outcome) -> None:
        if outcome.code is not None:
            results.fail(_error(outcome), delta)
        elif not outcome.matched:
            results.beaten.append(decision)
        else:
            lane.known.learn(decision.after())
        if not outcome.matched:
            for beat in beats:
                lane.heartbeats.put_back(beat, decision.root.rollout)

    outgoing.add(decision.write(), check)
    outgoing.count(delta)


def _waiting_beats(lane: Lane, decision: Decision) -> list[Beat]:
    """Heartbeats of the document that wait here: they are written with the decision."""
    if decision.guards_heartbeat:
        return []
    found: list[Beat] = []
    for place in range(len(decision.root.attempts)):
        beat = lane.heartbeats.take(decision.beat_key(place))
        if beat is not None:
            decision.add_heartbeat(place, beat.when)
            found.append(beat)
    return found


def _add_signs_of_life(
    lane: Lane, outgoing: _Outgoing, results: _Results, decision: Decision
) -> None:
    rollout = decision.root.rollout
    for write, attempt, when in decision.signs_of_life():
        stored = attempt.last_heartbeat_time

        def check(
            outcome: Outcome, attempt_id: str = attempt.attempt_id, when: float | None = when
        ) -> None:
            if outcome.code is not None:
                results.fail(_error(outcome), {})
            elif not outcome.matched:
                results.outdated = True
            elif when is not None:
                lane.known.heard(rollout.rollout_id, attempt_id, when)

        if when is not None and may_wait(lane.heartbeat_seconds, rollout, stored, when):
            beat = Beat(write, rollout.rollout_id, attempt.attempt_id, when)
            lane.heartbeats.later(beat, rollout)
        else:
            outgoing.add(write, check)


def _worker_write(partition_id: str, worker: Worker, fields: Fields) -> Write:
    values = model_fields(worker)
    changed = some_fields(worker, fields)
    new = {name: v for name, v in values.items() if name not in changed and name != "worker_id"}
    match = {"partition_id": partition_id, "worker_id": values["worker_id"]}
    update = {"$set": changed, "$setOnInsert": {"_id": new_id(), **new}}
    return Write("workers", update, match, upsert=True, merge=worker.worker_id)
