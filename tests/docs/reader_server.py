"""The server in a reader's machine: it imports the modules of our commands once, and runs each call in a fork."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

MAINS = {
    "fedpatch": "fedpatch.cli",
    "fedpatch-agent": "fedpatch.device_agent.cli.main",
    "fedpatch-relay": "fedpatch.relay.cli",
}
PREPARED = (
    "fedpatch.cli",
    "fedpatch.device_agent.cli.main",
    "fedpatch.simulator.cli",
    "fedpatch.simulator.experiment.simulation",
    "fedpatch.shared.tasks.bundled.digits",
    "onnxruntime",
)


def _serve(where: str) -> None:
    """Accept calls, each in a process of its own, while the machine exists."""
    if os.getpid() != 1:
        raise SystemExit("this is not the first process of a machine of its own, and would end processes of others")
    for name in PREPARED:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(where + ".new")
        door.listen(64)
        os.rename(where + ".new", where)
        watched: list[Any] = [door, 0]
        while door in select.select(watched, [], [])[0]:  # else standard input is closed: the tests have ended
            line, _ = door.accept()
            if os.fork() == 0:
                door.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                with contextlib.suppress(BrokenPipeError):
                    line.sendall(_attend(line).to_bytes(4, "big"))
                os._exit(0)
            line.close()


def _attend(line: socket.socket) -> int:
    """Run the program of one call; return its exit code, or 128 plus the number of the signal that ended it."""
    size, files, _, _ = socket.recv_fds(line, 4, 3)
    words = b""
    while len(words) < int.from_bytes(size, "big"):
        words += line.recv(65_536)
    request = json.loads(words)
    if request["program"] == "end the others":
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all except this process and process 1, its parent
        return 0
    worker = os.fork()
    if worker == 0:
        line.close()
        _become(request, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(worker)
    watched: list[Any] = [line, ended]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            return code if code >= 0 else 128 - code
        for number in line.recv(1) or (signal.SIGKILL,):
            os.kill(worker, number)


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Run the program of a call in this process; never return."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 1024)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program, argv = request["program"], request["argv"]
    if program == "exec":
        os.setsid()
        os.execvp(argv[0], argv)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115
    try:
        if program == "parse":
            _parse(argv)
        sys.argv = [program, *argv]
        __import__(MAINS[program])
        sys.modules[MAINS[program]].main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parse(argv: Sequence[str]) -> None:
    """Run `python -m MODULE WORDS...` until its arguments are parsed."""

    def understood(*_: object, **__: object) -> None:
        raise SystemExit(0)

    whole = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *given: Any) -> None:
        whole(self, *given)
        understood()

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign, assignment]
    TyperCommand.invoke = understood  # type: ignore[method-assign]
    sys.argv = [argv[0], *argv[1:]]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    raise SystemExit("it took no words")


if __name__ == "__main__":
    _serve(sys.argv[1])
