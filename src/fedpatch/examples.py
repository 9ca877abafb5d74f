"""`fedpatch.examples`: examples of a device from CSV files, frames, arrays or data sets (fedpatch.shared.tasks.examples)."""

from fedpatch.shared.tasks.examples import (
    LEAST_EXAMPLES,
    Examples,
    ReadingsFormat,
    files_version,
    from_arrays,
    from_dataset,
    from_frame,
    read,
    read_csv,
    windows,
)

__all__ = [
    "LEAST_EXAMPLES",
    "Examples",
    "ReadingsFormat",
    "files_version",
    "from_arrays",
    "from_dataset",
    "from_frame",
    "read",
    "read_csv",
    "windows",
]
