"""Libraries that tell their makers how they are used, unless they are told not to."""

from __future__ import annotations

import os


def forbid_telemetry() -> None:
    """For this process and those that it starts; to be called before such a library is imported, which settles it.

    onnxruntime, since 1.29: its import gives the machine an id, in a file below the user's cache directory, and its makers get
    to know of each process, model and session (its docs/Privacy.md).
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
