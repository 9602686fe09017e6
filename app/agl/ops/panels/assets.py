"""The page: its scripts and styles as files to serve, or written into one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from pathlib import Path
from typing import Any

from agl import __version__

STATIC = Path(__file__).parent / "static"
VENDOR = STATIC / "vendor"
INLINE = STATIC / "inline"
SCRIPTS = ("uplot/uPlot.iife.min.js", "marked/marked.umd.js", "dompurify/purify.min.js")
STYLES = ("uplot/uPlot.min.css",)

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@cache
def files() -> dict[str, bytes]:
    """Every file of the page by its path below ``/static/``; versions are not part of the path."""
    found = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in TYPES}
    for path in VENDOR.rglob("*"):
        if path.suffix in TYPES:
            package = path.parent.name.rpartition("-")[0]
            found[f"{package}/{path.name}"] = path.read_bytes()
    return found


@cache
def modules() -> list[str]:
    """The page's own modules, which import each other as ``panels/NAME.js``."""
    return sorted(name for name in files() if "/" not in name and name.endswith(".js"))


@cache
def live_page() -> tuple[str, str]:
    """The page that asks this server, and the Content-Security-Policy that fits it."""
    imports = _imports({name: f"/static/{name}?{_mark(name)}" for name in modules()})
    arrival = _closed((INLINE / "arrival.js").read_text("utf-8"))
    policy = (
        f"default-src 'none'; script-src 'self' {_sum(arrival)} {_sum(imports)}; style-src 'self';"
        " img-src 'self' data: https:; connect-src 'self'; frame-ancestors 'self';"
        " base-uri 'none'; form-action 'none'"
    )
    styles = [f'<link rel="stylesheet" href="/static/{n}?{_mark(n)}">' for n in _styles()]
    scripts = [f'<script src="/static/{name}?{_mark(name)}"></script>' for name in SCRIPTS]
    inline = f'<script>{arrival}</script>\n<script type="importmap">{imports}</script>'
    head = "\n".join((inline, *styles, *scripts))
    start = f'<script type="module" src="/static/main.js?{_mark("main.js")}"></script>'
    return _document("Dashboards", head, start), policy


def report_page(title: str, content: dict[str, Any]) -> str:
    """One HTML file that holds everything it shows, and asks nobody for anything."""
    imports = _imports({name: _data_url(files()[name]) for name in modules()})
    # Nothing that a title or a label holds can end the element that carries it.
    carried = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = (
        "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline';"
        " img-src data:"
    )
    head = "\n".join(
        (
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            *(f"<style>{files()[name].decode()}</style>" for name in _styles()),
            f'<script type="importmap">{imports}</script>',
            *(f"<script>{_closed(files()[name].decode())}</script>" for name in SCRIPTS),
            f'<script type="application/json" id="recorded">{carried}</script>',
        )
    )
    return _document(title, head, '<script type="module">import "panels/main.js";</script>')


def _document(title: str, head: str, start: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="agl-stack {__version__}">
<meta name="color-scheme" content="dark light">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
{head}
</head>
<body>
<div id="app"><noscript>This page draws with JavaScript; please allow it.</noscript></div>
{start}
</body>
</html>
"""


def _styles() -> tuple[str, ...]:
    return (*STYLES, *sorted(n for n in files() if "/" not in n and n.endswith(".css")))


def _imports(addresses: dict[str, str]) -> str:
    return json.dumps({"imports": {f"panels/{name}": url for name, url in addresses.items()}})


def _data_url(content: bytes) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(content).decode()}"


def _sum(script: str) -> str:
    """What a Content-Security-Policy allows a script in the page by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _closed(script: str) -> str:
    return script.replace("</script", "<\\/script")


def _mark(name: str) -> str:
    """Changes with the file, so that a browser may keep it for good."""
    return hashlib.sha256(files()[name]).hexdigest()[:12]
