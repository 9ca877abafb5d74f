"""The steps that lead from older versions of the global model to the present one, and which of them are worth offering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.compression import Packed
from shared.messages import MAX_DELTAS


@dataclass(frozen=True)
class Step:
    """What round `round` did to the global model, as it travels.

    It begins from the version `base`, whose tensors have the digest `before`, and leads to tensors of the digest `content`
    (shared.tensors.values_digest). A version is named by the digest of its whole model's manifest.
    """

    round: int
    base: str
    before: str
    content: str
    packed: Packed


def chain(steps: Iterable[Step], content: str, most_bytes: int) -> tuple[Step, ...]:
    """The chain of `steps` that leads to `content`, the oldest first: each goes on where the one before it ends.

    At most MAX_DELTAS of them, which together are no larger than `most_bytes`: whoever needs more takes the whole model.
    Of steps with the same end the one of the latest round is taken, so that a history that was given up leads nowhere.
    """
    found: list[Step] = []
    left_bytes = most_bytes
    for step in sorted(steps, key=lambda one: one.round, reverse=True):
        if step.content != content or (found and step.round >= found[-1].round):
            continue
        left_bytes -= len(step.packed.blob)
        if left_bytes < 0 or len(found) == MAX_DELTAS:
            break
        found.append(step)
        content = step.before
    return tuple(reversed(found))
