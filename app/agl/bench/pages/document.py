"""The page around sections: head, style, contents. One file that asks nobody for anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from agl import __version__

_STYLE = Path(__file__).with_name("style.css")


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading; ``body`` is HTML."""

    title: str
    body: str

    @property
    def anchor(self) -> str:
        """What a link to it names."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document; ``lead`` is HTML below the title."""
    anchors = [f"{number}-{part.anchor}" for number, part in enumerate(sections, start=1)]
    placed = list(zip(anchors, sections, strict=True))
    links = "".join(
        f'<li><a href="#{anchor}">{escape(part.title)}</a></li>' for anchor, part in placed
    )
    parts = "".join(
        f'<section id="{anchor}"><h2>{escape(part.title)}</h2>{part.body}</section>'
        for anchor, part in placed
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="agl-stack {__version__}">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE.read_text()}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>{lead}<nav aria-label="Contents"><ul>{links}</ul></nav></header>
{parts}
</main>
</body>
</html>
"""


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Large values with what they are, for the eye that passes by."""
    cells = "".join(
        f'<div class="tile"><strong>{escape(value)}</strong><span>{escape(name)}</span></div>'
        for name, value in values
    )
    return f'<div class="tiles">{cells}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table of texts; the first ``words`` columns are words, the others numbers."""
    named = "".join(f"<th{_kind(n, words)} scope=col>{escape(t)}</th>" for n, t in enumerate(head))
    body = "".join(f"<tr>{_cells(row, words)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{named}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def charts(drawn: Sequence[str]) -> str:
    """Charts beside each other where there is room."""
    return f'<div class="charts">{"".join(drawn)}</div>'


def note(title: str, lines: Sequence[str], kind: str = "") -> str:
    """A remark that must not be overlooked; ``kind`` is ``bad``, ``well`` or nothing."""
    told = "".join(f"<li>{escape(line)}</li>" for line in lines)
    listed = f"<ul>{told}</ul>" if lines else ""
    return f'<div class="note {kind}"><strong>{escape(title)}</strong>{listed}</div>'


def paragraph(text: str, *, quiet: bool = False) -> str:
    """A sentence or two."""
    return f"<p{' class=quiet' if quiet else ''}>{escape(text)}</p>"


def folded(title: str, body: str) -> str:
    """HTML that is shown on request."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def moment(seconds: float) -> str:
    """A time of UTC to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _kind(number: int, words: int) -> str:
    return " class=word" if number < words else ""


def _cells(row: Sequence[str], words: int) -> str:
    return "".join(f"<td{_kind(n, words)}>{escape(text)}</td>" for n, text in enumerate(row))
