"""The effects of a run: aggregation, saving of model and record, and lines for the user."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedpatch.coordinator.observability.round_text import troubles
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, EndRun, RetractModel
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.update_files import store_update
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.messages import Accept, Failed, Offer
from fedpatch.shared.wire.reason_codes import FailReason
from tests.coordinator.effect_runners import Bench
from tests.support.disks import small_disk


@pytest.fixture
def bench(tmp_path: Path, prepared: Prepared, registry: Registry) -> Bench:
    """A round in which both devices have accepted."""
    return Bench(tmp_path, prepared, registry).begin()


def test_each_effect_of_the_engine_has_an_owner(bench):
    assert bench.performer.owners.keys() == set(get_args(Effect))


def test_update_of_a_device_that_was_counted_out_is_not_in_the_mean(bench):
    blob, manifest = bench.update(1000.0)
    store_update(bench.directory, 1, "b", blob)
    update = StoredUpdate(1, "b", manifest.digest, manifest.raw_bytes, 10, manifest.encoding)
    bench.registry.rounds.add_updates(bench.engine.spec.run, [update])
    bench.upload("a", 1.0)
    bench.receive("b", Failed(FailReason.TRAINING))
    [record] = bench.registry.rounds.records(bench.engine.spec.run)
    assert (record.outcome, record.reported) == ("aggregated", 1)
    assert {float(array.max()) for array in bench.aggregator.state.tensors.values()} == {1.0}


def test_full_disk_under_the_trimmed_mean_is_an_error_with_a_remedy(tmp_path, prepared, registry):
    """Without space for its table the process would be killed (SIGBUS)."""
    with small_disk(tmp_path / "disk", "8m") as disk:
        bench = Bench(disk.path, prepared, registry, aggregate="trimmed:0.2").begin()
        bench.upload("a", 1.0)
        disk.fill(but_bytes=prepared.public.nbytes)
        with pytest.raises(StateError, match="free some space on this disk"):
            bench.upload("b", 1.0)
        assert registry.rounds.records(bench.engine.spec.run) == []


def test_bounded_device_is_named_in_the_record_and_not_shown_while_it_is_far_in_one_round(tmp_path, prepared, registry):
    """The checkpoint has the references of this round for the next process."""
    bench = Bench(tmp_path, prepared, registry, norm_bound="auto:2").begin()
    bench.upload("a", 1.0)
    bench.upload("b", 1e3)
    [record] = registry.rounds.records(bench.engine.spec.run)
    assert record.bounded == {"norm": 1}
    assert list(record.bounded_devices) == ["b"]
    assert "weights" in record.bounded_devices["b"]
    assert record.pulls == {"b": pytest.approx(1.0, abs=1e-2)}
    assert record.pull_quantiles == {"p50": 0.0, "p90": record.pulls["b"], "max": record.pulls["b"]}
    assert record == RoundRecord.from_dict(json.loads(json.dumps(record.to_dict())))
    assert (record.far, troubles(record)) == ({"b": 1}, [])
    assert not [line for line in bench.lines if "far from" in line]
    assert load_checkpoint(tmp_path)[0].references["weights"] == bench.aggregator.state.references["weights"]


def test_trimmed_mean_takes_its_table_from_a_file_that_leaves_nothing_behind(tmp_path, prepared, registry):
    bench = Bench(tmp_path, prepared, registry, aggregate="trimmed:0.4", norm_bound="off").begin()
    bench.upload("a", 2.0)
    bench.upload("b", 4.0)
    [record] = registry.rounds.records(bench.engine.spec.run)
    assert record.outcome == "aggregated"
    assert {float(array.max()) for array in bench.aggregator.state.tensors.values()} == {3.0}
    assert not [path for path in tmp_path.rglob("tmp*")]


def test_device_that_is_far_in_five_rounds_is_shown_once_with_the_remedy(tmp_path, prepared, registry):
    bench = Bench(tmp_path, prepared, registry, norm_bound="auto:2", rounds=7).begin()
    for number in range(1, 7):
        for device in "ab" if number > 1 else "":
            bench.receive(device, Accept(10))
        bench.upload("a", float(number))
        bench.upload("b", 1e3)
        record = registry.rounds.records(bench.engine.spec.run)[-1]
        assert (record.round, record.far) == (number, {"b": number})
    assert any("b" in line for line in troubles(record) if line.startswith("pulled far: "))
    [line] = [line for line in bench.lines if "far from" in line]
    assert "updates of b " in line and "fedpatch devices quarantine" in line
    again = bench.again().begin()
    again.upload("a", 7.0)
    again.upload("b", 1e3)
    assert registry.rounds.records(bench.engine.spec.run)[-1].far == {"b": 7}


def test_an_offender_stays_out_of_the_open_round_after_a_kill(bench):
    """The device was reported as not asked again, so the next coordinator does not ask it either."""
    bench.receive("a", Offer(replace(bench.update(1.0)[1], schema="0" * 64)))
    assert bench.engine.fleet.offenders == {"a": "schema_mismatch"}
    again = bench.again()
    assert again.engine.fleet.offenders == {"a": "schema_mismatch"}
    assert {device for device, _ in again.sent} == {"b"}


def test_model_and_record_are_saved_together(bench):
    bench.upload("a", 1.0)
    bench.upload("b", 3.0)
    state, _, meta = load_checkpoint(bench.directory)
    assert {float(array.max()) for array in state.tensors.values()} == {2.0}
    assert meta["record"] == bench.registry.rounds.records(bench.engine.spec.run)[0].to_dict()


@pytest.mark.parametrize(
    ("effect", "line"),
    [
        (CountEvent("a", "declined", "unwilling", "\x1b[2Jowned\n"), "a declined: unwilling ?[2Jowned"),
        (EndRun(Stopped.FAILED, "a: \x1b]0;owned\x07"), "a: ?]0;owned?"),
    ],
)
def test_words_of_a_device_are_printed_without_control_characters(bench, effect, line):
    bench.perform([effect])
    assert bench.lines == [line]


def test_model_that_could_not_be_saved_is_not_the_state(bench, monkeypatch):

    def full(*_: object, **__: object) -> None:
        raise StateError("no space left")

    monkeypatch.setattr("fedpatch.coordinator.runtime.aggregator.save_checkpoint", full)
    bench.upload("a", 1.0)
    with pytest.raises(StateError):
        bench.upload("b", 3.0)
    assert bench.aggregator.state.round == 0


def test_updates_are_folded_alike_from_memory_and_from_the_store(tmp_path, prepared, blobs):
    models = []
    for number, room in enumerate((0, 2**30)):
        directory = tmp_path / str(number)
        directory.mkdir()
        blobs.delete(*blobs.list())
        with Registry(directory / REGISTRY_FILE) as registry, ThreadPoolExecutor(2) as pool:
            writing = {"most_bytes": room, "executor": pool}
            bench = Bench(directory, prepared, registry, writing=writing, blobs=blobs).begin()
            bench.upload("a", 0.1)
            bench.upload("b", 0.3)
            bench.finish_updates(wait=True)
            models.append(bench.aggregator.state.tensors)
    assert models[0].keys() == models[1].keys()
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_shared_id_and_mute_devices_are_told_once(bench: Bench):
    presence = bench.engine.fleet.false_presence
    presence.said("a", is_shared=True)
    for _ in range(2):
        presence.round_over({"b"}, ())
    before = len(bench.lines)
    for _ in range(2):
        bench.perform([RetractModel()])
    shared, mute = bench.lines[before:]
    assert shared.startswith("warning: several agents use the id a ")
    assert mute.startswith("warning: shown online without any answer: b;")
