"""The code blocks of the pages: blocks that a reader types, and all others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.paths import ROOT

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "broker_config/README.md",
    "benchmarks/README.md",
    "studies/README.md",
    "docs/*/*.md",
)
# Our commands, and other programs that the pages show.
OURS = ("fedpatch", "fedpatch-agent", "fedpatch-relay")
OTHERS = {
    *("make", "python", "python3", "pip", "git", "cp", "cd", "export", "install", "for", "sudo", "ssh", "curl"),
    *("systemctl", "journalctl", "systemd-analyze", "mosquitto", "ansible", "ansible-playbook", "ansible-vault"),
    *("echo", "head", "kill", "wait", "mkdir", "mv"),
}


@dataclass(frozen=True)
class Block:
    """A block of a page; `language` is empty if the block is indented or its fence names none."""

    page: str
    line: int
    language: str
    text: str

    @property
    def typed(self) -> bool:
        """Whether a reader types the block into a shell."""
        return self.language in ("sh", "bash") or (not self.language and _is_command(self.text.splitlines()[0]))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _is_command(line: str) -> bool:
    words = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)] or [""]
    return words[0].rpartition("/")[2] in {*OURS, *OTHERS}


def _blocks(page: str, text: str) -> Iterator[Block]:
    """Fenced blocks, also in lists, and blocks that are indented by four columns outside of lists."""
    lines = text.splitlines()
    number, in_list = 0, False
    while number < len(lines):
        fence = re.match(r"( *)```(\w*)$", lines[number])
        end = number + 1
        if fence:
            while lines[end].strip() != "```":
                end += 1
            yield _block(page, number + 2, fence[2], [line.removeprefix(fence[1]) for line in lines[number + 1 : end]])
            end += 1
        elif lines[number].startswith("    ") and not in_list:
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            yield _block(page, number + 1, "", [line[4:] for line in lines[number:end]])
        elif lines[number] and not lines[number].startswith(" "):
            in_list = bool(re.match(r"(?:[-*]|\d+\.) ", lines[number]))
        number = end


def _block(page: str, line: int, language: str, lines: list[str]) -> Block:
    return Block(page, line, language, "\n".join(lines).strip("\n") + "\n")


def _pages() -> Iterator[tuple[str, str]]:
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


BLOCKS = [block for page, text in _pages() for block in _blocks(page, text)]
TYPED = [block for block in BLOCKS if block.typed]
OTHER = [block for block in BLOCKS if not block.typed]


def commands(text: str) -> list[str]:
    """The commands of a block; continued lines are one command, and so are all lines of a loop."""
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if found and re.match(r"for\b(?!.*\bdone\b)", found[-1].partition("\n")[0]) and "\ndone" not in found[-1]:
            found[-1] += "\n" + line
        elif line.strip() and not line.startswith("#"):
            found.append(line)
    return found
