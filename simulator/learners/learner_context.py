"""What the learners of a study stand on, in every process that has one."""

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
    """What all learners of a study stand on; may be handed to another process. The task is named, not carried.

    Without an `uplink` updates are added up as they were trained. With a `spool`, a folder, each update is written there
    instead of being added up (simulator.learners.norm_bounded_learner).
    """

    study: Study
    population: Population
    features: UsedFeatures | None
    patches: Patches
    plan: TrainPlan
    travelling: Schema
    uplink: Uplink | None = None
    spool: Path | None = None
