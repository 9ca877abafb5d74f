"""Masked rounds of a hub with a relay, on a coordinator with real files: requests, counted sums, and a restart."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.masked_mean import vector_layout
from fedpatch.coordinator.rounds.held_devices import DRAINED
from fedpatch.coordinator.rounds.masked_round import NO_GROUP
from fedpatch.coordinator.rounds.run_effects import SaveGroupSteps
from fedpatch.coordinator.rounds.run_events import DevicePresence, HoldsChanged
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.masking.group_sum import read_sum
from fedpatch.shared.masking.site_sum import write_site_sum
from fedpatch.shared.tensors.arrays import Schema
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.features import DEVICE_FEATURES, MASKED_FEATURE, MEMBERS_FEATURE, SUMS_FEATURE
from fedpatch.shared.wire.messages import Accept, Envelope, Grant, Manifest, Offer, Refused, TaskCapability, WorkRequest
from tests.coordinator.effect_runners import Bench
from tests.coordinator.masked_fleets import TERMS, Clock, MaskedDevice, MaskedFleet, names
from tests.coordinator.runtime.test_kill_anywhere import Guillotine, Killed
from tests.support.specs import model, there

RELAY = "site"
SITE = names(24)[16:]
"""The devices behind the relay; those of the hub are the first sixteen names."""


class Relay:
    """A relay that adds the vectors of its devices without a broker of the site."""

    features: tuple[str, ...] = (SUMS_FEATURE,)

    def __init__(self, schema: Schema, devices: list[str] = SITE) -> None:
        self._schema = schema
        self._devices = [MaskedDevice(name, schema) for name in devices]
        self._blob, self._manifest = b"", model()
        self.refused: list[Refused] = []
        self.request: WorkRequest | None = None
        self.total_of: Any = lambda total: total

    def answers(self, envelope: Envelope) -> list[Any]:
        match envelope.body:
            case WorkRequest():
                self.request = envelope.body
                return [Accept(100), Offer(self._update(envelope.body, envelope.round))]
            case Grant():
                return [cut(self._blob, self._manifest, at) for at in range(self._manifest.chunk_count)]
            case Refused():
                self.refused.append(envelope.body)
        return []

    def _update(self, request: WorkRequest, number: int) -> Manifest:
        assert request.secure is not None
        layout = vector_layout(self._schema, request.secure)
        # A request to a relay also has the vector layout of `masked-u8`.
        vectors = [device._vector(request, number) for device in self._devices]
        total = read_sum(layout, np.sum(vectors, axis=0, dtype=layout.dtype), len(vectors))
        packed = write_site_sum(layout, self.total_of(total), request.model.digest)
        self._blob, self._manifest = packed.blob, packed.manifest(2**16, self._schema)
        return self._manifest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def hub(directory: Path, prepared: Prepared, registry: Registry, clock: Clock, plain: int, **terms: Any) -> MaskedFleet:
    """Return a hub with `plain` plain devices and one relay, all offline."""
    given = {**TERMS, "devices": plain + 1, "quorum": 0.5, "max_members": 20, "group_size": 30, **terms}
    directory.mkdir(exist_ok=True)
    fleet = MaskedFleet(Bench(directory, prepared, registry, **given), clock, plain)
    fleet.devices[RELAY] = Relay(prepared.travelling)  # type: ignore[assignment]
    return fleet


def come(fleet: MaskedFleet, features: tuple[str, ...] = (SUMS_FEATURE,)) -> MaskedFleet:
    """Bring the relay online, then all devices; the round begins with them."""
    capability = TaskCapability(
        fleet.bench.prepared.task.name, fleet.bench.prepared.schema.digest, 8 * 80, members=len(SITE)
    )
    present = replace(there(tasks=(capability,)), features=("carry", *features))
    relay = fleet.devices.pop(RELAY)
    fleet._perform(DevicePresence(RELAY, present))
    fleet.devices[RELAY] = relay
    for name in (name for name in fleet.devices if name != RELAY):
        fleet._perform(DevicePresence(name, replace(there(), features=(*DEVICE_FEATURES, MASKED_FEATURE))))
    return fleet.settle()


def record_of(fleet: MaskedFleet) -> Any:
    return fleet.bench.registry.rounds.records(fleet.bench.engine.spec.run)[0]


def model_of(fleet: MaskedFleet) -> bytes:
    tensors = load_checkpoint(fleet.bench.blobs)[0].tensors
    return b"".join(tensors[name].tobytes() for name in sorted(tensors))


@pytest.mark.medium
def test_sum_of_a_relay_counts_as_its_devices_do_in_a_flat_round(tmp_path, prepared, registry, clock):
    two_levels = come(hub(tmp_path / "hub", prepared, registry, clock, 16))
    flat_bench = Bench(tmp_path, prepared, registry, **{**TERMS, "devices": 24, "quorum": 0.5, "group_size": 30})
    flat = MaskedFleet(flat_bench, clock, 24).come()
    found, expected = record_of(two_levels), record_of(flat)
    assert (found.outcome, found.reported, found.measured) == ("aggregated", 17, 24), two_levels.bench.lines
    assert (found.num_examples, found.user_accuracy) == (expected.num_examples, expected.user_accuracy)
    assert model_of(two_levels) == model_of(flat)


def test_relay_is_asked_for_a_sum_and_the_requests_of_plain_devices_do_not_name_it(tmp_path, prepared, registry, clock):
    fleet = come(hub(tmp_path / "hub", prepared, registry, clock, 16))
    relay, plain = fleet.devices[RELAY].request, fleet.devices["pi-00"].request
    assert relay is not None and plain is not None and plain.secure is not None
    assert (relay.encoding, relay.secure, relay.masks) == ("masked-sum", plain.secure, False)
    assert (plain.encoding, plain.masks, MEMBERS_FEATURE in plain.features) == ("masked-u8", True, False)
    assert plain.secure.group_max == 24  # the devices of the site count too, since their sum has the same grid


def test_round_of_relays_alone_needs_no_group_at_the_hub(tmp_path, prepared, registry, clock):
    fleet = come(hub(tmp_path / "hub", prepared, registry, clock, 0))
    assert (record_of(fleet).outcome, record_of(fleet).measured) == ("aggregated", len(SITE)), fleet.bench.lines


def test_devices_too_few_for_a_group_beside_a_relay_leave_the_round_with_the_reason(
    tmp_path, prepared, registry, clock
):
    fleet = come(hub(tmp_path / "hub", prepared, registry, clock, 3, quorum=0.2))
    record = record_of(fleet)
    assert (record.outcome, record.measured, record.failures) == ("aggregated", len(SITE), {NO_GROUP: 3})
    assert all(one.cancelled for name, one in fleet.devices.items() if name != RELAY)


def test_hub_with_devices_too_few_for_a_group_names_the_remedy_and_succeeds_once_they_are_drained(
    tmp_path, prepared, registry, clock
):
    fleet = come(hub(tmp_path / "hub", prepared, registry, clock, 3, quorum=0.8, rounds=2))
    assert record_of(fleet).failure == "quorum_missed"
    assert "`fedpatch devices drain pi-00`" in next(line for line in fleet.bench.lines if "pi-00 failed" in line)
    fleet._perform(HoldsChanged(dict.fromkeys(names(3), DRAINED)))
    fleet.wait(100.0)
    last = registry.rounds.records(fleet.bench.engine.spec.run)[-1]
    assert (last.outcome, last.measured) == ("aggregated", len(SITE)), fleet.bench.lines


def test_relay_of_an_older_version_is_not_asked(tmp_path, prepared, registry, clock):
    fleet = come(hub(tmp_path / "hub", prepared, registry, clock, 16), features=())
    assert fleet.devices[RELAY].request is None
    assert "from this version on" in fleet.bench.engine.fleet.members[RELAY].barred


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda total: replace(total, codes=total.codes + 10_000), "at most"),
        (lambda total: replace(total, devices=7), "at least 8"),
        (lambda total: replace(total, devices=21), "max_members is 20"),
        (lambda total: replace(total, figures=(0, *total.figures[1:])), "no 8 devices"),
    ],
    ids=["values beyond those of so many devices", "fewer devices than a group", "too many devices", "no weight"],
)
def test_impossible_sum_is_refused_with_the_reason(tmp_path, prepared, registry, clock, change, words):
    fleet = hub(tmp_path / "hub", prepared, registry, clock, 8, quorum=0.5)
    relay: Any = fleet.devices[RELAY]
    relay.total_of = change
    come(fleet)
    [refused] = relay.refused
    assert words in refused.detail
    assert (record_of(fleet).outcome, record_of(fleet).measured) == ("aggregated", 8)


def test_killed_hub_goes_on_with_the_sum_that_it_has_and_gives_the_same_model(tmp_path, prepared, registry, clock):
    whole = come(hub(tmp_path / "whole", prepared, registry, clock, 16))
    fleet = hub(tmp_path / "killed", prepared, registry, clock, 16)
    fleet.change = lambda device, answer: None if isinstance(answer, Offer) and device != RELAY else answer
    come(fleet)
    assert list(fleet.bench.engine.open.reports) == [RELAY]  # type: ignore[union-attr]
    again = MaskedFleet(fleet.bench.again(), clock, devices=fleet.devices)
    come(again)
    again.wait(100.0)
    assert (record_of(again).outcome, record_of(again).measured) == ("aggregated", 24), again.bench.lines
    assert model_of(again) == model_of(whole)


def test_hub_killed_before_the_terms_are_saved_begins_the_round_again_with_the_relay(
    tmp_path, prepared, registry, clock, monkeypatch
):
    whole = come(hub(tmp_path / "whole", prepared, registry, clock, 8, weight_cap=None))
    fleet = hub(tmp_path / "killed", prepared, registry, clock, 8, weight_cap=None)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        owners = fleet.bench.performer.owners
        patch.setitem(owners, SaveGroupSteps, Guillotine(2).before(owners[SaveGroupSteps]))
        come(fleet)
    again = come(MaskedFleet(fleet.bench.again(entropy=1), clock, devices=fleet.devices))
    assert (record_of(again).outcome, record_of(again).measured) == ("aggregated", 16), again.bench.lines
    assert model_of(again) == model_of(whole)
