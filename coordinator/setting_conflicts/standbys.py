"""Settings without which a standby cannot take over."""

from __future__ import annotations

from typing import Final

from fedpatch.coordinator.setting_conflicts.conflict import Conflict

STANDBYS: Final = (
    Conflict(
        "state",
        ("standby",),
        lambda s: s.standby and s.state is None,
        "is not set, and a standby takes over by a lock in PostgreSQL; add state = postgresql://USER@HOST/DATABASE",
    ),
    Conflict(
        "blobs",
        ("standby",),
        lambda s: s.standby and s.blobs is None,
        "is not set, and a standby on another machine does not have this one's files; add blobs = s3://BUCKET/PREFIX, "
        "or file:///DIR on a disk that all coordinators share",
    ),
)
