"""What a line of a log looks like: one event, one line, whatever its text holds.

For people, `TIME LEVEL LOGGER: MESSAGE`. As logfmt, `time=... level=... logger=... message="..." run=... round=...`, in
which the values of `fields` follow as pairs of their own. Where stderr goes to the systemd journal, which has the time
already, a line begins with its priority instead, as in `<4>fedpatch.agent: ...` (sd-daemon(3)).
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_STDERR = 2
# What could end a line, tell a terminal to do something, or not be written; C1 controls and Unicode's line ends too.
_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_CONTROLS = re.compile(f"[{_CONTROL}]")
_BARE = re.compile(rf"[^\s\"=\\{_CONTROL}]+")


class LogFormat(StrEnum):
    """The choices of `--log-format`."""

    TEXT = "text"
    LOGFMT = "logfmt"


def fields(**values: object) -> dict[str, Any]:
    """For a log call's `extra`: what the event is about, for programs. The message says it too, for people."""
    return {"fields": values}


def stderr_is_journal(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether standard error is the very stream that systemd connected to the journal, and was not redirected since."""
    try:
        stat = os.fstat(_STDERR)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


def journal_priority(level: int) -> str:
    """The beginning of a line of that level of `logging`, for the journal."""
    steps = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return f"<{next((priority for least, priority in steps if level >= least), 7)}>"


class LineFormatter(logging.Formatter):
    """Formats records; `journal` tells where they go. A traceback, for people, has lines of its own."""

    def __init__(self, log_format: LogFormat, *, journal: bool) -> None:
        super().__init__()
        self._logfmt = log_format is LogFormat.LOGFMT
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        lines = [self._pairs(record, trace)] if self._logfmt else [self._text(record), *trace.splitlines()]
        priority = journal_priority(record.levelno) if self._journal else ""
        return "\n".join(priority + _escaped(line) for line in lines)

    def _text(self, record: logging.LogRecord) -> str:
        said = f"{record.name}: {record.getMessage()}"
        return said if self._journal else f"{self.formatTime(record)} {record.levelname} {said}"

    def _pairs(self, record: logging.LogRecord, trace: str) -> str:
        pairs: dict[str, object] = {} if self._journal else {"time": _utc(record.created)}
        pairs |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        pairs |= getattr(record, "fields", {})
        if trace:
            pairs["trace"] = trace
        return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _value(value: object) -> str:
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """As JSON has it, so that what is quoted stays so."""
    return _CONTROLS.sub(
        lambda found: json.dumps(found[0])[1:-1] if found[0] < "\x7f" else f"\\u{ord(found[0]):04x}", text
    )
