"""Stop a build in a checkout without symbolic links, which would leave out most of the package; pyproject.toml has the rest."""

from pathlib import Path

from setuptools import setup

_PACKAGES = ("coordinator", "device_agent", "relay", "shared", "simulator")
_SOURCE = Path(__file__).resolve().parent / "src" / "fedpatch"

if _broken := [name for name in _PACKAGES if not (_SOURCE / name).is_dir()]:
    raise SystemExit(
        f"fedpatch: src/fedpatch/{_broken[0]} must be a symbolic link to the folder {_broken[0]}, and is none here; "
        "run `git config core.symlinks true && git checkout -f HEAD -- src/fedpatch`"
    )

setup()
