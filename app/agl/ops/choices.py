"""Which images the bundle runs, and the git-ignored env file that remembers the choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agl.errors import EnvironmentFault
from agl.ops.envfile import parse_env_text, read_env_text
from agl.ops.layout import Layout, give_to_owner
from agl.utils.whole_file import whole_file

PINNED, STAND_IN, BUILT, LEFT_OUT = "pinned", "stand-in", "built", "left out"
LAB = "lab stand-in"
STAND_IN_TAG = "trixie"
LAB_TAG = "lab"
MONGO_PROFILE = "mongo"
# What a stand-in for MongoDB is run with: its replica set has a name of its own, and its files
# never lie where those of MongoDB do.
LAB_VARIABLES = {"AGL_MONGO_REPLICA_SET": "secantus", "AGL_MONGO_DATA": "mongo-lab-data"}
# Without its exporter Prometheus is given the configuration that has no job for it.
WITHOUT_MONGODB_EXPORTER = {"AGL_PROMETHEUS_MONGO_CONFIG": "prometheus.base.yml"}

HEADER = """\
# Written by scripts/images: the images on this machine. Delete this file to choose anew.
# The plain command with it, in this folder:
#   docker compose --env-file .env --env-file .env.images -f compose.prometheus-memory-store.yml up
"""
_EXTENDS = re.compile(r"^\s*file:\s*(compose\.[\w.-]+\.yml)\s*$", re.MULTILINE)
_IMAGE = re.compile(r"^\s*image:\s*\$\{(\w+)", re.MULTILINE)
_PINNED = re.compile(r"^# (pinned|left out) (\w+)=(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Slot:
    """One image variable of ``compose/.env`` and where a stand-in for it comes from.

    Attributes:
        folder: Folder below ``images/`` that it, or its stand-in, is built from.
        ours: It is built here, and nowhere else.
        profile: Profile of the services that are left out when it is not to be had.
        instead: Profile that takes its place then; empty when nothing does.
        wraps: Variable of an image that must be pulled, and that it is built around.
        lab: Folder below ``tests/lab/`` of a stand-in for trials and tests.
        vital: The bundle does not start without it.
    """

    variable: str
    folder: str = ""
    ours: bool = False
    profile: str = ""
    instead: str = ""
    wraps: str = ""
    lab: str = ""
    vital: bool = False

    @property
    def title(self) -> str:
        return self.variable.removesuffix("_IMAGE").replace("AGL_", "").replace("_", "-").lower()

    @property
    def stand_in(self) -> str:
        """Name of the image that is built instead of the pinned one."""
        return f"agl-stack/{self.folder}:{STAND_IN_TAG}"

    @property
    def lab_image(self) -> str:
        """Name of the image that takes its place in trials and tests."""
        return f"agl-stack/lab-{self.lab}:{LAB_TAG}"


SLOTS = {
    slot.variable: slot
    for slot in (
        Slot("AGL_STORE_IMAGE", "store", ours=True),
        Slot("PROMETHEUS_IMAGE", "prometheus"),
        Slot("ALERTMANAGER_IMAGE", "alertmanager"),
        Slot("NODE_EXPORTER_IMAGE", "node-exporter"),
        Slot("GRAFANA_IMAGE", profile="grafana", instead="panels"),
        Slot("MONGO_IMAGE", profile=MONGO_PROFILE, lab="mongod", vital=True),
        Slot(
            "AGL_MONGODB_EXPORTER_IMAGE",
            "mongodb-exporter",
            profile="mongodb-exporter",
            wraps="MONGODB_EXPORTER_IMAGE",
            lab="mongod",
        ),
    )
}


@dataclass(frozen=True)
class Choice:
    """What a slot is filled with: the image's local name and how it came here."""

    slot: Slot
    pinned: str
    name: str
    origin: str


@dataclass(frozen=True)
class Choices:
    """All choices of one run and the open-files limit that goes with this machine."""

    choices: tuple[Choice, ...]
    profiles: str
    nofile: int

    def of(self, origin: str) -> list[Choice]:
        return [choice for choice in self.choices if choice.origin == origin]

    @property
    def present(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.origin != LEFT_OUT]

    def overrides(self) -> dict[str, str]:
        """Variables for Compose, winning over files and environment alike."""
        return {
            **{choice.slot.variable: choice.name for choice in self.present},
            **extra_variables({c.slot.variable: c.name for c in self.choices}),
            "COMPOSE_PROFILES": self.profiles,
            "AGL_NOFILE": str(self.nofile),
        }


def extra_variables(names: Mapping[str, str]) -> dict[str, str]:
    """Variables that follow from which images run; ``names`` are image names by variable.

    An empty name is an image that is not to be had.
    """
    mongo, exporter = SLOTS["MONGO_IMAGE"], SLOTS["AGL_MONGODB_EXPORTER_IMAGE"]
    lab = names.get(mongo.variable) == mongo.lab_image
    return {
        **(LAB_VARIABLES if lab else {}),
        **(WITHOUT_MONGODB_EXPORTER if names.get(exporter.variable) == "" else {}),
    }


def is_lab(image: str) -> bool:
    """Whether an image is a stand-in for trials and tests."""
    return image in {slot.lab_image for slot in SLOTS.values() if slot.lab}


def used_slots(layout: Layout, mode: str) -> list[Slot]:
    """The slots that the compose file of ``mode`` and the files it extends speak of."""
    variables = _image_variables(layout.compose_file(mode), set())
    return [slot for name, slot in SLOTS.items() if name in variables]


def _image_variables(path: Path, seen: set[Path]) -> set[str]:
    if path in seen:
        return set()
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    others = (path.parent / name for name in _EXTENDS.findall(text))
    return set(_IMAGE.findall(text)).union(*(_image_variables(other, seen) for other in others))


def profiles_without(pinned: Mapping[str, str], left_out: Iterable[Slot]) -> str:
    """``COMPOSE_PROFILES``, with the substitute of each service whose image is not to be had."""
    substitutes = {slot.profile: slot.instead for slot in left_out}
    names = (name.strip() for name in pinned.get("COMPOSE_PROFILES", "").split(","))
    chosen = (substitutes.get(name, name) for name in names)
    return ",".join(dict.fromkeys(name for name in chosen if name))


@dataclass(frozen=True)
class Remembered:
    """What ``compose/.env.images`` says: the name chosen for each pinned image."""

    names: Mapping[str, str]
    pinned: Mapping[str, str]
    left_out: Mapping[str, str]

    def stand_in_for(self, slot: Slot, pinned: str) -> str:
        """The name chosen earlier instead of ``pinned``, or an empty string."""
        name = self.names.get(slot.variable, "")
        return name if self.pinned.get(slot.variable) == pinned and name != pinned else ""


def remember(layout: Layout) -> Remembered:
    """Read the env file of images; empty when it was never written."""
    path = layout.images_env_file
    text = read_env_text(path) if path.is_file() else ""
    notes = _PINNED.findall(text)
    return Remembered(
        names=parse_env_text(text),
        pinned={name: value for kind, name, value in notes if kind == PINNED},
        left_out={name: value for kind, name, value in notes if kind == LEFT_OUT},
    )


def write_choices(layout: Layout, choices: Choices) -> None:
    """Write the env file, keeping lines of other modes; an unchanged file is not touched.

    Raises EnvironmentFault when it cannot be written.
    """
    old = remember(layout)
    lines: list[str] = []
    fresh = {choice.slot.variable: choice for choice in choices.choices}
    for variable in SLOTS:
        if variable in fresh:
            lines.extend(_lines(fresh[variable]))
        elif variable in old.left_out:
            lines.append(f"# {LEFT_OUT} {variable}={old.left_out[variable]}")
        elif variable in old.names and variable in old.pinned:
            lines.append(f"# {PINNED} {variable}={old.pinned[variable]}")
            lines.append(f"{variable}={old.names[variable]}")
    others = [SLOTS[name] for name in old.left_out if name in SLOTS]
    profiles = profiles_without(
        {"COMPOSE_PROFILES": choices.profiles},
        [slot for slot in others if slot.variable not in fresh],
    )
    names = {**dict.fromkeys(old.left_out, ""), **old.names}
    names.update({choice.slot.variable: choice.name for choice in choices.choices})
    lines.extend(f"{name}={value}" for name, value in extra_variables(names).items())
    lines.append(f"COMPOSE_PROFILES={profiles}")
    lines.append(f"AGL_NOFILE={choices.nofile}")
    text = HEADER + "\n".join(lines) + "\n"
    path = layout.images_env_file
    if path.is_file() and read_env_text(path) == text:
        return
    try:
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
            give_to_owner(partial)
    except OSError as error:
        raise EnvironmentFault(
            f"{path} cannot be written: {error.strerror}",
            remedy=f"make {path.parent} writable, or run it in a clone of your own",
        ) from error


def _lines(choice: Choice) -> list[str]:
    if choice.origin == LEFT_OUT:
        return [f"# {LEFT_OUT} {choice.slot.variable}={choice.pinned}"]
    return [
        f"# {PINNED} {choice.slot.variable}={choice.pinned}",
        f"{choice.slot.variable}={choice.name}",
    ]
