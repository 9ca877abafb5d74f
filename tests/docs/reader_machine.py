"""A machine for a reader of the pages: typed commands change nothing outside of it, even as root.

    with ReaderMachine(tmp_path) as machine:
        machine.call(["bash", "page.sh"], folder, environment, stdin, output)

The machine has a network of its own (loopback only), processes of its own, and system folders (`LAID_OVER`) whose changes
vanish with it. tests/docs/reader_server.py runs in it, so that a hundred commands take seconds. The server ends when its
standard input closes, so it always ends with the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Self

import pytest

from tests.docs.reader_call import ask
from tests.support.paths import ROOT

LAID_OVER = ("/etc", "/opt", "/srv", "/media", "/var/lib", "/var/cache")
HOSTS = ("broker.local", "hub", "hub.local", *(f"pi-{number:02}.local" for number in range(1, 11)))
PATIENCE_S = 300.0
_UNSHARE = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_LAID = """
set -e
mount -t tmpfs reader "$1"
for folder in {folders}; do
    [ -d $folder ] || continue
    mkdir -p "$1$folder/made" "$1$folder/work"
    mount -t overlay reader -o "lowerdir=$folder,upperdir=$1$folder/made,workdir=$1$folder/work" $folder
done
ip link set lo up
echo "127.0.0.1 localhost {hosts}" > /etc/hosts
cp /dev/null /etc/machine-of-a-reader
shift
exec "$@"
"""


def _laid() -> str:
    return _LAID.format(folders=" ".join(LAID_OVER), hosts=" ".join(HOSTS))


class ReaderMachine:
    """Use it with `with`; it skips the test if this computer allows no such machine."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "machine"
        self._layers = folder / "layers"
        self._log = folder / "machine.log"

    def call(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: BinaryIO, output: BinaryIO
    ) -> int:
        """Call a program in the machine, wait for its end, and end processes that it left behind; return its exit code."""
        request = {"program": "exec", "argv": list(argv), "folder": str(folder), "environment": dict(environment)}
        code = ask(str(self.socket), request, (stdin.fileno(), output.fileno(), output.fileno()))
        ask(
            str(self.socket),
            {**request, "program": "end the others"},
            (stdin.fileno(), output.fileno(), output.fileno()),
        )
        return code

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("a machine for a reader needs root, who may make namespaces")
        for program in ("unshare", "ip", "mosquitto", "script"):
            if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
                pytest.skip(f"{program} is not installed")
        self._layers.mkdir(parents=True)
        laid = ("sh", "-c", _laid(), "sh", str(self._layers))
        if subprocess.run([*_UNSHARE, *laid, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this machine allows no namespaces with folders laid over others")
        serve = (sys.executable, "-m", "tests.docs.reader_server", str(self.socket))
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_UNSHARE, *laid, *serve], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )
        until = time.monotonic() + PATIENCE_S
        while not self.socket.exists():
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
