"""Settings that do not fit secure aggregation: they need single updates, or do not fit the groups or the noise of devices."""

from __future__ import annotations

from typing import Final

from fedpatch.coordinator.masking.masked_groups import MAX_GROUP_OF_U8
from fedpatch.coordinator.setting_conflicts.conflict import Conflict
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS

_ONLY_SUMS = "the coordinator sees the sums of masked groups only"

UNMASKED: Final = (
    Conflict(
        "encoding",
        ("secure",),
        lambda s: not s.masked and s.encoding in MASKED_ENCODINGS,
        "{s.encoding} is for masked updates; set secure = groups, or another encoding",
    ),
)
"""Settings of a masked run in another run."""

SINGLE_UPDATES: Final = (
    Conflict(
        "strategy",
        ("secure",),
        lambda s: s.masked and bool(s.moments),
        "{s.strategy} shares second moments or control variates, which masked sums are too coarse for; use fedavg or fedadam",
    ),
    Conflict(
        "norm_bound",
        ("secure",),
        lambda s: s.masked and s.norm_bound != "off",
        f"{{s.norm_bound}} bounds single updates, and {_ONLY_SUMS}; set clip instead, which devices apply",
    ),
    Conflict(
        "max_num_examples",
        ("secure",),
        lambda s: s.masked and s.max_num_examples != "off",
        f"{{s.max_num_examples}} bounds single updates, and {_ONLY_SUMS}; set weight_cap instead",
    ),
    Conflict(
        "aggregate",
        ("secure",),
        lambda s: s.masked and s.aggregate.partition(":")[0] not in ("mean", "centred"),
        f"{{s.aggregate}} looks at single updates, and {_ONLY_SUMS}; use mean, or centred, which limits groups",
    ),
    Conflict(
        "dp",
        ("secure",),
        lambda s: s.masked and s.dp == "central",
        f"central clips single updates on the coordinator, and {_ONLY_SUMS}; use distributed",
    ),
)
"""Settings that need single updates, in a masked run."""

GROUPS: Final = (
    Conflict(
        "encoding",
        ("secure",),
        lambda s: s.masked and s.encoding not in MASKED_ENCODINGS,
        "{s.encoding} cannot be summed under masks; use masked-u8 or masked-u16, or leave it out",
    ),
    Conflict(
        "encoding",
        ("group_size",),
        lambda s: s.masked and s.encoding == MASKED_ENCODINGS[0] and s.largest_group > MAX_GROUP_OF_U8,
        f"masked-u8 is for groups of {MAX_GROUP_OF_U8}; use masked-u16 for groups of {{s.largest_group}}",
    ),
    Conflict(
        "min_group",
        ("group_size",),
        lambda s: s.masked and s.min_group > s.group_size,
        "{s.min_group} is above group_size = {s.group_size}; make it smaller",
    ),
    Conflict(
        "colluders",
        ("threshold",),
        lambda s: s.masked and s.colluders > s.most_colluders,
        "{s.colluders} are above the {s.most_colluders} that the groups of this run withstand",
    ),
)
"""Settings that do not fit the groups of a masked run, or the encoding of their sums."""

NOISE_OF_DEVICES: Final = (
    Conflict(
        "encoding",
        ("dp",),
        lambda s: s.masked and s.dp == "distributed" and s.encoding == MASKED_ENCODINGS[0],
        "{s.encoding} has too few bits for noise; use masked-u16",
    ),
    Conflict(
        "clip",
        ("dp",),
        lambda s: s.masked and s.dp == "distributed" and s.clip is not None,
        "{s.clip} has no effect: dp_clip takes its place; leave it out",
    ),
    Conflict(
        "weight_cap",
        ("dp",),
        lambda s: s.masked and s.dp == "distributed" and s.weight_cap is not None,
        "{s.weight_cap} has no effect: each device counts alike; leave it out",
    ),
)
"""Settings of masked rounds that noise of the devices does not know."""
