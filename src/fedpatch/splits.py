"""`fedpatch.splits`: splits of a device's examples, and shards of a data set (fedpatch.shared.tasks.splits)."""

from fedpatch.shared.tasks.splits import (
    block_split,
    dirichlet_shards,
    equal_shards,
    group_shards,
    group_split,
    label_shards,
    random_split,
    stratified_split,
    time_split,
)

__all__ = [
    "block_split",
    "dirichlet_shards",
    "equal_shards",
    "group_shards",
    "group_split",
    "label_shards",
    "random_split",
    "stratified_split",
    "time_split",
]
