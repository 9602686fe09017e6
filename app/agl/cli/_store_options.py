"""The options of ``agl store``."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Literal

from agl.cli import CommandParser
from agl.cli._mongo import add_mongo_options, add_partition_option, mongo_settings
from agl.cli._serving import (
    add_log_options,
    check_published_on,
    counting_number,
    log_settings,
    port_number,
    worker_count,
)
from agl.config import BACKENDS, TRACKERS, BackendName, StoreSettings, load_environment
from agl.errors import UsageError
from agl.utils.cgroup import usable_processors


class _FileParser(CommandParser):
    """Takes ``@FILE`` for the options in it: as many on a line as one likes, ``#`` for comments."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        try:
            return shlex.split(arg_line, comments=True)
        except ValueError as exc:
            raise UsageError(f"in a file of options: {exc}: {arg_line!r}") from exc


def parse(argv: list[str], prog: str) -> StoreSettings:
    """Settings from the command line.

    Raises:
        UsageError: An option that does not exist, or values that make no sense together.
    """
    options = _parser(prog).parse_args(argv)
    if options.tls_cert is None and options.tls_key is None:
        environment = load_environment()
        options.tls_cert, options.tls_key = environment.tls_cert, environment.tls_key
    _check_used(options)
    settings = StoreSettings(
        host=options.host,
        port=options.port,
        cors_origins=tuple(options.cors_origin),
        trackers=tuple(dict.fromkeys(options.tracker)),
        n_workers=_processes(options.n_workers, options.backend),
        backend=options.backend,
        mongo=mongo_settings(options) if options.backend == "mongo" else None,
        exclusive_partition=options.exclusive_partition,
        worker_max_requests=options.worker_max_requests,
        api_token_file=options.api_token_file,
        published_on=options.published_on,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        max_requests=options.max_requests,
        max_waits=options.max_waits,
        max_batch_items=options.max_batch_items,
        log=log_settings(options),
    )
    if settings.tls_key is not None and settings.tls_cert is None:
        raise UsageError("argument --tls-key: there is no --tls-cert that it belongs to")
    check_published_on(settings.published_on)
    return settings


def _check_used(options: argparse.Namespace) -> None:
    """Whoever names a MongoDB wants his data there."""
    if options.backend == "mongo":
        return
    for name in ("mongo_uri", "mongo_uri_file"):
        if getattr(options, name) is not None:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"argument {option}: the memory backend has no use for it, add --backend mongo"
            )


def _processes(asked: int | Literal["auto"] | None, backend: BackendName) -> int:
    if backend == "mongo":
        return usable_processors() if asked in (None, "auto") else asked
    if asked in (None, "auto"):
        return 1
    if asked > 1:
        raise UsageError(
            "argument --n-workers: the memory backend keeps its data in one process and cannot be "
            f"shared by {asked}, use --n-workers 1"
        )
    return asked


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _FileParser(
        prog=prog,
        allow_abbrev=False,
        fromfile_prefix_chars="@",
        description="Run a LightningStore server. @FILE takes options from a file; SIGHUP reads it "
        "again (mongo backend).",
        epilog=f"Further commands, each with --help: '{prog} stuck' asks a running store what may "
        f"be stuck; '{prog} partitions', '{prog} prune' and '{prog} migrate' look after the data "
        "of the mongo backend.",
    )
    add = parser.add_argument
    add("--host", default="0.0.0.0", help="address to listen on (default: 0.0.0.0)")
    add("--port", type=port_number, default=4747, help="port to listen on (default: 4747)")
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin a browser may call from, * for any; may be repeated",
    )
    add_log_options(parser)
    add(
        "--tracker",
        nargs="+",
        choices=TRACKERS,
        default=[],
        help="where metrics go: one or more of prometheus and console (default: nowhere)",
    )
    add(
        "--n-workers",
        type=worker_count,
        metavar="N|auto",
        help="server processes; auto: as many as there are processors for them (default: auto "
        "with the mongo backend, 1 with memory)",
    )
    add(
        "--worker-max-requests",
        type=counting_number,
        metavar="N",
        help="replace a server process of the mongo backend after N requests (default: never)",
    )
    add("--backend", choices=BACKENDS, default="memory", help="where data lives (default: memory)")
    add_mongo_options(parser)
    add_partition_option(parser)
    add(
        "--exclusive-partition",
        action="store_true",
        help="do not start where another live server uses the partition (default: warn)",
    )
    add(
        "--api-token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that clients must show (default: no token)",
    )
    add(
        "--published-on",
        metavar="ADDR",
        help="address a container's port is published on; a loopback address means that the token "
        "is not demanded",
    )
    _add_tls_and_limits(parser)
    return parser


def _add_tls_and_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="PEM file with the certificate chain; serves HTTPS only (default: AGL_TLS_CERT and "
        "AGL_TLS_KEY in the environment, or plain HTTP)",
    )
    add(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="PEM file with the private key (default: it is in the certificate's file)",
    )
    add(
        "--max-requests",
        type=counting_number,
        metavar="N",
        help="requests under way at once; more are answered 503 (default: 2048)",
    )
    add(
        "--max-waits",
        type=counting_number,
        metavar="N",
        help="waits for rollouts under way at once; more are answered 503 (default: 4096)",
    )
    add(
        "--max-batch-items",
        type=counting_number,
        metavar="N",
        help="items in one request; more are answered 413 (default: 100000)",
    )
