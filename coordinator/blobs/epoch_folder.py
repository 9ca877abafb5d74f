"""The folder of a leader with standbys in the store of a run: no other leader writes there.

RUN/epoch-000007/checkpoint-000012.fp ...
"""

from __future__ import annotations

EPOCH = "epoch-"


def epoch_folder(leader_epoch: int) -> str:
    """Return the name of the folder of a leader with standbys."""
    return f"{EPOCH}{leader_epoch:06d}"
