"""Two ejabberd nodes in one cluster behind haproxy: all on loopback, in directories of their own.

The nodes find each other through their own epmd on an unusual port, and authenticate by a cookie that only they have.
`prefer_a` and `prefer_b` are URLs of haproxy, which forwards each connection to the node of that name, or to the other node
while the first is down.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fedpatch.coordinator.cli.broker import ejabberd_rules
from tests.broker.ejabberd import ASK, Ejabberd
from tests.support.brokers import HOST, free_port, listening

PATIENCE_S = 120.0

_NODE = """\
hosts: [localhost]
loglevel: warning
listen:
  - port: {{port}}
    ip: "{{host}}"
    module: mod_mqtt
    backlog: 128
auth_method: external
extauth_program: "{{directory}}/ask"
acme:
  auto: false
{rules}"""

_HAPROXY = """\
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  default-server check inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
listen prefer-a
  bind {host}:{prefer_a}
  server a {host}:{a}
  server b {host}:{b} backup
listen prefer-b
  bind {host}:{prefer_b}
  server b {host}:{b}
  server a {host}:{a} backup
"""


class Node(Ejabberd):
    """One node, `name`@127.0.0.1, that joins the node `joins` when it is first started."""

    def __init__(self, name: str, rules: str, *, epmd_port: int, cookie: str, joins: str = "") -> None:
        super().__init__(_NODE.format(rules=rules))
        self.name = f"{name}@{HOST}"
        self._joins = joins
        self._joined = self.directory / "joined"
        self._epmd_port = epmd_port
        ask = self.directory / "ask"
        ask.write_text(ASK.format(python=shutil.which("python3") or sys.executable))
        ask.chmod(0o755)
        secret = self.directory / ".erlang.cookie"
        secret.write_text(cookie)
        secret.chmod(0o400)

    @property
    def options(self) -> list[str]:
        join = f'ok = ejabberd_cluster:join(\'{self._joins}\'), ok = file:write_file("{self._joined}", "").'
        distribution = ["-name", self.name, "-start_epmd", "false", "-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
        return [*super().options, *distribution, *(["-eval", join] if self._joins else [])]

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": HOST}

    def start(self) -> None:
        """Run it until it listens, as a member of the cluster."""
        super().start()
        if self._joins:
            give_up_at = time.monotonic() + PATIENCE_S
            while not (self._joined.exists() and listening(self.port)):
                if time.monotonic() > give_up_at:
                    raise RuntimeError(f"{self.name} did not join {self._joins}")
                time.sleep(0.05)
        self._joins = ""  # from now on, its database lists the other node


class Pair:
    """Two nodes and haproxy, within a `with`. `a` and `b` can be killed and started again."""

    def __init__(self, fleet: str, devices: list[str]) -> None:
        haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
        epmd = shutil.which("epmd")
        if haproxy is None or epmd is None:
            pytest.skip("haproxy or ejabberd is not installed (make system-deps, or: apt install haproxy ejabberd)")
        self._haproxy, self._epmd, self._epmd_port = haproxy, epmd, free_port()
        self._files = contextlib.ExitStack()
        rules = ejabberd_rules(fleet, "localhost", devices)
        for option in ("access_publish", "access_subscribe"):  # and one more topic for the waiting client
            rules = rules.replace(f"    {option}:\n", f'    {option}:\n      "barrier/+": all\n')
        cookie = secrets.token_hex(16)
        self.a = Node("a", rules, epmd_port=self._epmd_port, cookie=cookie)
        self.b = Node("b", rules, epmd_port=self._epmd_port, cookie=cookie, joins=self.a.name)
        self._ports = {"prefer_a": free_port(), "prefer_b": free_port()}
        self.prefer_a, self.prefer_b = (f"mqtt://{HOST}:{port}" for port in self._ports.values())

    def __enter__(self) -> Pair:
        try:
            epmd = [self._epmd, "-address", HOST, "-port", str(self._epmd_port)]
            self._run(epmd, self._epmd_port)
            for node in (self.a, self.b):
                self._files.callback(node.__exit__)
                node.start()
            directory = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-haproxy-")))
            config = directory / "haproxy.cfg"
            config.write_text(_HAPROXY.format(host=HOST, a=self.a.port, b=self.b.port, **self._ports))
            self._run([self._haproxy, "-db", "-q", "-f", str(config)], self._ports["prefer_b"])
        except BaseException:
            self._files.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _run(self, line: list[str], port: int) -> None:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, start_new_session=True)
        self._files.callback(_end, process)
        give_up_at = time.monotonic() + PATIENCE_S
        while not listening(port):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"{line[0]} did not start")
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
