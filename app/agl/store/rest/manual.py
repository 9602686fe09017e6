"""The OpenAPI document as one page of plain HTML: no scripts, nothing from elsewhere.

It works where there is no way out to the internet, which is where stores run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

JSON = "application/json"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { font-size: 1.1rem; margin-top: 2.5rem; border-top: 1px solid #8888; padding-top: 1rem }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem }
pre { overflow-x: auto; padding: .7rem; background: #8882; border-radius: .3rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .1rem 1rem .1rem 0 }
nav ul { columns: 20rem; padding-left: 1rem } :root { color-scheme: light dark }
"""


def render(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    operations = list(_operations(document))
    entries = "".join(
        f'<li><a href="#{escape(operation["operationId"])}"><code>{escape(name)}</code></a></li>'
        for name, operation in operations
    )
    sections = "".join(_section(name, operation) for name, operation in operations)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1><p>For programs: "
        f'<a href="openapi.json">openapi.json</a>, which any OpenAPI tool reads.</p>'
        f"<nav><ul>{entries}</ul></nav>{sections}</body></html>"
    )


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def _section(name: str, operation: Mapping[str, Any]) -> str:
    answers: Mapping[str, Any] = operation["responses"]
    success = next(answer for code, answer in answers.items() if code[0] == "2" or code == "501")
    parts = [
        f'<h2 id="{escape(operation["operationId"])}"><code>{escape(name)}</code></h2>',
        f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>",
        _parameters(operation.get("parameters", ())),
        _example("Request", operation.get("requestBody")),
        _example("Answer", success),
        f"<p>Statuses: {escape(', '.join(answers))}</p>",
    ]
    return "".join(parts)


def _parameters(parameters: Any) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(item['name'])}</code></td><td>{escape(item['in'])}"
        f"{', required' if item.get('required') else ''}</td>"
        f"<td>{escape(item.get('description', ''))}</td></tr>"
        for item in parameters
    )
    return f"<table>{rows}</table>" if rows else ""


def _example(title: str, holder: Mapping[str, Any] | None) -> str:
    content = (holder or {}).get("content", {})
    example = content.get(JSON, {}).get("example")
    if example is None:
        return ""
    text = json.dumps(example, indent=2, ensure_ascii=False)
    return f"<p>{title}, for example:</p><pre>{escape(text)}</pre>"
