"""A real ejabberd for tests: only its MQTT broker, on loopback, in a temporary directory of its own.

`erl` starts it, not ejabberdctl: without a node name there is no Erlang distribution, hence no cookie, no epmd, and no port
except MQTT's. `tests.broker.cluster` has nodes with a name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.brokers import HOST, free_port, listening
from tests.support.listing import PausableServer

START_PATIENCE_S = 120.0
USERNAME, PASSWORD = "fedpatch@localhost", "anything"

# Answers ejabberd's questions about passwords: the password of a user is the user's name.
ASK = """\
#!{python}
import struct, sys
while head := sys.stdin.buffer.read(2):
    question = sys.stdin.buffer.read(struct.unpack(">H", head)[0]).decode().split(":")
    right = question[0] == "isuser" or (question[0] == "auth" and question[1] == question[3])
    sys.stdout.buffer.write(struct.pack(">HH", 2, right))
    sys.stdout.buffer.flush()
"""

# Its users are names at a host; an anonymous user may choose any name, but must give some password.
_CONFIG = """\
hosts: [localhost]
loglevel: warning
listen:
  - port: {port}
    ip: "{host}"
    module: mod_mqtt
    backlog: 128
auth_method: anonymous
anonymous_protocol: login_anon
allow_multiple_connections: true
acme:
  auto: false
modules:
  mod_mqtt: {{}}
"""


class Ejabberd(PausableServer):
    """Start it with `start` or `with`; `kill` is a power cut. Skips the test if ejabberd is not installed.

    `config` is its ejabberd.yml, with the placeholders {port}, {host} and {directory}.
    """

    def __init__(self, config: str = _CONFIG) -> None:
        libraries = next(Path("/usr/lib").glob("*/ejabberd-*/ebin"), None)
        erl = shutil.which("erl")
        if libraries is None or erl is None:
            pytest.skip("ejabberd is not installed (make system-deps, or: apt install ejabberd)")
        self._erl, self._libraries = erl, libraries.parents[1]
        self._files = contextlib.ExitStack()
        self.directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-ejabberd-")))
        self.port = free_port()
        (self.directory / "ejabberd.yml").write_text(config.format(port=self.port, host=HOST, directory=self.directory))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"

    @property
    def options(self) -> list[str]:
        """Options of `erl`."""
        return ["-noinput", "+S", "2", "-mnesia", "dir", f'"{self.directory / "spool"}"', "-s", "ejabberd"]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of its process besides ours."""
        here = self.directory
        return {
            "HOME": str(here),
            "ERL_LIBS": str(self._libraries),
            "ERL_CRASH_DUMP_BYTES": "0",
            "EJABBERD_CONFIG_PATH": str(here / "ejabberd.yml"),
            "EJABBERD_LOG_PATH": str(here / "ejabberd.log"),
            "EJABBERD_PID_PATH": str(here / "ejabberd.pid"),
            "CONTRIB_MODULES_PATH": str(here),
        }

    def start(self) -> None:
        """Start it, and return once it listens; its port is the same after each start."""
        here = self.directory
        with (here / "output").open("ab") as out:
            self._process = subprocess.Popen(
                [self._erl, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.environment},
                cwd=here,
                start_new_session=True,
            )
        give_up_at = time.monotonic() + START_PATIENCE_S
        while not listening(self.port):
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                text = (here / "output").read_text(errors="replace")
                self.kill()
                raise RuntimeError(f"ejabberd did not start:\n{text[-4000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it and its child processes, like a power cut."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Ejabberd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._files.close()
