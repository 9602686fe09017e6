"""``agl bench analyze`` and ``archive`` on a real store, exporter and Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import history
import pytest
from aiohttp import web
from ports import free_port
from processes import running_agl, wait_until_answering

from agl.bench.analysis.collect import Question, analyze
from agl.bench.analysis.model import Analysis
from agl.bench.archive.read import unpack
from agl.bench.results import Figure, Result, read_result
from agl.cli import main
from agl.ops.panels.timerange import TimeRange
from agl.store.client_server import LightningStoreClient
from agl.types import Span, TraceStatus

ROLLOUTS = 25
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: app
    metrics_path: /v1/prometheus
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Site:
    """Addresses, the data folder of Prometheus, and when the store was at work."""

    store: str
    prometheus: str
    data: Path
    began: float
    ended: float

    @property
    def window(self) -> tuple[str, ...]:
        """Options of a window around the work; epoch milliseconds."""
        ends = (self.began - 2, self.ended)
        start, end = (str(round(moment * 1000)) for moment in ends)
        return ("--prometheus", self.prometheus, "--start", start, "--end", end)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store that has worked, and a Prometheus that has seen it; its admin API is on."""
    try:
        history.tool("prometheus")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "multiproc").mkdir()
    ports = [free_port() for _ in range(2)]
    url = f"http://127.0.0.1:{ports[0]}"
    env = {"PROMETHEUS_MULTIPROC_DIR": str(folder / "multiproc")}
    here = ("--host", "127.0.0.1", "--port")
    with contextlib.ExitStack() as running:
        start = running.enter_context
        store = start(
            running_agl("store", *here, str(ports[0]), "--tracker", "prometheus", env=env)
        )
        wait_until_answering(f"{url}/v1/agl/health", store)
        options = ("--store-url", url)
        exporter = start(running_agl("prometheus", *here, str(ports[1]), *options, env=env))
        wait_until_answering(f"http://127.0.0.1:{ports[1]}/health", exporter)
        config = CONFIG.format(port=ports[1])
        data = folder / "tsdb"
        prometheus = start(history.prometheus(data, config, None, "--web.enable-admin-api"))
        until(prometheus, "count(agl_rollouts_total) > 0")
        began = time.time()
        asyncio.run(work(url))
        until(prometheus, f"sum(agl_rollouts_total) == {ROLLOUTS}")
        until(prometheus, f"sum(agl_state_rollouts) == {ROLLOUTS}")
        yield Site(url, prometheus, data, began, time.time())


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    parameters = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{parameters}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def until(prometheus: str, condition: str) -> None:
    deadline = time.monotonic() + 90
    while not ask(prometheus, condition):
        assert time.monotonic() < deadline, f"{condition} did not come true"
        time.sleep(0.2)


async def work(url: str) -> None:
    """Rollouts with a span each, half of them failed."""
    store = LightningStoreClient(url)
    try:
        for number in range(ROLLOUTS):
            rollout = await store.start_rollout({"number": number}, mode="train")
            span = Span.from_attributes(
                attributes={"number": number},
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=1,
                start_time=time.time(),
                end_time=time.time(),
                status=TraceStatus(status_code="OK"),
            )
            await store.add_span(span)
            status = "failed" if number % 2 else "succeeded"
            await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status)
    finally:
        await store.close()


def test_the_window_of_a_run_is_reported(site: Site, tmp_path: Path, capsys: Capture) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    more = ("--scrape-interval", "1s", "--json", str(out), "--html", str(page))
    assert main(["bench", "analyze", *site.window, "--store-url", site.store, *more]) == 0
    result = read_result(out)
    analysis = Analysis.model_validate(result.details)
    values = {value.name: value.value for value in analysis.values}
    assert values["rollouts enqueued"] == ROLLOUTS
    finished = values["rollouts finished"]
    assert finished is not None
    assert ROLLOUTS / 2 < finished < ROLLOUTS * 2  # Prometheus extrapolates to the window's ends
    assert analysis.totals["total_rollouts"] == ROLLOUTS
    paths = next(g for g in analysis.groups if g.by == ("path", "method"))
    assert ("/v1/agl/spans", "POST") in {row.labels for row in paths.rows}
    assert all(row.rate > 0 and row.p95 for row in paths.rows)
    assert [layer.name for layer in analysis.layers] == ["HTTP framing", "store", "collections"]
    assert sum(layer.share for layer in analysis.layers) == pytest.approx(1)
    shown = capsys.readouterr().out
    assert "Where the time of a request goes" in shown
    assert "mongodb_ss_opcounters" in shown.partition("Not in this window")[2]
    assert not [value for value in analysis.values if value.section in ("MongoDB", "Machine")]
    assert "node_cpu_seconds_total" in page.read_text()
    assert result.figure("rollouts finished a second") is not None


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--start", "2020-01-01T00:00:00Z", "--end", "2020-01-01T01:00:00Z"), 1,
         "has no samples of a store in this window"),
        (("--start", "yesterday"), 2, "'yesterday' is not a time"),
        (("--duration", "five"), 2, "'five' is not a duration"),
        (("--start", "now-1h", "--end", "now-2h"), 2, "must be before"),
        (("--start", "now-1h", "--duration", "5m"), 2, "give one of them"),
        (("--prometheus", "ftp://x"), 2, "is not an address"),
        (("--prometheus", "http://127.0.0.1:9", "--duration", "5m"), 1, "does not answer"),
        (("--html", "-"), 2, "a page goes into a file"),
    ],
)  # fmt: skip
def test_what_cannot_be_analyzed_is_refused_in_a_line(
    site: Site, capsys: Capture, options: tuple[str, ...], code: int, words: str
) -> None:
    where = () if "--prometheus" in options else ("--prometheus", site.prometheus)
    assert main(["bench", "analyze", *where, *options]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert shown.err.count("\n") == 1


@asynccontextmanager
async def refusing(prometheus: str, part: str, ahead: float) -> AsyncIterator[str]:
    """A proxy before Prometheus that refuses some queries, and whose clock is ahead."""

    async def pass_on(request: web.Request) -> web.Response:
        form = await request.post()
        query = str(form.get("query", ""))
        if part in query:
            said = {"status": "error", "errorType": "execution", "error": "query timed out"}
            return web.json_response(said, status=503)
        address = prometheus + request.path
        async with client.request(request.method, address, data=dict(form)) as answer:
            body = await answer.json()
        if query == "time()":
            moment, value = body["data"]["result"]
            body["data"]["result"] = [moment, str(float(value) + ahead)]
        return web.json_response(body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(app)
    async with aiohttp.ClientSession() as client:
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def test_questions_that_fail_are_named_and_the_rest_is_kept(site: Site) -> None:
    span = TimeRange(site.began - 2, site.ended)
    async with refusing(site.prometheus, "histogram_quantile", 30.0) as url:
        result = await analyze(Question(url, span, store="http://127.0.0.1:9", scrape=1.0))
    told = "\n".join(result.problems)
    assert result.partial is not None
    assert "questions failed" in result.partial
    assert "histogram_quantile" in told
    assert "query timed out" in told
    assert "the store at http://127.0.0.1:9 did not tell its totals" in told
    assert "Prometheus' clock is 30.0 s ahead of this machine's" in told
    analysis = Analysis.model_validate(result.details)
    rows = next(group for group in analysis.groups if group.by == ("path", "method")).rows
    assert rows[0].rate > 0
    assert rows[0].p95 is None
    assert analysis.layers


def archived(site: Site, *options: str) -> int:
    where = ("--prometheus", site.prometheus, "--data", str(site.data))
    return main(["bench", "archive", *where, *options])


def run_of(site: Site, path: Path, shift: float = 0.0) -> Path:
    """What a scenario that was played here would have left."""
    rate = Figure(name="rollouts_per_second", unit="1/s", better="higher", samples=(1.0,))
    Result(
        kind="scenario",
        name="minimal",
        parameters={},
        figures=(rate,),
        started=site.began + shift,
        ended=site.ended + shift,
    ).write(path)
    return path


def test_an_archive_holds_the_samples_of_its_runs(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    out, opened = tmp_path / "run.tar.gz", tmp_path / "opened"
    opened.mkdir()
    assert archived(site, "--output", str(out), "--results", str(run_of(site, tmp_path / "r"))) == 0
    assert "1 results, Prometheus 2." in capsys.readouterr().out
    manifest = unpack(out, opened)
    assert manifest.start < site.began < site.ended < manifest.end
    assert "dashboards/agl-overview.json" in manifest.members
    assert manifest.images["PROMETHEUS_IMAGE"]
    assert not list(site.data.glob("snapshots/*")), "Prometheus' own copy is left behind"
    with history.prometheus(opened / "data") as prometheus:
        series = ask(prometheus, f"sum(last_over_time(agl_rollouts_total[{60 * 60}s]))")
        assert [value["value"][1] for value in series] == [str(ROLLOUTS)]
        # That one has its admin API off, as any has.
        again = ("--prometheus", prometheus, "--data", str(opened / "data"))
        assert main(["bench", "archive", *again, "--output", str(tmp_path / "no.tar.gz")]) == 1
    assert "has its admin API off" in capsys.readouterr().err
    assert not (tmp_path / "no.tar.gz").exists()


def test_runs_at_the_same_time_are_marked(site: Site, tmp_path: Path, capsys: Capture) -> None:
    out, opened = tmp_path / "run.tar.gz", tmp_path / "opened"
    opened.mkdir()
    results = [str(run_of(site, tmp_path / f"r{shift}", shift)) for shift in (0.0, 0.5)]
    assert archived(site, "--output", str(out), "--results", *results) == 1
    assert "ran at the same time" in capsys.readouterr().out
    assert "ran at the same time" in unpack(out, opened).problems[0]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--start", "2020-01-01T00:00:00Z", "--end", "2020-01-01T01:00:00Z"), 1, "no samples"),
        (("--start", "now-1h", "--end", "now-2h"), 2, "must be before"),
        (("--results", "/nowhere.json"), 2, "/nowhere.json: No such file"),
        (("--data", "/tmp"), 1, "/tmp is not the data folder of a Prometheus"),
        (("--output", "/nowhere/x"), 2, "'/nowhere/x' is no file in a folder that exists"),
        (("--output", "/proc/x"), 2, "'/proc/x' cannot be written"),
        (("--end", "now-1h"), 2, "--end needs --start"),
    ],
)
def test_what_cannot_be_archived_is_refused(
    site: Site, tmp_path: Path, capsys: Capture, options: tuple[str, ...], code: int, words: str
) -> None:
    output = tmp_path / "run.tar.gz"
    assert archived(site, "--output", str(output), *options) == code
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert not list(site.data.glob("snapshots/*"))
