"""`fedpatch.examples`: examples of a device from CSV files, frames, arrays or data sets (fedpatch.shared.tasks.examples)."""

from fedpatch.shared.tasks.examples import *  # noqa: F403  (the names in `__all__`)
from fedpatch.shared.tasks.examples import __all__ as __all__
