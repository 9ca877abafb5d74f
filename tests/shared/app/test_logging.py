"""One event is one line of the log, whatever its text holds."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.app.logging import LineFormatter, LogFormat, fields, stderr_is_journal

TEXT, LOGFMT = LogFormat


def record(message: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    """Return a log record of fedpatch's agent."""
    made = logging.LogRecord("fedpatch.agent", level, __file__, 1, message, (), None)
    made.created = 1_700_000_000.25
    vars(made).update(more)
    return made


def line(message: str, log_format: LogFormat, *, journal: bool = False, **more: object) -> str:
    return LineFormatter(log_format, journal=journal).format(record(message, **more))  # type: ignore[arg-type]


def test_text_line_has_time_level_and_logger():
    assert re.fullmatch(
        r"20\d\d-\d\d-\d\d [\d:,]+ INFO fedpatch.agent: round 3: training", line("round 3: training", TEXT)
    )


def test_logfmt_line_has_pairs():
    logged = line("round 3: training", LOGFMT, **fields(run="a-run", round=3, detail="", text='a "b"=c'))
    assert logged == (
        'time=2023-11-14T22:13:20.250Z level=info logger=fedpatch.agent message="round 3: training" '
        r'run=a-run round=3 detail="" text="a \"b\"=c"'
    )


@pytest.mark.parametrize(
    ("level", "priority"), [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2)]
)
def test_journal_line_has_the_priority_and_no_time(level, priority):
    number = logging.getLevelNamesMapping()[level]
    journal = LineFormatter(TEXT, journal=True)
    assert journal.format(record("warm", number)) == f"<{priority}>fedpatch.agent: warm"
    pairs = LineFormatter(LOGFMT, journal=True)
    assert (
        pairs.format(record("warm", number)) == f"<{priority}>level={level.lower()} logger=fedpatch.agent message=warm"
    )


@given(text=st.text(max_size=60), log_format=st.sampled_from(LogFormat), journal=st.booleans())
def test_any_message_is_one_line_without_control_characters(text, log_format, journal):
    """Names and reasons come from other processes; their text cannot pretend to be another event."""
    logged = line(text, log_format, journal=journal, **fields(detail=text))
    assert len(logged.splitlines()) == 1
    assert not re.search("[\x00-\x1f\x7f-\x9f]", logged)


@given(text=st.text(max_size=60))
def test_a_quoted_value_reads_back(text):
    logged = line("x", LOGFMT, **fields(detail=text)).partition(" detail=")[2]
    assert (json.loads(logged) if logged.startswith('"') else logged) == text


def _failed() -> logging.LogRecord:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        return record("it failed", logging.ERROR, exc_info=sys.exc_info())


def test_every_line_of_a_traceback_keeps_its_priority_in_the_journal():
    """The journal takes each line as a separate entry."""
    lines = LineFormatter(TEXT, journal=True).format(_failed()).split("\n")
    assert len(lines) > 3
    assert all(one.startswith("<3>") for one in lines)


def test_logfmt_traceback_is_one_value():
    logged = LineFormatter(LOGFMT, journal=False).format(_failed())
    assert "\n" not in logged
    assert "ValueError: first\nsecond" in json.loads(logged.partition(" trace=")[2])


def test_stderr_is_the_journal_only_if_journal_stream_names_it():
    """A process with a redirected stderr inherits the variable, but its stderr is another file."""
    stat = os.fstat(2)
    assert stderr_is_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"})
    assert not stderr_is_journal({"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino + 1}"})
    assert not stderr_is_journal({})


PROGRAM = """
import logging
from fedpatch.shared.app.command import command, make_app, run_app
from fedpatch.shared.errors import DataError
app = make_app("lamp", "A lamp.")
@command(app, "on", example="lamp on")
def on() -> None:
    "Switch it on."
    logging.getLogger("fedpatch.lamp").warning("hot")
    raise DataError("no bulb")
@command(app, "off", example="lamp off")
def off() -> None:
    "Switch it off."
run_app(app, "lamp")
"""


def test_a_command_under_systemd_writes_for_the_journal(tmp_path):
    with (tmp_path / "journal").open("w") as journal:
        stat = os.fstat(journal.fileno())
        environ = {**os.environ, "JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        command = [sys.executable, "-c", PROGRAM, "on"]
        assert subprocess.run(command, env=environ, stderr=journal, check=False).returncode == 1
    assert (tmp_path / "journal").read_text() == "<4>fedpatch.lamp: hot\n<3>lamp: no bulb\n"
    environ["FEDPATCH_LOG_FORMAT"] = "logfmt"
    logged = subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stderr
    assert re.fullmatch(r"time=\S+ level=warning logger=fedpatch.lamp message=hot\nlamp: no bulb\n", logged)
