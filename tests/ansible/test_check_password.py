"""The program that answers ejabberd's questions about passwords: ansible/roles/broker_node/files/check_password.py."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.mosquitto_passwd import password_line
from tests.hosts.plays import ROLES

PROGRAM = ROLES / "broker_node" / "files" / "check_password.py"
WORD = "a:b:c"


def _answers(folder: Path, lines: list[bytes], questions: list[bytes]) -> list[bool]:
    """Return the answers of one process to the questions, in order."""
    (folder / "passwords").write_bytes(b"\n".join(lines))
    sent = b"".join(struct.pack(">H", len(one)) + one for one in questions)
    command = [sys.executable, str(PROGRAM), str(folder / "passwords")]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    pairs = list(struct.iter_unpack(">HH", done.stdout))
    assert {size for size, _ in pairs} <= {2}
    return [bool(right) for _, right in pairs]


def test_only_the_passwords_of_the_file_are_admitted(tmp_path):
    lines = [password_line(name, word).encode() for name, word in (("pi-1", "pi-1's word"), ("pi-2", WORD))]
    questions = {
        "isuser:pi-1:kitchen": True,
        "isuser:pi-3:kitchen": False,
        "auth:pi-1:kitchen:pi-1's word": True,
        f"auth:pi-2:kitchen:{WORD}": True,
        "auth:pi-2:kitchen:pi-1's word": False,
        "auth:pi-1:kitchen:": False,
        "auth:pi-3:kitchen:pi-1's word": False,
        "setpass:pi-1:kitchen:new": False,
    }
    assert _answers(tmp_path, lines, [one.encode() for one in questions]) == list(questions.values())


def test_question_that_is_not_utf_8_is_answered_with_no_and_the_next_one_as_ever(tmp_path):
    questions = [b"auth:\xff:h:", b"auth:pi-1:h:\xff", f"auth:pi-1:h:{WORD}".encode()]
    assert _answers(tmp_path, [password_line("pi-1", WORD).encode()], questions) == [False, False, True]


@pytest.mark.parametrize(
    "damaged", [b"pi-2:", b"pi-2:$7$x$AAAA$AAAA", b"pi-2:$7$0$AAAA$AAAA", b"pi-2:$7$101$A$A", b"pi-2:\xff", b"\xff"]
)
def test_damaged_line_admits_nobody_and_the_other_lines_count(tmp_path, damaged):
    lines = [damaged, password_line("pi-1", WORD).encode()]
    questions = [f"auth:{name}:h:{WORD}".encode() for name in ("pi-2", "pi-1")]
    assert _answers(tmp_path, lines, questions) == [False, True]
