"""Log output: formats, robustness, and the loggers of others."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import environment

from agl.logging import (
    JsonFormatter,
    SafeFormatter,
    adopt_server_loggers,
    configure_logger,
    setup_logging,
    setup_module_logging,
    setup_process_logging,
)


@pytest.fixture(autouse=True)
def restored_loggers() -> Iterator[None]:
    names = ("agl", "agl.x", "other", "py.warnings", "uvicorn", "uvicorn.error", "gunicorn.error")
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    before = [(one, one.handlers[:], one.level, one.propagate, one.disabled) for one in loggers]
    yield
    logging.captureWarnings(False)
    for one, handlers, level, propagate, disabled in before:
        for handler in one.handlers:
            if handler not in handlers:
                handler.close()
        one.handlers[:] = handlers
        one.level, one.propagate, one.disabled = level, propagate, disabled
        one.setLevel(level)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def json_stream() -> io.StringIO:
    stream = io.StringIO()
    setup_logging("DEBUG", log_format="json", stream=stream)
    return stream


log = logging.getLogger("agl.x")


def test_json_fields() -> None:
    stream = json_stream()
    log.warning("hello %s", "wörld\nnext", extra={"rollout": "r1", "count": 3})
    (line,) = json_lines(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("ts")))
    assert line == {
        "level": "WARNING",
        "logger": "agl.x",
        "message": "hello wörld\nnext",
        "process": os.getpid(),
        "rollout": "r1",
        "count": 3,
    }


def test_json_exception_is_a_field_of_the_same_line() -> None:
    stream = json_stream()
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("failed", stack_info=True)
    (line,) = json_lines(stream)
    assert "Traceback" in str(line["exception"])
    assert str(line["exception"]).endswith("KeyError: 'lost'")
    assert "test_json_exception" in str(line["stack"])


def test_extra_does_not_replace_a_field() -> None:
    stream = json_stream()
    log.info("real", extra={"level": "fake", "logger": "fake", "ts": 0, "exception": "fake"})
    (line,) = json_lines(stream)
    assert (line["level"], line["logger"]) == ("INFO", "agl.x")
    assert (line["extra_level"], line["extra_ts"]) == ("fake", 0)
    assert line["extra_exception"] == "fake"


def odd_calls(logger: logging.Logger) -> int:
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    values = {
        "bytes": b"\xff\x00ok",
        "surrogate": "a\ud800b",
        "nan": float("nan"),
        "huge": 10**5000,
        "nested": {1: {b"k": [Unprintable(), {1, 2}, ("x",)]}},
        "object": Unprintable(),
        "cycle": cycle,
    }
    logger.info("extras", extra=values)
    logger.info(b"\xffbytes as message")
    logger.info("surrogate \udcff %s", "\ud800")
    logger.info("too few %s %s", 1)
    logger.info("too many", 1, 2)
    logger.info("not a number %d", "x")
    logger.info(Unprintable())
    logger.info("unprintable %s", Unprintable())
    logger.info("nul \0 and escape \x1b[31m")
    logger.info("key", extra={"\ud800": "surrogate as key"})
    try:
        raise RuntimeError(Unprintable())
    except RuntimeError:
        logger.exception("exception without text")
    return 11


def test_json_survives_odd_content(capsys: pytest.CaptureFixture[str]) -> None:
    stream = json_stream()
    count = odd_calls(log)
    lines = json_lines(stream)
    assert len(lines) == count
    assert capsys.readouterr().err == ""
    assert lines[0]["bytes"] == "\\xff\x00ok"
    assert lines[0]["surrogate"] == "a\\ud800b"
    assert lines[0]["nan"] == "nan"
    assert lines[0]["nested"] == {
        "1": {"b'k'": ["<Unprintable that cannot be shown>", [1, 2], ["x"]]}
    }
    assert lines[3]["message"] == "too few %s %s (1,)"
    assert lines[6]["message"] == "<Unprintable that cannot be shown>"


def test_text_survives_odd_content(capsys: pytest.CaptureFixture[str]) -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "utf-8") as stream:
        setup_logging(log_format="text", stream=stream)
        odd_calls(log)
        stream.flush()
        text = raw.getvalue().decode()
    assert capsys.readouterr().err == ""
    assert "surrogate \\udcff \\ud800" in text
    assert "too few %s %s (1,)" in text


def test_plain_text_format() -> None:
    stream = io.StringIO()
    setup_logging(log_format="text", stream=stream)
    log.info("hello")
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\d \[INFO\] \(Process-{os.getpid()} agl\.x\)   hello\n", stream.getvalue()
    )


def test_auto_is_json_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, expected in (("json", True), ("text", False), ("", False)):
        monkeypatch.setenv("AGL_LOG_FORMAT", variable)
        stream = io.StringIO()
        setup_logging(stream=stream)
        log.info("hello")
        assert stream.getvalue().startswith("{") is expected
    stream = io.StringIO()
    setup_logging(log_format="auto", stream=stream)
    log.info("hello")
    assert json_lines(stream)[0]["message"] == "hello"


def test_auto_is_rich_text_in_a_terminal() -> None:
    code = (
        "from agl.logging import setup_process_logging; import logging;"
        "setup_process_logging('INFO', 'auto');"
        "logging.getLogger('agl.x').info('hello \\ud800 [bold]not markup[/bold]')"
    )
    parent, child = pty.openpty()
    env = environment({"TERM": "xterm", "COLUMNS": "150"})
    subprocess.run([sys.executable, "-c", code], stdout=child, env=env, check=True, timeout=20)
    os.close(child)
    shown = os.read(parent, 65536).decode()
    os.close(parent)
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "INFO" in plain
    assert "agl.x) hello \\ud800 [bold]not markup[/bold]" in plain


def test_levels_and_repeated_setup() -> None:
    stream = io.StringIO()
    for _ in range(3):
        setup_logging(
            "WARNING", log_format="json", stream=stream, submodule_levels={"agl.x": "DEBUG"}
        )
    logging.getLogger("agl").info("hidden")
    log.debug("shown once")
    assert [line["message"] for line in json_lines(stream)] == ["shown once"]
    log.setLevel(logging.NOTSET)
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("LOUD")


def test_files_handlers_formatter_and_other_loggers(tmp_path: Path) -> None:
    stream, extra = io.StringIO(), io.StringIO()
    setup_logging(
        console=False,
        files=str(tmp_path / "all.log"),
        extra_handlers=[logging.StreamHandler(extra)],
        formatter=logging.Formatter("%(name)s=%(message)s"),
        apply_to=["other"],
    )
    log.info("one")
    logging.getLogger("other").info("two")
    assert (tmp_path / "all.log").read_text() == "agl.x=one\nother=two\n"
    assert extra.getvalue() == "one\ntwo\n"
    for _ in range(2):
        setup_module_logging(
            name="other", files={"other": str(tmp_path / "other.log")}, stream=stream
        )
    logging.getLogger("other").info("three")
    assert (tmp_path / "other.log").read_text().count("three") == 1
    assert stream.getvalue().count("three") == 1
    assert (tmp_path / "all.log").read_text().count("three") == 0


def test_warnings_and_disabling_others() -> None:
    stream = io.StringIO()
    other = logging.getLogger("other")
    setup_logging(log_format="json", stream=stream, capture_warnings=True)
    logging.getLogger("py.warnings").warning("a warning")
    assert json_lines(stream)[0]["logger"] == "py.warnings"
    before = {
        name: one.disabled
        for name, one in logging.Logger.manager.loggerDict.items()
        if isinstance(one, logging.Logger)
    }
    setup_logging(disable_existing_loggers=True, stream=stream)
    assert other.disabled
    assert not log.disabled
    for name, disabled in before.items():
        logging.getLogger(name).disabled = disabled


def test_servers_use_the_process_handler() -> None:
    stream = io.StringIO()
    own = logging.StreamHandler(io.StringIO())
    for name in ("uvicorn", "gunicorn.error"):
        logging.getLogger(name).addHandler(own)
        logging.getLogger(name).propagate = False
    setup_process_logging("DEBUG", "json", stream=stream)
    for name in ("uvicorn.error", "gunicorn.error", "agl.x"):
        logging.getLogger(name).debug("detail of %s", name)
        logging.getLogger(name).info("info of %s", name)
    logging.getLogger("other").info("hidden")
    logging.getLogger("other").warning("shown")
    assert [line["message"] for line in json_lines(stream)] == [
        "info of uvicorn.error",
        "info of gunicorn.error",
        "detail of agl.x",
        "info of agl.x",
        "shown",
    ]
    logging.getLogger("gunicorn.error").addHandler(own)
    adopt_server_loggers()
    assert logging.getLogger("gunicorn.error").handlers == []


def test_configure_logger_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="setup_logging"):
        assert configure_logger(logging.WARNING, "other").level == logging.WARNING


def test_formatters_leave_the_record_alone() -> None:
    record = logging.makeLogRecord({"name": "x", "msg": "a %s", "args": ("b",)})
    assert SafeFormatter("%(message)s").format(record) == "a b"
    assert json.loads(JsonFormatter().format(record))["message"] == "a b"
    assert (record.msg, record.args) == ("a %s", ("b",))
