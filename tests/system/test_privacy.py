"""No name or value of a device's patch is ever on the wire."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.device_agent.models.store import MODELS_DIRECTORY
from fedpatch.device_agent.state.patch_store import PERSONAL, PatchKey, PatchStore
from fedpatch.shared.tasks.model_metadata import INPUTS_FILE, inputs_from_json
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.shared.tensors.patches import parse_policy, policy_of_names
from fedpatch.shared.wire.topics import parse_topic
from tests.support.brokers import Mosquitto, client
from tests.support.identities import Certified
from tests.support.secured import SecuredMosquitto, rules
from tests.support.sent_fields import unlisted_in
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE, TASK, build_model
from tests.system.recording import Haystack, Recorder, distinct_windows
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]

ROUNDS = 3
DEVICES = {"ann": "n=37,test=30,seed=1", "bob": "n=24,test=30,seed=2"}
STRATEGY = "fedavg-adam"  # this strategy sends moments
EVE, RECORDER = "eve", "recorder"
NAMES = "names:bn1.running_*,fc3.*"  # without full names, since requests have this text
CASES = [(private, "fp32") for private in ("stats", "affine", "all", NAMES)] + [
    ("all", "fp32+zstd"),
    ("affine", "delta-int8"),
]
TERMS = (
    ("affine", {"phases": "private:1,public:1"}, "private,public"),
    ("affine", {"personal": "ditto:0.1"}, "ditto"),
    ("affine", {"finish": "all:1"}, ""),
    ("stats", {"personal": "pfedme:2", "strategy": "fedavg"}, "pfedme"),  # model and copy share the statistics
    ("affine", {"strategy": "scaffold"}, ""),
)


@dataclass
class Stage:
    """Agents at a broker whose queues drop no message for the recorder."""

    broker: Mosquitto
    fleet: Fleet
    coordinator: dict[str, Any] = field(default_factory=dict)
    """Settings for the coordinator's connection."""
    recorder: tuple[int, Sequence[object]] = (0, ())
    """Port and options of the recorder, which may read everything."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two agents for all tests; each policy and encoding has its own patch."""
    directory = tmp_path_factory.mktemp("fleet")
    with Mosquitto("max_queued_messages 0") as broker, Fleet(broker.url, directory) as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data, options=["--private", "none"])  # so runs may use each policy
        fleet.wait_ready()
        yield Stage(broker, fleet, {"broker": broker.url}, (broker.port, ()))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The same at the shipped broker, with TLS, certificates and rules; only the recorder may read everything."""
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certified(directory / "ca", "demo").make(*DEVICES, EVE, watchers=[RECORDER])
    acl = rules("demo", [*DEVICES, EVE]) + f"\nuser {RECORDER}\ntopic readwrite #\n\npattern readwrite barrier/%u\n"
    with (
        SecuredMosquitto(certificates, acl, options="max_queued_messages 0\nmax_queued_bytes 0") as broker,
        Fleet(broker.url, directory) as fleet,
    ):
        for device, data in DEVICES.items():
            fleet.start(
                device, REFERENCE, data, options=["--ca-file", str(certificates.ca_file), *_own(certificates, device)]
            )
        fleet.wait_ready()
        cert_file, key_file = certificates.pair("coordinator")
        connects = {"broker": broker.coordinator_url, "ca_file": certificates.ca_file}
        connects |= {"cert_file": cert_file, "key_file": key_file}
        cert, key = certificates.pair(RECORDER)
        reads = ("--cafile", certificates.ca_file, "--cert", cert, "--key", key)
        yield Stage(broker, fleet, connects, (broker.coordinator_port, reads))


def _own(certificates: Certified, device: str) -> list[str]:
    cert_file, key_file = certificates.pair(device)
    return ["--cert-file", str(cert_file), "--key-file", str(key_file)]


def _recorded(stage: Stage, tmp_path: Path, private: str, encoding: str, **plan: Any) -> tuple[str, Haystack]:
    """Run three rounds and an evaluation with all devices; return the run's id and all messages on the broker meanwhile."""
    terms = {"strategy": STRATEGY, "private": private, "encoding": encoding, "rounds": ROUNDS, "quorum": 1.0, **plan}
    terms |= {"evaluate_every": ROUNDS}
    settings = replace(stage.fleet.settings(tmp_path, REFERENCE, **terms), **stage.coordinator)
    port, options = stage.recorder
    with Recorder(port, tmp_path, options) as recorder:
        summary = start_run(settings, Silent())
    assert [record.reported for record in summary.rounds] == [len(DEVICES)] * (ROUNDS + 1)
    assert summary.rounds[-1].outcome == "evaluated"
    _check_fields(stage.fleet.name, recorder.messages)
    return summary.run, Haystack(recorder.messages)


def _check_fields(fleet: str, messages: list[tuple[str, bytes]]) -> None:
    """Check that each field that a device sent is in the list of what leaves it."""
    sent = [(parse_topic(fleet, topic), payload) for topic, payload in messages if payload]
    payloads = [payload for topic, payload in sent if topic is not None and topic.kind in ("up", "device_state")]
    assert payloads
    assert set().union(*map(unlisted_in, payloads)) == set()


def _key(policy: str) -> PatchKey:
    words, _, kind = policy.partition(" ")
    schema = schema_of(build_model())
    named = str(policy_of_names(parse_policy(words).keeps(schema), schema))
    return PatchKey.of_plan(TASK.name, schema.digest, named, kind)


def _patches(directory: Path, run: str, policy: str, scratch: Path) -> list[dict[str, Array]]:
    """Return the device's patch after each round: its file has two states, and the file before has one more."""
    key = _key(policy)
    scratch.mkdir()
    shutil.copy(directory / f"{key.file_name}.previous", scratch / key.file_name)
    newest, before = PatchStore(directory), PatchStore(scratch)
    states = [before.load(key, run, ROUNDS - 1), newest.load(key, run, ROUNDS), newest.load(key, "another run", 0)]
    first, second, third = (state.batches_done for state in states)
    assert third - second == second - first > 0
    return [dict(state.values) for state in states]


def _input_statistics(agent: AgentProcess) -> dict[str, Array]:
    """Return the input statistics beside the metadata of the device's personal model, in both precisions."""
    file = agent.patches.parent / MODELS_DIRECTORY / TASK.name / "current" / INPUTS_FILE
    known = inputs_from_json(file.read_bytes(), str(file))
    found: dict[str, Array] = {}
    for name in ("mean", "std", "min", "max"):
        values = getattr(known, name)
        found[f"inputs.{name}"] = np.array(values, np.float32)
        found[f"inputs.{name} as double"] = np.frombuffer(np.array(values, np.float64).tobytes(), np.float32)
    return found


def _published(state_dir: Path, run: str, scratch: Path) -> dict[str, Array]:
    """Return the global model and moments with which the last round began."""
    scratch.mkdir()
    shutil.copy(run_directory(state_dir, run) / f"checkpoint-{ROUNDS - 1:06d}.fp", scratch)
    return load_checkpoint(scratch)[0].tensors


def _distinct(tensors: dict[str, Array]) -> set[str]:
    """Return the names of tensors whose values can be searched: not counters and steps, which have a single value."""
    return {name for name, array in tensors.items() if distinct_windows(array)}


def _whole_schema(strategy: str = STRATEGY) -> Schema:
    return schema_of(build_model()).with_moments(find_strategy(strategy).moments)


@pytest.mark.parametrize(
    ("private", "encoding"),
    [*CASES[1:3], *(pytest.param(*one, marks=pytest.mark.slow) for one in (CASES[0], *CASES[3:]))],
)
def test_neither_names_nor_values_of_a_patch_are_on_the_wire(stage, tmp_path, private, encoding):
    _check_what_was_private(stage, tmp_path, private, encoding)


def _check_what_was_private(
    stage: Stage, tmp_path: Path, private: str, encoding: str, kind: str = "", **plan: Any
) -> None:
    run, haystack = _recorded(stage, tmp_path, private, encoding, **plan)
    policy = f"{private} {kind}".strip()
    whole = _whole_schema(plan.get("strategy", STRATEGY))
    private_names = parse_policy(private).private_names(whole)
    for device, agent in stage.fleet.agents.items():
        for patch in _patches(agent.patches, run, policy, tmp_path / device):
            assert patch.keys() == private_names
            assert len(_distinct(patch)) > len(patch) / 3
            assert haystack.names_of(patch) == set()
            assert haystack.values_of(patch) == set()
        if plan.get("personal"):
            for copy in _patches(agent.patches / PERSONAL, run, policy, tmp_path / f"{device}-copy")[1:]:
                assert _distinct(copy) and haystack.values_of(copy) == set()
        if plan.get("finish"):
            finished = dict(PatchStore(agent.patches / PERSONAL).load(_key(policy), "another run", 0).values)
            assert _distinct(finished) and haystack.values_of(finished) == set()
        statistics = _input_statistics(agent)
        assert _distinct(statistics) and haystack.values_of(statistics) == set()
    public = _published(tmp_path, run, tmp_path / "published")
    assert public.keys() == set(whole.names) - private_names
    assert haystack.names_of(public) == public.keys()
    assert haystack.values_of(public) == _distinct(public)


@pytest.mark.parametrize(
    ("private", "terms", "kind"), [TERMS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in TERMS[1:])]
)
def test_neither_patch_nor_personal_copy_of_a_plan_with_terms_are_on_the_wire(stage, tmp_path, private, terms, kind):
    """Of the copy only values are searched, since it has the names of the model."""
    _check_what_was_private(stage, tmp_path, private, "fp32", kind, **terms)


@pytest.mark.parametrize("encoding", ["fp32", pytest.param("fp32+zstd", marks=pytest.mark.slow)])
def test_the_same_search_finds_what_is_not_private(stage, tmp_path, encoding):
    run, haystack = _recorded(stage, tmp_path, "none", encoding)
    private_elsewhere = parse_policy("all").private_names(_whole_schema())
    published = _published(tmp_path, run, tmp_path / "published")
    batch_norm = {name: array for name, array in published.items() if name in private_elsewhere}
    assert haystack.names_of(batch_norm) == private_elsewhere
    assert haystack.values_of(batch_norm) == _distinct(batch_norm)
    assert {"bn1.weight", "bn2.running_var", "bn1.bias:exp_avg", "bn2.weight:exp_avg_sq"} <= _distinct(batch_norm)


def test_over_tls_the_broker_itself_sees_nothing_private_and_a_device_nothing_of_another(secured, tmp_path):
    """A reader of everything finds no patch; a third device that subscribes to everything gets only the model.

    It subscribes by wildcards and to the other devices' own topics. The broker grants this, and delivers nothing.
    """
    certificates = secured.broker.certificates
    others = [f"fedpatch/1/demo/dev/{device}/{end}" for device in DEVICES for end in ("#", "state", "up", "dn")]
    everything = ["#", "fedpatch/#", "fedpatch/1/demo/dev/+/+", "fedpatch/1/demo/dev/+/blob/+/+", *others]
    eve = certificates.files(EVE)
    with client(secured.broker.url, EVE, *everything, tls=eve) as listener:
        listener.settle()
        _check_what_was_private(secured, tmp_path, "affine", "fp32")
        listener.settle()
        came = {topic for topic in listener.topics if topic.startswith("fedpatch/")}
    kinds = {found.kind for topic in came if (found := parse_topic("demo", topic))}
    assert kinds == {"coordinator_state", "model_chunk"}
    assert not [topic for topic in came if "/dev/" in topic]
