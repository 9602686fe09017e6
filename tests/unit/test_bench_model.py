"""The model of scale: its arithmetic, and that simulated queues keep the laws of queues."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bench.model import SMALL, changed, continued
from bench.simulation import Costs, Site, simulate

from agl.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def test_a_client_alone_waits_for_each_part_once() -> None:
    costs = Costs()
    one = simulate(Site(clients=1, processes=1, cores=1, mongo_cores=1), costs)
    requests, trips = 6, 7  # start, four spans, finish; a start reads before it writes
    trip = costs.command + costs.trip + costs.mongo_command
    work = costs.read + 5 * costs.insert + 3 * costs.guard + 2 * costs.update
    expected = requests * (costs.request + costs.sync) + trips * trip + work
    assert one.requests == pytest.approx(requests / expected, rel=0.02)
    assert one.commands == pytest.approx(trips / requests, abs=0.02)


@pytest.mark.parametrize("processes", [1, 4, 8])
def test_nobody_works_more_than_the_cores_there_are(processes: int) -> None:
    site = Site(clients=64, processes=processes, cores=4, mongo_cores=2)
    found = simulate(site, Costs())
    assert found.store_cores <= min(processes, 4) * 1.01
    assert found.mongo_cores <= 2.01
    # Little's law: clients that only wait are all under way.
    assert found.requests * found.p50 == pytest.approx(64, rel=0.2)


def test_clients_share_commands_and_less_so_among_more_processes() -> None:
    few, many = (simulate(Site(32, n, 8, 8), Costs()).commands for n in (1, 8))
    assert few < many < 2


def test_a_database_that_is_full_is_the_limit() -> None:
    costs = Costs()
    with_one, with_four = (simulate(Site(256, 32, 32, cores), costs).requests for cores in (1, 4))
    assert with_four > 2 * with_one


def test_costs_are_continued_through_what_was_measured() -> None:
    assert continued(100, 120, 100_000, SMALL) == 100
    assert continued(100, 120, 100_000, 1) == 100
    assert continued(100, 120, 100_000, 100_000) == pytest.approx(120)
    assert continued(100, 120, 100_000, 10_000_000) == pytest.approx(140)
    assert continued(100, 80, 100_000, 10_000_000) == 80  # it does not become free


@pytest.mark.parametrize("word", ["sync", "nothing=1", "sync=x", "sync=-1", "sync=100"])
def test_a_cost_that_makes_no_sense_is_refused(word: str) -> None:
    assert changed(Costs(), ["sync=0.004"]).sync == 0.004
    with pytest.raises(UsageError, match="--cost"):
        changed(Costs(), [word])


def test_scripts_bench_names_its_measurements() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "bench", "nonsense"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    for name in ("store", "exporter", "growth", "mongo", "soak", "cost", "model"):
        assert f"./scripts/bench {name}" in done.stderr
        assert (ROOT / "bench" / f"{name}.py").is_file()
