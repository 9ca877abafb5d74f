"""`make release VERSION=x.y.z`: checks, builds and tags the commit; it pushes and uploads nothing.

The version is only in shared/__init__.py. Commit this line and the section of the changelog before the call. The script checks
that they agree, runs the tests, builds from the committed files only, and tags the commit `vX.Y.Z`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")


class NotReady(Exception):
    """The checkout is not ready for a release; the message names the remedy."""


def check_changelog(text: str, version: str) -> str:
    """Return the section of `version` in the changelog, which is the tag's message. Raises NotReady if there is none."""
    found = re.search(
        rf"^## \[{re.escape(version)}\](?: - ([^\n]*))?$\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise NotReady(f"CHANGELOG.md has no section `## [{version}] - DATE`; make one of what is under Unreleased")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1] or ""):
        raise NotReady(f"CHANGELOG.md: `## [{version}]` lacks its date, as in `## [{version}] - 2026-11-22`")
    if not found[2].strip():
        raise NotReady(f"CHANGELOG.md: the section of {version} is empty; write the changes that users notice")
    return found[2].strip()


def check_version(source: str, version: str) -> None:
    """Raise NotReady unless `source`, the text of shared/__init__.py, has this version."""
    if not _VERSION.fullmatch(version):
        raise NotReady(f"{version!r} is no version; write one such as 0.2.0 or 0.2.0rc1")
    found = re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE)
    if found is None or found[1] != version:
        raise NotReady(f'shared/__init__.py says {found and found[1]!r}; write __version__ = "{version}" and commit it')


def check_tree(root: Path, version: str) -> None:
    """Raise NotReady if the checkout has uncommitted changes, or the version is tagged already."""
    left = _git(root, "status", "--porcelain")
    if left:
        raise NotReady(f"not everything is committed; commit or remove:\n{left}")
    if _git(root, "tag", "--list", f"v{version}"):
        raise NotReady(f"the tag v{version} exists; take the next version, for a version is released once")


def build(root: Path, out: Path) -> list[Path]:
    """Build the source distribution and the wheel of the commit in `root`; return their paths."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-release-") as name:
        clone = Path(name) / "fedpatch"
        _git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(clone))
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clone)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(
            f"`python -m build` failed; correct and commit what its output names:\n{done.stdout}{done.stderr}"
        )
    return sorted(out.glob("fedpatch-*"))


def release(root: Path, version: str, *, tests: list[str]) -> list[Path]:
    """Check, test, build into dist/ and tag; return the built files. Raises NotReady without tagging."""
    check_version((root / "shared" / "__init__.py").read_text("utf-8"), version)
    changes = check_changelog((root / "CHANGELOG.md").read_text("utf-8"), version)
    check_tree(root, version)
    if tests and subprocess.run(tests, cwd=root, check=False).returncode:
        raise NotReady(f"`{' '.join(tests)}` failed; correct and commit what its output names")
    names = {f"fedpatch-{version}-py3-none-any.whl", f"fedpatch-{version}.tar.gz"}
    built = [path for path in build(root, root / "dist") if path.name in names]
    if len(built) != len(names):
        lacking = ", ".join(sorted(names - {path.name for path in built}))
        raise NotReady(f"dist/ lacks {lacking} after the build; write the version as Python does (PEP 440)")
    check_tree(root, version)  # the tests may have changed files
    _git(
        root, "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", f"fedpatch {version}\n\n{changes}"
    )
    return built


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Check, build and tag a release.")
    parser.add_argument("version", help="as in shared/__init__.py, e.g. 0.2.0")
    parser.add_argument("--without-tests", action="store_true", help="where they have just been run")
    asked = parser.parse_args()
    root = Path(__file__).resolve().parents[1]
    try:
        built = release(root, asked.version, tests=[] if asked.without_tests else ["make", "test", "CI=true"])
    except NotReady as error:
        sys.exit(f"release: {error}")
    sys.stdout.write("".join(f"{path}\n" for path in built))
    sys.stdout.write(f"tagged v{asked.version}; to publish it: git push origin v{asked.version}, and upload dist/\n")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReady(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
