"""The server's control variate of SCAFFOLD, which corrects the steps of the devices.

With SCAFFOLD each device corrects its steps by control variates, so that many local steps on different data drift apart less.
The server's control variate c travels with the model, as the moments of FedAvg-Adam do. A device keeps its own c_i, and sends
c + c_i+ - c_i. So the mean of the updates is c + 1 / |S| * sum(c_i+ - c_i).

Karimireddy et al. 2020, "SCAFFOLD: Stochastic controlled averaging for federated learning", Algorithm 1 with option II.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.tensors.arrays import Array, Tensors
from fedpatch.shared.wire.plan_terms import CONTROL


@dataclass(frozen=True)
class Controls:
    """The server's part of the control variates after a round.

    Attributes:
        mean: The mean of the round with the new c.
        counted: The last round whose aggregate has a device's update, by device.
        population: N, the number of devices over which c is a mean.
    """

    mean: dict[str, Array]
    counted: dict[str, int]
    population: int

    def kept_in(self, state: ServerState) -> ServerState:
        """Return the state with what the next round needs."""
        return replace(state, counted=self.counted, population=self.population)


def add_controls(
    state: ServerState,
    mean: Tensors,
    devices: Sequence[str],
    *,
    round_number: int,
    population: int,
    clipped: Container[str] = (),
) -> Controls:
    """Return the mean of a round with the new c: Algorithm 1, line 17.

    c stays the mean of c_i over N devices, where c_i is 0 for devices that have never counted. N is `population`, or the number
    of devices that have counted if that is more. While N does not change, c moves by |S| / N times the mean difference. A
    resume may change `population`, so the state has the N of its c.

    Args:
        state: The state before the round.
        mean: The mean of the updates, in which each device counts alike.
        devices: S, the devices whose updates are in the mean.
        population: Number of devices of the fleet, as far as it is known beforehand.
        clipped: Devices whose update was clipped. Their c_i stays as before, and `mean` has c in its place.
    """
    moved_devices = [device for device in devices if device not in clipped]
    counted = dict(state.counted) | dict.fromkeys(moved_devices, round_number)
    # A state of an earlier version has no N; its run was hardly ever resumed for another fleet.
    before = max(state.population or population, len(state.counted))
    after = max(population, len(counted))
    moved = dict(mean)
    for name in (name for name in mean if name.endswith(f":{CONTROL}")):
        c = state.tensors[name].astype(np.float64)
        moved[name] = np.asarray((before * c + len(devices) * (mean[name] - c)) / after, mean[name].dtype)
    return Controls(moved, counted, after)
