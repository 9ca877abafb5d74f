"""Makes the wheelhouse: all packages that a host needs to run fedpatch without a package index.

    python ansible/wheelhouse.py --arch aarch64 --python 3.11 --python 3.13 --out build/wheelhouse

The folder gets fedpatch's own wheel, one archive of libraries for each kind of host, and `wheelhouse.json`, which the role
`program` reads. Libraries are separate from fedpatch because they are large and seldom change: a version of fedpatch that needs
the same libraries takes one megabyte of a device's card, not one gigabyte. uv resolves the packages for another kind of host
(pip would use this machine's markers), and pip downloads them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = "wheelhouse.json"
ARCHITECTURES = ("aarch64", "x86_64")
PYTHONS = ("3.11", "3.12", "3.13")

_FOLDERS = ("coordinator", "device_agent", "relay", "shared", "simulator", "src")
_EXTRAS = ("agent", "coordinator")
_UV_PLATFORM = "{arch}-manylinux_2_28"
# Debian 12 has glibc 2.36; pip requires the name of each older platform too.
_PLATFORMS = ("manylinux2014_{arch}", *(f"manylinux_2_{minor}_{{arch}}" for minor in range(17, 37)))
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_REQUIREMENTS = "requirements.txt"


@dataclass(frozen=True)
class Host:
    """A kind of host, and its packages besides those of fedpatch."""

    arch: str
    python: str
    needed: tuple[str, ...]
    pip_args: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Name of the kind in the role `program`."""
        return f"{self.arch}-cp{self.python.replace('.', '')}"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    options = _parser().parse_args(argv)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    manifest = _read(out / MANIFEST)
    libraries = dict(manifest.get("libraries", {}))
    wheel = _own_wheel(out)
    for python in options.python or PYTHONS[::2]:
        host = Host(options.arch, python, tuple(options.needed), tuple(options.pip_args.split()))
        libraries[host.kind] = _libraries(host, libraries.get(host.kind), out)
    version = wheel.name.split("-")[1]
    described = {"version": version, "wheel": wheel.name, "sha256": _sha256(wheel), "libraries": libraries}
    _write(out / MANIFEST, json.dumps(described, indent=1) + "\n")
    print(f"{out / MANIFEST}: fedpatch {version} for {', '.join(sorted(libraries))}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Make the wheelhouse that hosts of a fleet are installed from.")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="aarch64", help="processor of the hosts")
    parser.add_argument(
        "--python", choices=PYTHONS, action="append", help="Python of the hosts (repeatable); without it 3.11 and 3.13"
    )
    parser.add_argument(
        "--with",
        dest="needed",
        metavar="REQUIREMENT",
        action="append",
        default=[],
        help="what the fleet's task needs besides, e.g. scikit-learn for the task digits (repeatable)",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wheelhouse", help="folder to fill")
    parser.add_argument("--pip-args", default="", help="more options for pip and uv, e.g. another index to look at")
    return parser


def _libraries(host: Host, known: dict[str, str] | None, out: Path) -> dict[str, str]:
    """Make the archive for one kind of host, unless it exists; return `{"file", "pins", "digest"}`."""
    pins = _resolve(host, out)
    pins_sha = hashlib.sha256(pins.encode()).hexdigest()
    if known is not None and known["pins"] == pins_sha and (out / known["file"]).exists():
        return known
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetching-") as name:
        folder = Path(name)
        (folder / "pins").write_text(pins)
        _fetch(host, folder / "pins", folder / "wheels")
        wheels = sorted((folder / "wheels").glob("*.whl"))
        required = "".join(f"{_pin(wheel)} --hash=sha256:{_sha256(wheel)}\n" for wheel in wheels)
        digest = hashlib.sha256(required.encode()).hexdigest()[:12]
        (folder / _REQUIREMENTS).write_text(required)
        archive = out / f"fedpatch-libraries-{host.kind}-{digest}.tar"
        _pack([folder / _REQUIREMENTS, *wheels], archive)
    for old in out.glob(f"fedpatch-libraries-{host.kind}-*.tar"):
        if old != archive:
            old.unlink()
    return {"file": archive.name, "pins": pins_sha, "digest": digest}


def _resolve(host: Host, out: Path) -> str:
    """Return the packages that a host of that kind needs, one exact version a line, within constraints.txt.

    fedpatch itself is not included: a task that depends on fedpatch is resolved with the wheel in `out`.
    """
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-header", "--no-annotate"]
    command += ["--only-binary=:all:", *(f"--extra={extra}" for extra in _EXTRAS)]
    command += ["--python-platform", _UV_PLATFORM.format(arch=host.arch), "--python-version", host.python]
    command += ["--constraints", str(ROOT / "constraints.txt"), *_indexes_of_pip(), *host.pip_args]
    command += ["--find-links", str(out), "--no-emit-package", "fedpatch"]
    return _run([*command, str(ROOT / "pyproject.toml"), "-"], env=_certificates_of_pip(), given="\n".join(host.needed))


def _fetch(host: Host, pins: Path, folder: Path) -> None:
    platforms = [option for one in _PLATFORMS for option in ("--platform", one.format(arch=host.arch))]
    command = [*_PIP, "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", host.python]
    _run([*command, "--implementation", "cp", *platforms, *host.pip_args, "-r", str(pins), "-d", str(folder)])


def _own_wheel(out: Path) -> Path:
    """Build the wheel of fedpatch from a copy, without files of earlier builds; return its path."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-wheel-") as name:
        copy = Path(name, "source")
        copy.mkdir()
        for folder in _FOLDERS:  # src/fedpatch has links to the other folders, which stay links
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
        for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy2(ROOT / file, copy)
        command = [*_PIP, "wheel", "-q", "--no-deps", "--no-build-isolation"]
        # The same files give the same wheel: a host that has this wheel is not changed.
        _run([*command, "-w", str(Path(name, "made")), str(copy)], env={"SOURCE_DATE_EPOCH": "315532800"})
        made = next(Path(name, "made").glob("fedpatch-*.whl"))
        # A play that runs meanwhile finds the old or the new wheel.
        wheel = Path(shutil.copy2(made, out / f"{made.name}.part")).replace(out / made.name)
        for old in out.glob("fedpatch-*.whl"):
            if old != wheel:
                old.unlink()
        return wheel


def _indexes_of_pip() -> list[str]:
    """Return pip's configured indexes as options for uv, which does not read pip's configuration."""
    options: list[str] = []
    for line in _run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        found = re.fullmatch(r"[^=]*\.(index-url|extra-index-url|find-links)='(.*)'", line)
        for value in found[2].split() if found else ():
            if found and not (found[1] == "extra-index-url" and value.startswith("file:")):
                options += [f"--{found[1]}", value]
    return options


def _certificates_of_pip() -> dict[str, str]:
    for line in _run([sys.executable, "-m", "pip", "config", "list"]).splitlines():
        found = re.fullmatch(r"[^=]*\.cert='(.*)'", line)
        if found:
            return {"SSL_CERT_FILE": found[1]}
    return {}


def _pin(wheel: Path) -> str:
    """Return NAME==VERSION from the wheel's metadata, since its file name may be normalised."""
    with zipfile.ZipFile(wheel) as opened:
        metadata = next(name for name in opened.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        text = opened.read(metadata).decode("utf-8", "replace")
    found = {key: re.search(rf"^{key}: (\S+)", text, re.MULTILINE) for key in ("Name", "Version")}
    name, version = found["Name"], found["Version"]
    assert name is not None
    assert version is not None
    return f"{name[1]}=={version[1]}"


def _pack(files: Sequence[Path], archive: Path) -> None:
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for file in files:
            tar.add(file, file.name, recursive=False)
    part.replace(archive)


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(path.read_text()) if path.exists() else {}


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


def _run(command: Sequence[str], env: dict[str, str] | None = None, given: str = "") -> str:
    """Return the stdout of a command. Its stderr is passed on; a failure ends this program with a message."""
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, input=given, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"wheelhouse: {' '.join(command[:5])} ... ended with {done.returncode}; its own words are above")
    return done.stdout


if __name__ == "__main__":
    main()
