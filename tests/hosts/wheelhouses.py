"""The wheelhouse that booted hosts are installed from, and others that hold another version of fedpatch, sound or broken."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from tests.hosts.bases import KEPT, Kind, alone
from tests.support.paths import ROOT

MANIFEST = "wheelhouse.json"
# What ends a service as soon as it is to serve; the other commands of its program still work.
BROKEN_AGENT = {
    "fedpatch/device_agent/runtime/startup.py": "\n\n"
    "def run_agent(*_given: object, **_named: object) -> None:\n    raise SystemExit(1)\n"
}
BROKEN_COORDINATOR = {
    "fedpatch/coordinator/runtime/run_or_resume.py": "\n\n"
    "def run_or_resume(*_given: object, **_named: object) -> None:\n    raise SystemExit(1)\n"
}
BROKEN_RELAY = {
    "fedpatch/relay/hub.py": "\n\ndef run_relay(*_given: object, **_named: object) -> None:\n    raise SystemExit(1)\n"
}
_NONE: Mapping[str, str] = MappingProxyType({})
_LONG_S = 900.0


def wheelhouse(*kinds: Kind, or_skip: bool = False) -> Path:
    """As `make wheelhouse` makes it, for hosts of these kinds, with what the task digits, PostgreSQL and an object store need.

    It takes a package index that answers to the end; with `or_skip` the test is skipped where none does.
    """
    out = KEPT / "wheelhouse"
    needed = (word for name in ("scikit-learn", "psycopg[binary]", "obstore") for word in ("--with", name))
    program = [sys.executable, str(ROOT / "ansible" / "wheelhouse.py"), *needed, "--out", str(out)]
    with alone("wheelhouse"):
        for machine in sorted({kind.machine for kind in kinds}):
            pythons = sorted({kind.python for kind in kinds if kind.machine == machine})
            options = ["--arch", machine, *(word for python in pythons for word in ("--python", python))]
            done = subprocess.run([*program, *options], capture_output=True, text=True, timeout=_LONG_S, check=False)
            if done.returncode != 0 and or_skip:
                pytest.skip(f"no wheelhouse could be made: {done.stderr[-1000:]}")
            if done.returncode != 0:
                raise RuntimeError(f"make wheelhouse: {done.stderr[-4000:]}")
    return out


def require_small_libraries() -> None:
    """Skip where an installation would bring gigabytes of CUDA along, as it has here."""
    if torch.version.cuda is not None:
        pytest.skip(
            "PyTorch's build for CUDA would be installed on every host; pytorch.org names the index of one for CPUs"
        )


def with_version(house: Path, version: str, out: Path, additions: Mapping[str, str] = _NONE) -> Path:
    """The same libraries and another version of fedpatch, in the new folder `out`; `additions` go to the end of its files."""
    manifest = json.loads((house / MANIFEST).read_text())
    out.mkdir()
    for kind in manifest["libraries"].values():
        (out / kind["file"]).symlink_to(house / kind["file"])
    wheel = out / manifest["wheel"].replace(manifest["version"], version)
    _rewrite(house / manifest["wheel"], wheel, manifest["version"], version, additions)
    manifest |= {"version": version, "wheel": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


def _rewrite(wheel: Path, to: Path, before: str, after: str, additions: Mapping[str, str]) -> None:
    old, new = f"fedpatch-{before}.dist-info", f"fedpatch-{after}.dist-info"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            data = source.read(name)
            if name == f"{old}/METADATA":
                data = re.sub(rb"(?m)^Version: .*$", b"Version: " + after.encode(), data, count=1)
            elif name == "fedpatch/shared/__init__.py":
                data = data.replace(before.encode(), after.encode())
            elif name == f"{old}/RECORD":
                data = re.sub(rb"(?m)^(.*?),.*$", rb"\1,,", data.replace(old.encode(), new.encode()))
            target.writestr(name.replace(old, new), data + additions.get(name, "").encode())
