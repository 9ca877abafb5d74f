"""The engine of a run as its process starts: what it knows of earlier rounds, devices and carried work."""

from __future__ import annotations

import random
from collections.abc import Mapping

from fedpatch.coordinator.masking.masked_groups import RunGroups
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.resumed_rounds import devices_of_last_run, seen_devices
from fedpatch.coordinator.runtime.run_opening import RunOpening


def engine_at_start(run: ConnectedRun, opening: RunOpening, holds: Mapping[str, str]) -> Engine:
    """Return the engine of a run. Updates for open rounds of the fleet's other runs wait for a resume of these runs.

    Args:
        holds: Devices that are held back, each with the kind of the hold.
    """
    spec, registry, fleet, ports = run.spec, run.registry, run.connection.fleet, run.connection.ports
    records = registry.rounds.records(spec.run)
    resumable = {other: number for other, number in registry.open_rounds(fleet).items() if other != spec.run}
    jitter = random.Random(ports.entropy.getrandbits(64))
    now = ports.unix_time()
    seen = seen_devices(registry, spec, fleet, now) if spec.epoch > 1 else []
    last_run = seen or devices_of_last_run(registry, spec, fleet, now)
    carried = registry.rounds.carried(spec.run) if spec.carry is not None else {}
    return Engine(
        spec,
        records=records,
        unfinished=opening.unfinished,
        resumable=resumable,
        jitter=jitter,
        holds=holds,
        seen=seen,
        last_run=last_run,
        carried={device: work for device, work in carried.items() if device not in opening.waiting},
        waiting=opening.waiting,
        rest_s=opening.rest_s,
        groups=RunGroups(spec.seed, registry.rounds.groups(spec.run)),
    )
