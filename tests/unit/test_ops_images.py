"""Which images are run, when they are built anew, and what the env file remembers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault
from agl.ops.build import BUILD_ARGUMENTS, ca_bundle, content_sum, run_shown
from agl.ops.choices import (
    BUILT,
    LEFT_OUT,
    PINNED,
    SLOTS,
    STAND_IN,
    Choice,
    Choices,
    profiles_without,
    remember,
    used_slots,
    write_choices,
)
from agl.ops.engine import split_name
from agl.ops.envfile import parse_env_text
from agl.ops.images import nofile, registry_of
from agl.ops.layout import Layout
from agl.ops.machine import nofile_limit

REPOSITORY = Path(__file__).resolve().parents[2]
STORE, PROMETHEUS, GRAFANA = (
    SLOTS[name] for name in ("AGL_STORE_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE")
)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    for folder in ("compose", "images", "locks"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    (tmp_path / "compose" / ".env.images").unlink(missing_ok=True)
    shutil.copytree(REPOSITORY / "app/agl/ops", tmp_path / "app/agl/ops")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return Layout(tmp_path, {})


def choices(*found: Choice, profiles: str = "grafana", nofile: int = 1000) -> Choices:
    return Choices(found, profiles, nofile)


class TestNames:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("prom/prometheus:v3", ("prom/prometheus", "v3")),
            ("debian", ("debian", "latest")),
            ("host:5000/a/b", ("host:5000/a/b", "latest")),
            ("host:5000/a/b:1", ("host:5000/a/b", "1")),
            ("a/b@sha256:ff", ("a/b", "sha256:ff")),
            ("a/b:1@sha256:ff", ("a/b:1", "sha256:ff")),
        ],
    )
    def test_split(self, name: str, parts: tuple[str, str]) -> None:
        assert split_name(name) == parts

    @pytest.mark.parametrize(
        ("name", "registry"),
        [
            ("debian:trixie-slim", "docker.io"),
            ("prom/prometheus:v3", "docker.io"),
            ("registry.example.com/prom/prometheus:v3", "registry.example.com"),
            ("localhost/prometheus", "localhost"),
            ("host:5000/prometheus", "host:5000"),
        ],
    )
    def test_registry(self, name: str, registry: str) -> None:
        assert registry_of(name) == registry


class TestSlots:
    def test_store_mode_needs_our_image_alone(self, layout: Layout) -> None:
        assert used_slots(layout, "store") == [STORE]

    def test_memory_mode_needs_what_its_file_and_the_files_it_extends_name(
        self, layout: Layout
    ) -> None:
        names = {slot.variable for slot in used_slots(layout, "memory")}
        wanted = {"AGL_STORE_IMAGE", "PROMETHEUS_IMAGE", "NODE_EXPORTER_IMAGE", "GRAFANA_IMAGE"}
        assert wanted <= names

    def test_every_slot_is_pinned_and_every_stand_in_has_its_dockerfile(
        self, layout: Layout
    ) -> None:
        pinned = layout.pinned()
        for slot in SLOTS.values():
            assert ":" in pinned[slot.variable]
            assert not slot.folder or (REPOSITORY / "images" / slot.folder / "Dockerfile").is_file()

    def test_every_image_of_the_env_file_has_a_slot(self, layout: Layout) -> None:
        images = {name for name in layout.pinned() if name.endswith("_IMAGE")}
        wrapped = {slot.wraps for slot in SLOTS.values() if slot.wraps}
        assert images - set(SLOTS) == {"AGL_BASE_IMAGE", *wrapped}

    def test_mongo_mode_needs_mongodb_and_its_exporter(self, layout: Layout) -> None:
        names = {slot.variable for slot in used_slots(layout, "mongo")}
        memory = {slot.variable for slot in used_slots(layout, "memory")}
        assert names - memory == {"MONGO_IMAGE", "AGL_MONGODB_EXPORTER_IMAGE"}
        assert memory < names


class TestEnvFileOfImages:
    def test_a_choice_is_remembered_for_the_pinned_image_alone(self, layout: Layout) -> None:
        write_choices(layout, choices(Choice(PROMETHEUS, "prom/p:1", "mine:1", STAND_IN)))
        known = remember(layout)
        assert known.stand_in_for(PROMETHEUS, "prom/p:1") == "mine:1"
        assert known.stand_in_for(PROMETHEUS, "prom/p:2") == ""

    def test_what_was_left_out_is_remembered(self, layout: Layout) -> None:
        left_out = Choice(GRAFANA, "grafana/grafana:1", "", LEFT_OUT)
        write_choices(layout, choices(left_out, profiles=""))
        assert remember(layout).left_out == {"GRAFANA_IMAGE": "grafana/grafana:1"}
        assert "GRAFANA_IMAGE" not in parse_env_text(layout.images_env_file.read_text())

    def test_pinned_images_are_no_stand_ins(self, layout: Layout) -> None:
        write_choices(layout, choices(Choice(PROMETHEUS, "prom/p:1", "prom/p:1", PINNED)))
        assert remember(layout).stand_in_for(PROMETHEUS, "prom/p:1") == ""

    def test_compose_sees_the_choice_and_not_the_profile(self, layout: Layout) -> None:
        write_choices(
            layout,
            choices(
                Choice(PROMETHEUS, "prom/p:1", "mine:1", STAND_IN),
                Choice(GRAFANA, "g:1", "", LEFT_OUT),
                profiles="",
            ),
        )
        found = layout.variables()
        assert (found["PROMETHEUS_IMAGE"], found["COMPOSE_PROFILES"]) == ("mine:1", "")
        assert found["AGL_NOFILE"] == "1000"
        assert layout.pinned()["COMPOSE_PROFILES"] == "grafana,mongo,mongodb-exporter"

    def test_writing_the_same_again_does_not_touch_the_file(self, layout: Layout) -> None:
        same = choices(Choice(STORE, "s:1", "s:1", BUILT))
        write_choices(layout, same)
        os.utime(layout.images_env_file, (1, 1))
        write_choices(layout, same)
        assert layout.images_env_file.stat().st_mtime == 1
        assert [path.name for path in layout.compose_dir.glob(".env.*")] == [".env.images"]

    def test_choices_of_another_mode_are_kept(self, layout: Layout) -> None:
        write_choices(
            layout,
            choices(
                Choice(STORE, "s:1", "s:1", BUILT),
                Choice(PROMETHEUS, "prom/p:1", "mine:1", STAND_IN),
                Choice(GRAFANA, "g:1", "", LEFT_OUT),
                profiles="panels",
            ),
        )
        before = layout.images_env_file.read_text()
        write_choices(layout, choices(Choice(STORE, "s:1", "s:1", BUILT)))
        assert layout.images_env_file.read_text() == before

    def test_what_another_mode_left_out_stays_out(self, layout: Layout) -> None:
        write_choices(layout, choices(Choice(GRAFANA, "g:1", "", LEFT_OUT), profiles=""))
        write_choices(layout, choices(Choice(STORE, "s:1", "s:1", BUILT), profiles="grafana"))
        assert layout.variables()["COMPOSE_PROFILES"] == "panels"
        write_choices(layout, choices(Choice(GRAFANA, "g:1", "g:1", PINNED), profiles="grafana"))
        assert layout.variables()["COMPOSE_PROFILES"] == "grafana"

    def test_a_file_that_is_no_text_is_one_line(self, layout: Layout) -> None:
        layout.images_env_file.write_bytes(b"\xff\xfe\x80")
        for read in (layout.variables, lambda: remember(layout)):
            with pytest.raises(EnvironmentFault, match=r"\.env\.images is no UTF-8 text"):
                read()

    def test_a_file_that_cannot_be_written_is_one_line(self, layout: Layout) -> None:
        layout.images_env_file.with_name(f"..env.images.{os.getpid()}").mkdir()
        with pytest.raises(EnvironmentFault, match=r"\.env\.images cannot be written"):
            write_choices(layout, choices(Choice(STORE, "s:1", "s:1", BUILT)))

    def test_overrides_win_with_what_was_chosen(self) -> None:
        chosen = choices(
            Choice(PROMETHEUS, "prom/p:1", "mine:1", STAND_IN),
            Choice(GRAFANA, "g:1", "", LEFT_OUT),
            profiles="",
        )
        assert chosen.overrides() == {
            "PROMETHEUS_IMAGE": "mine:1",
            "COMPOSE_PROFILES": "",
            "AGL_NOFILE": "1000",
        }

    def test_other_profiles_stay(self) -> None:
        assert profiles_without({"COMPOSE_PROFILES": "a, grafana,b"}, [GRAFANA]) == "a,panels,b"
        assert profiles_without({"COMPOSE_PROFILES": "a"}, [GRAFANA]) == "a"
        assert profiles_without({"COMPOSE_PROFILES": "panels,grafana"}, [GRAFANA]) == "panels"
        assert profiles_without({"COMPOSE_PROFILES": "a,grafana"}, []) == "a,grafana"

    def test_nofile_is_the_lower_of_wish_and_limit(self, layout: Layout) -> None:
        limit = nofile_limit()
        assert nofile(Layout(layout.root, {"AGL_NOFILE": str(limit + 1)})) == limit
        assert nofile(Layout(layout.root, {"AGL_NOFILE": "1024"})) == 1024


class TestContent:
    def sum(self, layout: Layout, folder: str = "images/store", base: str = "id") -> str:
        return content_sum(layout.root, folder, {"BASE_IMAGE": "b"}, base)

    def test_same_content_same_sum(self, layout: Layout) -> None:
        first = self.sum(layout)
        os.utime(layout.root / "pyproject.toml", (1, 1))
        (layout.root / "app/agl/ops/__pycache__").mkdir(exist_ok=True)
        (layout.root / "app/agl/ops/__pycache__/x.pyc").write_bytes(b"x")
        (layout.root / "tests").mkdir()
        assert self.sum(layout) == first

    @pytest.mark.parametrize(
        "name",
        ["app/agl/ops/health.py", "locks/store.txt", "images/store/Dockerfile", "README.md"],
    )
    def test_a_changed_source_changes_it(self, layout: Layout, name: str) -> None:
        first = self.sum(layout)
        with (layout.root / name).open("a") as file:
            file.write("\n")
        assert self.sum(layout) != first

    def test_a_renamed_source_changes_it(self, layout: Layout) -> None:
        first = self.sum(layout)
        (layout.root / "app/agl/ops/health.py").rename(layout.root / "app/agl/ops/wealth.py")
        assert self.sum(layout) != first

    def test_base_and_arguments_change_it(self, layout: Layout) -> None:
        first = self.sum(layout)
        assert self.sum(layout, base="other") != first
        assert content_sum(layout.root, "images/store", {"BASE_IMAGE": "c"}, "id") != first

    def test_stand_ins_do_not_depend_on_our_code(self, layout: Layout) -> None:
        first = self.sum(layout, "images/prometheus")
        (layout.root / "app/agl/ops/health.py").unlink()
        assert self.sum(layout, "images/prometheus") == first

    def test_everything_the_dockerfile_copies_is_in_the_sum(self, layout: Layout) -> None:
        from agl.ops.build import SHARED_SOURCES, STORE_SOURCES

        text = (REPOSITORY / "images/store/Dockerfile").read_text()
        lines = [line.split() for line in text.splitlines() if line.startswith("COPY ")]
        copied = {p for line in lines if "--from" not in line[1] for p in line[1:-1]}
        known = {*SHARED_SOURCES, *STORE_SOURCES, "app"}
        assert {p for p in copied if not p.startswith("images/store/")} <= known

    def test_every_build_argument_is_one_of_the_dockerfile(self) -> None:
        text = (REPOSITORY / "images/store/Dockerfile").read_text()
        assert all(f"ARG {name}=" in text for name in BUILD_ARGUMENTS)


class TestCertificates:
    def test_own_bundle_first_then_what_the_machine_trusts(
        self, layout: Layout, tmp_path: Path
    ) -> None:
        own, machine = layout.compose_dir / "own.pem", tmp_path / "machine.pem"
        own.write_text("own")
        machine.write_text("machine")
        environ = {"PIP_CERT": str(machine)}
        assert ca_bundle(Layout(layout.root, environ)) == str(machine)
        assert ca_bundle(Layout(layout.root, {**environ, "AGL_CA_BUNDLE": "own.pem"})) == str(own)
        assert ca_bundle(layout) == ""

    def test_a_bundle_that_is_not_there(self, layout: Layout) -> None:
        with pytest.raises(EnvironmentFault, match=r"AGL_CA_BUNDLE names gone\.pem"):
            ca_bundle(Layout(layout.root, {"AGL_CA_BUNDLE": "gone.pem"}))


class TestRunShown:
    def test_stages_are_shown_without_their_mounts(self) -> None:
        shown: list[list[str]] = []
        line = "#7 [builder 2/8] RUN --mount=type=secret,id=x   umask 022"
        run_shown(["echo", line], {"PATH": os.environ["PATH"]}, shown.append, "it")
        assert shown == [["[builder 2/8] RUN umask 022"]]

    def test_failure_prints_the_last_lines_and_says_why(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script = "for i in $(seq 40); do echo line $i; done; echo no space left; exit 3"
        with pytest.raises(EnvironmentFault, match=r"it failed .* no space left"):
            run_shown(["sh", "-c", script], {"PATH": os.environ["PATH"]}, lambda _: None, "it")
        shown = capsys.readouterr().err
        assert "line 40" in shown
        assert "line 20\n" not in shown
