"""`reader_call.py SOCKET PROGRAM WORDS...`: calls a program of a reader's machine, with this folder, variables and files."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def ask(where: str, request: Mapping[str, Any], files: Sequence[int]) -> int:
    """Request the call of a program with `files` as its first three file descriptors; pass signals on to it."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(where)
        words = json.dumps(request).encode()
        socket.send_fds(line, [len(words).to_bytes(4, "big")], list(files))
        line.sendall(words)
        if request["program"] in ("fedpatch", "fedpatch-agent", "fedpatch-relay", "parse"):
            for one in (signal.SIGINT, signal.SIGTERM):
                signal.signal(one, lambda number, _frame: line.send(bytes((number,))))
        answer = line.recv(4)
        assert answer, "the reader's machine has ended"
        return int.from_bytes(answer, "big")


if __name__ == "__main__":
    _, _where, _program, *_words = sys.argv
    _request = {"program": _program, "argv": _words, "folder": os.getcwd(), "environment": dict(os.environ)}
    sys.exit(ask(_where, _request, (0, 1, 2)))
