"""Records by strace, in order, the calls by which a process changes its disk or sends: writes, names, syncs and output.

The record has the bytes of every write, so that tests.power_cut.disk can build the disk that any power cut would have left.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

CALLS = (
    "open openat creat mkdir mkdirat rename renameat renameat2 unlink unlinkat rmdir link linkat symlink symlinkat "
    "write pwrite64 writev pwritev pwritev2 truncate ftruncate fallocate copy_file_range sendfile msync "
    "fsync fdatasync sync syncfs chmod fchmod fchmodat sendto sendmsg"
)
"""All calls that can change a file or a name, or send data to another process. strace skips calls that a machine lacks."""

_MOST_BYTES = 2**26
_LINE = re.compile(rb"(\d+) +(.*)")
_UNFINISHED = re.compile(rb"(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(rb"<\.\.\. (\w+) resumed>(.*)$")
_WHOLE = re.compile(rb"(\w+)\((.*)$")
_RESULT = re.compile(rb"\) += (-?\d+|\?)(?:<((?:\\x[0-9a-f]{2})*)>)?[^=]*$")
_TEXT = re.compile(rb'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_OPEN = re.compile(rb"(?:^|[ (])(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True)
class Call:
    """One system call that succeeded: the lines of the log on which it `began` and `ended`.

    `texts` are its strings, `places` the paths of its descriptors, `rest` its arguments without them, `result` its number.
    """

    name: str
    texts: tuple[bytes, ...]
    places: tuple[str, ...]
    rest: bytes
    result: int
    began: int
    ended: int


def traced(command: Sequence[str], log: Path) -> list[str]:
    """The command line that runs `command` and its children unchanged, and records them in `log`. Skips if it cannot."""
    why = _why_not()
    if why:
        pytest.skip(why)
    calls = ",".join(f"?{call}" for call in CALLS.split())
    # -DDD: the process stays our child, and a kill of its group spares strace. -y: descriptors with their paths.
    options = ["-DDD", "-f", "--seccomp-bpf", "-q", "-y", "-xx", "-s", str(_MOST_BYTES), "-e", "signal=none"]
    options += ["-e", f"trace={calls}"]
    return ["strace", *options, "-o", str(log), *command]


def wait_written(log: Path) -> None:
    """Return once strace has recorded the end of the last of its processes: only then the record is complete."""
    give_up_at = time.monotonic() + 60.0
    while _still_there(log.read_bytes()):
        assert time.monotonic() < give_up_at, f"{log} is never finished"
        time.sleep(0.05)


def _still_there(text: bytes) -> set[bytes]:
    lines = [line.split(None, 1) for line in text.splitlines()]
    return {number for number, _ in lines} - {number for number, what in lines if what.startswith(b"+++")}


def read_calls(log: Path) -> Iterator[Call]:
    """System calls that succeeded. AssertionError for a line that cannot be read, since no call may be missed."""
    begun: dict[bytes, tuple[int, bytes]] = {}
    with log.open("rb") as lines:
        for number, line in enumerate(lines):
            found = _LINE.match(line.rstrip(b"\n"))
            assert found, line[:200]
            process, text = found.groups()
            if text.startswith((b"+++", b"---")):
                continue
            if unfinished := _UNFINISHED.match(text):
                begun[process] = number, b"%s(%s" % unfinished.groups()
                continue
            began = number
            if resumed := _RESUMED.match(text):
                began, start = begun.pop(process)
                text = start + resumed[2]
            if (call := _call(text, began, number)) is not None:
                yield call


def _call(text: bytes, began: int, ended: int) -> Call | None:
    whole, result = _WHOLE.match(text), _RESULT.search(text)
    assert whole, text[:200]
    if result is None or result[1] == b"?" or int(result[1]) < 0:
        assert result is not None or b"<detached" in text or b"resumed" not in text, text[:200]
        return None
    arguments = whole[2][: result.start() - len(whole[1]) - 1]
    texts = _TEXT.findall(arguments)
    assert not any(more for _, more in texts), text[:200]
    bare = _TEXT.sub(b'""', arguments)
    return Call(
        whole[1].decode(),
        tuple(_bytes(one) for one, _ in texts),
        tuple(os.fsdecode(_bytes(one[1])) for one in _OPEN.findall(bare)),
        bare,
        int(result[1]),
        began,
        ended,
    )


def _bytes(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.replace(b"\\x", b"").decode())


@functools.cache
def _why_not() -> str:
    if shutil.which("strace") is None:
        return "strace is not installed (apt install strace)"
    tried = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-o", os.devnull, "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"strace cannot trace here: {tried.stderr.strip()[:200]}" if tried.returncode else ""
