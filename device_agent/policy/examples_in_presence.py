"""The number of training examples that presence tells: 1 in its place where the owner has `secure = "required"`."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.shared.wire.messages import TaskCapability


def with_hidden_examples(tasks: tuple[TaskCapability, ...]) -> tuple[TaskCapability, ...]:
    """Return the tasks of a device as presence names them; one without examples still has none."""
    return tuple(replace(one, num_examples=min(one.num_examples, 1)) for one in tasks)
