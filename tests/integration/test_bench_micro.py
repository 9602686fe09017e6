"""``agl bench micro`` and ``agl bench collection`` against real stores."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pymongo
import pytest
from bench_support import PATIENCE, benching, post, stores, wait_for_rollouts
from mongo import MongoServer, mongo_server  # noqa: F401 - a fixture
from ports import free_port
from processes import run_agl

from agl.bench.operations import MODES, FailedOperationError, request
from agl.bench.results import Result
from agl.cli import main
from agl.store.client_server import LightningStoreClient

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store that the tests share; each leaves it idle."""
    port = free_port()
    with stores(port, tmp_path_factory.mktemp("store")) as start:
        start()
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[LightningStoreClient]:
    client = LightningStoreClient(url)
    yield client
    await client.close()


@pytest.mark.parametrize("name", [name for name, mode in MODES.items() if mode.operation])
async def test_every_operation_does_what_it_says(client: LightningStoreClient, name: str) -> None:
    mode, run_id = MODES[name], uuid.uuid4().hex
    assert mode.operation is not None
    if mode.enqueues:
        await client.enqueue_many_rollouts([request(run_id, 0)])
    before = await client.statistics()
    await mode.operation(client, 3, run_id)
    after = await client.statistics()
    spans = 4 if name in ("rollout", "dequeue-update-attempt") else 0
    assert after.get("total_spans", 0) - before.get("total_spans", 0) == spans
    if mode.enqueues:
        with pytest.raises(FailedOperationError, match="the queue is empty"):
            await mode.operation(client, 3, run_id)
    if name not in ("rollout", "dequeue-only"):
        assert (await client.get_worker_by_id("Worker-3")) is not None


@pytest.mark.parametrize("name", ["dequeue-empty", "dequeue-only"])
async def test_what_belongs_to_somebody_else_is_handed_back(
    client: LightningStoreClient, name: str
) -> None:
    operation = MODES[name].operation
    assert operation is not None
    theirs = await client.enqueue_rollout({"of": "somebody else"})
    with pytest.raises(FailedOperationError, match="handed back"):
        await operation(client, 0, "run")
    found = await client.get_rollout_by_id(theirs.rollout_id)
    assert found is not None
    assert found.status == "requeuing"
    await client.update_rollout(theirs.rollout_id, status="cancelled")


def test_the_summary_is_that_of_0_3_and_is_appended(url: str, tmp_path: Path) -> None:
    summary, file = tmp_path / "summary", tmp_path / "result.json"
    summary.write_text("what was there\n")
    sizes = ("--processes", "2", "--operations", "7", "--rounds", "2", "--connections", "reuse")
    done = run_agl(
        *("bench", "micro", "dequeue-only", "--store-url", url, *sizes),
        *("--summary-file", str(summary), "--json", str(file)),
        seconds=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    lines = summary.read_text().splitlines()
    assert lines[0] == "what was there"
    assert lines[1:] == done.stdout.splitlines()[:2]
    for line in lines[1:]:
        assert line.startswith("[summary] mode=dequeue-only success_rate=1.000 throughput=")
        assert line.endswith("s success=7/7")
    result = Result.model_validate_json(file.read_bytes())
    throughput = result.figure("throughput")
    assert throughput is not None
    assert len(throughput.samples) == 2


def test_a_queue_that_is_not_empty_is_refused(url: str, capsys: Capture) -> None:
    (theirs,) = post(f"{url}/v1/agl/queues/rollouts/enqueue", {"rollouts": [{"input": "a"}]})
    assert main(["bench", "micro", "dequeue-empty", "--store-url", url]) == 1
    assert "1 rollouts waiting that are not part of this run" in capsys.readouterr().err
    post(f"{url}/v1/agl/rollouts/{theirs['rollout_id']}", {"status": "cancelled"})


def test_a_store_that_goes_away_leaves_a_partial_result(tmp_path: Path) -> None:
    port = free_port()
    options = ("rollout", "--processes", "2", "--operations", "1000000", "--patience", "0")
    with stores(port, tmp_path) as start:
        store = start()
        with benching("micro", *options, "--store-url", f"http://127.0.0.1:{port}") as run:
            wait_for_rollouts(port, more_than=4)
            store.kill()
            output, errors = run.communicate(timeout=PATIENCE)
    result = Result.model_validate_json(output)
    assert run.returncode == 1
    assert result.partial == "the store went away and did not come back within 0 s"
    assert result.details["success"][0] > 0
    assert "operations did not succeed" in errors
    assert result.figure("throughput") is not None


@pytest.mark.parametrize("workload", ["insert", "dequeue"])
def test_collections_on_mongodb(
    mongo_server: MongoServer,  # noqa: F811
    tmp_path: Path,
    workload: str,
) -> None:
    file = tmp_path / "lines"
    done = run_agl(
        *("bench", "collection", workload, "--backend", "mongo", "--mongo-uri", mongo_server.uri),
        *("--total-tasks", "30", "--concurrency", "2", "--summary-file", str(file)),
        *("--database", f"bench_{workload}"),
        seconds=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["backend"], line["successes"], line["concurrency"]) == ("mongo", 30, 2)
    with pymongo.MongoClient(mongo_server.uri) as client:
        names = client.list_database_names()
    assert not [name for name in names if name.startswith(f"bench_{workload}")]
