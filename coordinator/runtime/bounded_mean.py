"""The bounded aggregate of a round's updates, with a line about each update that was bounded."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.limit_syntax import MAX_PARTS
from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.round_updates import Read, RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.run_events import Aggregated
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.tensors.arrays import Array

_SHOWN_DEVICES = 4
_log = logging.getLogger("fedpatch.coordinator")


class BoundedMean:
    """Aggregates rounds of one run; a run of a hub and the rounds of a site use the same one.

    Args:
        prepared: Strategy, plan and schemas.
        spec: The terms of the run.
        directory: Directory of the run, for files that are not kept.
        say: Shows a line to the operator.
    """

    def __init__(self, prepared: Prepared, spec: RunSpec, directory: Path, say: Callable[[str], None]) -> None:
        self._prepared = prepared
        self._spec = spec
        self._directory = directory
        self._say = say
        # Devices whose cap was shown, each once: it is the same in each round.
        self._named_capped: set[str] = set()

    def of(
        self,
        state: ServerState,
        num_examples: Mapping[str, int],
        read: Read,
        *,
        stale: Mapping[str, Staleness] | None = None,
        members: Mapping[str, int] | None = None,
    ) -> AggregateResult:
        """Return the aggregate of a round.

        Args:
            state: The state that the updates were trained from.
            num_examples: Examples by device whose update counts.
            read: Returns the tensors of a device's update.
            stale: The age of each update whose base is an earlier model.
            members: Number of devices whose mean an update is, by device, if more than one.

        Raises:
            StateError: The disk has too little space for the table of a rule.
        """
        found = aggregate(
            RoundUpdates(num_examples, read, stale or {}, members or {}, alike=self._prepared.strategy.has_controls),
            RoundBase(self._prepared.travelling, state.tensors, self._prepared.plan, state.references),
            self._spec.limits,
            self._make_scratch,
        )
        self._show_bounded(found, num_examples)
        return found

    def _make_scratch(self, shape: tuple[int, int]) -> Array:
        """Return a table in a file of the run's directory; the file has no name, so nothing is left after a crash.

        Its space is allocated first: on a full disk a write to the table would end the process (SIGBUS).

        Raises:
            StateError: The disk has too little space.
        """
        with refusals_of(self._directory), TemporaryFile(dir=self._directory) as file:
            os.posix_fallocate(file.fileno(), 0, math.prod(shape) * np.dtype(np.float32).itemsize)
            return np.memmap(file, np.float32, "w+", shape=shape)

    def _show_bounded(self, found: AggregateResult, num_examples: Mapping[str, int]) -> None:
        if found.clipped:
            farthest = sorted(found.clipped.items(), key=lambda one: (-max(one[1].values()), one[0]))
            words = [f"{device}: {_parts_words(times)}" for device, times in farthest[:_SHOWN_DEVICES]]
            if more := len(farthest) - len(words):
                words.append(f"{more} more, see fedpatch show")
            # It happens to honest devices. A device to which it happens round after round is shown to the operator.
            _log.info("updates pulled back to norm_bound: %s", "; ".join(words))
        for device, weight in found.capped.items():
            text = f"{device} bounded: its {num_examples[device]} examples count as {weight}"
            if device in self._named_capped:
                _log.info("%s", text)
            else:
                self._named_capped.add(device)
                self._say(f"{text}; raise max_num_examples if it has that many")


def aggregated(found: AggregateResult) -> Aggregated:
    """Return the completion event of an aggregation."""
    return Aggregated(found.bounded(), found.bounded_devices(), found.farthest_pulls(), found.pull_quantiles())


def _parts_words(times: Mapping[str, float]) -> str:
    """Name the parts that are farthest beyond their bounds, for example `weights (31 times the bound)`."""
    farthest = sorted(times, key=lambda part: (-times[part], part))[:MAX_PARTS]
    return ", ".join(f"{part} ({times[part]:.3g} times the bound)" for part in farthest)
