"""One decision: what it reads, and through its base what it writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from agl.store.collection.base import KeyValue, LightningCollections
from agl.store.collection.mongo.collection import MongoBasedCollection
from agl.store.collection.mongo.key_value import MongoBasedKeyValue
from agl.store.collection.mongo.lane import Lane
from agl.store.collection.mongo.loader import roots_of
from agl.store.collection.mongo.roots import LIGHT, ROLLOUTS, Root
from agl.store.collection.mongo.section_writes import Call, SectionWrites
from agl.store.collection.mongo.views import AttemptView, QueueView, RootView
from agl.types import ResourcesUpdate, Span, Worker
from agl.utils.metrics import MetricsBackend

if TYPE_CHECKING:
    from agl.store.collection.mongo.collections import MongoLightningCollections

R = TypeVar("R")


class Section(SectionWrites, LightningCollections):
    """One decision: remembers the documents it reads and writes what is decided on them.

    Args:
        home: The collections.
        call: What all tries of one call remember.
        light: Read rollouts without their input; they are not handed out.
        remembers: Keep what was read; otherwise it is no section but a way to read.
        may_guess: Go by what is known of a document without reading it, where that is enough.
    """

    def __init__(
        self,
        home: MongoLightningCollections,
        call: Call,
        *,
        light: bool = False,
        remembers: bool = True,
        may_guess: bool = False,
    ) -> None:
        super().__init__(call)
        self._may_guess = may_guess
        self._guess_seconds = 0.0
        self._remembers = remembers
        self._home = home
        self._light = light
        self._remembered: dict[str, Root] = {}

    async def apply(self, change: Callable[[Section], Awaitable[R]]) -> R:
        """Carry out a change in this section, or outside of sections in one of its own."""
        if self._remembers:
            return await change(self)
        return await self._home.execute(lambda c: change(cast("Section", c)))

    async def lane(self) -> Lane:
        return await self._home.lane()

    # Reading

    async def root(self, rollout_id: str, *, light: bool = False) -> Root | None:
        """A rollout document, read at most once by this section."""
        known = self._remembered.get(rollout_id)
        light = light or self._light
        if known is not None and (light or not known.light):
            return known
        lane = await self.lane()
        guess = self._guess(lane, rollout_id) if light else None
        if guess is not None:
            return guess
        started = perf_counter()
        root = await lane.loader.load(rollout_id, light=light)
        self._home.note("get", ROLLOUTS, started)
        if root is not None:
            lane.known.learn(root)
            self.remember(root)
        return root

    def hand_out_no_rollout(self, guess_seconds: float) -> None:
        """Do without the input of rollouts; go by what was known of them so many seconds ago."""
        self._light = True
        self._guess_seconds = guess_seconds if self._may_guess else 0.0

    def _guess(self, lane: Lane, rollout_id: str) -> Root | None:
        if not self._guess_seconds or lane.combiner.by_collection:  # where each guard goes alone
            return None
        guess = lane.known.get(rollout_id, self._guess_seconds)
        if guess is not None:
            self.remember(guess)
            self.guessed.add(rollout_id)
        return guess

    async def roots(self, rollout_ids: Iterable[str], *, light: bool = False) -> dict[str, Root]:
        """Those of the documents that there are, in the order asked."""
        light = light or self._light
        ids = list(dict.fromkeys(rollout_ids))
        known = self._remembered
        unknown = [k for k in ids if k not in known or (known[k].light and not light)]
        lane = await self.lane()
        if light:
            unknown = [k for k in unknown if self._guess(lane, k) is None]
        found: dict[str, Root] = {}
        if unknown:
            started = perf_counter()
            found = await lane.loader.load_many(unknown, light=light)
            self._home.note("query", ROLLOUTS, started)
            for root in found.values():
                lane.known.learn(root)
                self.remember(root)
        result: dict[str, Root] = {}
        for key in ids:
            root = found.get(key) or known.get(key)
            if root is not None:
                result[key] = root
        return result

    async def all_roots(self) -> list[Root]:
        """All documents of the partition, in insertion order."""
        lane = await self.lane()

        async def read() -> list[Root]:
            cursor = lane.database[ROLLOUTS].find({"partition_id": lane.partition_id}, LIGHT)
            documents = await cursor.sort({"_id": 1}).to_list()
            return await roots_of(lane.database, lane.partition_id, documents)

        return await lane.reading(read)

    def remember(self, root: Root) -> None:
        """Take note of a document that was read on the way."""
        if self._remembers:
            self.guessed.discard(root.rollout_id)
            self._remembered[root.rollout_id] = root

    async def remember_legacy(self, documents: Sequence[dict[str, Any]]) -> None:
        """Take note of documents of 0.3, whose attempts are elsewhere."""
        lane = await self.lane()
        for root in await lane.reading(
            lambda: roots_of(lane.database, lane.partition_id, documents)
        ):
            self.remember(root)

    def known_roots(self) -> Mapping[str, Root]:
        return self._remembered

    def forget(self, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            self._remembered.pop(rollout_id, None)

    # Collections

    @property
    def tracker(self) -> MetricsBackend | None:
        return self._home.tracker

    @property
    def rollouts(self) -> RootView:
        return self._rollouts

    @property
    def attempts(self) -> AttemptView:
        return self._attempts

    @property
    def rollout_queue(self) -> QueueView:
        return self._queue

    @property
    def spans(self) -> MongoBasedCollection[Span]:
        return self._home.spans

    @property
    def resources(self) -> MongoBasedCollection[ResourcesUpdate]:
        return self._home.resources

    @property
    def workers(self) -> MongoBasedCollection[Worker]:
        return self._home.workers

    @property
    def span_sequence_ids(self) -> KeyValue[str, int]:
        return self._numbers

    def home_numbers(self) -> MongoBasedKeyValue[str, int]:
        return self._home.span_sequence_ids

    def note(self, operation: str, collection: str, started: float) -> None:
        self._home.note(operation, collection, started)

    def atomic(self, **kwargs: Any) -> AbstractAsyncContextManager[Self]:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("sections do not nest")
