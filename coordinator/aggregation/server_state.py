"""The state of the server between two rounds: the global model, what devices share with it, and the server's own tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.reference_norms import References
from fedpatch.shared.tensors.arrays import Array, Schema


@dataclass(frozen=True)
class ServerState:
    """The state of the server between two rounds. Arrays are never changed in place.

    Args:
        round: Number of completed rounds.
        tensors: The public global model and the moments that clients share, by name. Devices download these.
        server: The tensors of the server optimizer by name, which stay on the coordinator.
        references: Norms of earlier rounds' updates (coordinator.aggregation.reference_norms).
        counted: The last round whose aggregate has a device's update, by device, where devices keep control variates
            (coordinator.aggregation.control_variates).
        population: N, the number of devices over which the control variate in `tensors` is the mean; 0: none yet.
        scale: In a masked run the ranges and the clip of the next round (coordinator.aggregation.masked_mean).

    Example:
        >>> import numpy as np
        >>> from fedpatch import ServerState
        >>> ServerState(round=3, tensors={"fc.bias": np.zeros(2, np.float32)}, server={}).round
        3
    """

    round: int
    tensors: dict[str, Array]
    server: dict[str, Array]
    references: References = field(default_factory=dict)
    scale: MaskedScale | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    population: int = 0


def zeros(schema: Schema) -> dict[str, Array]:
    """Return zeros for each tensor of `schema`."""
    return {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
