"""Histograms of latencies, the load generator's program, and what a report makes of a run."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agl.bench import loader
from agl.bench.histogram import RELATIVE_ERROR, Histogram
from agl.bench.load import LoadOptions, LoadReport
from agl.bench.loader import Load, LoadRun
from agl.errors import EnvironmentFault, UsageError

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
READER = """
#include "histogram.h"
static struct histogram h;
int main(void) {
  int64_t value;
  while (scanf("%" SCNd64, &value) == 1) histogram_add(&h, value);
  histogram_print(&h);
}
"""


@needs_compiler
def test_percentiles_of_what_the_program_counts_are_as_exact_as_they_say(tmp_path: Path) -> None:
    (tmp_path / "reader.c").write_text(READER)
    source = [f"-I{Path(loader.__file__).with_name('native')}", str(tmp_path / "reader.c")]
    subprocess.run(["cc", "-o", str(tmp_path / "reader"), *source], check=True)
    draw = random.Random(5)
    values = [0, 1, 255, 256, 511, 512, 2**40, *(int(2 ** draw.uniform(0, 38)) for _ in range(999))]
    said = subprocess.run(
        [tmp_path / "reader"], input=" ".join(map(str, values)), capture_output=True, text=True
    )
    counted = json.loads(said.stdout)
    histogram = Histogram.of(counted["largest"], counted["buckets"])
    assert histogram.count == counted["count"] == len(values)
    assert histogram.maximum == 2**40 / 1e9
    for share in (0.001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = sorted(values)[math.ceil(share * len(values)) - 1] / 1e9
        assert histogram.percentile(share) == pytest.approx(exact, rel=RELATIVE_ERROR, abs=0)


def test_percentiles_of_few_values() -> None:
    assert Histogram().percentile(0.5) == 0
    one = Histogram.of(7, [[7, 1, 1]])
    assert one.percentile(0.0) == one.percentile(0.5) == one.percentile(1.0) == 7e-9
    one.add(Histogram.of(9, [[7, 1, 1], [9, 1, 2]]))
    assert (one.count, one.largest) == (4, 9)
    assert (one.percentile(0.5), one.percentile(0.51)) == (7e-9, 9e-9)


RUN = LoadRun(
    seconds=2.0,
    rollouts=20,
    requests=120,
    failures=0,
    first_failure="",
    broken=0,
    away=0.0,
    gave_up=False,
    interrupted=False,
    unanswered=0,
    late_server=0,
    late_loader=0,
    largest_lateness=0.0,
    loader_cpu=0.2,
    server_cpu=None,
    latencies={kind: Histogram.of(10**6, [[10**6, 1, 60]]) for kind in ("all", *loader.KINDS)},
)


def run(**changes: Any) -> LoadRun:
    return dataclasses.replace(RUN, **changes)


def report(*runs: LoadRun, rate: float = 0.0, ceiling: float = 1000.0) -> LoadReport:
    load = Load(connections=4, seconds=2.0, rate=rate, patience=3.0)
    return LoadReport(LoadOptions("http://u:pass@host:1", load, 2), 0.0, ceiling, list(runs))


def test_a_good_run_leaves_a_sample_a_round() -> None:
    result = report(run(), run(rollouts=30)).to_result(None)
    assert result.ok
    rate = result.figure("rollouts_per_second")
    assert rate is not None
    assert rate.samples == (10.0, 15.0)
    median = result.figure("add_span_p50")
    assert median is not None
    assert median.samples == pytest.approx((1e-3, 1e-3))
    assert result.figure("server_cpu_per_request") is None
    assert "pass" not in result.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "rate", "complaint"),
    [
        (
            {"failures": 3, "first_failure": "HTTP/1.1 500 No\r\n\r\noops"},
            0,
            "HTTP/1.1 500 No: oops",
        ),
        ({"broken": 4, "away": 1.5}, 0, "the store was away for 1.5 s; 4 requests lost"),
        ({"requests": 0}, 0, "no request was answered"),
        ({"requests": 1500}, 0, "75% of the loader's own ceiling"),
        ({"loader_cpu": 1.5}, 0, "took 75% of a core"),
        ({"unanswered": 9}, 50, "50 rollouts/s were due, 10.0 were finished: 9 requests had no"),
        ({"late_loader": 9}, 50, "sent 9 requests more than 1 ms late"),
    ],
)
def test_what_makes_a_run_doubtful_is_said(
    changes: dict[str, Any], rate: float, complaint: str
) -> None:
    (problem,) = report(run(), run(**changes), rate=rate).problems()
    assert problem.startswith("round 2: ")
    assert complaint in problem


def test_a_store_that_stays_away_makes_a_partial_result() -> None:
    result = report(run(), run(gave_up=True, broken=4, away=4.0)).to_result(None)
    assert result.partial == "the store went away and did not come back within 3 s"
    assert len(result.figures[0].samples) == 2


def test_nothing_measured_leaves_no_figure() -> None:
    result = report(run(seconds=0.0, requests=0)).to_result("interrupted by SIGINT")
    assert result.interrupted
    assert [figure.name for figure in result.figures if figure.unit == "1/s"] == []


def test_without_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"no C compiler.*apt-get install -y gcc"):
        loader.build()


@needs_compiler
def test_the_loader_speaks_no_tls() -> None:
    with pytest.raises(UsageError, match="plain http"):
        loader.Loader("https://host:4747")
