"""The weight of an update: the examples that its device reports, up to a cap."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedpatch.coordinator.aggregation.limit_syntax import ExamplesCap
from fedpatch.coordinator.aggregation.medians import weighted_lower_median


def example_weights(
    num_examples: Mapping[str, int], cap: ExamplesCap, members: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the weight of each device's update in examples: the reported number, or the cap if that is less.

    The cap is for a single device. A relay may weigh as much as its members together. In the median it counts as that many
    devices with the mean of their examples.

    Args:
        num_examples: Reported examples by device.
        members: Number of devices that a device speaks for, by device, if more than one.

    Example:
        >>> example_weights({"ann": 50, "bob": 10, "site": 900}, ExamplesCap(most=20), {"site": 30})
        {'ann': 20, 'bob': 10, 'site': 600}
    """
    members = members or {}
    most = cap.most
    if cap.factor is not None and num_examples:
        each = sorted(
            (count / members.get(device, 1), members.get(device, 1)) for device, count in num_examples.items()
        )
        most = math.floor(min(cap.factor * weighted_lower_median(each), 2.0**53))  # a Count at most
    return {
        device: count if most is None else min(count, most * members.get(device, 1))
        for device, count in num_examples.items()
    }
