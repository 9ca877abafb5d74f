"""The agent on the processor of a Raspberry Pi 4, emulated, in a round with a broker and a coordinator of this machine.

It runs what a wheelhouse for aarch64 holds, and what Debian has for that processor of all that the roles install. Nothing is
set up or booted, which takes an emulated host minutes: tests/hosts/test_pi_4.py does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts import bases
from tests.hosts.bases import PI_4
from tests.hosts.conftest import PACKAGES
from tests.hosts.wheelhouses import MANIFEST, wheelhouse
from tests.system.commands import Command

pytestmark = [pytest.mark.arm64, pytest.mark.system, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1800)]

# An emulated PyTorch is loaded in half a minute, by a busy machine in some more.
PATIENCE_S = 900.0
ROLES = ["adduser", "ca-certificates", *PACKAGES]
RUNS_IN_IT = ["base-files", "coreutils", "libgomp1", "libstdc++6", "python3"]
VERSIONS = """
import ctypes, platform, torch
ask = ctypes.CDLL(None).getauxval
ask.restype = ctypes.c_ulong
# Bit 8 of the processor's features is for the atomics that a Pi 4 lacks and a Pi 5 has.
print(platform.machine(), torch.__version__.partition("+")[0], ask(16) >> 8 & 1)
"""


# The features that a Pi 4 reports of each processor. QEMU shows those of this machine, of which onnxruntime, which finds
# nothing there that it knows, dies by SIGSEGV; by these words it takes the code that it takes on a Pi 4.
PROCESSOR = """\
processor\t: {}
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
# In a mount namespace of its own: what is mounted goes with the process, and nothing of this machine can be unmounted.
ENTER = """
mount -t overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind "$1/cpuinfo" "$1/root/proc/cpuinfo"
mount -t sysfs sysfs "$1/root/sys"
mount --rbind /dev "$1/root/dev"
root=$1
shift
exec chroot "$root/root" env -i PATH=/usr/bin:/bin HOME=/root PYTHONPATH=/site "$@"
"""


@dataclass(frozen=True)
class Root:
    """A root directory for aarch64, as an overlay in `folder` over `tree`, with fedpatch and its libraries in /site."""

    tree: Path
    folder: Path

    def line(self, *command: str) -> list[str]:
        """The command line that runs a command in it; one at a time."""
        given = [f"{name}={value}" for name, value in PI_4.environment.items()]
        return ["unshare", "--mount", "sh", "-euc", ENTER, str(self.tree), str(self.folder), *given, *command]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Root:
    """Made of the packages that Debian has for all that the roles install, and of a wheelhouse."""
    bases.require_tools(PI_4)
    tree, house = bases.unpacked(PI_4, [*ROLES, *RUNS_IN_IT]), wheelhouse(PI_4, or_skip=True)
    folder = Path(tmp_path_factory.mktemp("pi-4"))
    for name in ("wheels", "upper/site", "work", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "cpuinfo").write_text("".join(map(PROCESSOR.format, range(os.cpu_count() or 1))))
    manifest = json.loads((house / MANIFEST).read_text())
    with tarfile.open(house / manifest["libraries"]["aarch64-cp311"]["file"]) as archive:
        archive.extractall(folder / "wheels", filter="data")
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--no-config",
        "--no-index",
        "--only-binary=:all:",
        "--no-cache",
    ]
    install += ["--python-platform=aarch64-manylinux_2_28", "--python-version=3.11", f"--target={folder}/upper/site"]
    libraries = ["--require-hashes", f"--find-links={folder}/wheels", f"--requirement={folder}/wheels/requirements.txt"]
    subprocess.run([*install, *libraries], check=True)
    subprocess.run([*install, "--no-deps", str(house / manifest["wheel"])], check=True)
    return Root(tree, folder)


def test_an_emulated_device_takes_part_in_a_round(root, mosquitto, tmp_path):
    """Without what newer processors have, it loads the PyTorch that devices get, trains, reports and makes its model."""
    versions = subprocess.run(root.line("python3", "-c", VERSIONS), capture_output=True, text=True, check=True).stdout
    assert versions.split() == ["aarch64", "2.9.1", "0"]
    options = {
        "device-id": "pi-4",
        "task": "digits",
        "data": "shard:0/10",
        "admission": "always",
        "state-dir": "/state",
    }
    reached = {"broker": mosquitto.url, "fleet": "kitchen"}
    words = [word for name, value in {**options, **reached}.items() for word in (f"--{name}", value)]
    agent = root.line("python3", "-m", "fedpatch.device_agent", "run", "--until-stdin-closes", *words)
    run = {**reached, "state-dir": tmp_path, "task": "digits", "rounds": 1, "devices": 1, "wait-s": PATIENCE_S}
    run |= {"recruit-deadline-s": 120, "deadline-s": PATIENCE_S}
    arguments = [word for name, value in run.items() for word in (f"--{name}", value)]
    log = tmp_path / "agent.log"
    pipe = subprocess.PIPE
    with (
        log.open("wb") as out,
        subprocess.Popen(agent, stdin=pipe, stdout=out, stderr=out, start_new_session=True) as started,
    ):
        try:
            with Command("fedpatch", "run", "--json", *arguments) as coordinator:
                done = coordinator.done(PATIENCE_S)
            # The agent publishes it when it has received `committed` for its update.
            give_up_at = time.monotonic() + PATIENCE_S
            while not (root.folder / "upper/state/models/digits/current").is_symlink():
                assert time.monotonic() < give_up_at, log.read_text("utf-8")
                time.sleep(0.5)
        finally:
            os.killpg(started.pid, signal.SIGKILL)
    (played,) = done.document["rounds"]
    assert (played["outcome"], played["user_accuracies"].keys()) == ("aggregated", {"pi-4"}), log.read_text("utf-8")
