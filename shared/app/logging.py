"""Format of log lines: one event is one line, with any characters in its text.

The text format is `TIME LEVEL LOGGER: MESSAGE`. The logfmt format is `time=... level=... logger=... message="..." run=...
round=...`, where the values of `fields` follow as pairs. Where stderr goes to the systemd journal, which records the time
itself, a line begins with its priority instead, as in `<4>fedpatch.agent: ...` (sd-daemon(3)).
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
# Characters that end a line, control a terminal or cannot be encoded, including C1 controls and Unicode's line ends.
_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_CONTROLS = re.compile(f"[{_CONTROL}]")
_BARE = re.compile(rf"[^\s\"=\\{_CONTROL}]+")


class LogFormat(StrEnum):
    """The choices of `--log-format`."""

    TEXT = "text"
    LOGFMT = "logfmt"


def fields(**values: object) -> dict[str, Any]:
    """Return the `extra` of a log call: the event's values for programs. The message has them too, for people."""
    return {"fields": values}


def stderr_is_journal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether stderr is still the stream that systemd connected to the journal."""
    try:
        stat = os.fstat(_STDERR)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


def journal_priority(level: int) -> str:
    """Return the priority prefix of a line in the journal, for a level of `logging`."""
    steps = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return f"<{next((priority for least, priority in steps if level >= least), 7)}>"


class LineFormatter(logging.Formatter):
    """Formatter of log records, for the journal or not. In the text format a traceback has lines of its own."""

    def __init__(self, log_format: LogFormat, *, journal: bool) -> None:
        super().__init__()
        self._logfmt = log_format is LogFormat.LOGFMT
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, as logging.Formatter."""
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        lines = [self._pairs(record, trace)] if self._logfmt else [self._text(record), *trace.splitlines()]
        priority = journal_priority(record.levelno) if self._journal else ""
        return "\n".join(priority + _escaped(line) for line in lines)

    def _text(self, record: logging.LogRecord) -> str:
        text = f"{record.name}: {record.getMessage()}"
        return text if self._journal else f"{self.formatTime(record)} {record.levelname} {text}"

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
    """Escape control characters as JSON does, so that quoted values stay valid."""
    return _CONTROLS.sub(
        lambda match: json.dumps(match[0])[1:-1] if match[0] < "\x7f" else f"\\u{ord(match[0]):04x}", text
    )
