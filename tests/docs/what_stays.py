"""The table of docs/explanation/threat-model.md of the tensors that stay on a device, by policy, from a bundled schema.

python -m tests.docs.what_stays
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import MOMENTS, Schema
from fedpatch.shared.tensors.patches import parse_policy

TASK = "digits"
POLICIES = ("none", "stats", "affine", "all", "names:fc3.*")
DEFAULT = "affine"


def schema() -> Schema:
    """Schema of the task's model, without moments."""
    return schema_of(find_task(TASK).build_model())


def split(policy: str) -> tuple[set[str], set[str]]:
    """Names of the model's tensors and of their moments: (names that stay, names that travel)."""
    whole = schema().with_moments(MOMENTS)
    stays = parse_policy(policy).private_names(whole)
    return set(stays), set(whole.names) - stays


def markdown() -> str:
    lines = [
        "| policy | tensors of `digits` that stay |",
        "|---|---|",
    ]
    for policy in POLICIES:
        stays, _ = split(policy)
        shown = f"`{policy}`, the default" if policy == DEFAULT else f"`{policy}`"
        lines.append(f"| {shown} | {_listed(stays)} |")
    return "\n".join(lines)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names) if ":" not in name) or "none"


if __name__ == "__main__":
    sys.stdout.write(f"{markdown()}\n")
