"""What Prometheus counted while a run was played, compared with what was played."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from agl.bench.target import redacted
from agl.errors import EnvironmentFault

Outcome = tuple[str, str]
"""Status and mode of finished rollouts, the labels of ``agl_rollouts_total``."""

METRIC = "agl_rollouts_total"

_QUERY_TIMEOUT_SECONDS = 10.0
_SCRAPE_TIMEOUT_SECONDS = 90.0
_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Verdict:
    """Finished rollouts by Prometheus' count before and after, and what was played between."""

    before: float
    after: float
    played: int
    problems: tuple[str, ...]

    @property
    def difference(self) -> float:
        """How many rollouts Prometheus saw finish during the run."""
        return self.after - self.before


class PrometheusWitness:
    """Reads ``agl_rollouts_total`` before and after a run; only scrapes newer than the call count.

    A scrape is known to be new when its timestamp, by Prometheus' own clock, lies behind the moment
    of the call, so no scrape interval has to be guessed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._before: dict[Outcome, float] = {}

    async def look_before(self) -> None:
        """Take the baseline.

        Raises:
            EnvironmentFault: Prometheus does not answer or has no fresh sample of the counter.
        """
        self._before = await self._fresh_counts()

    async def compare(self, played: Mapping[Outcome, int], *, alone: bool = True) -> Verdict:
        """Return what changed since the baseline, waiting up to half a minute for it to add up.

        Where the run was not ``alone`` on the store, it must have risen by at least what it played.

        Raises:
            EnvironmentFault: Prometheus does not answer or has no fresh sample of the counter.
        """
        limit = time.monotonic() + _SETTLE_SECONDS
        while True:
            after = await self._fresh_counts()
            verdict = judge(self._before, after, played, alone=alone)
            if not verdict.problems or time.monotonic() >= limit:
                return verdict

    async def _fresh_counts(self) -> dict[Outcome, float]:
        asked = await self._number("time()")
        limit = time.monotonic() + _SCRAPE_TIMEOUT_SECONDS
        while time.monotonic() < limit:
            scraped = await self._number(f"min(timestamp({METRIC}))")
            if scraped is not None and asked is not None and scraped > asked:
                return await self._counts()
            await asyncio.sleep(_POLL_SECONDS)
        raise EnvironmentFault(
            f"Prometheus at {redacted(self._url)} has no fresh sample of {METRIC}",
            remedy="start the store with `--tracker prometheus` and check the target's health",
        )

    async def _counts(self) -> dict[Outcome, float]:
        rows = await self._query(f"sum by (status, mode) ({METRIC})")
        return {
            (row["metric"].get("status", ""), row["metric"].get("mode", "")): float(row["value"][1])
            for row in rows
        }

    async def _number(self, query: str) -> float | None:
        result = await self._query(query)
        if not result:
            return None
        value = result[1] if query == "time()" else result[0]["value"][1]
        return float(value)

    async def _query(self, query: str) -> list[Any]:
        timeout = aiohttp.ClientTimeout(total=_QUERY_TIMEOUT_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(f"{self._url}/api/v1/query", data={"query": query}) as response,
            ):
                response.raise_for_status()
                body = await response.json()
                return body["data"]["result"]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise EnvironmentFault(
                f"Prometheus does not answer at {redacted(self._url)}: "
                f"{error or type(error).__name__}",
                remedy="check --prometheus-url",
            ) from error


def judge(
    before: Mapping[Outcome, float],
    after: Mapping[Outcome, float],
    played: Mapping[Outcome, int],
    *,
    alone: bool = True,
) -> Verdict:
    """Compare two readings of the counter, by status and mode, with what was played between."""
    changes = Counter({outcome: after[outcome] - before.get(outcome, 0.0) for outcome in after})
    found: list[str] = []
    for outcome in sorted({*changes, *played}):
        labels = f'{METRIC}{{status="{outcome[0]}", mode="{outcome[1]}"}}'
        surplus = changes[outcome] - played.get(outcome, 0)
        if surplus < 0 or (surplus and alone):
            found.append(f"{labels} rose by {changes[outcome]:g}, played {played.get(outcome, 0)}")
        if played.get(outcome) and outcome not in before:
            found.append(f"{labels} did not exist before its first event")
    return Verdict(sum(before.values()), sum(after.values()), sum(played.values()), tuple(found))
