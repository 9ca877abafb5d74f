"""The scripts of docs/examples that start a simulation on several machines, with a real sshd and a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.testbed.hosts import Hosts, why_not
from tests.simulator.experiment.slurm import SYSTEM_PATH, Slurm
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STUDY = ("--task", "digits", "--clients", "18", "--participation", "0.9", "--rounds", "3", "--strategy", "fedavg-adam")
EXAMPLES = ROOT / "docs" / "examples"
BIN = str(Path(sys.executable).parent)


def _points(out: Path) -> list[dict[str, Any]]:
    """Points of the curve in a result, without their seconds."""
    points: list[dict[str, Any]] = json.loads((out / "outcome.json").read_text())["points"]
    return [{name: value for name, value in point.items() if name != "seconds"} for point in points]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The curve of one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    command = [sys.executable, "-m", "fedpatch", "simulate", *STUDY, "--workers", "1", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return _points(out)


def _sshd(hosts: Hosts, name: str, folder: Path, stack: ExitStack) -> None:
    """Start an SSH server on a host; it accepts only the key in `folder`."""
    sshd = shutil.which("sshd", path=SYSTEM_PATH)
    if sshd is None:
        pytest.skip("no sshd here (apt install openssh-server)")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs this directory, empty
    settings = {
        "HostKey": folder / "key",
        "AuthorizedKeysFile": folder / "key.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
        "UsePAM": "no",
        "ListenAddress": hosts.address(name),
    }
    config = folder / f"sshd-{name}"
    config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    with hosts.inside(name):
        server = subprocess.Popen([sshd, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    stack.callback(server.wait)
    stack.callback(server.terminate)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_script_for_ssh_gives_the_bits_of_one_process(tmp_path: Path, alone: list[dict[str, Any]]):
    names = ["node-1", "node-2"]
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    ssh = tmp_path / "ssh"
    options = f"-i {tmp_path}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
    ssh.chmod(0o755)
    with Hosts(names, rate_bit_s=1e9) as hosts, ExitStack() as stack:
        for name in names:
            _sshd(hosts, name, tmp_path, stack)
        time.sleep(1)
        given = {"HOSTS": " ".join(map(hosts.address, names)), "FEDPATCH_BIN": BIN, "PATH": f"{tmp_path}:{SYSTEM_PATH}"}
        given["GLOO_SOCKET_IFNAME"] = "eth0"  # all hosts have the name of this machine
        with hosts.inside(names[0]):
            done = subprocess.run(
                [EXAMPLES / "simulate_over_ssh.sh", *STUDY, "--out", str(tmp_path / "out")],
                env={**os.environ, **given},
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _points(tmp_path / "out") == alone


@pytest.mark.hosts  # two nodes of Slurm take minutes on a busy machine
def test_script_for_slurm_gives_the_bits_of_one_process(tmp_path: Path, alone: list[dict[str, Any]]):
    """`sbatch` runs the file unchanged, except for the processors of a node."""
    with Slurm(tmp_path) as slurm:
        options = ["--wait", "--cpus-per-task=1", f"--output={tmp_path}/printed", f"--chdir={ROOT}"]
        script, given = str(EXAMPLES / "simulate.sbatch"), {"FEDPATCH_BIN": BIN, "GLOO_SOCKET_IFNAME": "eth0"}
        done = slurm.run("sbatch", *options, script, *STUDY, "--out", str(tmp_path / "out"), **given)
        printed = (tmp_path / "printed").read_text()
    assert done.returncode == 0, done.stderr + printed
    assert _points(tmp_path / "out") == alone
