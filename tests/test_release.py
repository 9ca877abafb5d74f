"""scripts/release.py, on a temporary copy of the files of a release."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.release import NotReady, check_changelog, check_version, release
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

CHANGES = """# Changelog

## [Unreleased]

## [0.9.0] - 2026-11-22

- **New**: all of it.

## [0.8.0] - 2026-01-01

- Old.
"""


def _git(repository: Path, *words: str) -> str:
    command = ["git", "-C", str(repository), "-c", "user.name=Ann", "-c", "user.email=ann@example.org", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of all files of a wheel, ready to be released as 0.9.0."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ann@example.org")
    folder = tmp_path / "clone"
    folder.mkdir()
    for part in ("coordinator", "device_agent", "shared", "simulator", "src"):
        shutil.copytree(
            ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for part in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / part, folder / part)
    (folder / "CHANGELOG.md").write_text(CHANGES)
    version = folder / "shared" / "__init__.py"
    version.write_text(version.read_text().replace('"0.1.0"', '"0.9.0"'))
    _git(folder, "init", "--quiet")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "Begin")
    return folder


@pytest.mark.medium
def test_a_release_is_built_from_what_is_committed_and_tagged(clone: Path):
    """Wheel and source distribution in dist/, an annotated tag with the changelog's text, and a tree as clean as before."""
    (clone / "build" / "lib" / "shared").mkdir(parents=True)
    (clone / "build" / "lib" / "shared" / "stale.py").write_text("left by an earlier build, and ignored by git\n")
    (clone / "dist").mkdir()
    for candidate in ("fedpatch-0.9.0rc1-py3-none-any.whl", "fedpatch-0.9.0rc1.tar.gz"):
        (clone / "dist" / candidate).write_text("of the release candidate before")
    built = release(clone, "0.9.0", tests=["true"])
    assert [path.name for path in built] == ["fedpatch-0.9.0-py3-none-any.whl", "fedpatch-0.9.0.tar.gz"]
    assert b"stale.py" not in built[0].read_bytes()
    assert _git(clone, "cat-file", "-t", "v0.9.0").strip() == "tag"
    assert _git(clone, "tag", "--list", "--format=%(contents)", "v0.9.0").strip().endswith("- **New**: all of it.")
    assert _git(clone, "status", "--porcelain") == ""
    with pytest.raises(NotReady, match=r"the tag v0.9.0 exists"):
        release(clone, "0.9.0", tests=["true"])


@pytest.mark.parametrize(
    ("spoil", "tests", "words"),
    [
        (lambda clone: (clone / "new.txt").write_text("x"), ["true"], "not everything is committed; .*:\n.* new.txt"),
        (lambda clone: None, ["false"], "`false` failed"),
    ],
    ids=["something is not committed", "the tests fail"],
)
def test_unready_release_is_not_tagged(clone: Path, spoil, tests, words):
    """The error names the missing condition, and no tag or file is left behind."""
    spoil(clone)
    with pytest.raises(NotReady, match=words):
        release(clone, "0.9.0", tests=tests)
    assert _git(clone, "tag", "--list") == ""
    assert not (clone / "dist").exists()


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.7.0", "has no section"), ("0.8.1", "lacks its date"), ("0.8.2", "section of 0.8.2 is empty")],
)
def test_a_version_without_words_for_users_is_not_released(version, words):
    """The changelog needs a section of the version, with a date and content."""
    text = CHANGES + "\n## [0.8.1]\n\n- x\n\n## [0.8.2] - 2026-01-01\n\n"
    with pytest.raises(NotReady, match=words):
        check_changelog(text, version)
    assert check_changelog(text, "0.8.0") == "- Old."


@pytest.mark.parametrize(
    ("version", "words"), [("1.0", "is no version"), ("0.2.0", "says '0.1.0'"), ("v0.1.0", "is no")]
)
def test_the_version_is_that_of_the_source(version, words):
    with pytest.raises(NotReady, match=words):
        check_version('"""x"""\n\n__version__ = "0.1.0"\n', version)
    check_version('__version__ = "0.1.0"\n', "0.1.0")
