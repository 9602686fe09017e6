"""A dashboard's panels in their places: rows, repeats, and panels whose JSON makes no sense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agl.ops.panels.interpolation import Scope, Value
from agl.ops.panels.variables import Variable
from agl.ops.shapes import mapping

COLUMNS = 24
DEFAULT_WIDTH, DEFAULT_HEIGHT = 12, 8
MAX_HEIGHT = 60
MAX_REPEATS = 50
MAX_PANELS = 500


@dataclass(frozen=True)
class Place:
    """Where a panel is, in grid columns and rows."""

    x: int
    y: int
    w: int
    h: int


@dataclass(frozen=True)
class Panel:
    """One panel as it is shown: repeats written out, variables in its texts replaced.

    Attributes:
        key: Names the panel within its board, the same at every load.
        content: Its JSON.
        scope: The variables it is read with; those it is repeated by have one value each.
        problem: Why it cannot be drawn; empty when it can.
    """

    key: str
    place: Place
    content: dict[str, Any]
    scope: Scope
    problem: str = ""

    @property
    def title(self) -> str:
        return self.scope.title(_text(self.content.get("title")))

    @property
    def kind(self) -> str:
        return _text(self.content.get("type"))

    def as_json(self) -> dict[str, Any]:
        """What the page needs to draw it, once it has the data."""
        content, scope = self.content, self.scope
        options = dict(mapping(content.get("options")))
        if self.kind == "text":
            old = {name: content[name] for name in ("content", "mode") if name in content}
            options = {**old, **options}
            options["content"] = scope.title(_text(options.get("content")))
        return {
            "key": self.key,
            "id": content.get("id"),
            "title": self.title or (f"Panel {self.key} of the file" if self.problem else ""),
            "description": scope.title(_text(content.get("description"))),
            "type": self.kind,
            "place": vars(self.place),
            "transparent": bool(content.get("transparent")),
            "options": options,
            "fieldConfig": _links_read(mapping(content.get("fieldConfig")), scope),
            "transformations": objects(content.get("transformations")),
            "links": links(content.get("links"), scope),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Row:
    """A row with its panels, placed relative to its top; what is above all rows has no title."""

    key: str
    title: str | None
    collapsed: bool
    panels: tuple[Panel, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "collapsed": self.collapsed,
            "panels": [panel.as_json() for panel in self.panels],
        }


@dataclass
class _Draft:
    """A row while its panels are collected."""

    key: str
    content: dict[str, Any] | None
    entries: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


def lay_out(board: Mapping[str, Any], variables: Iterable[Variable]) -> list[Row]:
    """The rows of a dashboard from top to bottom. Nothing is raised, whatever its JSON holds."""
    known = {variable.name: variable for variable in variables}
    scope = Scope({name: variable.value for name, variable in known.items()})
    rows: list[Row] = []
    for draft in _drafts(board):
        rows.extend(_rows(draft, known, scope))
    return rows


def links(found: Any, scope: Scope) -> list[dict[str, Any]]:
    """Links of a board or a panel, variables replaced; those without an address are left out."""
    return [
        {
            "title": scope.title(_text(link.get("title"))) or "link",
            "url": scope.link(_text(link.get("url"))),
            "tooltip": scope.title(_text(link.get("tooltip"))),
            "blank": bool(link.get("targetBlank")),
            "keepTime": bool(link.get("keepTime")),
            "includeVars": bool(link.get("includeVars")),
            "type": _text(link.get("type")),
            "tags": [str(tag) for tag in cast("list[Any]", link.get("tags") or [])]
            if isinstance(link.get("tags"), list)
            else [],
        }
        for link in objects(found)
        if (link.get("url") or link.get("type") == "dashboards")
    ]


def _drafts(board: Mapping[str, Any]) -> list[_Draft]:
    drafts = [_Draft("top", None)]
    panels = cast("list[Any]", board.get("panels") or [])
    for index, entry in enumerate(_in_order(panels)):
        key, panel = entry
        content = mapping(panel)
        if content.get("type") == "row":
            inside = content.get("panels")
            draft = _Draft(key, content)
            if isinstance(inside, list):
                nested = _in_order(cast("list[Any]", inside))
                draft.entries.extend((f"{key}.{name}", item) for name, item in nested)
            drafts.append(draft)
        else:
            drafts[-1].entries.append((key, panel))
        if index >= MAX_PANELS:
            break
    return [draft for draft in drafts if draft.content is not None or draft.entries]


def _in_order(panels: Sequence[Any]) -> list[tuple[str, Any]]:
    """Panels from top to bottom, each with a name from its position in the file."""
    named = [(str(index), panel) for index, panel in enumerate(panels, 1)]

    def where(entry: tuple[str, Any]) -> tuple[int, int]:
        grid = mapping(mapping(entry[1]).get("gridPos"))
        return _whole(grid.get("y"), 1 << 20), _whole(grid.get("x"), 0)

    return sorted(named, key=where)


def _rows(draft: _Draft, known: Mapping[str, Variable], scope: Scope) -> list[Row]:
    content = draft.content
    if content is None:
        return [Row(draft.key, None, False, _panels(draft, known, scope, ""))]
    rows: list[Row] = []
    for suffix, inner in _repeated(content, known, scope):
        narrowed = {name: v for name, v in known.items() if not suffix or name != _repeat(content)}
        rows.append(
            Row(
                draft.key + suffix,
                inner.title(_text(content.get("title"))),
                bool(content.get("collapsed")),
                _panels(draft, narrowed, inner, suffix),
            )
        )
    return rows


def _panels(
    draft: _Draft, known: Mapping[str, Variable], scope: Scope, suffix: str
) -> tuple[Panel, ...]:
    made = [_panel(f"{key}{suffix}", entry, scope) for key, entry in draft.entries]
    found: list[Panel] = []
    floor = 0
    for panel in made:
        # A panel without a place goes below everything before it.
        y = panel.place.y if panel.place.y >= 0 else floor
        copies = _copies(replace(panel, place=replace(panel.place, y=y)), known)
        found.extend(copies)
        floor = max(floor, *(copy.place.y + copy.place.h for copy in copies))
    return tuple(_settled(found))


def _settled(panels: Iterable[Panel]) -> list[Panel]:
    """Every panel as far up as those above it allow, as Grafana lets them fall upwards."""
    free = [0] * COLUMNS
    found: list[Panel] = []
    for panel in panels:
        place = panel.place
        columns = range(place.x, min(place.x + place.w, COLUMNS))
        y = max(free[column] for column in columns)
        for column in columns:
            free[column] = y + place.h
        found.append(replace(panel, place=replace(place, y=y)))
    # Whoever reads them one after the other, on a phone or aloud, reads from the top left.
    return sorted(found, key=lambda panel: (panel.place.y, panel.place.x))


def _copies(panel: Panel, known: Mapping[str, Variable]) -> list[Panel]:
    """A panel once for each value it is repeated by, beside or below each other."""
    copies = _repeated(panel.content, known, panel.scope)
    if copies == [("", panel.scope)]:
        return [panel]
    down = panel.content.get("repeatDirection") == "v"
    per_row = min(len(copies), _whole(panel.content.get("maxPerRow"), 4) or 4)
    width = panel.place.w if down else COLUMNS // max(1, per_row)
    found: list[Panel] = []
    for index, (suffix, scope) in enumerate(copies):
        line, column = (index, 0) if down else divmod(index, max(1, per_row))
        x = panel.place.x if down else column * width
        place = Place(x, panel.place.y + line * panel.place.h, width, panel.place.h)
        found.append(replace(panel, key=panel.key + suffix, place=place, scope=scope))
    return found


def _repeated(
    content: Mapping[str, Any], known: Mapping[str, Variable], scope: Scope
) -> list[tuple[str, Scope]]:
    variable = known.get(_repeat(content))
    if variable is None:
        return [("", scope)]
    values: list[Value] = variable.each()[:MAX_REPEATS]
    if not values:
        return [("", scope)]
    return [(f"~{v.values[0]}", scope.with_values({variable.name: v})) for v in values]


def _repeat(content: Mapping[str, Any]) -> str:
    return _text(content.get("repeat")).lstrip("$")


def _panel(key: str, entry: Any, scope: Scope) -> Panel:
    content = mapping(entry)
    problem = _problem(key, entry, content)
    grid = mapping(content.get("gridPos"))
    width = min(max(_whole(grid.get("w"), DEFAULT_WIDTH), 1), COLUMNS)
    place = Place(
        x=min(max(_whole(grid.get("x"), 0), 0), COLUMNS - width),
        y=max(_whole(grid.get("y"), -1), -1),
        w=width,
        h=min(max(_whole(grid.get("h"), DEFAULT_HEIGHT), 1), MAX_HEIGHT),
    )
    return Panel(key, place, content, scope, problem)


def _problem(key: str, entry: Any, content: Mapping[str, Any]) -> str:
    where = f"panel {key} of the file"
    if not isinstance(entry, dict):
        return f"{where} is not an object but {type(entry).__name__}"
    if content.get("libraryPanel"):
        return "it is a library panel, which only the Grafana that holds the library can draw"
    kind = content.get("type")
    if not isinstance(kind, str) or not kind:
        return f'{where}: "type" is {kind!r} and not the name of a kind of panel'
    wrong = [
        f'"{name}" is not {_SHAPE_NAMES[shape]} but {type(found).__name__}'
        for name, shape in _SHAPES.items()
        if (found := _at(content, name)) is not None and not isinstance(found, shape)
    ]
    return f"{where}: {', '.join(wrong)}" if wrong else ""


def _at(content: Mapping[str, Any], path: str) -> Any:
    """What is at ``a.b.c``; None when there is nothing, or something on the way is no object."""
    found: Any = content
    for name in path.split("."):
        found = mapping(found).get(name)
    return found


_SHAPES: dict[str, type] = {
    "targets": list,
    "fieldConfig": dict,
    "options": dict,
    "gridPos": dict,
    "transformations": list,
    "fieldConfig.defaults": dict,
    "fieldConfig.overrides": list,
    "fieldConfig.defaults.color": dict,
    "fieldConfig.defaults.color.mode": str,
    "fieldConfig.defaults.custom": dict,
    "fieldConfig.defaults.links": list,
    "fieldConfig.defaults.mappings": list,
    "fieldConfig.defaults.thresholds": dict,
    "fieldConfig.defaults.thresholds.steps": list,
    "fieldConfig.defaults.unit": str,
    "options.legend": dict,
    "options.reduceOptions": dict,
    "options.tooltip": dict,
}
_SHAPE_NAMES = {dict: "an object", list: "a list", str: "a text"}


def _links_read(config: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """The field configuration with the variables in data links replaced."""
    defaults = dict(mapping(config.get("defaults")))
    if "links" in defaults:
        defaults["links"] = links(defaults["links"], scope)
    overrides: list[dict[str, Any]] = []
    for override in objects(config.get("overrides")):
        properties = [
            {**item, "value": links(item.get("value"), scope)}
            if item.get("id") == "links"
            else item
            for item in objects(override.get("properties"))
        ]
        overrides.append({**override, "properties": properties})
    if "displayName" in defaults:
        defaults["displayName"] = scope.title(_text(defaults["displayName"]))
    return {"defaults": defaults, "overrides": overrides}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in ``value`` if it is a list; whatever else is in it is left out."""
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in found if isinstance(item, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    return int(value) if abs(value) < 1 << 20 else default
