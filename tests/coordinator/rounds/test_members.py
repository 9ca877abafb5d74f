"""Relays in a run: invited relays, their requests, and the weight of their figures in the record."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.round_journal import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.round_phases import Round
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import RoundTraffic, build_record
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import DevicePresence, ModelPublished, RunStarted
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.codec import decode, encode, to_plain
from fedpatch.shared.wire.features import EVALUATE_FEATURE, MEMBERS_FEATURE
from fedpatch.shared.wire.messages import Envelope, Evaluation, TaskCapability, WorkRequest, members_field
from tests.coordinator.engines import engine, send
from tests.support.specs import SCHEMA, TASK, model, report, run_spec, sent, there


def relay(members: int):
    """Return the presence of a relay with this number of members."""
    return there(tasks=(TaskCapability(TASK, SCHEMA, 10 * members, members_field(members)),))


def test_relay_beyond_max_members_is_not_asked_and_the_reason_names_the_setting():
    made = engine()
    made.handle(DevicePresence("site", relay(5)), 0.0)
    assert made.fleet.eligible() == []
    assert "max_members is 1" in made.fleet.members["site"].barred
    made.handle(DevicePresence("site", relay(1)), 1.0)
    assert made.fleet.eligible() == ["site"]


def test_relay_in_a_run_that_it_cannot_pass_on_is_barred_with_that_reason():
    fleet = Fleet(TASK, needs={"dp": "its version does not know dp"}, max_members=9)
    fleet.update("site", replace(relay(5), features=()))
    fleet.update("old", replace(there(), features=()))
    assert "it is a relay" in fleet.members["site"].barred
    assert fleet.members["old"].barred == "its version does not know dp"


def test_request_tells_a_relay_that_members_are_known_and_leaves_that_of_a_device_as_it_was():
    made = engine(devices=2, limits=Limits(max_members=5))
    made.handle(DevicePresence("ann", there()), 0.0)
    made.handle(DevicePresence("site", relay(5)), 0.0)
    requests = {
        device: body
        for device, body in sent(made.handle(ModelPublished(model()), 0.0))
        if isinstance(body, WorkRequest)
    }
    assert MEMBERS_FEATURE in requests["site"].features
    assert MEMBERS_FEATURE not in requests["ann"].features


@pytest.mark.parametrize("max_members", [1, 5])
def test_resumed_round_tells_devices_of_unknown_presence_that_members_are_known_if_it_asks_relays(max_members):
    """A relay that has not begun its round reports by the first request, which is sent before its presence arrives."""
    start = RoundStart(RoundJournal(1, 2, ("ann", "site"), model().digest))
    spec = run_spec(epoch=2, limits=Limits(max_members=max_members))
    made = Engine(spec, unfinished=start, jitter=random.Random(1))
    made.handle(RunStarted(), 0.0)
    asked = [body for _, body in sent(made.handle(ModelPublished(model()), 0.0)) if isinstance(body, WorkRequest)]
    assert [MEMBERS_FEATURE in request.features for request in asked] == [max_members > 1] * 2
    [(_, again)] = sent(made.handle(DevicePresence("ann", there()), 1.0))
    assert isinstance(again, WorkRequest)
    assert MEMBERS_FEATURE not in again.features


def test_presence_has_members_and_path_only_where_they_are_set():
    plain = to_plain(there())
    assert "path" not in plain
    assert "members" not in plain["tasks"][0]
    state = replace(relay(5), path=("a1", "b2"))
    assert decode(encode(Envelope(state))).body == state


def test_record_weighs_accuracies_and_losses_by_members():
    reports = {
        "ann": replace(report(0.5), user_accuracy_after=0.6, train_loss=1.0),
        "site": replace(report(0.9), user_accuracy_after=0.9, train_loss=2.0, members=3),
    }
    record = _record(reports)
    assert (record.user_accuracy, record.user_accuracy_after, record.train_loss) == pytest.approx((0.8, 0.825, 1.75))
    assert (record.measured, record.reported) == (4, 2)


def test_record_names_no_worst_device_where_a_relay_reports_a_mean():
    alone = _record({"ann": report(0.5), "bob": report(0.7)})
    assert (alone.user_accuracy_min, alone.user_accuracy_p10) == pytest.approx((0.5, 0.52))
    mixed = _record({"ann": report(0.5), "site": replace(report(0.7), members=2)})
    assert (mixed.user_accuracy_min, mixed.user_accuracy_p10) == (None, None)


def test_evaluation_of_a_relay_has_the_weight_of_its_devices():
    record = _evaluated({"ann": (0.5, 1), "site": (0.9, 3)})
    assert record.user_accuracy == pytest.approx(0.8)
    assert (record.measured, record.failures) == (4, {})


def test_evaluation_with_more_members_than_registered_fails_the_relay():
    record = _evaluated({"ann": (0.5, 1), "liar": (0.1, 5), "site": (0.9, 3)})
    assert record.measured == 4
    assert record.failures == {"num_examples": 1}


def _evaluated(answers: dict[str, tuple[float, int]]) -> RoundRecord:
    """Return the record of an evaluate round with these user accuracies and members; `site` has 3 registered members."""
    made = engine(devices=len(answers), evaluates_only=True, limits=Limits(max_members=5))
    for device, members in {device: 3 if device == "site" else 1 for device in answers}.items():
        made.handle(DevicePresence(device, replace(relay(members), features=(EVALUATE_FEATURE,))), 0.0)
    made.handle(ModelPublished(model()), 0.0)
    for device, (value, members) in answers.items():
        send(made, device, Evaluation(model().digest, value, 20, 0.25, members_field(members)), 1.0)
    [record] = made.records
    return record


def _record(reports):
    current = Round(1, run_spec().policy, now=0.0)
    current.begin(tuple(reports), now=0.0)
    return build_record(current, "aggregated", reports, RoundTraffic(0, 0), {}, metric=MetricTerms())
