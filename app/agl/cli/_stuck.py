"""``agl store stuck``: what a running store has that may be stuck."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agl.cli import CommandParser
from agl.cli._serving import counting_number
from agl.errors import EnvironmentFault, StoreError, UsageError

if TYPE_CHECKING:
    from agl.store.rest.wire import StuckReport, SuggestedItem

HEADINGS = ("KIND", "ROLLOUT", "STATUS", "ATTEMPT", "WORKER", "AGE", "OF LIMIT")


def main(argv: list[str], prog: str) -> int:
    """Ask and print; returns the exit code."""
    parser = CommandParser(
        prog=prog,
        allow_abbrev=False,
        description="List the rollouts that have been queued, running and silent longest.",
    )
    parser.add_argument(
        "--store-url",
        default="http://127.0.0.1:4747",
        metavar="URL",
        help="http://agl:TOKEN@host:port (default: http://127.0.0.1:4747)",
    )
    parser.add_argument(
        "--limit",
        type=counting_number,
        default=20,
        metavar="N",
        help="most items of each kind (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as it is")
    options = parser.parse_args(argv)
    report = asyncio.run(_ask(options.store_url, options.limit))
    print(report.model_dump_json() if options.json else render(report))
    return 0


async def _ask(store_url: str, limit: int) -> StuckReport:
    import aiohttp

    from agl.store.client_server import LightningStoreClient

    try:
        client = LightningStoreClient(store_url, retry_delays=(), request_timeout=10)
    except ValueError as exc:
        raise UsageError(f"argument --store-url: {exc}") from exc
    try:
        return await client.stuck_report(limit)
    except aiohttp.ClientResponseError as exc:
        if exc.status == 404:
            raise EnvironmentFault("the server does not list what is stuck") from exc
        raise EnvironmentFault(
            f"the store answered {exc.status}: {exc.message}",
            remedy="its token belongs into --store-url: http://agl:TOKEN@host:port"
            if exc.status == 401
            else "",
        ) from exc
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise EnvironmentFault(
            f"no answer from {client.server_address_root} ({exc})", remedy="name it by --store-url"
        ) from exc
    except StoreError as exc:
        raise UsageError(str(exc)) from exc
    finally:
        await client.close()


def render(report: StuckReport) -> str:
    """A table, with the suggested command under each line."""
    if not report.items:
        return "Nothing is queued or running."
    rows = [HEADINGS, *(_row(item) for item in report.items)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    hint = "The commands take the store's address from AGL_STORE (http://agl:TOKEN@host:port)."
    commands = ["", *(f"    {item.command}" for item in report.items)]
    pairs = zip(lines, commands, strict=True)
    return "\n".join([*(text for pair in pairs for text in pair if text), hint])


def _row(item: SuggestedItem) -> tuple[str, ...]:
    attempt = "-" if item.attempt_id is None else f"{item.attempt_id} (#{item.attempt})"
    share = "-" if item.share is None else f"{item.share:.0%} of {item.limit_seconds:g}s"
    return (
        item.kind,
        item.rollout_id,
        item.status,
        attempt,
        item.worker_id or "-",
        f"{item.age_seconds:.0f}s",
        share,
    )
