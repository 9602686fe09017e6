"""Grafana's HTTP API through grafana-client, its failures as one line with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote, urlsplit

import requests
from grafana_client import GrafanaApi  # pyright: ignore[reportMissingTypeStubs]
from grafana_client.client import (  # pyright: ignore[reportMissingTypeStubs]
    GrafanaException,
)

from agl.errors import EnvironmentFault
from agl.ops.shapes import items, mapping

TIMEOUT = 60.0
_TOKEN = "make a token of a service account, role Editor (docs/grafana.md)"  # noqa: S105 - advice
_ADDRESS = "look at --url or GRAFANA_URL"


class Refusal(EnvironmentFault):
    """Grafana has answered with an error.

    Attributes:
        status: HTTP status, 400 or more.
        body: What it answered, read as JSON where it is.
    """

    def __init__(self, message: str, status: int, body: Any, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.body = body

    @property
    def reason(self) -> str:
        """Grafana's own words."""
        said = mapping(self.body)
        return str(said.get("message") or said.get("error") or self.body or self.status)


class Grafana:
    """One Grafana, asked with a token.

    Every method raises EnvironmentFault when Grafana does not answer or the token is not enough,
    and ``Refusal``, which is one, when it answers with an error.
    """

    def __init__(self, url: str, token: str, timeout: float = TIMEOUT) -> None:
        self.url = url.rstrip("/")
        # The library puts "api" behind the path as it is.
        path = f"{self.url}/" if urlsplit(self.url).path else self.url
        self._api: Any = cast("Any", GrafanaApi).from_url(path, token, timeout=timeout)

    def health(self) -> dict[str, Any]:
        """Version and state of its database; it asks for no token."""
        try:
            said = mapping(self._call("tell its health", lambda api: api.health.check()))
        except Refusal as exc:
            # Grafana says so when its database does not answer.
            if exc.status != 503:
                raise self._foreign() from exc
            said = mapping(exc.body)
        if "database" not in said or "application" in said:
            raise self._foreign(str(said.get("application") or ""))
        return said

    def datasource(self, uid: str) -> dict[str, Any] | None:
        """The data source with this uid, if there is one."""
        return self._find(
            "read data sources", lambda api: api.datasource.get_datasource_by_uid(_path(uid))
        )

    def datasource_health(self, uid: str) -> str:
        """What Grafana says of a healthy data source. Raises Refusal when it is not."""
        said = mapping(
            self._call("check a data source", lambda api: api.datasource.health(_path(uid)))
        )
        if said.get("status") != "OK":
            raise Refusal("the data source is not healthy", 200, said)
        return str(said.get("message") or "OK")

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """``{"dashboard": ..., "meta": ...}`` of the dashboard with this uid, if there is one."""
        return self._find("read dashboards", lambda api: api.dashboard.get_dashboard(_path(uid)))

    def save(self, dashboard: dict[str, Any], folder: str, message: str) -> dict[str, Any]:
        """Create the dashboard, or put it in place of the one with its uid; ``url`` and more."""
        wanted = {
            "dashboard": {**dashboard, "id": None},
            "folderUid": folder,
            "overwrite": True,
            "message": message,
        }
        return mapping(
            self._call("save dashboards", lambda api: api.dashboard.update_dashboard(wanted))
        )

    def query(self, queries: list[dict[str, Any]], start: float, end: float) -> dict[str, Any]:
        """``/api/ds/query``: by refId ``{"frames": [...]}`` or ``{"error": ...}``.

        Args:
            queries: As a panel has them, each with refId and datasource.
            start: Seconds since the epoch.
            end: Likewise.
        """
        wanted = {
            "queries": queries,
            "from": str(int(start * 1000)),
            "to": str(int(end * 1000)),
        }
        try:
            said = self._call(
                "ask data sources", lambda api: api.client.POST("/ds/query", json=wanted)
            )
        except Refusal as exc:
            # One query that fails makes the whole answer an error; the others are in it as well.
            said = exc.body
            if not mapping(said).get("results"):
                raise
        return mapping(mapping(said).get("results"))

    def rules(self, datasource: str) -> list[dict[str, Any]]:
        """The rules of a Prometheus, as Grafana's list of alert rules shows them."""
        path = f"/prometheus/{_path(datasource)}/api/v1/rules"
        said = mapping(self._call("read alert rules", lambda api: api.client.GET(path)))
        groups = items(mapping(said.get("data")).get("groups"))
        return [rule for group in groups for rule in items(group.get("rules"))]

    def annotations(self, tag: str, start: int, end: int) -> list[dict[str, Any]]:
        """Annotations with this tag between two times, in milliseconds since the epoch."""
        return items(
            self._call(
                "read annotations",
                lambda api: api.annotations.get_annotation(
                    time_from=start, time_to=end, tags=[tag], limit=10_000
                ),
            )
        )

    def annotate(self, start: int, end: int, tags: list[str], text: str) -> int:
        """Make an annotation (milliseconds since the epoch); its id."""
        said = self._call(
            "make annotations",
            lambda api: api.annotations.add_annotation(
                time_from=start, time_to=end, tags=tags, text=text
            ),
        )
        return int(mapping(said).get("id") or 0)

    def snapshot(self, dashboard: dict[str, Any], name: str, expires: int) -> dict[str, Any]:
        """Keep a dashboard with the data in it for ``expires`` seconds, 0: for ever."""
        return mapping(
            self._call(
                "make snapshots",
                lambda api: api.snapshots.create_new_snapshot(
                    dashboard=dashboard, name=name, expires=expires
                ),
            )
        )

    def _find(self, what: str, ask: Callable[[Any], Any]) -> dict[str, Any] | None:
        try:
            return mapping(self._call(what, ask))
        except Refusal as exc:
            if exc.status == 404:
                return None
            raise

    def _call(self, what: str, ask: Callable[[Any], Any]) -> Any:
        try:
            said = ask(self._api)
        except GrafanaException as exc:
            raise self._refused(what, cast("Any", exc)) from exc
        except requests.exceptions.JSONDecodeError as exc:
            raise self._foreign() from exc
        except requests.exceptions.RequestException as exc:
            raise EnvironmentFault(
                f"{self.url} does not answer ({_reason(exc)})", remedy=f"is Grafana up? {_ADDRESS}"
            ) from exc
        if isinstance(said, str):
            raise self._foreign()
        return said

    def _foreign(self, name: str = "") -> EnvironmentFault:
        what = f"is {name}, not Grafana" if name else "does not answer as Grafana does"
        return EnvironmentFault(f"{self.url} {what}", remedy=_ADDRESS)

    def _refused(self, what: str, exc: Any) -> Refusal:
        status, body = int(exc.status_code), exc.response
        refusal = Refusal("", status, body)
        if status == 401:
            return Refusal(f"{self.url} does not know this token", status, body, remedy=_TOKEN)
        if status == 403:
            message = f"this token may not {what} ({refusal.reason})"
            return Refusal(message, status, body, remedy=_TOKEN)
        message = f"Grafana would not {what}: {status} {refusal.reason}"
        return Refusal(message, status, body)


def columns(frame: dict[str, Any]) -> list[list[Any]]:
    """The values of a data frame, field by field."""
    return cast("list[list[Any]]", mapping(frame.get("data")).get("values") or [])


def _path(uid: str) -> str:
    return quote(uid, safe="")


def _reason(exc: Exception) -> str:
    """The innermost words of a chain that the library has wrapped several times."""
    text = str(exc)
    if isinstance(exc, requests.exceptions.Timeout):
        return "it took too long"
    found = text.rpartition(": ")[2].strip(" ')\"")
    return found or type(exc).__name__
