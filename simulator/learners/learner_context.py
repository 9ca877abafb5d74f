"""Read-only context shared by all learners of a study; pickled to worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.clients.patches import Patches
from fedpatch.simulator.clients.population import Population
from fedpatch.simulator.clients.transport import Uplink
from fedpatch.simulator.kernels.sparse_features import UsedFeatures
from fedpatch.simulator.spec.study import Study


@dataclass(frozen=True)
class LearnerContext:
    """Data, patches and plan that all learners of a study read. It can be pickled: the task is only named.

    Without an `uplink`, updates are summed exactly as trained. With a `spool`, a folder, each update is written there
    instead of being summed (simulator.learners.norm_bounded_learner).
    """

    study: Study
    population: Population
    features: UsedFeatures | None
    patches: Patches
    plan: TrainPlan
    travelling: Schema
    uplink: Uplink | None = None
    spool: Path | None = None
