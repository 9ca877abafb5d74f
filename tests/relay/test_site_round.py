"""The hub's request as a round of the site, requests that a relay declines, and the answer that outlasts a kill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from msgspec import UNSET

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.limit_syntax import ExamplesCap, parse_examples_cap
from fedpatch.coordinator.masking.group import OpenGroup
from fedpatch.coordinator.rounds.round_phases import Round
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic, build_record, mean_accuracy
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import Downloaded, TrainCommand
from fedpatch.relay.hub import ENCODINGS, FEATURES
from fedpatch.relay.request_refusal import unsupported
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site import is_usable_run, relay_id
from fedpatch.relay.site_round import HubRound, SiteModel
from fedpatch.relay.site_update import SiteAggregator, SiteUpdate, site_evaluation
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import SchemaMismatch, UsageError, WireError
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.masked_blob import MaskedUpdate
from fedpatch.shared.masking.site_sum import read_site_sum
from fedpatch.shared.masking.vector_layout import VectorLayout, travelling
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import MOMENTS
from fedpatch.shared.tensors.common_update_checks import ExpectedUpdate, read_update
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.codec import from_plain
from fedpatch.shared.wire.features import DEVICE_FEATURES, SUMS_FEATURE
from fedpatch.shared.wire.field_types import MAX_COUNT
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport, WorkRequest, is_delta
from fedpatch.shared.wire.plan_terms import CONTROL, TrainPhase
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, PrivacyTerms
from tests.support.examples import examples
from tests.support.masked_group import terms_of
from tests.support.specs import model, report, run_spec
from tests.system.oracle_task import TASK

MODEL = SiteModel(TASK, schema_of(TASK.build_model()))
PLAN = TrainPlan("sgd", 0.1, 20)


CAP = ExamplesCap(factor=10.0)
settings_of_law = examples(20, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.fixture
def command(tmp_path) -> TrainCommand:
    """The command of round 7, with its model on the disk."""
    return plain_command(tmp_path)


def plain_command(tmp_path: Path, plan: TrainPlan = PLAN) -> TrainCommand:
    """The command of round 7, with its model in a folder."""
    public = parse_policy("affine").public(MODEL.schema).with_moments(plan.moments)
    tensors = {spec.name: np.ones(spec.shape, spec.dtype) for spec in public.specs}
    packed = pack(tensors, public, {"round": 5}, "fp32+zstd")
    path = tmp_path / "model"
    path.write_bytes(packed.blob)
    manifest = packed.manifest(1000, public)
    return TrainCommand(
        key=JobKey("run-1", 3, 7, TASK.name),
        plan=plan,
        private="affine",
        schema=MODEL.schema.digest,
        blob=Downloaded(str(path)),
        model=manifest,
        encoding="fp32+zstd",
        base=manifest.digest,
        update_path=str(tmp_path / "update"),
        download_s=0.0,
        chunk_bytes=1000,
    )


def settings(tmp_path, **changes: Any) -> RelaySettings:
    given = {"up": "mqtts://hub.example", "device_id": "site-7", "fleet": "site-7", "state_dir": str(tmp_path)}
    return load(RelaySettings, file=None, environ={}, flags=given | changes)


def test_round_of_the_site_has_the_number_plan_and_digest_of_the_hub(command, tmp_path):
    hub_round = HubRound.of(command, MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path, min_cohort=3), epoch=2, left_s=100.0)
    assert (spec.run, spec.first_round, spec.rounds, spec.plan, spec.private) == ("run-1", 7, 7, PLAN, "affine")
    assert hub_round.blob.manifest.digest == command.base
    assert (spec.chunk_bytes, spec.encoding, spec.devices) == (500, "fp32+zstd", 3)
    assert hub_round.prepared.initial.round == 4
    # The intake of the site refuses private tensors by these names, as the hub's does.
    assert hub_round.prepared.private_names == parse_policy("affine").private_names(MODEL.schema)
    assert not hub_round.prepared.private_names & set(hub_round.prepared.travelling.names)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"schema": "ab" * 32}, SchemaMismatch),
        ({"private": "nonsense"}, UsageError),
        ({"private": "all"}, WireError),
    ],
)
def test_request_about_another_model_is_refused(command, changes, error):
    with pytest.raises((error, SchemaMismatch)):
        HubRound.of(replace(command, **changes), MODEL, chunk_bytes=500)


def test_answer_is_found_for_the_same_request_only(command, tmp_path):
    blob = b"u" * 350
    answer = SiteUpdate(7, command.base, replace(model(blob), encoding="fp32+zstd", chunk_bytes=1000), report())
    assert SiteUpdate.find(tmp_path, command) is None
    answer.save(tmp_path, blob)
    assert SiteUpdate.find(tmp_path, command) == (answer, blob)
    assert SiteUpdate.find(tmp_path, replace(command, base="ab" * 32)) is None
    assert SiteUpdate.find(tmp_path, replace(command, encoding="fp32")) is None
    assert SiteUpdate.find(tmp_path, replace(command, key=replace(command.key, round=8))) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"u" * 349, b"v" * 350])
def test_damaged_answer_is_none(command, tmp_path, damage):
    blob = b"u" * 350
    SiteUpdate(7, command.base, replace(model(blob), encoding="fp32+zstd", chunk_bytes=1000), report()).save(
        tmp_path, blob
    )
    (tmp_path / ("answer.json" if len(damage) < 10 else "answer.blob")).write_bytes(damage)
    assert SiteUpdate.find(tmp_path, command) is None


def request(**changes: Any) -> WorkRequest:
    manifest = model()
    whole = WorkRequest("ab" * 32, "affine", PLAN, manifest, "fp32", 1000, 60.0)
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy": PrivacyTerms(GAUSSIAN, 1.0, 1.0, 1e-5, 10)}, "differential privacy"),
        ({"plan": replace(PLAN, moments=(CONTROL,))}, "control variates"),
        ({"measure_independent": True}, "learning alone"),
    ],
)
def test_request_that_cannot_be_passed_on_is_declined_with_the_reason(changes, words):
    why = unsupported(request(**changes))
    assert words in why
    assert "without a relay" in why


def test_masked_round_that_asks_for_learning_alone_is_played_without_it():
    asked = request(measure_independent=True, secure=terms_of(12), encoding="masked-sum")
    assert unsupported(asked) == ""


def test_masked_round_of_the_site_has_the_terms_of_the_hub_and_ends_before_the_margin(command, tmp_path):
    """The phases are collecting, unmasking, and the margin; the devices download the model in its present form."""
    terms = terms_of(12, weight_cap=30)
    masked = replace(command, secure=terms, encoding="masked-sum", independent_ends_at=5.0)
    spec = HubRound.of(masked, MODEL, chunk_bytes=500).spec(settings(tmp_path), epoch=1, left_s=100.0)
    assert spec.secure is not None
    assert (spec.secure.given, spec.secure.least, spec.secure.largest) == (terms, terms.group_min, terms.group_max)
    assert spec.policy.unmask_s is not None
    assert spec.policy.deadline_s + spec.policy.unmask_s == pytest.approx(90.0)
    assert spec.secure.share_deadline_s < spec.policy.deadline_s
    assert (spec.encoding, spec.independent_every) == (command.model.encoding, 0)


def played_groups(count: int, layout: VectorLayout) -> tuple[list[OpenGroup], dict[str, MaskedUpdate]]:
    """One open group of so many devices without masks, and their updates."""
    names = [f"pi-{number}" for number in range(count)]
    vectors = {
        name: make_vector(
            layout,
            step={one.name: np.full(one.shape, 0.1) for one in layout.specs},
            report=report(),
            metric=MetricTerms(),
            seed=number,
        )
        for number, name in enumerate(names)
    }
    updates = {name: MaskedUpdate(bytes(32), "00" * 32, elements) for name, elements in vectors.items()}
    return [OpenGroup(tuple(names), ())], updates


@pytest.mark.parametrize(("devices", "sent"), [(8, True), (7, False)])
def test_site_sends_the_sum_of_a_whole_group_and_nothing_of_fewer_devices(command, tmp_path, devices, sent):
    public = parse_policy("affine").public(MODEL.schema)
    ranges = write_grid((1.0,) * len(travelling(public)))
    terms = terms_of(12, group_min=8, grid=ranges)
    masked = replace(command, secure=terms, encoding="masked-sum")
    hub_round = HubRound.of(masked, MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path), epoch=1, left_s=100.0)
    lines: list[str] = []
    aggregator = SiteAggregator(
        hub_round, tmp_path, spec, lines.append, tells_members=True, opened=lambda: None, now=lambda: 0.0
    )
    layout = VectorLayout(public, terms)
    groups, updates = played_groups(devices, layout)
    made = aggregator.aggregate_masked(groups, terms, updates.__getitem__, target=devices)
    assert (made.figures is not None, len(made.left_out)) == (sent, 0 if sent else devices)
    if not sent:
        assert "so nothing is sent" in lines[0]
        return
    aggregator.save(RoundRecord(7, "aggregated", devices, devices, 0, devices))
    assert aggregator.answer is not None
    answer, blob = aggregator.answer
    assert (answer.manifest.encoding, answer.report.members) == ("masked-sum", devices)
    total = read_site_sum(layout, blob, raw_bytes=answer.manifest.raw_bytes, base=command.base)
    assert (total.devices, total.figures[1]) == (devices, devices * report().num_examples)
    assert SiteUpdate.find(tmp_path, masked) == (answer, blob)
    # A round that the hub starts again, with another cohort, has another grid: the sum does not fit it.
    assert SiteUpdate.find(tmp_path, replace(masked, secure=replace(terms, group_max=13))) is None


def test_update_of_the_site_can_be_read_whatever_steps_its_devices_report(command, tmp_path):
    hub_round = HubRound.of(command, MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path), epoch=1, left_s=100.0)
    reports = {device: replace(report(), steps=MAX_COUNT) for device in ("ann", "bob")}
    opened: Any = SimpleNamespace(reports=reports)
    aggregator = SiteAggregator(
        hub_round, tmp_path, spec, print, tells_members=True, opened=lambda: opened, now=lambda: 0.0
    )
    model_of = hub_round.prepared.initial.tensors
    aggregator.aggregate(sorted(reports), dict.fromkeys(reports, 10), lambda _: model_of, round_number=7)
    aggregator.save(RoundRecord(7, "aggregated", 2, 2, 0, 2, num_examples=20))
    assert aggregator.answer is not None
    assert from_plain(aggregator.answer[0].report.plain, UpdateReport).steps == MAX_COUNT


@pytest.mark.parametrize(("measured", "sent"), [(2, (None, None)), (3, (0.5, 0.75))])
def test_update_of_the_site_has_no_user_accuracy_of_fewer_devices_than_min_cohort(command, tmp_path, measured, sent):
    hub_round = HubRound.of(command, MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path, min_cohort=3), epoch=1, left_s=100.0)
    aggregator = SiteAggregator(
        hub_round, tmp_path, spec, print, tells_members=True, opened=lambda: None, now=lambda: 0.0
    )
    record = RoundRecord(7, "aggregated", 4, 4, 0, 4, num_examples=40, measured=measured)
    aggregator.save(replace(record, user_accuracy=0.5, user_accuracy_after=0.75))
    assert aggregator.answer is not None
    found = aggregator.answer[0].report
    assert (found.user_accuracy_before, found.user_accuracy_after) == sent


def test_evaluate_round_of_the_site_trains_nothing_and_asks_all_devices(command, tmp_path):
    hub_round = HubRound.of(replace(command, evaluate=True), MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path), epoch=1, left_s=100.0)
    assert (spec.evaluates_only, spec.evaluate_participation, spec.first_round) == (True, 1.0, 7)


DEVICES = st.lists(st.none() | st.floats(0.0, 1.0), min_size=1, max_size=9)


@given(st.lists(DEVICES, min_size=1, max_size=5))
@example([[0.2, 0.4], [0.9]])
@example([[None], [0.5, None]])
def test_two_levels_of_evaluation_give_the_mean_user_accuracy_and_the_devices_of_a_flat_round(sites):
    flat = evaluated([value for site in sites for value in site])
    answers = [site_evaluation(evaluated(site), "ab" * 32, least=1, tells_members=True) for site in sites]
    mean = mean_accuracy((answer.user_accuracy, answer.members or 1) for answer in answers)
    assert mean == (None if flat.user_accuracy is None else pytest.approx(flat.user_accuracy, rel=1e-12))
    measured = sum(answer.members or 1 for answer in answers if answer.user_accuracy is not None)
    assert (measured, sum(answer.num_examples for answer in answers)) == (flat.measured, flat.num_examples)


def evaluated(accuracies: Sequence[float | None]) -> RoundRecord:
    """The record of an evaluate round with one device for each user accuracy."""
    reports = {f"d{at}": replace(report(value), num_examples=at + 1) for at, value in enumerate(accuracies)}
    round_ = Round(1, run_spec().policy, now=0.0)
    round_.begin(tuple(reports), now=0.0)
    record = build_record(round_, "evaluated", reports, RoundTraffic(0, 0), {}, metric=MetricTerms())
    return replace(record, num_examples=len(accuracies))


def test_mean_of_fewer_devices_than_the_least_is_not_reported():
    answer = site_evaluation(evaluated([0.25, None]), "ab" * 32, least=2, tells_members=True)
    assert (answer.user_accuracy, answer.members) == (None, UNSET)


def test_hub_that_knows_no_members_gets_the_evaluation_of_one_device():
    answer = site_evaluation(evaluated([0.25, 0.75]), "ab" * 32, least=2, tells_members=False)
    assert (answer.user_accuracy, answer.members) == (0.5, UNSET)


def test_plan_with_phases_is_passed_on():
    assert unsupported(request(plan=replace(PLAN, phases=(TrainPhase("public"),)))) == ""


def test_relay_lists_no_feature_that_it_declines_and_no_encoding_of_differences():
    assert set(FEATURES) - {SUMS_FEATURE} < set(DEVICE_FEATURES)
    assert not {"dp", "dp-masked", "independent", CONTROL} & set(FEATURES)
    assert not any(map(is_delta, ENCODINGS))


@pytest.mark.parametrize(
    ("run", "usable"),
    [("20261126-101500-ab12cd", True), ("../x", False), ("", False), (".x", False), ("_x", False), ("-x", False)],
)
def test_run_whose_name_is_no_folder_is_refused(run, usable):
    assert is_usable_run(run) == usable


def test_relay_keeps_its_id(tmp_path):
    first = relay_id(tmp_path)
    assert relay_id(tmp_path) == first
    (tmp_path / "relay-id").write_text("damaged")
    assert relay_id(tmp_path) != first


def site_of(command: TrainCommand, tmp_path: Any, **changes: Any) -> SiteAggregator:
    """An aggregator of the site with these settings."""
    hub_round = HubRound.of(command, MODEL, chunk_bytes=500)
    spec = hub_round.spec(settings(tmp_path, **changes), epoch=1, left_s=100.0)
    return SiteAggregator(hub_round, tmp_path, spec, print, tells_members=True, opened=lambda: None, now=lambda: 0.0)


@given(
    counts=st.lists(st.integers(1, 10**6), min_size=3, max_size=12),
    members=st.lists(st.integers(1, 40), min_size=12, max_size=12),
    cap=st.sampled_from(["off", "50", "auto:1", "auto:10"]),
)
@example([10] * 10 + [50_000], [1] * 12, "auto:10")
@settings_of_law
def test_site_weighs_at_the_hub_what_its_devices_weigh_in_its_mean(tmp_path_factory, counts, members, cap):
    """An invented number of examples, which the site caps, raises the weight of its site as little as that of its device."""
    tmp_path = tmp_path_factory.mktemp("site")
    site = site_of(plain_command(tmp_path), tmp_path, max_num_examples=cap)
    examples = {f"d{at:02}": max(count, members[at]) for at, count in enumerate(counts)}
    behind = {f"d{at:02}": members[at] for at in range(len(counts))}
    model_of = site.state.tensors
    site.aggregate(sorted(examples), examples, lambda _: model_of, round_number=7, members=behind)
    total = sum(examples.values())
    site.save(RoundRecord(7, "aggregated", len(counts), len(counts), 0, len(counts), num_examples=total))
    assert site.answer is not None
    weights = example_weights(examples, parse_examples_cap(cap), behind)
    assert site.answer[0].report.num_examples == sum(weights.values())
    assert site.answer[0].report.num_examples >= site.answer[0].report.members == sum(behind.values())


def test_site_with_a_device_beyond_the_cap_moves_the_model_as_a_flat_fleet_does(tmp_path):
    """Ten honest devices and one that says 50,000, beside a site of eleven honest ones."""
    honest, steps = {f"d{at:02}": 10 for at in range(11)}, {"liar": 1.0, "honest": 0.0}
    sites = {"liar": honest | {"d10": 50_000}, "honest": honest}
    reported, means = {}, {}
    for name, counts in sites.items():
        folder = tmp_path / name
        folder.mkdir()
        site = site_of(plain_command(folder), folder, norm_bound="off")
        start = site.state.tensors
        far = {tensor: array + array.dtype.type(steps[name]) for tensor, array in start.items()}
        updates = dict.fromkeys(counts, start) | {"d10": far}
        site.aggregate(sorted(counts), counts, updates.__getitem__, round_number=7)
        site.save(RoundRecord(7, "aggregated", 11, 11, 0, 11, num_examples=sum(counts.values())))
        assert site.answer is not None
        reported[name] = site.answer[0].report.num_examples
        means[name] = float(site.state.tensors["fc1.bias"][0] - start["fc1.bias"][0])
    hub = sum(reported[name] * means[name] for name in sites) / sum(reported.values())
    flat = example_weights({f"{name} {device}": n for name, one in sites.items() for device, n in one.items()}, CAP)
    assert hub == pytest.approx(flat["liar d10"] / sum(flat.values()), abs=1e-6)


def test_step_counts_of_a_site_stay_within_the_plan_of_the_examples_that_it_reports(tmp_path):
    """Without a bound of norms the capped device has counted the steps of all its examples."""
    plan = TrainPlan("adam", 0.1, 20, moments=MOMENTS)
    site = site_of(plain_command(tmp_path, plan), tmp_path, norm_bound="off", max_num_examples="30")
    start, examples = site.state.tensors, {"ann": 30, "bob": 50_000}
    counted = {
        device: {
            name: value + np.float32(plan.steps_for(count)) if name.endswith(":step") else value
            for name, value in start.items()
        }
        for device, count in examples.items()
    }
    site.aggregate(sorted(examples), examples, counted.__getitem__, round_number=7)
    site.save(RoundRecord(7, "aggregated", 2, 2, 0, 2, num_examples=50_030))
    assert site.answer is not None
    answer, blob = site.answer
    schema = parse_policy("affine").public(MODEL.schema).with_moments(MOMENTS)
    expected = ExpectedUpdate(schema, frozenset(), answer.base, start, plan)
    read, _ = read_update(blob, expected, encoding="fp32+zstd", raw_bytes=answer.manifest.raw_bytes)
    assert read.num_examples == 60


@given(st.floats(-1e12, 1e12), st.integers(1, 9), st.integers(1, 10**6))
def test_mean_of_equal_user_accuracies_is_that_value_so_that_no_site_leaves_the_range(value, devices, members):
    assert mean_accuracy([(value, members + at) for at in range(devices)]) == value
