"""Operations on spans and their sequence numbers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from agl.errors import AttemptNotFoundError
from agl.store import rules
from agl.store._core import (
    LIFECYCLE,
    CollectionsT,
    Pair,
    StoreCore,
    conditions,
    sort_options,
)
from agl.store._plan import Plan
from agl.store.base import FilterLogic, SortOrder
from agl.store.collection.base import AtomicLabels, LightningCollections
from agl.store.collection.query import check_window, page, resolve_sort_options
from agl.store.operations import operation, step
from agl.types import FINISHED_STATUSES, Attempt, PaginatedResult, Span
from agl.utils.ownership import replace, sharing
from agl.utils.request_ids import sent_again

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

logger = logging.getLogger(__name__)

_ADD: tuple[AtomicLabels, ...] = (*LIFECYCLE, "spans", "span_sequence_ids")
_KEY = ("rollout_id", "attempt_id", "span_id")
_HEARTBEAT = ("last_heartbeat_time",)
_NUMBERS: tuple[AtomicLabels, ...] = ("span_sequence_ids",)


class SpanOperations(StoreCore[CollectionsT]):
    """Sequence numbers, adding spans, querying spans."""

    @operation
    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        (number,) = await self._issue_many_span_sequence_ids([rollout_id])
        return number

    @operation
    async def get_many_span_sequence_ids(
        self, rollout_attempt_ids: Sequence[tuple[str, str]]
    ) -> Sequence[int]:
        if not rollout_attempt_ids:
            return []
        return await self._issue_many_span_sequence_ids([pair[0] for pair in rollout_attempt_ids])

    @step
    async def _issue_many_span_sequence_ids(self, rollout_ids: Sequence[str]) -> list[int]:
        counts = Counter(rollout_ids)

        async def work(c: CollectionsT) -> list[int]:
            last = await c.span_sequence_ids.inc_many(counts)
            upcoming = {key: last[key] - count + 1 for key, count in counts.items()}
            numbers: list[int] = []
            for rollout_id in rollout_ids:
                numbers.append(upcoming[rollout_id])
                upcoming[rollout_id] += 1
            return numbers

        return await self._write_section(work, _NUMBERS, commit=False)

    @operation
    async def add_span(self, span: Span) -> Span | None:
        return span if await self._add_many_spans_helper([span]) else None

    @operation
    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        if not spans:
            return []
        return await self._add_many_spans_helper(spans)

    @operation
    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        if sequence_id is None:
            (sequence_id,) = await self._issue_many_span_sequence_ids([rollout_id])
        span = Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id)
        return span if await self._add_many_spans_helper([span]) else None

    @step
    async def _add_many_spans_helper(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Store spans; returns those of ``spans`` that are newly stored, in their order."""

        async def work(c: CollectionsT) -> Sequence[Span]:
            await c.span_sequence_ids.chmax_many(_highest_numbers(spans))
            attempts = await self._attempts_of_spans(c, spans)
            plan = Plan(self._now())
            await self._signs_of_life(c, plan, attempts)
            stored = await self._store_spans(c, spans, plan)
            await self._spans_stored(c, stored, attempts)
            return stored

        stored = await self._write_section(work, _ADD, commit=False)
        if len(stored) < len(spans):
            dropped = _dropped(spans, stored)
            if sent_again():
                dropped = await self._without_own(dropped, stored)
            self._report_duplicates(dropped)
        return stored

    async def _store_spans(
        self, c: CollectionsT, spans: Sequence[Span], plan: Plan
    ) -> Sequence[Span]:
        """Store spans and what follows from them; returns those newly stored."""
        stored = await c.spans.insert_missing(spans)
        await self._carry_out(c, plan)
        return stored

    async def _spans_stored(
        self, c: CollectionsT, spans: Sequence[Span], attempts: Sequence[Pair]
    ) -> None:
        """Called inside the section, after spans were stored; backends add to it."""

    async def _without_own(self, dropped: Sequence[Span], stored: Sequence[Span]) -> list[Span]:
        """Those that this request, when it was first sent, cannot have stored itself."""
        new = set(map(_key, stored))
        return [span for span in dropped if _key(span) in new or not await self._holds(span)]

    async def _holds(self, span: Span) -> bool:
        """Whether a span is stored exactly as it is, and not just one of the same ids."""
        filters = conditions(*((field, "exact", getattr(span, field)) for field in _KEY))
        found = await self.collections.spans.get(filters)
        return found is not None and found.model_dump_json() == span.model_dump_json()

    def _report_duplicates(self, dropped: Sequence[Span]) -> None:
        for span in dropped:
            logger.error(
                "Duplicated span added for rollout %s, attempt %s, span %s; dropped",
                span.rollout_id,
                span.attempt_id,
                span.span_id,
            )
        if self.recorder is not None and dropped:
            self.recorder.duplicate_spans(len(dropped))

    async def _attempts_of_spans(
        self, c: LightningCollections, spans: Sequence[Span]
    ) -> list[Pair]:
        """The rollouts and attempts that spans belong to, each pair once.

        Raises:
            RolloutNotFoundError, AttemptNotFoundError: one of them is unknown.
        """
        pairs = dict.fromkeys([(span.rollout_id, span.attempt_id) for span in spans])
        if len(pairs) == 1:
            ((rollout_id, attempt_id),) = pairs
            rollout = await c.rollouts.find(rollout_id)
            attempt = await c.attempts.find(rollout_id, attempt_id)
            if rollout is not None and attempt is not None:
                return [(rollout, attempt)]
            attempts = {} if attempt is None else {(rollout_id, attempt_id): attempt}
        else:
            rollout_ids = list(dict.fromkeys(rollout_id for rollout_id, _ in pairs))
            found = await c.attempts.query({"rollout_id": {"within": rollout_ids}})
            attempts = {(a.rollout_id, a.attempt_id): a for a in found.items}
        rollouts = await self._rollouts_by_id(c, list({rollout_id for rollout_id, _ in pairs}))
        for rollout_id, attempt_id in pairs:
            if rollout_id not in rollouts:
                await self._rollout(c, rollout_id)
            if (rollout_id, attempt_id) not in attempts:
                raise AttemptNotFoundError(
                    f"Attempt {attempt_id} not found for rollout {rollout_id}"
                )
        return [(rollouts[pair[0]], attempts[pair]) for pair in pairs]

    async def _signs_of_life(
        self, c: LightningCollections, plan: Plan, pairs: Sequence[Pair]
    ) -> None:
        for rollout, stored in pairs:
            status = rules.attempt_after_sign_of_life(stored.status, span=True)
            if status == stored.status:
                attempt = replace(stored, last_heartbeat_time=plan.now)
                plan.writes.change_attempt(attempt, _HEARTBEAT)
            else:
                attempt = replace(stored, status=status, last_heartbeat_time=plan.now)
                plan.writes.change_attempt(attempt, (*_HEARTBEAT, "status"))
                plan.sync_worker(attempt)
            if rollout.status in FINISHED_STATUSES:
                plan.late.append("span")
                continue
            move = rules.rollout_after_sign_of_life(rollout, attempt, plan.now)
            if move is not None and await self._is_latest(c, attempt):
                plan.apply(rollout, move, attempt)

    async def _is_latest(self, c: LightningCollections, attempt: Attempt) -> bool:
        latest = await self._latest_attempt(c, attempt.rollout_id)
        return latest is not None and latest.attempt_id == attempt.attempt_id

    @operation
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | Literal["latest"] | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        await self.watchdog.look_in_call()
        filters = conditions(
            ("trace_id", "exact", trace_id),
            ("trace_id", "contains", trace_id_contains),
            ("span_id", "exact", span_id),
            ("span_id", "contains", span_id_contains),
            ("parent_id", "exact", parent_id),
            ("parent_id", "contains", parent_id_contains),
            ("name", "exact", name),
            ("name", "contains", name_contains),
        )
        filters["_aggregate"] = filter_logic
        order = sort_options(sort_by, sort_order)
        resolve_sort_options(order, Span)  # a mistake is one whether there are spans or not
        check_window(limit, offset)
        async with self.collections.atomic(
            mode="r", snapshot=self._read_snapshot, labels=("attempts", "spans")
        ) as c:
            if attempt_id == "latest":
                latest = await self._latest_attempt(c, rollout_id)
                if latest is None:
                    return page([], limit, offset, 0)
                attempt_id = latest.attempt_id
            self._check_spans_kept(rollout_id, attempt_id)
            filters["_must"] = conditions(
                ("rollout_id", "exact", rollout_id), ("attempt_id", "exact", attempt_id)
            )
            found = await c.spans.query(filters, order, limit, offset)
        items = found.items if sharing() else list(found.items)
        return page(items, limit, offset, found.total)

    def _check_spans_kept(self, rollout_id: str, attempt_id: str | None) -> None:
        """Refuse to answer for spans that were given up; backends that do so override it."""


def _key(span: Span) -> tuple[str, ...]:
    return tuple(getattr(span, field) for field in _KEY)


def _dropped(spans: Sequence[Span], stored: Sequence[Span]) -> list[Span]:
    """Those that were not stored; ``stored`` has the others in their order."""
    new = iter(stored)
    expected = next(new, None)
    dropped: list[Span] = []
    for span in spans:
        if span is expected:
            expected = next(new, None)
        else:
            dropped.append(span)
    return dropped


def _highest_numbers(spans: Sequence[Span]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for span in spans:
        highest[span.rollout_id] = max(highest.get(span.rollout_id, 0), span.sequence_id)
    return highest
