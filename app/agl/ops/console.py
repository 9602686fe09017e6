"""What the operator sees: a live display on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

STYLES = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
PLAIN = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


class Progress(Protocol):
    """A step under way."""

    def update(self, lines: Sequence[str]) -> None:
        """Show these lines as the state of the step."""
        ...

    def conclude(self, text: str) -> None:
        """Replace the text that the step ends with."""
        ...


class Console:
    """Steps, notes and tables on standard output; thread-unsafe, as one command uses it."""

    def __init__(self, environ: Mapping[str, str], *, interactive: bool | None = None) -> None:
        tty = sys.stdout.isatty() and environ.get("TERM") != "dumb"
        self.interactive = tty if interactive is None else interactive
        self._rich = RichConsole(highlight=False, no_color="NO_COLOR" in environ or None)

    def line(self, text: str = "") -> None:
        """One line as it is, to be copied if it is a command."""
        print(text, flush=True)

    def mark(self, status: str, text: str) -> None:
        """One line with the mark of ``ok``, ``warn`` or ``fail`` before it."""
        if not self.interactive:
            self.line(f"{PLAIN[status]}  {text}")
            return
        symbol, style = STYLES[status]
        self._print(Text.assemble((f"{symbol} ", style), text))

    def heading(self, text: str) -> None:
        """One line that stands out on a terminal."""
        if self.interactive:
            self._print(Text(text, style="bold"))
        else:
            self.line(text)

    @contextmanager
    def step(self, text: str) -> Generator[Progress]:
        """Show that something takes a while; ends with a mark and how long it took."""
        progress = _LiveProgress(self._rich, text) if self.interactive else _PlainProgress(text)
        start = time.monotonic()
        with progress:
            yield progress
        self.mark("ok", f"{progress.ending} ({time.monotonic() - start:.1f} s)")

    def ask(self, question: str) -> bool:
        """Yes or no from the terminal; only to be called when there is one."""
        try:
            return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
        except EOFError:
            return False

    def _print(self, text: Text) -> None:
        self._rich.print(text, soft_wrap=True)


def can_ask() -> bool:
    """Whether somebody sits at a terminal to answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


class _PlainProgress:
    def __init__(self, text: str) -> None:
        self.text = text
        self.ending = text
        self._shown: set[str] = set()

    def __enter__(self) -> None:
        print(f"...   {self.text}", flush=True)

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self._shown:
                self._shown.add(line)
                print(f"      {line}", flush=True)

    def conclude(self, text: str) -> None:
        self.ending = text


class _LiveProgress:
    def __init__(self, console: RichConsole, text: str) -> None:
        self.text = text
        self.ending = text
        self._spinner = Spinner("dots", text=Text(text))
        self._live = Live(self._spinner, console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, lines: Sequence[str]) -> None:
        details = [
            Text(f"    {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in lines
        ]
        self._live.update(Group(self._spinner, *details))

    def conclude(self, text: str) -> None:
        self.ending = text
