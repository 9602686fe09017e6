"""``agl stack grafana``: look at a Grafana that runs, and put things into it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agl.cli._dashboards import library
from agl.cli._serving import read_secret_file
from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError
from agl.ops.options import LineParser
from agl.ops.panels.timerange import (
    FROM_TO,
    TimeError,
    TimeRange,
    parse_duration,
    parse_range,
    parse_time,
)

if TYPE_CHECKING:
    from agl.ops.grafana.client import Grafana
    from agl.ops.panels.boards import Board

URL_VARIABLE, TOKEN_VARIABLE = "GRAFANA_URL", "GRAFANA_TOKEN_FILE"
DATASOURCE = "agl-prometheus"


def main(argv: list[str], prog: str) -> int:
    """Run ``verify``, ``push``, ``annotate`` or ``snapshot``.

    Returns 0, or 1 when something is not as it should be. Raises UsageError, and EnvironmentFault
    when Grafana does not answer or refuses.
    """
    options = _parser(prog).parse_args(argv)
    if importlib.util.find_spec("grafana_client") is None:
        raise EnvironmentFault("grafana-client is not installed", remedy="install agl-stack[ops]")
    run: Callable[[argparse.Namespace], list[str]] = options.run
    problems = run(options)
    for problem in problems:
        print(f"{prog} {options.action}: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _verify(options: argparse.Namespace) -> list[str]:
    from agl.ops.alerting import load_alerts
    from agl.ops.grafana.verify import verify

    span = _span(options)
    boards = _boards(options)
    alerts = {alert.name for alert in load_alerts(_alerts_folder(options.alerts))}
    report = verify(_grafana(options), boards, alerts, options.datasource, span)
    print(json.dumps(report.as_json(), indent=2) if options.json else "\n".join(report.lines()))
    if not report.problems:
        return []
    return [f"{len(report.problems)} problems, the first: {report.problems[0]}"]


def _push(options: argparse.Namespace) -> list[str]:
    from agl.ops.grafana.push import push

    runbooks = f"{options.runbooks_url.rstrip('/')}/runbooks" if options.runbooks_url else ""
    runbooks = runbooks or _runbooks_of_bundle()
    pushed = push(_grafana(options), _boards(options), options.folder, runbooks)
    for one in pushed:
        print(f"{one.uid:<15} {one.done}")
    return [f"dashboard {one.uid}: {one.problem}" for one in pushed if one.problem]


def _benchmark(options: argparse.Namespace) -> list[str]:
    from agl.bench.results import read_result
    from agl.ops.grafana.annotate import benchmark, told

    if not options.summary and not (options.text and options.start):
        raise UsageError("a run needs --summary FILE, or --from TIME and --text TEXT")
    result = read_result(options.summary) if options.summary else None
    text = options.text or (told(result) if result else "")
    if options.start or result is None:
        span = _span(options)
    elif options.end == "now":
        span = TimeRange(result.started, result.ended)
    else:
        span = _ending(options.end, result.ended - result.started)
    return _put(_grafana(options), [benchmark(span, text)])


def _restarts(options: argparse.Namespace) -> list[str]:
    from agl.ops.grafana.annotate import restarts

    grafana = _grafana(options)
    marks = restarts(grafana, options.datasource, _span(options))
    if not marks:
        print("no process was started in this time")
    return _put(grafana, marks)


def _put(grafana: Grafana, marks: list[Any]) -> list[str]:
    from agl.ops.grafana.annotate import put

    made, known = put(grafana, marks)
    for word, found in (("made", made), ("there already", known)):
        for mark in found:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(mark.start))
            print(f"{word}: {when} {mark.text} ({mark.tags[0]})")
    return []


def _snapshot(options: argparse.Namespace) -> list[str]:
    from agl.ops.grafana.snapshot import snapshot

    grafana, span = _grafana(options), _span(options)
    problems: list[str] = []
    for uid in options.dashboard or [board.uid for board in _boards(options)]:
        made = snapshot(grafana, uid, options.datasource, span, options.expires)
        print(f"{uid}: {made.url}\n  delete it: {made.delete_url}")
        problems += [f"dashboard {uid}, {failed}" for failed in made.failed]
    return problems


def _grafana(options: argparse.Namespace) -> Grafana:
    from agl.ops.grafana.client import Grafana

    environ = process_environment()
    url = options.url or environ.get(URL_VARIABLE, "")
    file = options.token_file or environ.get(TOKEN_VARIABLE, "")
    if not url:
        raise UsageError(f"where is Grafana? --url URL, or {URL_VARIABLE}")
    if not file:
        raise UsageError(
            "Grafana wants the token of a service account: --token-file FILE,"
            f" or {TOKEN_VARIABLE} (docs/grafana.md)"
        )
    token = read_secret_file("--token-file", Path(file))
    return Grafana(_checked(url), token, options.timeout)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        raise UsageError(f"argument --url: {url!r} is not an address") from None
    if not valid:
        raise UsageError(f"argument --url: {url!r} is not an address such as http://localhost:9091")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("argument --url: no user, password or query; the token is in its file")
    return url


def _boards(options: argparse.Namespace) -> list[Board]:
    found = library(options.dashboards)
    if found.problem:
        raise EnvironmentFault(found.problem, remedy="name another folder with --dashboards")
    boards = {board.uid: board for board in found.boards()}
    wanted: list[str] = options.dashboard or sorted(boards)
    unknown = [uid for uid in wanted if uid not in boards]
    if unknown:
        known = ", ".join(sorted(boards))
        raise UsageError(f"argument --dashboard: there is no {unknown[0]!r} (known: {known})")
    return [boards[uid] for uid in wanted]


def _alerts_folder(given: Path | None) -> Path:
    from agl.ops.layout import find_layout

    folder = given or find_layout(process_environment()).root / "prometheus" / "alerts"
    if not folder.is_dir():
        raise UsageError(f"argument --alerts: {str(folder)!r} is not a folder")
    return folder


def _runbooks_of_bundle() -> str:
    from agl.ops.layout import find_layout
    from agl.ops.runbook_links import address

    try:
        variables = find_layout(process_environment()).variables()
    except EnvironmentFault:
        variables = {}
    return address(variables)


def _span(options: argparse.Namespace) -> TimeRange:
    try:
        return parse_range(options.start, options.end, time.time(), FROM_TO)
    except TimeError as exc:
        raise UsageError(str(exc)) from exc


def _ending(end: str, seconds: float) -> TimeRange:
    try:
        moment = parse_time(end, time.time(), name="--to")
    except TimeError as exc:
        raise UsageError(str(exc)) from exc
    return TimeRange(moment - seconds, moment)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except TimeError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _expiry(text: str) -> int:
    return 0 if text == "never" else max(int(_seconds(text)), 1)


def _common() -> LineParser:
    parser = LineParser(add_help=False)
    parser.add_argument("--url", metavar="URL", help=f"where Grafana is (default: {URL_VARIABLE})")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with the token of a service account (default: {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="TIME", help="of one call (default: 60s)"
    )
    return parser


def _asking(start: str) -> LineParser:
    """What is asked of Prometheus: which, and when."""
    parser = LineParser(add_help=False)
    parser.add_argument(
        "--datasource",
        default=DATASOURCE,
        metavar="UID",
        help=f"uid of the Prometheus (default: {DATASOURCE})",
    )
    parser.add_argument(
        "--from", dest="start", default=start, metavar="TIME", help=f"(default: {start})"
    )
    parser.add_argument("--to", dest="end", default="now", metavar="TIME", help="(default: now)")
    return parser


def _choosing() -> LineParser:
    parser = LineParser(add_help=False)
    parser.add_argument(
        "--dashboard", action="append", metavar="UID", help="this one only; several times for more"
    )
    parser.add_argument(
        "--dashboards",
        type=Path,
        metavar="FOLDER",
        help="folder with the dashboards' JSON (default: grafana/dashboards of the clone)",
    )
    return parser


def _parser(prog: str) -> LineParser:
    parser = LineParser(prog=prog, description="Look at a Grafana, and put things into it.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    common, choosing = _common(), _choosing()

    verify = actions.add_parser(
        "verify",
        parents=[common, choosing, _asking("now-1h")],
        help="data source, dashboards, every query, alerts",
    )
    verify.add_argument(
        "--alerts", type=Path, metavar="FOLDER", help="(default: prometheus/alerts of the clone)"
    )
    verify.add_argument("--json", action="store_true", help="print the report as JSON")
    verify.set_defaults(run=_verify)

    push = actions.add_parser("push", parents=[common, choosing], help="create or replace boards")
    push.add_argument(
        "--folder", default="", metavar="UID", help="uid of the folder to put them in"
    )
    push.add_argument(
        "--runbooks-url",
        default="",
        metavar="URL",
        help="where the bundle's runbooks are served (default: as compose/.env says)",
    )
    push.set_defaults(run=_push)

    annotate = actions.add_parser("annotate", help="mark a benchmark run, or restarts")
    kinds = annotate.add_subparsers(dest="kind", required=True, metavar="KIND")
    run = kinds.add_parser("benchmark", parents=[common], help="a run, drawn on every board")
    run.add_argument(
        "--summary", type=Path, metavar="FILE", help="what agl bench ... --json FILE wrote"
    )
    run.add_argument("--text", default="", help="what to write (default: from the summary)")
    run.add_argument("--from", dest="start", default="", metavar="TIME", help="start of the run")
    run.add_argument(
        "--to",
        dest="end",
        default="now",
        metavar="TIME",
        help="end (default: the summary's, or now)",
    )
    run.set_defaults(run=_benchmark)
    restarts = kinds.add_parser(
        "restarts", parents=[common, _asking("now-24h")], help="what Prometheus has seen start"
    )
    restarts.set_defaults(run=_restarts)

    snapshot = actions.add_parser(
        "snapshot",
        parents=[common, choosing, _asking("now-1h")],
        help="keep boards with their data; whoever has the link needs no password",
    )
    snapshot.add_argument(
        "--expires",
        type=_expiry,
        default=7 * 86400,
        metavar="TIME",
        help="when Grafana deletes it: 12h, 30d, never (default: 7d)",
    )
    snapshot.set_defaults(run=_snapshot)
    return parser
