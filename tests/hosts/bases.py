"""What hosts are made of: a bare Debian for each suite, and the packages that a host without internet is given.

Both are made once and kept in build/hosts; `make clean` removes them. They take mmdebstrap, root and a Debian mirror.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "hosts"
USER = "admin"

_TOOLS = ("systemd-nspawn", "mmdebstrap", "unshare", "ip", "ssh", "ssh-keygen")
# As on a fresh Raspberry Pi OS Lite or Debian: a service manager, ssh, sudo and a Python, and nothing of ours.
_INCLUDED = "systemd,systemd-sysv,dbus,openssh-server,python3,python3-apt,iproute2,ca-certificates,sudo,adduser"
_EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
# A container's network is not its own to manage.
_MASKED = ("console-getty", "systemd-networkd", "systemd-resolved")
_LONG_S = 1200.0


def require_tools() -> None:
    """Skip where there is no root, or no program to make hosts with."""
    if os.geteuid() != 0:
        pytest.skip("booted hosts need root")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (apt install systemd-container mmdebstrap iproute2 openssh-client)")


def base(suite: str) -> Path:
    """The root directory of a bare host; skips where there is none yet, and no mirror to make it from."""
    tree = KEPT / f"{suite}-{_digest(suite, _INCLUDED, *_MASKED)}"
    with alone(suite):
        if not tree.exists():
            mirror = _mirror()
            part = tree.with_suffix(".part")
            _remove(part)
            options = [f"--dpkgopt=path-exclude={path}" for path in _EXCLUDED]
            options += ["--variant=minbase", "--format=directory", f"--include={_INCLUDED}"]
            # In a mount namespace of its own: what it mounts in the tree goes with it, also when it is killed.
            _run("unshare", "--mount", "mmdebstrap", "-q", *options, suite, str(part), mirror)
            _prepare(part)
            part.rename(tree)
    return tree


def packages(suite: str, names: Sequence[str]) -> Path:
    """A tar archive: a flat repository of these packages, and all that they need which the base lacks."""
    tree = base(suite)
    archive = KEPT / f"packages-{suite}-{_digest(tree.name, *names)}.tar"
    with alone(suite):
        if not archive.exists():
            _mirror()
            _fetch(tree, names, KEPT / f"archives-{suite}", archive)
    return archive


@contextlib.contextmanager
def alone(what: str) -> Iterator[None]:
    """Of several test processes, one makes what all of them use."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mirror() -> str:
    """Where this system's own packages of Debian come from; skips where it has none, or that does not answer."""
    asked = ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=_LONG_S, check=False).stdout
    mirror = next(
        (uri.rstrip("/") for label, _, uri in (line.partition("|") for line in told.splitlines()) if label == "Debian"),
        "",
    )
    if not mirror:
        pytest.skip("booted hosts are made from a Debian mirror, and apt knows none here (apt-get update)")
    try:
        urllib.request.urlopen(f"{mirror}/dists/stable/Release", timeout=30.0).close()
    except OSError as error:
        pytest.skip(f"booted hosts are made from a Debian mirror, and {mirror} does not answer: {error}")
    return mirror


def _fetch(tree: Path, names: Sequence[str], cache: Path, archive: Path) -> None:
    """By this machine's apt, which is told to look at the base's sources, keys and installed packages."""
    for folder in ("partial", "lists/partial"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    told = {
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
    apt = ["apt-get", "-qq", *(word for key, value in told.items() for word in ("-o", f"{key}={value}"))]
    _run(*apt, "update")
    _run(*apt, "-y", "--no-install-recommends", "install", "--download-only", *names)
    index = cache / "Packages"
    debs = sorted(cache.glob("*.deb"))
    index.write_text("\n".join(map(_entry, debs)))
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for file in (index, *debs):
            tar.add(file, file.name)
    part.rename(archive)
    _remove(cache)


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


def _remove(tree: Path) -> None:
    """Never through a mount: what is mounted there is this machine's own."""
    if str(tree) in Path("/proc/mounts").read_text():
        raise RuntimeError(f"something is mounted in {tree}; unmount it first")
    shutil.rmtree(tree, ignore_errors=True)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONG_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command[:3])} ...: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
