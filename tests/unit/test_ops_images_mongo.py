"""Where the images of the bundle on MongoDB come from, and what is said where they do not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from agl.errors import EnvironmentFault, UsageError
from agl.ops.choices import BUILT, LAB, LEFT_OUT, is_lab, remember
from agl.ops.console import Console
from agl.ops.engine import Engine, Image, PullError
from agl.ops.images import ImageOptions, ImageStep
from agl.ops.layout import Layout
from agl.ops.options import check_lab, up_parser

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = "agl-stack/store:0.1.0"
MONGO, EXPORTER = "mongo:8.0.26", "agl-stack/mongodb-exporter:0.53.0"
LAB_IMAGE = "agl-stack/lab-mongod:lab"
ELSE = (
    "prom/prometheus:v3.13.2",
    "prom/alertmanager:v0.33.1",
    "prom/node-exporter:v1.12.1",
    "grafana/grafana:13.1.3",
)
NOT_BUILT = ImageOptions(build=False)


class Images:
    """A daemon that has these images and reaches no registry."""

    def __init__(self, *names: str) -> None:
        self.names = {OURS, *ELSE, *names}
        self.asked: list[str] = []

    def image(self, name: str) -> Image | None:
        return Image(f"sha256:{name}", 1, (), {}) if name in self.names else None

    def pull(self, name: str, progress: Any) -> None:
        self.asked.append(name)
        raise PullError("no such host", answered=False)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    shutil.copytree(REPOSITORY / "compose", tmp_path / "compose")
    (tmp_path / "compose" / ".env.images").unlink(missing_ok=True)
    return Layout(tmp_path, {})


def step(layout: Layout, images: Images, options: ImageOptions = NOT_BUILT) -> ImageStep:
    return ImageStep(layout, cast("Engine", images), Console({}), options)


def test_without_a_registry_the_choices_are_named_before_anything_is_built(
    layout: Layout,
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        step(layout, Images()).prepare("mongo")
    for choice in ("--offline FILE", "MONGO_IMAGE=", "AGL_MONGO_URI=", "--lab"):
        assert choice in str(caught.value)
    assert not layout.images_env_file.exists()


def test_the_real_ones_run_where_they_are(layout: Layout) -> None:
    choices = step(layout, Images(MONGO, EXPORTER)).prepare("mongo")
    assert {choice.slot.title: choice.name for choice in choices.choices}["mongo"] == MONGO
    assert {choice.name for choice in choices.of(BUILT)} == {EXPORTER, OURS}
    found = layout.variables()
    assert (found["AGL_MONGO_REPLICA_SET"], found["AGL_MONGO_DATA"]) == ("rs0", "mongo-data")
    assert found["COMPOSE_PROFILES"] == "grafana,mongo,mongodb-exporter"


def test_lab_is_said_each_time_and_keeps_its_data_apart(layout: Layout) -> None:
    images = Images(LAB_IMAGE)
    choices = step(layout, images, ImageOptions(build=False, lab=True)).prepare("mongo")
    assert [choice.name for choice in choices.of(LAB)] == [LAB_IMAGE, LAB_IMAGE]
    found = layout.variables()
    assert found["AGL_MONGO_REPLICA_SET"] == "secantus"
    assert found["AGL_MONGO_DATA"] == choices.overrides()["AGL_MONGO_DATA"] == "mongo-lab-data"
    with pytest.raises(EnvironmentFault, match="--lab"):
        step(layout, images).prepare("mongo")
    step(layout, Images(LAB_IMAGE, MONGO, EXPORTER)).prepare("mongo")
    assert layout.variables()["MONGO_IMAGE"] == MONGO
    assert layout.variables()["AGL_MONGO_DATA"] == "mongo-data"


def test_another_mode_does_not_forget_that_lab_was_chosen(layout: Layout) -> None:
    images = Images(LAB_IMAGE)
    step(layout, images, ImageOptions(build=False, lab=True)).prepare("mongo")
    step(layout, images).prepare("memory")
    assert layout.variables()["MONGO_IMAGE"] == LAB_IMAGE
    assert layout.variables()["AGL_MONGO_DATA"] == "mongo-lab-data"


def test_a_mongodb_of_ones_own_needs_no_image(layout: Layout) -> None:
    own = Layout(layout.root, {"AGL_MONGO_URI": "mongodb://a:b@h/"})
    choices = step(own, Images(EXPORTER)).prepare("mongo")
    assert choices.profiles == "grafana,mongodb-exporter"
    assert "mongo" not in {choice.slot.title for choice in choices.choices}
    assert "a:b" not in own.images_env_file.read_text()


def test_without_its_exporter_prometheus_has_no_job_for_it(layout: Layout) -> None:
    own = Layout(layout.root, {"AGL_MONGO_URI": "mongodb://h/"})
    images = Images()
    choices = step(own, images).prepare("mongo")
    assert [choice.name for choice in choices.of(LEFT_OUT)] == [""]
    assert choices.profiles == "grafana"
    assert choices.overrides()["AGL_PROMETHEUS_MONGO_CONFIG"] == "prometheus.base.yml"
    assert own.variables()["AGL_PROMETHEUS_MONGO_CONFIG"] == "prometheus.base.yml"
    assert remember(own).left_out == {"AGL_MONGODB_EXPORTER_IMAGE": EXPORTER}
    asked = len(images.asked)
    step(own, images).prepare("mongo")
    assert len(images.asked) == asked, "what was settled is not asked for again"
    step(own, Images(EXPORTER)).prepare("mongo")
    assert own.variables()["AGL_PROMETHEUS_MONGO_CONFIG"] == "prometheus.mongo.yml"


@pytest.mark.parametrize(
    "arguments", [["memory", "--lab"], ["store", "--lab"], ["mongo", "--lab", "--offline", "f"]]
)
def test_lab_belongs_to_mongo_alone(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match="--lab"):
        check_lab(up_parser("up").parse_args(arguments))


def test_lab_images_are_known_as_such() -> None:
    assert is_lab(LAB_IMAGE)
    assert not is_lab(MONGO)
    assert not is_lab("agl-stack/prometheus:trixie")
