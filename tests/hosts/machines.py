"""Booted hosts on one machine: systemd-nspawn containers with a service manager, a disk and an address of their own.

    with Machines({"hub": BOOKWORM, "pi-1": TRIXIE}) as machines:
        machines.ssh("hub", "systemctl is-system-running")
        machines.reboot("hub")

Each host is a network namespace on a bridge in a namespace of its own; the machine that the tests run on has no way there but
through the namespace of the control host. A disk is an overlay over the bare base tree. A warden, a process that outlives the
tests however they end, removes everything; hosts of tests that were killed together with their warden are removed by the next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.hosts import bases
from tests.hosts.bases import Kind
from tests.hosts.warden import CGROUPS, PREFIX, end, end_leftovers, kill_processes
from tests.support.paths import ROOT

NET = "10.77.0"
CONTROL = "ctl"
_COUNTED = itertools.count(1)

_INIT = """#!/bin/sh
# nspawn mounts these read-only, so that MemoryMax= and CPUQuota= would do nothing.
for one in memory cpu cpuacct pids; do mount -o remount,bind,rw /sys/fs/cgroup/$one 2>/dev/null; done
# QEMU shows the processors of this machine; onnxruntime, which finds nothing there that it knows, ends with SIGSEGV.
# Without their folder it does not look. (Another /proc/cpuinfo would do, too, but ProtectProc= gives the agent its own.)
[ -z "$QEMU_CPU" ] || mount -t tmpfs none /sys/devices/system/cpu
exec /lib/systemd/systemd
"""
# Its own cgroup first: nspawn puts a container's into its caller's. It ends with 133 where the host wants to boot again. A host
# may filter its own packets, which nspawn allows by itself only where it made the network.
_POWER = """
for tree in {cgroups}; do [ -d "$tree" ] && mkdir -p "$tree/{lab}/{host}" && echo $$ > "$tree/{lab}/{host}/cgroup.procs"; done
while :; do
    rc=0
    systemd-nspawn -q --register=no --keep-unit -D {disk}/root -M {host} --hostname={host} --kill-signal=SIGRTMIN+3 \
        --network-namespace-path=/run/netns/{lab}-{host} --capability=CAP_NET_ADMIN --resolv-conf=off --link-journal=no \
        --console=read-only --timezone=off {given} /usr/local/sbin/lab-init </dev/null >>{disk}/console.log 2>&1 || rc=$?
    echo "nspawn ended with $rc" >>{disk}/console.log
    [ $rc = 133 ] || break
done
"""


class Machines:
    """Hosts by name, each of a kind, booted and reachable by ssh while the `with` lasts."""

    def __init__(self, hosts: Mapping[str, Kind]) -> None:
        bases.require_tools(*hosts.values())
        self._kinds = dict(hosts)
        self._addresses = {name: f"{NET}.{number}" for number, name in enumerate(hosts, 11)}
        self.patience_s = 300.0
        self.lab = f"{PREFIX}-{os.getpid()}-{next(_COUNTED)}"
        self.folder = Path()
        self._warden: subprocess.Popen[bytes] | None = None
        self._powered: dict[str, subprocess.Popen[bytes]] = {}

    def address(self, host: str) -> str:
        """IPv4 address of a host."""
        return self._addresses[host]

    @property
    def key(self) -> Path:
        """The private key that every host lets in."""
        return self.folder / "id"

    @property
    def inside_control(self) -> list[str]:
        """What a command line begins with that is run on the control host."""
        return ["ip", "netns", "exec", f"{self.lab}-{CONTROL}"]

    def ssh(self, host: str, command: str, *, check: bool = True) -> str:
        """What a command prints that root runs on a host; RuntimeError where it fails."""
        done = self._ssh(host, self._as_root(host, f"sh -c {_quoted(command)}"))
        if check and done.returncode != 0:
            raise RuntimeError(f"{host}: {command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def user(self, host: str) -> str:
        """Who comes to a host by ssh."""
        return self._kinds[host].user

    def boots(self, host: str) -> str:
        """Changes with each boot of a host."""
        return self.ssh(host, "systemctl show -p UserspaceTimestampMonotonic --value; stat -c %Z /proc/1").strip()

    def reboot(self, host: str) -> None:
        """As `systemctl reboot` does it; returns when ssh answers again after it."""
        before = self.boots(host)
        self._ssh(host, self._as_root(host, "systemctl reboot"))
        self._until(lambda: self._answers(host) and self.boots(host) != before, f"{host} comes back")

    def add(self, host: str, kind: Kind) -> None:
        self._kinds[host] = kind
        self._addresses[host] = f"{NET}.{11 + len(self._addresses)}"
        self._plug_in(host)
        self._boot(host)
        self._await(host)

    def remove(self, host: str) -> None:
        """Cut the power of a host for good, and throw its disk away."""
        end(self.lab, self.folder, host)
        self._powered.pop(host).wait()

    def pull_plug(self, host: str) -> None:
        """Cut the power of a host; its disk keeps what was written."""
        power = self._powered.pop(host)
        os.killpg(power.pid, signal.SIGKILL)
        power.wait()
        kill_processes(self.lab, host)

    def put_plug(self, host: str) -> None:
        """Boot a host whose power was cut; return when it answers."""
        self._power_on(host)
        self._await(host)

    def console(self, host: str) -> str:
        path = self.folder / host / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Machines:
        end_leftovers()
        for kind in set(self._kinds.values()):
            bases.base(kind)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.lab}-"))
        command = [sys.executable, "-m", "tests.hosts.warden", self.lab, str(self.folder)]
        self._warden = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts, and wait until nothing of them is left."""
        # First, so that none that is just about to begin does so when the warden has looked.
        for power in self._powered.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(power.pid, signal.SIGKILL)
        code = 0
        if self._warden is not None:
            assert self._warden.stdin is not None
            self._warden.stdin.close()
            code, self._warden = self._warden.wait(), None
        if code:
            end(self.lab, self.folder)
        while self._powered:
            self._powered.popitem()[1].wait()
        if code:
            raise RuntimeError(f"the warden of {self.lab} has failed ({code}): its output is above")

    def _begin(self) -> None:
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key))
        switch = f"{self.lab}-switch"
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        self._addresses[CONTROL] = f"{NET}.2"
        for host in (CONTROL, *self._kinds):
            self._plug_in(host)
        for host in self._kinds:
            self._boot(host)
        for host in self._kinds:
            self._await(host)

    def _plug_in(self, host: str) -> None:
        there, switch = f"{self.lab}-{host}", f"{self.lab}-switch"
        _run("ip", "netns", "add", there)
        # A link's name has 15 characters at most.
        card = f"v-{host}"[:15]
        _run("ip", "link", "add", card, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", there)
        _run("ip", "-n", switch, "link", "set", card, "master", "br0", "up")
        _run("ip", "-n", there, "addr", "add", f"{self._addresses[host]}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run("ip", "-n", there, "link", "set", link, "up")

    def _boot(self, host: str) -> None:
        disk = self.folder / host
        for name in ("upper", "work", "root"):
            (disk / name).mkdir(parents=True)
        layers = f"lowerdir={bases.base(self._kinds[host])},upperdir={disk}/upper,workdir={disk}/work"
        _run("mount", "-t", "overlay", "overlay", "-o", layers, f"{disk}/root")
        init = disk / "root/usr/local/sbin/lab-init"
        init.write_text(_INIT)
        init.chmod(0o755)
        (disk / "root/etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        user = self._kinds[host].user
        home = "root" if user == "root" else f"home/{user}"
        allowed = disk / "root" / home / ".ssh" / "authorized_keys"
        allowed.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(self.key.with_suffix(".pub"), allowed)
        owner = (disk / "root" / home).stat()
        for path in (allowed.parent, allowed):
            os.chown(path, owner.st_uid, owner.st_gid)
        self._power_on(host)

    def _power_on(self, host: str) -> None:
        disk = self.folder / host
        given = " ".join(f"--setenv={name}={value}" for name, value in self._kinds[host].environment.items())
        groups = " ".join(map(str, CGROUPS))
        script = _POWER.format(cgroups=groups, lab=self.lab, host=host, disk=disk, given=given)
        self._powered[host] = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _await(self, host: str) -> None:
        self._until(lambda: self._answers(host), f"{host} answers")

    def _answers(self, host: str) -> bool:
        return self._ssh(host, "systemctl is-system-running").stdout.strip() in ("running", "degraded")

    def _as_root(self, host: str, command: str) -> str:
        return command if self.user(host) == "root" else f"sudo -n {command}"

    def _ssh(self, host: str, command: str) -> subprocess.CompletedProcess[str]:
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=5"]
        program = [*self.inside_control, "ssh", "-i", str(self.key), *(f"-o{option}" for option in options)]
        return subprocess.run(
            [*program, f"{self.user(host)}@{self._addresses[host]}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=self.patience_s,
            check=False,
        )

    def _until(self, fits: object, what: str) -> None:
        give_up_at = time.monotonic() + self.patience_s
        while not fits():  # type: ignore[operator]
            if time.monotonic() > give_up_at:
                consoles = "\n".join(f"--- {host}\n{self.console(host)[-3000:]}" for host in self._kinds)
                raise TimeoutError(f"never: {what}\n{consoles}")
            time.sleep(0.1)


def _quoted(text: str) -> str:
    return "'" + re.sub("'", "'\\''", text) + "'"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr}")
