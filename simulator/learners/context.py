"""What the learners of a study stand on, in every process that has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.messages import TrainPlan
from shared.tensors import Schema
from simulator.features import UsedFeatures
from simulator.patches import Patches
from simulator.population import Population
from simulator.study import Study
from simulator.uplink import Uplink


@dataclass(frozen=True)
class Ground:
    """What all learners of a study stand on; may be handed to another process. The task is named, not carried.

    Without an `uplink` updates are added up as they were trained. With a `spool`, a folder, each update is written there
    instead of being added up (simulator.bounded).
    """

    study: Study
    population: Population
    features: UsedFeatures | None
    patches: Patches
    plan: TrainPlan
    travelling: Schema
    uplink: Uplink | None = None
    spool: Path | None = None
