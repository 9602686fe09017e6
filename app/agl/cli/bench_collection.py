"""``agl bench collection``: inserts and dequeues without a store or HTTP around them."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import uuid
from typing import TYPE_CHECKING

from agl.cli._bench_options import add_json, append_lines, deliver, positive, writable
from agl.cli._mongo import add_mongo_options, mongo_admin, mongo_settings

if TYPE_CHECKING:
    from agl.bench.collection import CollectionOptions, CollectionReport
    from agl.bench.interrupts import Interruption

DESCRIPTION = """\
Insert rollouts into a collection, or take ids from a queue, by many at once: threads that share
collections in memory, or processes with a MongoDB client each. Exit status 1 when one failed.

On MongoDB everything happens in a new database, named after --database, which is dropped at the
end. Starting threads and processes, connecting and filling the queue are not part of the time."""

_DATABASE = "agentlightning_collection_bench"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("workload", choices=("insert", "dequeue"), help="what is done")
    add("--backend", choices=("memory", "mongo"), default="memory", help="(default: memory)")
    add("--total-tasks", type=positive, default=100_000, metavar="N", help="(default: 100000)")
    add(
        "--concurrency",
        type=positive,
        default=1024,
        metavar="N",
        help="how many at once, usually 4, 128 or 2048 (default: 1024)",
    )
    add("--task-prefix", default="collection-bench", metavar="TEXT", help="how ids begin")
    add("--rounds", type=positive, default=1, metavar="N", help="how often (default: 1)")
    add("--summary-file", type=writable, metavar="FILE", help="append a JSON line for each round")
    add_mongo_options(parser)
    parser.set_defaults(database=_DATABASE)
    add_json(parser)


def run(options: argparse.Namespace, prog: str) -> int:
    """Do the operations; 0 when all succeeded, 1 when one did not, 130 after Ctrl-C.

    Raises:
        UsageError: an option makes no sense.
        EnvironmentFault: MongoDB does not answer, or its driver is missing.
    """
    from agl.bench.collection import CollectionOptions, measure_memory
    from agl.bench.interrupts import interruption

    wanted = CollectionOptions(
        workload=options.workload,
        backend=options.backend,
        total_tasks=options.total_tasks,
        concurrency=options.concurrency,
        task_prefix=options.task_prefix,
        rounds=options.rounds,
    )
    with interruption() as wish:
        if options.backend == "mongo":
            report = _measure_mongo(options, wanted, wish)
        else:
            report = measure_memory(wanted, wish)
    lines = [json.dumps(one) for one in report.summaries()]
    return deliver(
        report.to_result(wish.reason),
        report.to_text(),
        options.json,
        prog,
        lambda: append_lines(options.summary_file, lines),
    )


def _measure_mongo(
    options: argparse.Namespace, wanted: CollectionOptions, wish: Interruption
) -> CollectionReport:
    mongo_admin("connect")  # says what to install where the driver is missing
    from agl.bench.collection_mongo import measure_mongo

    settings = mongo_settings(options)
    database = f"{settings.database[:50]}_{uuid.uuid4().hex[:8]}"
    settings = dataclasses.replace(settings, database=database)
    return asyncio.run(measure_mongo(wanted, settings, wish))
