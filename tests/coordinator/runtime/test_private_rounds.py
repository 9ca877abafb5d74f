"""Rounds with central differential privacy: one draw despite kills, only noised values in the release, the privacy account."""

from __future__ import annotations

import itertools
import json
import re
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedpatch.coordinator.aggregation.gaussian_noise import values_of
from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.run_metrics import RunMetrics
from fedpatch.coordinator.observability.status_message import status_message
from fedpatch.coordinator.privacy.noise_draw import SealedNoise
from fedpatch.coordinator.privacy.privacy_account import ACCOUNT, PrivacyAccount
from fedpatch.coordinator.privacy.private_aggregation import PrivateAggregation
from fedpatch.coordinator.rounds.missing_devices import missing_text
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import LeadershipLost, StateError, UsageError
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.messages import Failed, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason
from tests.coordinator.private_bench import TERMS, CountedDraws, PrivateBench, files_of_noise, prepare_private
from tests.coordinator.registry_builders import new_run
from tests.coordinator.runtime.test_kill_anywhere import Guillotine, Killed, play

POLICY = PrivacyPolicy(1.0, 0.5)


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare_private()


def play_with_kill(
    directory: Path, prepared: Prepared, fatal: int, draws: CountedDraws
) -> tuple[dict[str, bytes], list[Any], int]:
    """Run two rounds with a kill before the `fatal`-th write (0: none); return final model, records and number of kills."""
    directory.mkdir()
    run, kills = "", 0
    for fatal_write in (fatal, 0) if fatal else (0,):
        guillotine = Guillotine(fatal_write)
        with Registry(directory / REGISTRY_FILE) as registry, pytest.MonkeyPatch.context() as patch:
            run = run or new_run(registry).id
            guillotine.installed(patch)
            draws.installed(patch)
            try:
                play(PrivateBench(directory, prepared, registry, run, **{**TERMS, "rounds": 2}))
            except Killed:
                kills += 1
                continue
            records = registry.rounds.records(run)
    model = {name: array.tobytes() for name, array in load_checkpoint(directory)[0].tensors.items()}
    return model, [(one.round, one.outcome, one.reported, one.privacy) for one in records], kills


@pytest.mark.medium
@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_kill_before_any_write_uses_one_draw_a_round_and_its_bits(tmp_path, prepared, every):
    records = play_with_kill(tmp_path / "whole", prepared, 0, CountedDraws())[1]
    for fatal in itertools.count(1, every):
        draws = CountedDraws()
        found = play_with_kill(tmp_path / f"killed-{fatal}", prepared, fatal, draws)
        assert {number: len(digests) for number, digests in draws.digests.items()} == {1: 1, 2: 1}, fatal
        again = play_with_kill(tmp_path / f"again-{fatal}", prepared, 0, CountedDraws(draws.by_round))
        assert found[:2] == (again[0], records), f"killed before write {fatal}"
        assert files_of_noise(tmp_path / f"killed-{fatal}") == []
        if not found[2]:
            assert fatal > 20
            return


def test_noise_of_equal_rounds_of_two_runs_differs(tmp_path, prepared):
    """The noise comes from the operating system, not from the run's seed."""
    models = []
    for name in ("one", "other"):
        directory = tmp_path / name
        directory.mkdir()
        with Registry(directory / REGISTRY_FILE) as registry:
            play(PrivateBench(directory, prepared, registry, **TERMS))
        models.append(load_checkpoint(directory)[0].tensors["fc1.weight"].tobytes())
    assert models[0] != models[1]


@pytest.fixture
def bench(tmp_path: Path, prepared: Prepared, registry: Registry) -> PrivateBench:
    return PrivateBench(tmp_path, prepared, registry, **{**TERMS, "rounds": 3, "independent_every": 2})


def test_record_status_and_rows_of_a_private_round_have_no_figure_of_a_device(bench, registry):
    """Each update reports accuracy 0.5, loss 0.5 and ten examples."""
    bench.begin()
    bench.upload("a", 0.1)
    status = status_message(bench.engine, 0.0).status
    assert status.user_accuracy is None
    number, run = bench.engine.last_round, bench.engine.spec.run
    assert [one.num_examples for one in registry.rounds.updates(run, number)] == [1]
    bench.upload("b", 0.7)
    record = registry.rounds.records(run)[-1]
    assert record.outcome == "aggregated"
    assert (record.user_accuracy, record.user_accuracy_after, record.user_accuracy_min) == (None, None, None)
    assert (record.user_accuracies, record.bounded, record.bounded_devices, record.independent) == ({}, {}, {}, {})
    assert (record.num_examples, record.measured) == (2, 0)
    figures = {name: value for name, value in record.to_dict().items() if not name.endswith("seconds")}
    of_device = re.compile(r"\b0\.50*\b(?! s\b)")  # but times may be 0.5 s
    assert [line for line in [json.dumps(figures), *bench.lines] if of_device.search(line)] == []


def test_metrics_of_a_private_run_have_no_figure_of_a_device(bench, tmp_path):
    metrics = Metrics()
    meter = RunMetrics(metrics, bench.engine, tmp_path, strategy="fedavg", max_devices=50)
    meter.sent = lambda size_bytes: None  # the bench sends nothing
    bench.performer.observer = meter
    bench.begin()
    bench.upload("ab", 0.1)
    meter.look(1.0, waiting=0)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert not [sample for sample in samples if "accuracy" in sample.name or "independent" in sample.name]
    timed = [one for one in samples if one.labels.get("side") == "device" or "device" in one.labels.values()]
    assert not [one for one in timed if one.name.endswith("_count") and one.value]


def test_continued_private_round_has_no_figure_of_a_device(bench, registry):
    bench.begin()
    bench.upload("a", 0.1)
    terms = {**TERMS, "rounds": 3}
    later = PrivateBench(bench.directory, bench.prepared, registry, bench.engine.spec.run, **terms).begin()
    assert later.engine.open is not None
    assert later.engine.open.user_accuracy() is None
    assert {one and one.num_examples for one in later.engine.open.reports.values()} == {1}


def test_record_has_epsilon_of_the_most_used_device(bench, registry):
    for number in (1, 2, 3):
        bench.begin()
        bench.upload("ab", 0.1 * number)
    accounts = [record.privacy for record in registry.rounds.records(bench.engine.spec.run)]
    assert [one["rounds"] for one in accounts] == [1, 2, 3]
    assert [one["epsilon"] for one in accounts] == [POLICY.epsilon(rounds) for rounds in (1, 2, 3)]
    assert accounts[0]["delta"] == POLICY.delta


def test_request_of_a_private_run_has_its_terms_and_asks_for_no_comparison(bench):
    bench.begin()
    bench.upload("ab", 0.1)
    bench.begin()
    requests = [envelope.body for _, envelope in bench.sent if isinstance(envelope.body, WorkRequest)]
    assert {request.privacy for request in requests} == {POLICY.terms(denominator=2)}
    assert not any(request.measure_independent for request in requests)


def test_device_without_the_feature_is_not_asked_and_is_named(bench):
    super(PrivateBench, bench).begin()
    assert not [envelope for _, envelope in bench.sent if isinstance(envelope.body, WorkRequest)]
    assert "does not know dp, which this run needs; update it" in missing_text(bench.engine.fleet, 2, 1.0)


def test_noise_is_readable_for_its_owner_alone_while_its_round_is_open(tmp_path):
    SealedNoise(tmp_path).of_round(1, 5)
    assert stat.S_IMODE((tmp_path / "noise-000001.fp").stat().st_mode) == 0o600


def test_noise_of_saved_rounds_is_deleted_when_a_run_is_resumed(bench):
    noise = SealedNoise(bench.directory)
    noise.of_round(1, 5)
    noise.of_round(2, 5)
    noise.drop_until(1)
    assert files_of_noise(bench.directory) == ["noise-000002.fp"]


@pytest.mark.parametrize("damage", [b"", b"fedpatch noise 1\n", b"else"])
def test_damaged_noise_is_never_replaced_by_another_draw(tmp_path, damage):
    noise = SealedNoise(tmp_path)
    noise.of_round(1, 5)
    (tmp_path / "noise-000001.fp").write_bytes(damage)
    with pytest.raises(StateError, match="remove the file"):
        noise.of_round(1, 5)


def test_noise_of_another_size_is_refused(tmp_path):
    noise = SealedNoise(tmp_path)
    noise.of_round(1, 5)
    with pytest.raises(StateError, match="noise for 5 values, not for 6"):
        noise.of_round(1, 6)


@pytest.mark.medium
def test_book_counts_a_repeated_draw_once_and_another_draw_again(blobs):
    account = PrivacyAccount(blobs)
    account.note("one", ["a"])
    account.note("one", ["a", "b"])
    assert PrivacyAccount(blobs).most_used == 1
    PrivacyAccount(blobs).note("other", ["b"])
    assert PrivacyAccount(blobs).most_used == 2
    assert PrivacyAccount(blobs).most_used_with("third", ["a"]) == 2


def test_book_counts_a_repeated_draw_for_the_devices_of_all_its_attempts(blobs):
    account = PrivacyAccount(blobs)
    for attempt in (["a"], ["b"]):
        account.note("one", attempt)
    assert [PrivacyAccount(blobs).most_used_with("other", [device]) for device in ("a", "b")] == [2, 2]


def test_noise_is_divided_by_the_devices_that_the_round_is_meant_for(tmp_path, blobs):
    """One of four has reported, with a change of zero: the step is the noise over four."""
    schema = Schema((TensorSpec("w", (50,), "float32", "weight"),))
    policy, model = PrivacyPolicy(1.0, 0.5), {"w": np.zeros(50, np.float32)}
    noise = SealedNoise(tmp_path).of_round(1, 50).values
    aggregation = PrivateAggregation(blobs, tmp_path, policy, schema, 0)
    step, _ = aggregation.aggregate(ServerState(0, model, {}), ["a"], lambda device: model, 4)
    assert step["w"] == pytest.approx(noise * 0.5 / 4, abs=1e-5)


def test_noised_sum_of_a_round_that_lacks_a_device_is_divided_by_all_that_it_was_meant_for(
    tmp_path, prepared, registry
):
    bench = PrivateBench(tmp_path, prepared, registry, **{**TERMS, "quorum": 0.5})
    schema, before = prepared.travelling, bench.aggregator.state.tensors
    noise = SealedNoise(tmp_path).of_round(1, values_of(schema)).values
    bench.begin()
    bench.receive("b", Failed(FailReason.TRAINING))
    bench.upload("a", 0.0)
    after = load_checkpoint(tmp_path)[0].tensors
    old, new = (np.concatenate([model[spec.name].reshape(-1) for spec in schema.specs]) for model in (before, after))
    clipped = -old * (0.5 / np.linalg.norm(old))
    assert new - old == pytest.approx((clipped + 0.5 * noise) / 2, abs=1e-4)


def test_damaged_book_ends_the_run_instead_of_counting_from_zero(blobs):
    blobs.put(ACCOUNT, b"fedpatch privacy book 1\n")
    with pytest.raises(StateError, match="the epsilon of this run is unknown"):
        PrivacyAccount(blobs)


def test_lost_book_of_a_run_with_releases_ends_the_run_instead_of_counting_from_zero(tmp_path, prepared, registry):
    run = new_run(registry).id
    play(PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 1}))
    PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 2})  # with the account it is resumed
    (tmp_path / ACCOUNT).unlink()
    with pytest.raises(StateError, match=r"is lost.* the epsilon of this run is unknown"):
        PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 2})


@pytest.mark.parametrize("lost", [(), ("checkpoint-000002.fp",)])
def test_older_book_than_a_record_names_ends_the_run_instead_of_counting_from_there(tmp_path, prepared, registry, lost):
    run = new_run(registry).id
    play(PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 1}))
    older = (tmp_path / ACCOUNT).read_bytes()
    play(PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 2}))
    PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 3})  # with the account it is resumed
    (tmp_path / ACCOUNT).write_bytes(older)
    for name in lost:
        (tmp_path / name).unlink()
    with pytest.raises(
        StateError, match=r"is an older copy, with 1 of 2 releases.* the epsilon of this run is unknown"
    ):
        PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 3})
    assert [record.round for record in registry.rounds.records(run)] == [1, 2]


def test_book_of_an_earlier_version_continues(tmp_path, prepared, registry):
    """Its records name no releases, and the account no number of them."""
    run = new_run(registry).id
    content = {"earlier": {"a": 3, "b": 1}, "digest": "one", "devices": ["a", "b"]}
    (tmp_path / ACCOUNT).write_bytes(seal(b"fedpatch privacy book 1\n", msgspec.msgpack.encode(content)))
    play(PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 1}))
    PrivateBench(tmp_path, prepared, registry, run, **{**TERMS, "rounds": 2})
    assert [PrivacyAccount(tmp_path).most_used, PrivacyAccount(tmp_path).all_releases] == [5, 1]


def test_release_whose_record_is_refused_to_a_former_leader_is_not_published(bench, registry, monkeypatch):
    """The next leader may have copied the account before this release."""

    def refuse(*_given: object) -> None:
        raise LeadershipLost("another coordinator leads the fleet")

    bench.begin()
    bench.upload("a", 0.1)
    monkeypatch.setattr(registry.rounds, "finish", refuse)
    before = len(bench.link.published)
    with pytest.raises(LeadershipLost):
        bench.upload("b", 0.7)
    assert PrivacyAccount(bench.directory).all_releases == 1
    assert [payload for _, payload, _ in bench.link.published[before:] if payload] == []


def test_release_beyond_max_epsilon_is_refused_before_it_is_counted(tmp_path, prepared, registry):
    """A round that is repeated after its checkpoint was lost would be a second release."""
    first = PrivateBench(tmp_path, prepared, registry, **{**TERMS, "max_epsilon": 5.0})
    PrivacyAccount(tmp_path).note("lost", ["a"])
    bench = PrivateBench(tmp_path, prepared, registry, first.engine.spec.run, **{**TERMS, "max_epsilon": 5.0})
    bench.begin()
    with pytest.raises(UsageError, match="max_epsilon is 5"):
        bench.upload("ab", 0.1)
    assert PrivacyAccount(tmp_path).most_used == 1


@pytest.mark.parametrize(("factor", "released"), [(1.0, True), (0.99, False)])
def test_release_is_made_up_to_max_epsilon(tmp_path, blobs, factor, released):
    schema, model = Schema((TensorSpec("w", (2,), "float32", "weight"),)), {"w": np.zeros(2, np.float32)}
    policy = PrivacyPolicy(1.0, 0.5)
    policy = replace(policy, max_epsilon=policy.epsilon(1) * factor)
    aggregation = PrivateAggregation(blobs, tmp_path, policy, schema, 0)
    with nullcontext() if released else pytest.raises(UsageError, match="its rounds are over"):
        aggregation.aggregate(ServerState(0, model, {}), ["a"], lambda device: model, 1)
