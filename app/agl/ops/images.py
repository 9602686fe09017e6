"""Having every image of the bundle on this machine: pulled, built, or plainly left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agl.errors import EnvironmentFault
from agl.ops import machine
from agl.ops.build import Builder
from agl.ops.choices import (
    BUILT,
    LAB,
    LEFT_OUT,
    MONGO_PROFILE,
    PINNED,
    STAND_IN,
    Choice,
    Choices,
    Remembered,
    Slot,
    profiles_without,
    remember,
    used_slots,
    write_choices,
)
from agl.ops.console import Console
from agl.ops.engine import Engine, PullError
from agl.ops.layout import Layout
from agl.ops.preflight import DEFAULT_NOFILE, MINIMUM_NOFILE, number


@dataclass(frozen=True)
class ImageOptions:
    """How images may be come by.

    Attributes:
        build: Images may be built here.
        pull: A registry may be asked.
        refresh: What an earlier run settled for is not taken; the registry is asked again.
        yes: A package that building needs is installed without a question.
        lab: For MongoDB and its exporter, the stand-ins of ``tests/lab`` are run.
    """

    build: bool = True
    pull: bool = True
    refresh: bool = False
    yes: bool = False
    lab: bool = False


@dataclass
class ImageStep:
    """One pass over the slots of a mode."""

    layout: Layout
    engine: Engine
    console: Console
    options: ImageOptions
    silent_registries: dict[str, str] = field(default_factory=dict[str, str])

    def prepare(self, mode: str) -> Choices:
        """Have the images of ``mode`` and write the env file that names them.

        Raises EnvironmentFault when an image that cannot be left out is not to be had.
        """
        pinned = self.layout.pinned()
        known = remember(self.layout)
        external = bool(self.layout.external_mongo)
        slots = used_slots(self.layout, mode)
        wanted = _by_need([s for s in slots if not (external and s.profile == MONGO_PROFILE)])
        found = [self._fill(slot, pinned.get(slot.variable, ""), known) for slot in wanted]
        choices = Choices(
            choices=tuple(found),
            profiles=profiles_without(
                pinned,
                [c.slot for c in found if c.origin == LEFT_OUT]
                + [slot for slot in slots if slot not in wanted],
            ),
            nofile=nofile(self.layout),
        )
        self._tell(choices)
        write_choices(self.layout, choices)
        return choices

    def _fill(self, slot: Slot, pinned: str, known: Remembered) -> Choice:
        if not pinned:
            raise EnvironmentFault(
                f"{slot.variable} is not set", remedy="restore it in compose/.env (git checkout)"
            )
        if self.options.lab and slot.lab:
            return self._lab(slot, pinned)
        if slot.ours:
            return self._own(slot, pinned)
        if slot.wraps:
            return self._wrapped(slot, pinned, known)
        if self.engine.image(pinned):
            return Choice(slot, pinned, pinned, PINNED)
        settled = self._settled(slot, pinned, known)
        if settled:
            return settled
        if self.options.pull and self._pulled(pinned):
            return Choice(slot, pinned, pinned, PINNED)
        return self._instead(slot, pinned)

    def _lab(self, slot: Slot, pinned: str) -> Choice:
        source = f"tests/lab/{slot.lab}"
        self._have(source, slot.lab_image)
        return Choice(slot, pinned, slot.lab_image, LAB)

    def _wrapped(self, slot: Slot, name: str, known: Remembered) -> Choice:
        """An image of ours around one that has to be pulled."""
        around = self.layout.pinned().get(slot.wraps, "")
        if not around:
            raise EnvironmentFault(
                f"{slot.wraps} is not set", remedy="restore it in compose/.env (git checkout)"
            )
        here = self.engine.image(around) is not None
        if not here and self.engine.image(name):
            return Choice(slot, name, name, BUILT)  # from an archive, or made before
        if not here and known.left_out.get(slot.variable) == name and not self.options.refresh:
            return Choice(slot, name, "", LEFT_OUT)
        if not here and not (self.options.pull and self._pulled(around)):
            return Choice(slot, name, "", LEFT_OUT)
        self._have(f"images/{slot.folder}", name, {"EXPORTER_IMAGE": around})
        return Choice(slot, name, name, BUILT)

    def _have(self, source: str, name: str, arguments: Mapping[str, str] | None = None) -> None:
        if self.options.build:
            self._builder().ensure(source, name, arguments)
        elif not self.engine.image(name):
            raise EnvironmentFault(
                f"the image {name} is not here", remedy="run it again without --no-build"
            )

    def _own(self, slot: Slot, name: str) -> Choice:
        self._have(f"images/{slot.folder}", name)
        return Choice(slot, name, name, BUILT)

    def _settled(self, slot: Slot, pinned: str, known: Remembered) -> Choice | None:
        """What an earlier run settled for, so that a second run is quick and changes nothing."""
        if self.options.refresh:
            return None
        if known.left_out.get(slot.variable) == pinned:
            return Choice(slot, pinned, "", LEFT_OUT)
        name = known.stand_in_for(slot, pinned)
        if slot.lab and name == slot.lab_image:
            return None  # it is run when --lab says so, and never because it was run before
        if name and self.options.build and name == slot.stand_in:
            return self._instead(slot, pinned)
        if name and self.engine.image(name):
            return Choice(slot, pinned, name, STAND_IN)
        return None

    def _pulled(self, name: str) -> bool:
        registry = registry_of(name)
        if registry in self.silent_registries:
            return False
        try:
            with self.console.step(f"pulling {name}") as progress:
                self.engine.pull(name, lambda line: progress.update([line]))
                progress.conclude(f"pulled {name}")
        except PullError as error:
            if error.answered:
                raise EnvironmentFault(
                    f"{name} could not be pulled from {registry}: {error}",
                    remedy="correct it in compose/.env, or run again with --stand-ins",
                ) from error
            self.silent_registries[registry] = str(error)
            self.console.mark("warn", f"the registry {registry} does not answer: {error}")
            return False
        return True

    def _instead(self, slot: Slot, pinned: str) -> Choice:
        if slot.vital:
            raise no_mongo(pinned)
        if not slot.folder:
            return Choice(slot, pinned, "", LEFT_OUT)
        if self.options.build:
            self._builder().ensure(f"images/{slot.folder}", slot.stand_in)
        elif not self.engine.image(slot.stand_in):
            raise EnvironmentFault(
                f"neither {pinned} nor its stand-in {slot.stand_in} is here",
                remedy="run it again without --no-build",
            )
        return Choice(slot, pinned, slot.stand_in, STAND_IN)

    def _builder(self) -> Builder:
        return Builder(self.layout, self.engine, self.console, yes=self.options.yes)

    def _tell(self, choices: Choices) -> None:
        stand_ins = ", ".join(choice.slot.title for choice in choices.of(STAND_IN))
        if stand_ins:
            self.console.mark(
                "warn",
                f"built from Debian packages instead of the pinned images: {stand_ins}"
                " (--refresh asks the registry again)",
            )
        for choice in choices.of(LAB):
            self.console.mark("warn", lab_line(choice))
        for choice in choices.of(LEFT_OUT):
            self.console.mark("warn", left_out_line(choice))
        wished = self.layout.pinned().get("AGL_NOFILE") or str(DEFAULT_NOFILE)
        if str(choices.nofile) != wished:
            self.console.mark(
                "warn", f"AGL_NOFILE lowered from {wished} to this machine's limit {choices.nofile}"
            )


def left_out_line(choice: Choice) -> str:
    """One clear line for a service that cannot be had."""
    rest = (
        f"its dashboards are shown by agl {choice.slot.instead} instead"
        if choice.slot.instead
        else "the rest runs without it"
    )
    return (
        f"{choice.slot.title} is left out: no registry has been reached for {choice.pinned},"
        f" and there is no stand-in; {rest}"
    )


def lab_line(choice: Choice) -> str:
    """One clear line for a stand-in that is good for trials and tests alone."""
    return (
        f"LAB STAND-IN: {choice.name} runs instead of {choice.pinned};"
        " for trials and tests, never for data that matters"
    )


def no_mongo(pinned: str) -> EnvironmentFault:
    """What can be done where MongoDB's image is not to be had."""
    return EnvironmentFault(
        f"{pinned} is not on this machine and no registry has given it",
        remedy="choose one: ./scripts/up mongo --offline FILE (an archive made elsewhere with"
        " `agl stack images save FILE --mode mongo`);"
        " MONGO_IMAGE=your.mirror/mongo:8.0.26 in compose/site.env;"
        " AGL_MONGO_URI=mongodb://... in compose/site.env (a MongoDB of your own);"
        " ./scripts/up mongo --lab (a stand-in, for trials and tests only)",
    )


def nofile(layout: Layout) -> int:
    """Open files for each service: what is asked for, or the machine's limit if that is lower.

    Raises EnvironmentFault when what is asked for is no such number.
    """
    wished = layout.pinned().get("AGL_NOFILE") or str(DEFAULT_NOFILE)
    if number(wished) < MINIMUM_NOFILE:
        raise EnvironmentFault(
            f"AGL_NOFILE: {wished!r} is not a number of at least {MINIMUM_NOFILE}",
            remedy=f"export AGL_NOFILE={DEFAULT_NOFILE}",
        )
    return min(number(wished), machine.nofile_limit())


def registry_of(name: str) -> str:
    """The registry an image name points to."""
    first, slash, _ = name.partition("/")
    return first if slash and (set(first) & {".", ":"} or first == "localhost") else "docker.io"


def _by_need(slots: list[Slot]) -> list[Slot]:
    """Pinned images first: a silent registry is noticed before anything is built.

    What is vital comes before all; what is built upon our own image comes last.
    """
    return sorted(slots, key=lambda slot: (not slot.vital, bool(slot.wraps), slot.ours))
