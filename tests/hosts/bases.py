"""What hosts are made of: a bare Debian of each kind, and the packages that a host without internet is given.

Both are made once and kept in build/hosts; `make clean` removes them. They take mmdebstrap, root and a Debian mirror. A host
for another processor than this machine's runs by QEMU's user emulation, as the processor of a Raspberry Pi 4.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

KEPT = ROOT / "build" / "hosts"
USER = "admin"

_TOOLS = ("systemd-nspawn", "mmdebstrap", "unshare", "ip", "ssh", "ssh-keygen")
# As on a fresh Raspberry Pi OS Lite or Debian: a service manager, ssh, sudo and a Python, and nothing of ours.
_INCLUDED = "systemd,systemd-sysv,dbus,openssh-server,python3,python3-apt,iproute2,ca-certificates,sudo,adduser"
_EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
# A container's network is not its own to manage.
_MASKED = ("console-getty", "systemd-networkd", "systemd-resolved")
_LONG_S = 1200.0


_BINFMT = Path("/proc/sys/fs/binfmt_misc")
_EMULATION_TOOLS = ("qemu-aarch64-static", "update-binfmts", "arch-test")
_PROCESSOR = "cortex-a72"
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}


@dataclass(frozen=True)
class Kind:
    """A suite of Debian, and a processor as Python and Ansible call it; by default this machine's."""

    suite: str
    machine: str = platform.machine()

    @property
    def debian_arch(self) -> str:
        return _PROCESSORS[self.machine]

    @property
    def python(self) -> str:
        return _PYTHONS[self.suite]

    @property
    def foreign(self) -> bool:
        return self.machine != platform.machine()

    @property
    def environment(self) -> dict[str, str]:
        """What its programs need in their environment to run here."""
        return {"QEMU_CPU": _PROCESSOR} if self.foreign else {}

    @property
    def user(self) -> str:
        """Who comes by ssh: someone who may become root, or root, since an emulated `sudo` has no rights to give."""
        return "root" if self.foreign else USER

    def __str__(self) -> str:
        return f"{self.suite}-{self.debian_arch}"


BOOKWORM, TRIXIE = Kind("bookworm"), Kind("trixie")
PI_4 = Kind("bookworm", "aarch64")


def require_tools(*kinds: Kind) -> None:
    """Skip where there is no root, or no program to make hosts of these kinds with."""
    if os.geteuid() != 0:
        pytest.skip("booted hosts need root")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (apt install systemd-container mmdebstrap iproute2 openssh-client)")
    if any(kind.foreign for kind in kinds):
        _require_emulation()


def _require_emulation() -> None:
    """The kernel hands programs of the other processor to QEMU, which it has opened, so that it need not be in their root."""
    missing = [tool for tool in _EMULATION_TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (apt install qemu-user-static binfmt-support arch-test)")
    if not (_BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", _BINFMT], capture_output=True, check=False)
    status = _BINFMT / "qemu-aarch64"
    if not status.exists():
        subprocess.run(["update-binfmts", "--enable", "qemu-aarch64"], capture_output=True, check=False)
    if not status.exists() or "enabled" not in status.read_text():
        pytest.skip("this kernel runs no programs of aarch64 by QEMU (update-binfmts --enable qemu-aarch64)")


def base(kind: Kind) -> Path:
    """The root directory of a bare host; skips where there is none yet, and no mirror to make it from."""
    tree = KEPT / f"{kind}-{_digest(kind.suite, _INCLUDED, *_MASKED)}"
    return _tree(tree, kind, "minbase", _INCLUDED, _prepare)


def unpacked(kind: Kind, names: Sequence[str]) -> Path:
    """A root directory in which these packages and what they need are unpacked, but not set up, which takes seconds."""
    tree = KEPT / f"unpacked-{kind}-{_digest(kind.suite, *names)}"
    return _tree(tree, kind, "extract", ",".join(names), lambda *_: None)


def packages(kind: Kind, names: Sequence[str]) -> Path:
    """A tar archive: a flat repository of these packages, and all that they need which the base lacks."""
    tree = base(kind)
    archive = KEPT / f"packages-{kind}-{_digest(tree.name, *names)}.tar"
    with alone(str(kind)):
        if not archive.exists():
            _mirror(kind.suite)
            _fetch(kind, tree, names, archive)
    return archive


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Of several test processes, one makes what all of them use."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tree(tree: Path, kind: Kind, variant: str, included: str, prepare: Callable[[Path, Kind], None]) -> Path:
    """`tree`, made by mmdebstrap and `prepare` where it is not there yet."""
    with alone(tree.name):
        if not tree.exists():
            mirror = _mirror(kind.suite)
            part = tree.with_suffix(".part")
            _remove(part)
            options = [f"--dpkgopt=path-exclude={path}" for path in _EXCLUDED]
            options += [f"--variant={variant}", "--format=directory", f"--include={included}"]
            options += [f"--architectures={kind.debian_arch}"]
            # In a mount namespace of its own: what it mounts in the tree goes with it, also when it is killed.
            command = ["unshare", "--mount", "mmdebstrap", "-q", *options, kind.suite, str(part), mirror]
            _run_or_skip(*command, env=kind.environment)
            prepare(part, kind)
            part.rename(tree)
    return tree


def _mirror(suite: str) -> str:
    """Where this system's own packages of Debian come from; skips where it has none, or that does not have the suite."""
    asked = ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    stdout = subprocess.run(asked, capture_output=True, text=True, timeout=_LONG_S, check=False).stdout
    mirror = next(
        (
            uri.rstrip("/")
            for label, _, uri in (line.partition("|") for line in stdout.splitlines())
            if label == "Debian"
        ),
        "",
    )
    if not mirror:
        pytest.skip("booted hosts are made from a Debian mirror, and apt knows none here (apt-get update)")
    try:
        urllib.request.urlopen(f"{mirror}/dists/{suite}/Release", timeout=30.0).close()
    except OSError as error:
        pytest.skip(f"booted hosts are made from a Debian mirror, and {mirror} does not give {suite}: {error}")
    return mirror


def _fetch(kind: Kind, tree: Path, names: Sequence[str], archive: Path) -> None:
    """By this machine's apt, configured with the base's sources, keys and installed packages."""
    cache = KEPT / f"archives-{kind}"
    for folder in ("partial", "lists/partial"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    settings = {
        "APT::Architecture": kind.debian_arch,
        "APT::Architectures": kind.debian_arch,
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache::archives": cache,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Dir::Etc": tree / "etc/apt",
        "Dir::Etc::trustedparts": tree / "etc/apt/trusted.gpg.d",
        "Dir::State::lists": cache / "lists",
        "Dir::State::status": tree / "var/lib/dpkg/status",
    }
    apt = ["apt-get", "-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    _run_or_skip(*apt, "update")
    _run_or_skip(*apt, "-y", "--no-install-recommends", "install", "--download-only", *names)
    index = cache / "Packages"
    debs = sorted(cache.glob("*.deb"))
    index.write_text("\n".join(map(_entry, debs)))
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for file in (index, *debs):
            tar.add(file, file.name)
    part.rename(archive)
    _remove(cache)


def _prepare(tree: Path, kind: Kind) -> None:
    """A user who may become root, as on a Pi that an imager has set up; no identity of its own yet."""
    (tree / "etc/hostname").unlink(missing_ok=True)
    (tree / "etc/machine-id").write_text("")
    for unit in _MASKED:
        (tree / "etc/systemd/system" / f"{unit}.service").symlink_to("/dev/null")
    _run("chroot", str(tree), "useradd", "--create-home", "--shell", "/bin/bash", USER, env=kind.environment)
    (tree / "etc/sudoers.d/admin").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    # For services and for who logs in: neither inherits anything from the first process.
    given = " ".join(f"{name}={value}" for name, value in kind.environment.items())
    (tree / "etc/environment").write_text(f"{given}\n")
    (tree / "etc/systemd/system.conf.d").mkdir(exist_ok=True)
    (tree / "etc/systemd/system.conf.d/lab.conf").write_text(f"[Manager]\nDefaultEnvironment={given}\n")


def _entry(deb: Path) -> str:
    fields = subprocess.run(["dpkg-deb", "-f", deb], check=True, capture_output=True, text=True).stdout
    content = deb.read_bytes()
    return f"{fields}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def _remove(tree: Path) -> None:
    """Never through a mount: what is mounted there is this machine's own."""
    if str(tree) in Path("/proc/mounts").read_text():
        raise RuntimeError(f"something is mounted in {tree}; unmount it first")
    shutil.rmtree(tree, ignore_errors=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _run_or_skip(*command: str, env: Mapping[str, str] | None = None) -> None:
    """For what takes a mirror that answers to the end."""
    try:
        _run(*command, env=env)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"booted hosts are made from a Debian mirror, which failed: {error}")


def _run(*command: str, env: Mapping[str, str] | None = None) -> None:
    variables = {**os.environ, **(env or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_LONG_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:3])} ...: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
