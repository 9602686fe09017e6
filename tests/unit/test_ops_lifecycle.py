"""What a start takes back when it fails, and what is no fault of the daemon's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from agl.errors import EnvironmentFault
from agl.ops.compose import Compose
from agl.ops.console import Console
from agl.ops.engine import Container, Engine
from agl.ops.lifecycle import Start, UpOptions, agree_to_loss

pytest.importorskip("docker")
APP = Container(
    id="app",
    name="agl-app-1",
    service="app",
    state="running",
    health="",
    exit_code=0,
    restarts=0,
    started_at="",
    image="i",
    image_id="sha256:i",
    memory_limit=0,
    error="",
)
INIT = replace(APP, id="init", service="init", state="exited")
OLD = replace(APP, id="old", service="app-exporter", state="exited")


class Bundle:
    """Stands in for the daemon and for Compose: containers in, what was stopped out."""

    def __init__(self, *containers: Container) -> None:
        self.now = list(containers)
        self.stopped: list[str] = []

    def containers(self) -> list[Container]:
        return self.now

    def stop(self, ids: Any) -> None:
        self.stopped.extend(ids)

    def run(self, *arguments: str) -> None:
        self.stopped.append(arguments[0])


def undone(before: list[Container], now: list[Container]) -> list[str]:
    bundle = Bundle(*now)
    engine, compose = cast("Engine", bundle), cast("Compose", bundle)
    start = Start(engine, compose, Console({}, interactive=False), UpOptions("memory"))
    start._undo(before)  # pyright: ignore[reportPrivateUsage]
    return bundle.stopped


class TestUndo:
    def test_from_nothing_all_of_it_goes(self) -> None:
        assert undone([], [APP, INIT]) == ["down"]

    def test_a_running_bundle_loses_what_is_new_alone(self) -> None:
        assert undone([APP, INIT], [APP, INIT, replace(OLD, state="created")]) == ["old"]

    def test_a_one_shot_that_has_done_its_work_stays(self) -> None:
        assert undone([APP, INIT], [APP, INIT]) == []

    def test_what_ran_not_before_is_stopped(self) -> None:
        assert undone([APP, OLD], [APP, replace(OLD, state="running")]) == ["old"]


ON_MONGO = replace(APP, compose_file="compose.prometheus-mongo-store.yml")
IN_MEMORY = replace(APP, compose_file="compose.prometheus-memory-store.yml")


def agree(mode: str, *containers: Container) -> None:
    bundle = Bundle(*containers)
    engine, compose = cast("Engine", bundle), cast("Compose", bundle)
    agree_to_loss(engine, compose, Console({}, interactive=False), UpOptions(mode))


class TestAgreeToLoss:
    @pytest.mark.parametrize("state", ["running", "restarting", "exited"])
    def test_a_store_on_mongodb_that_is_down_is_not_replaced_unasked(
        self, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agl.ops.lifecycle.can_ask", lambda: False)
        with pytest.raises(EnvironmentFault, match="type scripts/up mongo"):
            agree("memory", replace(ON_MONGO, state=state))

    def test_what_is_down_may_be_started_again(self) -> None:
        agree("mongo", replace(ON_MONGO, state="exited"))
        agree("memory", replace(IN_MEMORY, state="exited"))
        agree("memory")


class Gone:
    """A daemon of which somebody else has removed everything."""

    def __getattr__(self, name: str) -> Any:
        from docker.errors import NotFound

        def refuse(*_: Any, **__: Any) -> None:
            raise NotFound(f"no such thing: {name}")

        return refuse


class TestRaces:
    ENGINE = Engine(Gone(), "agl")

    def test_what_somebody_else_removed_is_passed_over(self) -> None:
        self.ENGINE.remove_volume("v")
        self.ENGINE.remove_network("n")
        self.ENGINE.stop(["c"])

    def test_a_container_that_is_gone_has_no_log_and_takes_no_memory(self) -> None:
        assert self.ENGINE.logs("c", 5) == []
        assert self.ENGINE.memory_used("c") == 0
