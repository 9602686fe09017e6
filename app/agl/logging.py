"""Log output: readable text in a terminal, one JSON object a line everywhere else.

A log call never raises because of what is logged: bytes, lone surrogates, values that are no JSON
and arguments that do not fit the message are all written in some readable form.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import TextIO, cast

from agl.config import LogFormat, load_environment

PACKAGE_LOGGER = "agl"
SERVER_LOGGERS = (
    "uvicorn",
    "uvicorn.error",
    "uvicorn.access",
    "uvicorn.asgi",
    "gunicorn.error",
    "gunicorn.access",
)
TEXT_FORMAT = "%(asctime)s [%(levelname)s] (Process-%(process)d %(name)s)   %(message)s"
TEXT_DATE_FORMAT = "%H:%M:%S"

Level = int | str
Files = str | os.PathLike[str] | Mapping[str, str]

_STANDARD_FIELDS = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "color_message")
)
_DEEPEST = 8


class SafeFormatter(logging.Formatter):
    """A text formatter that copes with any message, arguments and characters."""

    def format(self, record: logging.LogRecord) -> str:
        safe = logging.makeLogRecord(vars(record))
        safe.msg, safe.args = message_of(record), None
        return printable(super().format(safe))


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    Fields: ``ts`` (RFC 3339, UTC, milliseconds), ``level``, ``logger``, ``message``, ``process``,
    then whatever was passed as ``extra``, then ``exception`` and ``stack`` as one string each when
    there are any. An ``extra`` with the name of one of these fields gets the prefix ``extra_``.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": _timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": message_of(record),
            "process": record.process,
        }
        taken = {*fields, "exception", "stack"}
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS:
                fields[printable(f"extra_{name}" if name in taken else name)] = value
        exception = self._exception_text(record)
        if exception:
            fields["exception"] = exception
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json.dumps({name: _safe_json(value) for name, value in fields.items()})

    def _exception_text(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return record.exc_text or ""
        try:
            return self.formatException(record.exc_info)
        except Exception:
            return f"{record.exc_info[0].__name__} (its text cannot be shown)"


def message_of(record: logging.LogRecord) -> str:
    """The message with its arguments filled in; both one after the other when they do not fit."""
    try:
        return record.getMessage()
    except Exception:
        return f"{_shown(record.msg)} {_shown(record.args)}" if record.args else _shown(record.msg)


def printable(text: str) -> str:
    """``text`` with lone surrogates escaped, so that any UTF-8 stream takes it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain_json(value: object, depth: int = 0) -> object:
    """``value`` reduced to what JSON knows; what it does not know is shown as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return printable(str.__str__(value))
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, int) and value.bit_length() <= 64:
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            return {_key(key): plain_json(item, depth + 1) for key, item in items}
        if isinstance(value, Sequence | Set):
            entries = cast("Iterable[object]", value)
            return [plain_json(item, depth + 1) for item in entries]
    return printable(_shown(value))


def setup_logging(
    level: Level = "INFO",
    *,
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    capture_warnings: bool = False,
    submodule_levels: Mapping[str, Level] | None = None,
    extra_handlers: Sequence[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Iterable[str] | None = None,
    files: Files | None = None,
    log_format: LogFormat | None = None,
    stream: TextIO | None = None,
) -> None:
    """Configure the ``agl`` loggers; calling it again replaces the earlier configuration.

    Args:
        level: Level of the package.
        console: Write to ``stream``.
        color: Use rich when ``stream`` is a terminal.
        propagate: Also hand records to the root logger's handlers.
        disable_existing_loggers: Silence every other logger that exists now.
        capture_warnings: Log what the ``warnings`` module shows, as logger ``py.warnings``.
        submodule_levels: Levels of single loggers.
        extra_handlers: Handlers to add.
        formatter: Format of the console and the files, instead of ``log_format``.
        apply_to: Names of other loggers that get the same handlers and level.
        files: A file for everything, or a file for each of several logger names.
        log_format: ``text``, ``json``, or ``auto`` (text in a terminal, else JSON). ``None`` takes
            ``AGL_LOG_FORMAT``, and text when that is unset.
        stream: Where the console output goes; standard output by default.

    Raises:
        EnvironmentFault: ``AGL_LOG_FORMAT`` holds a value that is not allowed.
        OSError: A file cannot be opened.
        ValueError: Unknown level.
    """
    targets = list(apply_to or ())
    logging.captureWarnings(capture_warnings)
    if capture_warnings:
        targets.append("py.warnings")
    setup_module_logging(
        level,
        console=console,
        color=color,
        propagate=propagate,
        disable_existing_loggers=disable_existing_loggers,
        submodule_levels=submodule_levels,
        extra_handlers=extra_handlers,
        formatter=formatter,
        apply_to=targets,
        files=files,
        log_format=log_format,
        stream=stream,
    )


def setup_module_logging(
    level: Level = "INFO",
    *,
    name: str = PACKAGE_LOGGER,
    console: bool = True,
    color: bool = True,
    propagate: bool = False,
    disable_existing_loggers: bool = False,
    submodule_levels: Mapping[str, Level] | None = None,
    extra_handlers: Sequence[logging.Handler] | None = None,
    formatter: logging.Formatter | None = None,
    apply_to: Iterable[str] | None = None,
    files: Files | None = None,
    log_format: LogFormat | None = None,
    stream: TextIO | None = None,
) -> logging.Logger:
    """Like ``setup_logging``, for one logger by its name; returns that logger."""
    if disable_existing_loggers:
        _disable_loggers_outside(name)
    resolved = log_format or _format_from_environment()
    handlers = list(extra_handlers or ())
    if console:
        handlers.insert(0, console_handler(resolved, stream=stream, color=color))
        if formatter is not None:
            handlers[0].setFormatter(formatter)
    file_formatter = formatter or (JsonFormatter() if resolved == "json" else text_formatter())
    if isinstance(files, str | os.PathLike):
        handlers.append(_file_handler(files, file_formatter))
    main = logging.getLogger(name)
    for target in (main, *map(logging.getLogger, apply_to or ())):
        _replace_handlers(target, handlers)
        target.setLevel(level)
        target.propagate = propagate
        target.disabled = False
    for logger_name, path in files.items() if isinstance(files, Mapping) else ():
        logger = logging.getLogger(logger_name)
        _replace_handlers(logger, [h for h in logger.handlers if not isinstance(h, _LogFile)])
        logger.addHandler(_file_handler(path, file_formatter))
    for logger_name, own_level in (submodule_levels or {}).items():
        logging.getLogger(logger_name).setLevel(own_level)
    return main


def configure_logger(level: Level = logging.INFO, name: str = PACKAGE_LOGGER) -> logging.Logger:
    """Deprecated: use ``setup_logging`` or ``setup_module_logging``."""
    warnings.warn(
        "configure_logger is deprecated, use setup_logging or setup_module_logging",
        DeprecationWarning,
        stacklevel=2,
    )
    return setup_module_logging(level, name=name)


def setup_process_logging(
    level: Level, log_format: LogFormat, *, stream: TextIO | None = None
) -> None:
    """Configure a whole server process: the package, the HTTP servers, warnings and the rest.

    The package gets ``level``. Other libraries never say more than INFO (the HTTP servers) or
    WARNING (everything else), and no more than the package.
    """
    setup_logging(level, capture_warnings=True, log_format=log_format, stream=stream)
    root = logging.getLogger()
    _replace_handlers(root, logging.getLogger(PACKAGE_LOGGER).handlers)
    package_level = logging.getLogger(PACKAGE_LOGGER).level
    root.setLevel(max(package_level, logging.WARNING))
    adopt_server_loggers(max(package_level, logging.INFO))


def adopt_server_loggers(level: Level | None = None) -> None:
    """Take uvicorn's and gunicorn's own handlers away, so that their lines use the root's.

    Both install handlers of their own when they start; a server that must keep to the process' log
    format calls this afterwards.
    """
    for name in SERVER_LOGGERS:
        logger = logging.getLogger(name)
        _replace_handlers(logger, ())
        logger.propagate = True
        if level is not None:
            logger.setLevel(level)


def console_handler(
    log_format: LogFormat, *, stream: TextIO | None = None, color: bool = True
) -> logging.Handler:
    """The handler for one stream: rich in a terminal, plain text or JSON lines elsewhere."""
    target = sys.stdout if stream is None else stream
    terminal = target.isatty()
    if log_format == "json" or (log_format == "auto" and not terminal):
        handler = logging.StreamHandler(target)
        handler.setFormatter(JsonFormatter())
        return handler
    if terminal and color:
        return _rich_handler(target)
    handler = logging.StreamHandler(target)
    handler.setFormatter(text_formatter())
    return handler


def text_formatter() -> logging.Formatter:
    """The plain text format, with time of day, level, process and logger."""
    return SafeFormatter(TEXT_FORMAT, TEXT_DATE_FORMAT)


def _rich_handler(stream: TextIO) -> logging.Handler:
    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(
        console=Console(file=stream),
        show_path=False,
        log_time_format=f"[{TEXT_DATE_FORMAT}]",
    )
    handler.setFormatter(SafeFormatter("(%(process)d %(name)s) %(message)s"))
    return handler


def _format_from_environment() -> LogFormat:
    log_format = load_environment().log_format
    return "text" if log_format == "auto" else log_format


class _LogFile(logging.FileHandler):
    """A log file opened here, and therefore closed here when it is replaced."""


def _file_handler(path: str | os.PathLike[str], formatter: logging.Formatter) -> logging.Handler:
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(formatter)
    return handler


def _replace_handlers(logger: logging.Logger, handlers: Iterable[logging.Handler]) -> None:
    wanted = list(handlers)
    for old in list(logger.handlers):
        logger.removeHandler(old)
        if isinstance(old, _LogFile) and old not in wanted:
            old.close()
    for handler in wanted:
        logger.addHandler(handler)


def _disable_loggers_outside(name: str) -> None:
    for other, logger in logging.Logger.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and not f"{other}.".startswith(f"{name}."):
            logger.disabled = True


def _timestamp(created: float) -> str:
    moment = datetime.fromtimestamp(created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _safe_json(value: object) -> object:
    try:
        return plain_json(value)
    except Exception:
        return printable(_shown(value))


def _key(key: object) -> str:
    return printable(key if isinstance(key, str) else _shown(key))


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
