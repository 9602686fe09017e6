"""The options of ``agl stack drill``."""

from __future__ import annotations

from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError
from agl.ops.options import LineParser, add_yes


def main(argv: list[str], prog: str) -> int:
    """Drill alerts; returns 0. Raises EnvironmentFault when a page did not come."""
    from agl.ops.console import Console
    from agl.ops.drill.catalogue import DRILLS
    from agl.ops.drill.run import Options, as_json, run
    from agl.ops.layout import find_layout

    options = _parser(prog).parse_args(argv)
    if options.list:
        width = max(map(len, DRILLS))
        print("\n".join(f"{name:<{width}}  {drill.does}" for name, drill in DRILLS.items()))
        return 0
    if not options.alerts:
        raise UsageError("which alert? (--list shows what can be drilled)")
    if options.speed < 1:
        raise UsageError("argument --speed: at least 1, which leaves windows as they are")
    outcomes = run(
        find_layout(process_environment()),
        Console(process_environment()),
        Options(tuple(options.alerts), options.speed, options.timeout, options.yes),
    )
    if options.json:
        print(as_json(outcomes))
    failed = [outcome.alert for outcome in outcomes if outcome.fault]
    if failed:
        raise EnvironmentFault(f"the drill failed: {', '.join(failed)}")
    return 0


def _parser(prog: str) -> LineParser:
    parser = LineParser(
        prog=prog,
        description="Put faults into the running stack, wait for their pages, take them out again.",
    )
    parser.add_argument("alerts", nargs="*", metavar="ALERT", help="names of alerts")
    parser.add_argument("--list", action="store_true", help="show what can be drilled")
    parser.add_argument(
        "--speed",
        type=float,
        default=20.0,
        metavar="N",
        help="windows of the rules are N times shorter, in a Prometheus of the drill's own; 1 is"
        " the stack's own one, which pages people (default: 20)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=180.0,
        metavar="S",
        help="seconds to wait for a page (default: 180)",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON as well")
    add_yes(parser)
    return parser
