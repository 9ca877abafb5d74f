"""Ends booted hosts when the process that made them does, however that ends: `python -m tests.hosts.warden LAB FOLDER`.

It waits for the end of its stdin, which the kernel brings about even where the tests were killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "fedpatch-hosts"
CGROUPS = tuple(Path("/sys/fs/cgroup", tree) for tree in ("systemd", "unified", "cpu", "cpuacct", "memory", "pids"))

_NETNS = Path("/run/netns")
_PATIENCE_S = 20.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(sys.argv[1], Path(sys.argv[2]))


def end(lab: str, folder: Path, host: str = "") -> None:
    """All that is left of a lab, or of one of its hosts: processes, mounts, namespaces, control groups, files."""
    kill_processes(lab, host)
    for disk in [folder / host] if host else sorted(folder.glob("*")):
        if (disk / "root").is_mount():
            subprocess.run(["umount", "-l", disk / "root"], capture_output=True, check=False)
    for name in _namespaces(lab, host):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    for group in _groups(lab, host):
        for path in sorted((one for one in group.rglob("*") if one.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
    if str(folder / host) not in Path("/proc/mounts").read_text():  # never reach through a mount that would not go
        shutil.rmtree(folder / host, ignore_errors=True)


def kill_processes(lab: str, host: str = "") -> None:
    """Kill the processes of a lab, or of one of its hosts, and wait a while until they have ended."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while pids := set(_processes(lab, host)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            break
        time.sleep(0.05)


def end_leftovers() -> None:
    """The labs whose maker is no more and whose warden was killed too."""
    named = [path.name for path in (*_each(_NETNS), *(path for tree in CGROUPS for path in _each(tree)))]
    folders = {path.name: path for path in _each(Path(tempfile.gettempdir()))}
    labs = {found for name in (*named, *folders) if (found := re.match(rf"{PREFIX}-(\d+)-\d+", name))}
    for lab, maker in {(found[0], found[1]) for found in labs}:
        if not Path("/proc", maker).exists():
            mine = [path for name, path in folders.items() if name.startswith(f"{lab}-")]
            for folder in mine or [Path(tempfile.gettempdir(), f"{lab}-gone")]:
                end(lab, folder)


def _each(folder: Path) -> list[Path]:
    return list(folder.glob(f"{PREFIX}-*")) if folder.is_dir() else []


def _groups(lab: str, host: str) -> list[Path]:
    return [group for tree in CGROUPS if (group := tree / lab / host).is_dir()]


def _namespaces(lab: str, host: str) -> list[str]:
    names = [path.name for path in _each(_NETNS)]
    return [name for name in names if (name == f"{lab}-{host}" if host else name.startswith(f"{lab}-"))]


def _processes(lab: str, host: str) -> Iterator[int]:
    """Those of the hosts, and whatever runs in their namespaces."""
    for group in _groups(lab, host):
        for procs in group.rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                yield from map(int, procs.read_text().split())
    for name in _namespaces(lab, host):
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        yield from map(int, found.stdout.split())


if __name__ == "__main__":
    main()
