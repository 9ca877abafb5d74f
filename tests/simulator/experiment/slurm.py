"""A real Slurm cluster for one test: two nodes, each in a network namespace, with a controller on the first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from benchmarks.testbed.hosts import Hosts, why_not

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun")
SYSTEM_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_PATIENCE_S = 60.0

# The nodes' addresses are their names, since a test's namespaces have no resolver.
_CONF = """\
ClusterName=tests
SlurmctldHost={machine}({first})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName={nodes} CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """Use it with `with`; it skips the test if Slurm is not installed or the machine allows no namespaces."""

    def __init__(self, folder: Path) -> None:
        missing = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
        if missing:
            pytest.skip(f"no {', '.join(missing)} here (apt install slurmctld slurmd slurm-client munge)")
        if reason := why_not():
            pytest.skip(reason)
        self._folder = folder
        self._names = ["node-1", "node-2"]
        self._hosts = Hosts(self._names, rate_bit_s=1e9)
        self._stack = ExitStack()
        self._environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": SYSTEM_PATH}

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the first node; return the finished process."""
        given = {**self._environment, **variables}
        with self._hosts.inside(self._names[0]):
            return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=300)

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        self._stack.enter_context(self._hosts)
        addresses = [self._hosts.address(name) for name in self._names]
        (self._folder / "state").mkdir()
        for address in addresses:
            (self._folder / f"spool-{address}").mkdir()
        cpus = len(os.sched_getaffinity(0))
        nodes = ",".join(addresses)
        conf = _CONF.format(
            folder=self._folder, machine=os.uname().nodename, first=addresses[0], nodes=nodes, cpus=cpus
        )
        (self._folder / "slurm.conf").write_text(conf)
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = [f"--{name}-file={self._folder}/munge.{name}" for name in ("key", "pid", "seed", "log")]
        self._start(
            self._names[0], "munged", "--foreground", "--force", f"--socket={self._folder}/munge.socket", *files
        )
        self._wait(lambda: (self._folder / "munge.socket").exists(), "munged")
        self._start(self._names[0], "slurmctld", "-D")
        for name, address in zip(self._names, addresses, strict=True):
            self._start(name, "slurmd", "-D", "-N", address)
        self._wait(lambda: self.run("sinfo", "--noheader", "-o", "%t %D").stdout.split() == ["idle", "2"], "two nodes")

    def _start(self, host: str, *command: str) -> None:
        log = self._stack.enter_context((self._folder / f"{command[0]}-{host}.log").open("wb"))
        with self._hosts.inside(host):
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(_end, process)

    def _wait(self, fits: object, what: str) -> None:
        give_up_at = time.monotonic() + _PATIENCE_S
        while not fits():  # type: ignore[operator]
            if time.monotonic() > give_up_at:
                logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._folder.glob("*.log"))
                raise TimeoutError(f"never: {what}\n{logs}")
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
