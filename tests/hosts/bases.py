"""What hosts are made of: a bare Debian for each suite, and the packages that a host without internet is given.

Both are made once and kept in build/hosts; `make clean` removes them. They take mmdebstrap, root and a Debian mirror.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "hosts"
USER = "admin"

_MIRROR = "http://MIRROR/debian"
# As on a fresh Raspberry Pi OS Lite or Debian: a service manager, ssh, sudo and a Python, and nothing of ours.
_INCLUDED = "systemd,systemd-sysv,dbus,openssh-server,python3,python3-apt,iproute2,ca-certificates,sudo,adduser"
_EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
# There is no hardware clock to set, nor a network card to manage, in a container.
_MASKED = ("console-getty", "systemd-networkd", "systemd-resolved")
_LONG_S = 900.0


def base(suite: str) -> Path:
    """The root directory of a bare host."""
    tree = KEPT / f"{suite}-{_digest(suite, _INCLUDED, *_MASKED)}"
    if not tree.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        part = tree.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        options = [f"--dpkgopt=path-exclude={path}" for path in _EXCLUDED]
        command = ["mmdebstrap", "-q", "--variant=minbase", "--format=directory", f"--include={_INCLUDED}", *options]
        _run(*command, suite, str(part), _MIRROR)
        _prepare(part)
        part.rename(tree)
    return tree


def packages(suite: str, names: Sequence[str]) -> Path:
    """A tar archive: a flat repository of these packages, and all that they need which the base lacks."""
    archive = KEPT / f"packages-{suite}-{_digest(_INCLUDED, *names)}.tar"
    if not archive.exists():
        cache = KEPT / f"archives-{suite}"
        (cache / "partial").mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::Cache::archives={cache}", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"]
        tree = base(suite)
        (cache / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        for kind, where in (("lists", cache / "lists"), ("status", tree / "var/lib/dpkg/status")):
            options += ["-o", f"Dir::State::{kind}={where}"]
        options += ["-o", f"Dir::Etc={tree}/etc/apt", "-o", f"Dir::Etc::trustedparts={tree}/etc/apt/trusted.gpg.d"]
        options += ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
        _run("apt-get", "-qq", *options, "update")
        _run("apt-get", "-qq", "-y", "--no-install-recommends", *options, "install", "--download-only", *names)
        index = cache / "Packages"
        debs = sorted(cache.glob("*.deb"))
        index.write_text("\n".join(map(_entry, debs)))
        part = archive.with_suffix(".part")
        with tarfile.open(part, "w") as tar:
            for file in (index, *debs):
                tar.add(file, file.name)
        part.rename(archive)
        shutil.rmtree(cache)
    return archive


def require_tools() -> None:
    """Skip where there is no root, or no program to make hosts with."""
    if os.geteuid() != 0:
        pytest.skip("booted hosts need root")
    missing = [
        tool for tool in ("systemd-nspawn", "mmdebstrap", "ip", "ssh", "ssh-keygen") if shutil.which(tool) is None
    ]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (apt install systemd-container mmdebstrap iproute2 openssh-client)")


def _prepare(tree: Path) -> None:
    """A user who may become root, as on a Pi that an imager has set up; no identity of its own yet."""
    (tree / "etc/hostname").unlink(missing_ok=True)
    (tree / "etc/machine-id").write_text("")
    for unit in _MASKED:
        (tree / "etc/systemd/system" / f"{unit}.service").symlink_to("/dev/null")
    _run("chroot", str(tree), "useradd", "--create-home", "--shell", "/bin/bash", USER)
    (tree / "etc/sudoers.d/admin").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")


def _entry(deb: Path) -> str:
    fields = subprocess.run(["dpkg-deb", "-f", deb], check=True, capture_output=True, text=True).stdout
    content = deb.read_bytes()
    return f"{fields}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONG_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:3])} ...: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
