"""Span numbers: the highest one given out or stored, for each rollout.

To raise a stored number with every span would cost a write of its own for each. So the first span
of a rollout that brings its own number leaves a *mark*, an insert that goes with the span; from
then on the spans themselves tell the highest number. Whoever asks for the next one of a marked
rollout looks at them, through an index. Rollouts whose numbers all come from here have no mark.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from agl.errors import InvalidRequestError
from agl.store.collection.base import KeyValue
from agl.store.collection.mongo.ids import new_id
from agl.store.collection.mongo.query import INT64
from agl.store.collection.mongo.single_write import Write

if TYPE_CHECKING:
    from agl.store.collection.mongo.lane import Lane
    from agl.store.collection.mongo.section import Section

NUMBERS = "span_sequence_ids"
MARK = "from_spans"
_MOST_KNOWN = 100_000


class KnownNumbers:
    """What one event loop knows of stored numbers, so that it need not write them again."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()
        self._marked: OrderedDict[str, None] = OrderedDict()

    def covers(self, rollout_id: str, number: int) -> bool:
        """Whether the stored number is at least this."""
        return self._known.get(rollout_id, -1) >= number

    def learn(self, rollout_id: str, number: int) -> None:
        """A number that is stored."""
        known = self._known
        known[rollout_id] = max(known.get(rollout_id, number), number)
        known.move_to_end(rollout_id)
        if len(known) > _MOST_KNOWN:
            known.popitem(last=False)

    def is_marked(self, rollout_id: str) -> bool:
        """Whether its spans are known to be asked for their numbers."""
        return rollout_id in self._marked

    def learn_mark(self, rollout_id: str) -> None:
        """A mark that is stored."""
        self._marked[rollout_id] = None
        if len(self._marked) > _MOST_KNOWN:
            self._marked.popitem(last=False)


def mark(partition_id: str, rollout_id: str, number: int) -> Write:
    """The mark of a rollout that has no number yet."""
    document = {
        "_id": new_id(),
        "partition_id": partition_id,
        "key": rollout_id,
        "value": number,
        MARK: True,
    }
    return Write(NUMBERS, document, merge=rollout_id)


def raised(partition_id: str, rollout_id: str, number: int, *, marked: bool = False) -> Write:
    """Raise a number; ``marked``: and mark the rollout."""
    update = {"$max": {"value": number}, "$setOnInsert": {"_id": new_id()}}
    if marked:
        update["$set"] = {MARK: True}
    match = {"partition_id": partition_id, "key": rollout_id}
    return Write(NUMBERS, update, match, upsert=True, merge=rollout_id)


class SectionNumbers(KeyValue[str, int]):
    """Span numbers: raising them waits for the next write of the section."""

    def __init__(self, section: Section) -> None:
        self._section = section

    async def has(self, key: str) -> bool:
        return await self._section.home_numbers().has(key)

    async def get(self, key: str, default: int | None = None) -> int | None:
        stored = await self._section.home_numbers().get(key)
        highest = await _highest(await self._section.lane(), key)
        known = [number for number in (stored, highest) if number is not None]
        return max(known, default=default)

    async def set(self, key: str, value: int) -> None:
        await self._section.home_numbers().set(key, value)

    async def inc(self, key: str, amount: int) -> int:
        return (await self.inc_many({key: amount}))[key]

    async def inc_many(self, amounts: Mapping[str, int]) -> Mapping[str, int]:
        lane = await self._section.lane()
        started = perf_counter()
        stored = await self._section.home_numbers().add_many(amounts)
        last: dict[str, int] = {}
        for key, document in stored.items():
            number = int(document["value"])
            if document.get(MARK):
                number = await self._above_spans(lane, key, number, amounts[key])
            lane.numbers.learn(key, number)
            last[key] = number
        self._section.note("inc", NUMBERS, started)
        return last

    async def _above_spans(self, lane: Lane, key: str, number: int, amount: int) -> int:
        """The last of ``amount`` numbers above all of stored spans; ``number`` where it is that."""
        highest = await _highest(lane, key)
        if highest is None or highest <= number - amount:
            return number
        wanted = highest + amount
        match = {"partition_id": lane.partition_id, "key": key, "value": number}
        update = {"$set": {"value": wanted}}
        result = await lane.reading(lambda: lane.database[NUMBERS].update_one(match, update))
        if result.matched_count:
            return wanted
        numbers = self._section.home_numbers()  # somebody else was given some in between
        await numbers.chmax(key, highest)
        return await numbers.inc(key, amount)

    async def chmax(self, key: str, value: int) -> int:
        return (await self.chmax_many({key: value}))[key]

    async def chmax_many(self, values: Mapping[str, int]) -> Mapping[str, int]:
        """As promised by the base, but for the result, which knows only of ``values``."""
        lane = await self._section.lane()
        for key, number in values.items():
            if lane.numbers.covers(key, number):
                continue
            if number not in INT64:
                raise InvalidRequestError(f"sequence_id must fit into 64 bits, not {number}")
            self._section.raise_number_later(_checked_key(key), number)
        return dict(values)

    async def pop(self, key: str, default: int | None = None) -> int | None:
        return await self._section.home_numbers().pop(key, default)

    async def size(self) -> int:
        return await self._section.home_numbers().size()


async def _highest(lane: Lane, rollout_id: str) -> int | None:
    """The highest number of a rollout's spans."""
    match = {"partition_id": lane.partition_id, "rollout_id": rollout_id}
    found = await lane.reading(
        lambda: lane.database["spans"].find_one(
            match, {"_id": 0, "sequence_id": 1}, sort=[("sequence_id", -1), ("_id", -1)]
        )
    )
    return None if found is None else found["sequence_id"]


def _checked_key(key: str) -> str:
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("rollout_id: it holds a lone surrogate") from None
    return key
