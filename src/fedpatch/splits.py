"""`fedpatch.splits`: splits of a device's examples, and shards of a data set (fedpatch.shared.tasks.splits)."""

from fedpatch.shared.tasks.splits import *  # noqa: F403  (the names in `__all__`)
from fedpatch.shared.tasks.splits import __all__ as __all__
