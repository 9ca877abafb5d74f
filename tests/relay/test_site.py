"""The site's thread with a real broker and light devices: rounds, cancels, and the update that outlasts a restart."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.pki.certificate_authority import Authority
from fedpatch.coordinator.pki.issued_certificates import DEVICE, INDEX_NAME
from fedpatch.coordinator.rounds.held_devices import DRAINED
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import (
    Downloaded,
    Evaluated,
    Ready,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
)
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.relay.hub import make_relay
from fedpatch.relay.request_refusal import RelayLimits
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site import Site
from fedpatch.relay.site_members import Ability
from fedpatch.relay.site_round import SiteModel
from fedpatch.relay.site_trainer import SiteTrainer
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import StateError
from fedpatch.shared.mqtt.broker_profile import PROFILES, BrokerProfile
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.features import EVALUATE_FEATURE, MASKED_FEATURE, MEMBERS_FEATURE, SIGNED_FEATURE
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import TrainPlan, WorkRequest
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason
from tests.relay.light_site import LightSite, accuracy_of, examples_of
from tests.support.brokers import Mosquitto
from tests.support.masked_group import terms_of
from tests.system.oracle_task import TASK

pytestmark = [pytest.mark.broker, pytest.mark.medium]

MODEL = SiteModel(TASK, schema_of(TASK.build_model()))
PUBLIC = parse_policy("affine").public(MODEL.schema)
DEVICES = ["ann", "bob"]
PATIENCE_S = 60.0


class Bench:
    """A site of two devices, and the commands of a hub."""

    def __init__(self, directory: Path, broker: Mosquitto) -> None:
        self.directory = directory
        self.events: SimpleQueue[TrainerEvent] = SimpleQueue()
        given: dict[str, Any] = {"up": "mqtts://hub.example", "device_id": "site-7", "fleet": "site-7"}
        given |= {"down": broker.url, "state_dir": str(directory / "state"), "min_cohort": 2, "quorum": 1.0}
        given |= {"norm_bound": "off", "max_num_examples": "off", "task": "tests.system.oracle_task:TASK"}
        self.settings = load(RelaySettings, file=None, environ={}, flags=given)

    def hold(self, *devices: str) -> None:
        """The operator drains devices."""
        with Registry(self.settings.site_dir / REGISTRY_FILE) as registry:
            for device in devices:
                registry.holds.put(self.settings.fleet, device, DRAINED, "", 0.0)

    def site(self) -> Site:
        return Site(self.settings, MODEL, self.events.put, lambda: None)

    def await_event(self, fits: Callable[[TrainerEvent], bool]) -> Any:
        """The next event that fits; events before it are dropped."""
        give_up_at = time.monotonic() + PATIENCE_S
        while not fits(event := self.events.get(timeout=give_up_at - time.monotonic())):
            pass
        return event

    def await_end(self) -> Any:
        return self.await_event(lambda one: isinstance(one, Trained | Evaluated | TrainFailed | TrainCancelled))

    def await_devices(self) -> Ready:
        ready: Ready = self.await_event(lambda one: isinstance(one, Ready) and one.members == len(DEVICES))
        return ready

    def command(self, number: int = 1, value: float = 1.0, deadline_s: float = 60.0) -> TrainCommand:
        """The request of a round whose model has this value everywhere."""
        tensors = {spec.name: np.full(spec.shape, value, spec.dtype) for spec in PUBLIC.specs}
        packed = pack(tensors, PUBLIC, {"round": number}, "fp32")
        manifest = packed.manifest(1000, PUBLIC)
        path = self.directory / f"model-{number}"
        path.write_bytes(packed.blob)
        return TrainCommand(
            key=JobKey("run-1", 1, number, TASK.name),
            plan=TrainPlan("sgd", 0.1, 20),
            private="affine",
            schema=MODEL.schema.digest,
            blob=Downloaded(str(path)),
            model=manifest,
            encoding="fp32",
            base=manifest.digest,
            update_path=str(self.directory / "spool" / "update"),
            download_s=0.0,
            chunk_bytes=1000,
            ends_at=time.monotonic() + deadline_s,
        )

    def request(self) -> WorkRequest:
        command = self.command()
        return WorkRequest(MODEL.schema.digest, "affine", command.plan, command.model, "fp32", 1000, 60.0)


@pytest.fixture
def bench(mosquitto: Mosquitto, tmp_path: Path) -> Bench:
    return Bench(tmp_path, mosquitto)


@pytest.fixture
def devices(mosquitto: Mosquitto) -> Iterator[LightSite]:
    with LightSite(mosquitto.url, "site-7", TASK.name, MODEL.schema, DEVICES) as site:
        yield site


def test_site_reports_its_devices_and_plays_each_request_as_a_round(bench, devices):
    with bench.site() as site:
        site.start()
        assert bench.await_devices().num_examples == sum(map(examples_of, DEVICES))
        for number in (3, 5):
            command = bench.command(number, value=float(number))
            site.play(command, tells_members=True)
            trained = bench.await_end()
            assert isinstance(trained, Trained), trained
            assert (trained.report.members, trained.report.base) == (2, command.base)
            blob = Path(command.update_path).read_bytes()
            manifest = trained.manifest
            meta, tensors = unpack(blob, encoding="fp32", raw_bytes=manifest.raw_bytes, schema=PUBLIC)
            assert meta == trained.report.plain
            assert all(np.abs(values - number).max(initial=0) < 0.1 for values in tensors.values())
    assert [len(one.requests) for one in devices.updates.values()] == [2, 2]


@pytest.mark.parametrize("replaced", [False, True])
def test_site_whose_state_directory_is_lost_ends_and_writes_nothing_to_the_new_one(bench, devices, caplog, replaced):
    ended = threading.Event()
    state_dir = bench.settings.state_dir
    with Site(bench.settings, MODEL, bench.events.put, ended.set) as site:
        site.start()
        bench.await_devices()
        state_dir.rename(state_dir.with_name("lost"))
        if replaced:
            bench.settings.site_dir.mkdir(parents=True)
        site.play(bench.command())
        assert ended.wait(PATIENCE_S)
    assert f"{bench.settings.site_dir}: was " in caplog.text
    assert [*state_dir.rglob("*")] == ([bench.settings.site_dir] if replaced else [])


def test_site_with_a_drained_device_reports_the_others_and_plays_the_round_with_them(bench, devices):
    bench.settings = replace(bench.settings, min_cohort=1)
    with bench.site() as site:
        site.start()
        bench.await_devices()
        bench.hold("bob")
        told = bench.await_event(lambda one: isinstance(one, Ready) and one.members == 1)
        assert told.num_examples == examples_of("ann")
        site.play(bench.command())
        trained = bench.await_end()
        assert isinstance(trained, Trained), trained
    assert [len(one.requests) for one in devices.updates.values()] == [1, 0]


def test_site_is_unwilling_while_its_devices_are_revoked_or_drained(bench, devices):
    settings = bench.settings
    authority = Authority.create(settings.downwards.ca_directory, settings.fleet, now=time.time())
    with bench.site() as site:
        site.start()
        bench.await_devices()
        assert site.summary.unwilling is None
        authority.issue(DEVICE, "ann", now=time.time())
        authority.revoke(DEVICE, "ann", now=time.time())
        bench.hold("bob")
        bench.await_event(lambda one: isinstance(one, Ready) and one.num_examples == 0)
        assert site.summary.unwilling is Condition.PAUSED


def test_site_whose_ca_has_an_unreadable_record_does_not_start(bench):
    directory = bench.settings.downwards.ca_directory
    directory.mkdir(parents=True)
    (directory / INDEX_NAME).write_text("damaged")
    with pytest.raises(StateError, match=INDEX_NAME), bench.site():
        pass


def test_request_to_measure_is_answered_with_the_mean_of_the_devices_and_leaves_no_update(bench, devices):
    with bench.site() as site:
        site.start()
        bench.await_devices()
        command = replace(bench.command(2), evaluate=True)
        site.play(command, tells_members=True)
        answer = bench.await_end()
        assert isinstance(answer, Evaluated), answer
        found = answer.evaluation
        assert found.user_accuracy == pytest.approx(statistics.fmean(map(accuracy_of, DEVICES)))
        assert (found.base, found.members) == (command.base, len(DEVICES))
        assert found.num_examples == sum(map(examples_of, DEVICES))
        assert not Path(command.update_path).exists()
        site.play(replace(bench.command(2), ends_at=time.monotonic() + 60))
        assert isinstance(bench.await_end(), Trained)


def test_too_few_devices_that_measure_fail_the_evaluate_round(bench, devices):
    devices.updates["bob"].delay_s = 4.0
    with bench.site() as site:
        site.start()
        bench.await_devices()
        site.play(replace(bench.command(deadline_s=4.0), evaluate=True))
        failed = bench.await_end()
        assert (failed.reason, failed.detail) == (FailReason.DEADLINE, "1 of 2 devices of the site measured")


def test_hub_without_the_word_members_gets_a_report_without_them(bench, devices):
    with bench.site() as site:
        site.start()
        bench.await_devices()
        site.play(bench.command())
        assert "members" not in bench.await_end().report.plain


def test_update_of_a_finished_round_is_given_again_after_a_restart_without_asking_the_devices(bench, devices):
    command = bench.command()
    with bench.site() as site:
        site.start()
        bench.await_devices()
        site.play(command)
        first = bench.await_end()
    Path(command.update_path).unlink()
    with bench.site() as site:
        site.start()
        site.play(replace(command, ends_at=time.monotonic() + 60))
        assert bench.await_end() == first
    assert Path(command.update_path).exists()
    assert [len(one.requests) for one in devices.updates.values()] == [1, 1]


def test_device_that_missed_a_round_of_the_site_does_not_keep_the_next_one_from_its_quorum(bench, devices, mosquitto):
    bench.settings = replace(bench.settings, quorum=0.8, grace_s=0.0)
    with LightSite(mosquitto.url, "site-7", TASK.name, MODEL.schema, ["cat"]) as silent, bench.site() as site:
        silent.updates["cat"].delay_s = 6.0
        site.start()
        bench.await_event(lambda one: isinstance(one, Ready) and one.members == len(DEVICES) + 1)
        site.play(bench.command(1, deadline_s=4.0), tells_members=True)
        assert bench.await_end().reason is FailReason.DEADLINE
        site.play(bench.command(2), tells_members=True)
        trained = bench.await_end()
        assert isinstance(trained, Trained), trained
        assert trained.report.members == len(DEVICES)


def test_cancelled_round_ends_and_the_next_one_is_played(bench, devices):
    devices.updates["bob"].delay_s = 3.0
    with bench.site() as site:
        site.start()
        bench.await_devices()
        site.play(bench.command(1))
        time.sleep(1.0)
        site.cancel()
        site.play(bench.command(2))
        assert bench.await_end() == TrainCancelled(JobKey("run-1", 1, 1, TASK.name))
        trained = bench.await_end()
        assert isinstance(trained, Trained), trained
        assert trained.key.round == 2


def test_damaged_model_and_too_short_a_time_fail_the_round_with_their_reasons(bench, devices):
    with bench.site() as site:
        site.start()
        bench.await_devices()
        command = bench.command()
        site.play(replace(command, ends_at=time.monotonic() + 1))
        assert bench.await_end().reason is FailReason.DEADLINE
        Path(command.blob.path).write_bytes(b"damaged")
        site.play(command)
        assert bench.await_end().reason is FailReason.DOWNLOAD
        site.play(replace(command, key=replace(command.key, run="../escape")))
        assert bench.await_end().reason is FailReason.STORAGE
        site.play(bench.command(2))
        assert isinstance(bench.await_end(), Trained)


def test_round_after_a_lower_packet_limit_of_the_broker_has_smaller_chunks(bench, devices, mosquitto):
    limit_bytes = 20_000
    with bench.site() as site:
        site.start()
        bench.await_devices()
        mosquitto.stop()
        bench.await_event(lambda one: isinstance(one, Ready))
        with (mosquitto.directory / "mosquitto.conf").open("a") as config:
            config.write(f"max_packet_size {limit_bytes}\n")
        mosquitto.start()
        bench.await_event(lambda one: isinstance(one, Ready))
        site.play(bench.command())
        assert isinstance(bench.await_end(), Trained)
    [request] = devices.updates["ann"].requests
    assert max(request.model.chunk_bytes, request.chunk_bytes) < limit_bytes


def test_link_of_the_relay_keeps_the_limits_of_the_hubs_broker(bench):
    """The link to the site's own broker does not get these limits."""
    made: list[tuple[MqttLink, BrokerProfile]] = []

    def link(*given: Any, profile: BrokerProfile, **named: Any) -> MqttLink:
        made.append((MqttLink(*given, profile=profile, **named), profile))
        return made[-1][0]

    settings = replace(bench.settings, up_broker_profile="aws")
    with bench.site() as site:
        make_relay(settings, Identity.new("world", "site-7"), SimpleQueue(), site, link=link)
    [(up, profile)] = made
    up.stop()
    assert profile == PROFILES["aws"]


def test_relay_declines_while_its_site_is_empty_and_what_it_cannot_pass_on(bench):
    with bench.site() as site:
        limits = RelayLimits(bench.settings, site)
        plain = bench.request()
        refused = limits.refusal(TASK.name, plain)
        assert refused is not None
        assert (refused.reason, refused.condition) == (DeclineReason.UNWILLING, Condition.PAUSED)
        able = Ability(frozenset({EVALUATE_FEATURE}))
        site.summary = replace(site.summary, unwilling=None, abilities={Ability(frozenset()): 2, able: 1})
        assert limits.refusal(TASK.name, plain) is None
        refused = limits.refusal(TASK.name, replace(plain, evaluate=True))
        assert refused is not None
        assert (refused.reason, refused.condition) == (DeclineReason.UNWILLING, None)
        assert "1 willing devices of the site know evaluate, and min_cohort is 2" in refused.why
        assert limits.refusal(TASK.name, replace(plain, plan=replace(plain.plan, prox=0.1))) is not None
        site.summary = replace(site.summary, abilities={able: 2})
        assert limits.refusal(TASK.name, replace(plain, evaluate=True)) is None


@pytest.mark.parametrize(("features", "tells"), [((MEMBERS_FEATURE,), True), ((), False)])
def test_round_of_the_site_tells_members_to_a_hub_whose_request_knows_them(bench, features, tells):
    played: list[bool] = []
    site: Any = SimpleNamespace(play=lambda _, *, tells_members: played.append(tells_members))
    job: Any = SimpleNamespace(request=replace(bench.request(), features=features))
    SiteTrainer(site, job, print).train(bench.command())
    assert played == [tells]


@pytest.mark.parametrize(
    ("masking", "changes", "reason", "words"),
    [
        (8, {}, None, ""),
        (7, {}, DeclineReason.UNWILLING, "too few devices of the site would mask updates: a group has at least 8"),
        (600_000, {"bits": 16}, DeclineReason.UNSUPPORTED, "does not fit 32 bits"),
        (8, {"threshold": ThresholdRule.TWO_THIRDS, "strict": True}, DeclineReason.UNSUPPORTED, "down_ca_file"),
    ],
    ids=["a whole group", "fewer than a group", "a sum beyond 32 bits", "signed keys without the site's CA"],
)
def test_relay_takes_a_masked_round_that_its_site_can_play_and_names_what_stands_against_it(
    bench, masking, changes, reason, words
):
    with bench.site() as site:
        able = Ability(frozenset({MASKED_FEATURE, SIGNED_FEATURE}))
        site.summary = replace(site.summary, unwilling=None, num_examples=10, abilities={able: masking})
        limits = RelayLimits(bench.settings, site)
        terms = terms_of(8, group_min=8, **changes)
        asked = replace(bench.request(), encoding="masked-sum", secure=terms)
        refused = limits.refusal(TASK.name, asked)
        assert (None if refused is None else refused.reason) == reason
        assert refused is None or words in refused.why


def test_decline_of_a_relay_names_no_file_of_its_site(bench, caplog):
    """Only the log of the relay does."""
    ca_file = bench.directory / "home" / "ca.pem"
    with bench.site() as site:
        able = Ability(frozenset({MASKED_FEATURE, SIGNED_FEATURE}))
        site.summary = replace(site.summary, unwilling=None, num_examples=10, abilities={able: 8})
        limits = RelayLimits(replace(bench.settings, down_ca_file=ca_file), site)
        terms = terms_of(8, group_min=8, threshold=ThresholdRule.TWO_THIRDS, strict=True)
        refused = limits.refusal(TASK.name, replace(bench.request(), encoding="masked-sum", secure=terms))
    assert refused is not None and refused.reason is DeclineReason.UNSUPPORTED
    assert "its log names" in refused.why
    assert str(ca_file) in caplog.text
    assert ca_file.name not in refused.why and str(ca_file.parent) not in refused.why
