"""``agl stack``: start, stop and look at the bundle, and handle its images."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from agl.config import process_environment
from agl.errors import EnvironmentFault, UsageError
from agl.ops.options import LineParser


def main(argv: list[str], prog: str) -> int:
    """Run one subcommand of ``agl stack``.

    Returns 0 on success, 1 when ``status`` or ``up --check`` finds something wrong. Raises
    UsageError and EnvironmentFault, which the program turns into one line.
    """
    parser = LineParser(
        prog=prog,
        description="The bundle: store and monitoring.",
        epilog=f"'{prog} COMMAND --help' explains a command.",
    )
    parser.add_argument("command", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    command = COMMANDS.get(parsed.command)
    if command is None:
        raise UsageError(f"unknown command {parsed.command!r} (known: {', '.join(COMMANDS)})")
    return command(parsed.arguments, f"{prog} {parsed.command}")


def _up(argv: list[str], prog: str) -> int:
    from agl.ops import preflight
    from agl.ops.console import Console
    from agl.ops.images import ImageOptions
    from agl.ops.layout import check_mode, find_layout
    from agl.ops.lifecycle import UpOptions, up
    from agl.ops.options import check_lab, up_parser

    options = up_parser(prog).parse_args(argv)
    check_mode(options.mode)
    check_lab(options)
    if options.check or options.brief:
        return preflight.main(argv, process_environment())
    if options.offline and (options.stand_ins or options.refresh):
        raise UsageError("--offline takes the images from a file: not with --stand-ins, --refresh")
    images = ImageOptions(
        build=not options.no_build,
        pull=not options.stand_ins,
        refresh=options.refresh,
        yes=options.yes,
        lab=options.lab,
    )
    up(
        find_layout(process_environment()),
        Console(process_environment()),
        UpOptions(
            mode=options.mode,
            yes=options.yes,
            images=images,
            offline=options.offline,
            timeout=options.timeout,
            keep=options.keep,
        ),
    )
    return 0


def _down(argv: list[str], prog: str) -> int:
    from agl.ops.console import Console, can_ask
    from agl.ops.layout import find_layout
    from agl.ops.lifecycle import down
    from agl.ops.options import add_yes

    parser = LineParser(prog=prog, description="Stop and remove the bundle.")
    parser.add_argument("--volumes", action="store_true", help="delete its data as well")
    add_yes(parser)
    options = parser.parse_args(argv)
    layout, console = find_layout(process_environment()), Console(process_environment())
    question = (
        f"Delete all data of {layout.project!r}: what MongoDB holds, metrics, dashboards' settings"
        " and secrets?"
    )
    if options.volumes and not options.yes and can_ask() and not console.ask(question):
        raise EnvironmentFault("nothing was stopped or deleted")
    down(layout, console, volumes=options.volumes)
    return 0


def _status(argv: list[str], prog: str) -> int:
    from agl.ops.engine import Engine
    from agl.ops.layout import find_layout
    from agl.ops.status import as_json, read_status, show

    parser = LineParser(
        prog=prog, description="Containers, health, memory, targets. Exit 1 if any is unhealthy."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(argv)
    layout = find_layout(process_environment())
    status = read_status(layout, Engine.connect(layout))
    if options.json:
        print(json.dumps(as_json(status), indent=2))
    else:
        show(status, process_environment())
    return 0 if status.healthy else 1


def _images(argv: list[str], prog: str) -> int:
    from agl.ops.layout import check_mode
    from agl.ops.options import add_image_options, add_lab, add_mode, add_yes, check_lab

    if argv[:1] == ["save"] or argv[:1] == ["load"]:
        return _images_archive(argv, prog)
    parser = LineParser(
        prog=prog,
        description="Pull the pinned images, or build their stand-ins where no registry answers."
        f" `{prog} save FILE` and `{prog} load FILE` move them to another machine.",
    )
    add_mode(parser)
    add_yes(parser)
    add_image_options(parser)
    add_lab(parser)
    options = parser.parse_args(argv)
    check_mode(options.mode)
    check_lab(options)
    return _prepare_images(options)


def _prepare_images(options: argparse.Namespace) -> int:
    from agl.ops.console import Console
    from agl.ops.engine import Engine
    from agl.ops.images import ImageOptions, ImageStep
    from agl.ops.layout import find_layout
    from agl.ops.turn import turn

    layout, console = find_layout(process_environment()), Console(process_environment())
    images = ImageOptions(
        build=not options.no_build,
        pull=not options.stand_ins,
        refresh=options.refresh,
        yes=options.yes,
        lab=options.lab,
    )
    with turn(layout, console):
        choices = ImageStep(layout, Engine.connect(layout), console, images).prepare(options.mode)
    for choice in choices.present:
        console.mark("ok", f"{choice.name}  ({choice.origin})")
    console.line()
    console.line(f"wrote {layout.images_env_file}; the plain command is now:")
    console.line(f"  cd {_quoted(layout.compose_dir)}")
    file = layout.compose_file(options.mode).name
    env_files = " ".join(f"--env-file {path.name}" for path in layout.env_files)
    console.line(f"  docker compose {env_files} -f {file} up")
    return 0


def _images_archive(argv: list[str], prog: str) -> int:
    from agl.ops.console import Console
    from agl.ops.engine import Engine
    from agl.ops.images import ImageOptions, ImageStep
    from agl.ops.layout import DEFAULT_MODE, MODES, check_mode, find_layout
    from agl.ops.transport import Transport, check_target
    from agl.ops.wheels import check_versions, own_version

    parser = LineParser(prog=f"{prog} {argv[0]}")
    parser.add_argument("file", metavar="FILE", type=Path)
    if argv[0] == "save":
        parser.add_argument("--mode", default=DEFAULT_MODE, help=f"one of: {', '.join(MODES)}")
        parser.add_argument(
            "--python",
            action="append",
            metavar="VERSION",
            help="Python of the other machine, such as 3.13; may be repeated (default: this one's)",
        )
    options = parser.parse_args(argv[1:])
    path = options.file
    layout, console = find_layout(process_environment()), Console(process_environment())
    engine = Engine.connect(layout)
    transport = Transport(layout, engine, console)
    if argv[0] == "load":
        transport.load(path)
    else:
        check_target(path)
        pythons = options.python or [own_version()]
        check_versions(pythons)
        mode = check_mode(options.mode)
        choices = ImageStep(layout, engine, console, ImageOptions()).prepare(mode)
        transport.save(path, choices, pythons)
    return 0


def _init(argv: list[str], prog: str) -> int:
    from agl.ops.init_bundle import main as init

    return init(argv, prog, process_environment())


def _mongo_init(argv: list[str], prog: str) -> int:
    from agl.ops.mongo_init import main as mongo_init

    return mongo_init(argv, prog)


def _backup(program: str) -> Callable[[list[str], str], int]:
    def run(argv: list[str], prog: str) -> int:
        from agl.cli import _backup

        return getattr(_backup, program)(argv, prog)

    return run


def _grafana(argv: list[str], prog: str) -> int:
    from agl.cli._grafana import main as grafana

    return grafana(argv, prog)


def _drill(argv: list[str], prog: str) -> int:
    from agl.cli._drill import main as drill

    return drill(argv, prog)


def _drill_receiver(argv: list[str], prog: str) -> int:
    from agl.ops.drill.receiver import main as receiver

    return receiver(argv, prog)


def _drill_queue(argv: list[str], prog: str) -> int:
    from agl.ops.drill.queue import main as queue

    return queue(argv, prog)


def _container_exporter(argv: list[str], prog: str) -> int:
    from agl.ops.container_exporter import main as exporter

    return exporter(argv, prog)


def _secrets(argv: list[str], prog: str) -> int:
    from agl.ops.engine import Engine
    from agl.ops.layout import find_layout
    from agl.ops.secrets import KNOWN, read_secret

    parser = LineParser(prog=prog, description="Show a secret of the bundle.")
    parser.add_argument("action", choices=["show"])
    parser.add_argument("name", metavar="NAME", help=KNOWN)
    options = parser.parse_args(argv)
    print(read_secret(Engine.connect(find_layout(process_environment())), options.name))
    return 0


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


COMMANDS: dict[str, Callable[[list[str], str], int]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "images": _images,
    "init": _init,
    "mongo-init": _mongo_init,
    "secrets": _secrets,
    "container-exporter": _container_exporter,
    "grafana": _grafana,
    "drill": _drill,
    "drill-receiver": _drill_receiver,
    "drill-queue": _drill_queue,
    "backup": _backup("backup_main"),
    "restore": _backup("restore_main"),
    "mongo-dump": _backup("dump_main"),
    "mongo-load": _backup("load_main"),
    "mongo-check": _backup("check_main"),
}
