"""`fedpatch doctor`: the checks of task, devices and disk; the checks of brokers are in tests/broker."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.operations.doctor import _shared_ids, examine
from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared import __version__
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.diagnostics.checks import Finding
from fedpatch.shared.diagnostics.host import Space, check_state_dir
from fedpatch.shared.errors import StateError
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.features import EVALUATE_FEATURE, MASKED_FEATURE, SHARED_ID_FEATURE, URL_FEATURE
from fedpatch.shared.wire.messages import ENCODINGS, CoordinatorState, DeviceState, Envelope, TaskCapability
from fedpatch.shared.wire.plan_terms import CONTROL, PLAN_TERMS
from tests.coordinator.registry_builders import new_run, seen
from tests.support.brokers import HOST, Mosquitto, client, free_port
from tests.support.checkups import FLEET, patient_doctors, quiet_checkup
from tests.support.pooler import transaction_pooler
from tests.support.postgresql import ROLE, PostgresServer

TASKS = """
from dataclasses import replace
from fedpatch.shared.tasks.bundled import digits

def build_model():
    raise ValueError("no such layer")

TASK = replace(digits.TASK, name="broken", build_model=build_model)
"""


@pytest.fixture(scope="module")
def schema() -> str:
    """The schema digest of the default model."""
    return prepare(RunSettings()).schema.digest


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    """Settings with a broker that does not answer."""
    return RunSettings(broker=f"mqtt://{HOST}:{free_port()}", fleet=FLEET, state_dir=tmp_path / "state")


def find(settings: RunSettings) -> dict[str, Finding]:
    checkup = quiet_checkup()
    with patient_doctors():
        examine(settings, checkup)
    return {one.name: one for one in checkup.findings}


@contextlib.contextmanager
def published(settings: RunSettings, **states: DeviceState) -> Iterator[RunSettings]:
    """Settings with a broker that retains these states of devices."""
    with Mosquitto() as broker, client(broker.url, "there") as there:
        for device, state in states.items():
            topic = topics.device_state(FLEET, device.replace("_", "-"))
            there.link.publish(topic, encode(Envelope(state)), retain=True)
        there.settle()
        yield replace(settings, broker=broker.url)


def state(schema: str, **more: Any) -> DeviceState:
    """Return the state of a device that matches the run."""
    fits = DeviceState(True, "x", __version__, (TaskCapability("digits", schema, 144),), ENCODINGS)
    return replace(fits, **more)


@pytest.mark.broker
def test_matching_devices_are_counted_and_named(settings, schema):
    with published(settings, pi_1=state(schema), pi_2=state(schema), pi_3=DeviceState(False, "x")) as there:
        found = find(replace(there, devices=2))
    assert found["devices"].verdict == "ok"
    assert found["devices"].detail == "2 online in fleet home: pi-1, pi-2"
    assert not any(name.startswith("device_") for name in found)
    assert all(one.verdict in ("ok", "skip") for one in found.values())


@pytest.mark.broker
def test_each_kind_of_mismatch_is_a_warning_with_its_remedy(settings, schema):
    odd = {
        "pi_1": state("f" * 64),
        "pi_2": state(schema, tasks=(TaskCapability("mnist", schema, 1),)),
        "pi_3": state(schema, version="0.0.1"),
        "pi_4": state(schema, encodings=("fp32",)),
        "pi_5": state(schema),
    }
    with published(settings, **odd) as there:
        found = find(there)
    misfits = {name: one for name, one in found.items() if name.startswith("device_")}
    assert {name: one.detail.split()[0] for name, one in misfits.items()} == {
        "device_schema": "pi-1",
        "device_task": "pi-2",
        "device_version": "pi-3",
        "device_encoding": "pi-4",
    }
    assert {one.verdict for one in misfits.values()} == {"warn"}
    assert "ffffffffffff" in found["device_schema"].detail and schema[:12] in found["device_schema"].detail
    assert "same version of the task digits" in found["device_schema"].remedy
    assert "--task digits" in found["device_task"].remedy
    assert "will be asked for fp32: it takes part" in found["device_encoding"].detail


@pytest.mark.broker
def test_devices_that_still_load_their_task_are_named_and_called_no_mismatch(settings, schema):
    starting = {name: state(schema, tasks=()) for name in ("pi_1", "pi_2")}
    with published(settings, **starting, pi_3=state(schema)) as there:
        found = find(replace(there, devices=3))
    assert found["device_starting"].verdict == "skip"
    assert found["device_starting"].detail.startswith("pi-1, pi-2: still loading the task")
    assert found["devices"].detail == "3 online in fleet home: pi-1, pi-2, pi-3"
    assert [name for name in found if name.startswith("device_")] == ["device_starting"]


@pytest.mark.broker
def test_devices_that_cannot_mask_are_named_in_a_masked_run(settings, schema):
    with published(settings, pi_1=state(schema), pi_2=state(schema, features=(MASKED_FEATURE,))) as there:
        plain = find(there)
        masked = find(replace(there, secure="groups", strategy="fedavg", encoding="masked-u8"))
    assert "device_masking" not in plain
    assert masked["device_masking"].verdict == "warn"
    assert masked["device_masking"].detail == "pi-1 cannot mask updates, and will not be asked"
    assert "device_encoding" not in masked


@pytest.mark.broker
@pytest.mark.parametrize(
    "term", [{"prox": 0.1}, {"phases": "all:1"}, {"personal": "ditto:1"}, {"finish": "all:1"}], ids=PLAN_TERMS
)
def test_devices_that_do_not_know_a_term_of_the_plan_are_named(settings, schema, term):
    (name,) = term
    with published(settings, pi_1=state(schema), pi_2=state(schema, features=PLAN_TERMS)) as there:
        plain, found = find(there), find(replace(there, **term))
    assert f"device_{name}" not in plain
    assert found[f"device_{name}"].verdict == "warn"
    assert found[f"device_{name}"].detail == f"pi-1 does not know {name}, and will not be asked"


@pytest.mark.broker
def test_devices_that_fetch_no_models_by_url_are_named_where_a_store_serves_them(settings, schema, tmp_path):
    with published(settings, pi_1=state(schema), pi_2=state(schema, features=(URL_FEATURE,))) as there:
        plain, found = (
            find(there),
            find(replace(there, models_store=f"file://{tmp_path}/models", models_url="https://cdn.example/")),
        )
    assert "device_url" not in plain and "models_store" not in plain
    assert found["models_store"].verdict == "ok"
    assert found["device_url"].verdict == "warn"
    assert found["device_url"].detail == "pi-1 fetches no models by URL, and gets them through the broker"


@pytest.mark.broker
def test_devices_without_control_variates_are_named_in_a_run_of_scaffold(settings, schema):
    with published(settings, pi_1=state(schema), pi_2=state(schema, features=(CONTROL,))) as there:
        plain, found = find(there), find(replace(there, strategy="scaffold"))
    assert "device_control" not in plain
    assert found["device_control"].verdict == "warn"
    assert found["device_control"].detail == "pi-1 does not know control variates, and will not be asked"
    assert "strategy fedavg" in found["device_control"].remedy


@pytest.mark.broker
def test_devices_that_cannot_measure_without_training_are_named_where_rounds_evaluate(settings, schema):
    with published(settings, pi_1=state(schema), pi_2=state(schema, features=(EVALUATE_FEATURE,))) as there:
        plain, found = find(there), find(replace(there, evaluate_every=10))
    assert "device_evaluation" not in plain
    assert found["device_evaluation"].verdict == "warn"
    assert found["device_evaluation"].detail.startswith("pi-1 cannot measure without training, and will not be asked")
    assert "install this version there" in found["device_evaluation"].remedy
    assert "min_cohort" in found["device_evaluation"].remedy


@pytest.mark.broker
def test_too_few_or_no_devices_are_a_warning(settings, schema):
    with published(settings, pi_1=state(schema)) as there:
        few, none = find(replace(there, devices=3))["devices"], find(replace(there, fleet="garden"))["devices"]
    assert few.verdict == "warn" and "waits for 3" in few.detail and "--devices" in few.remedy
    assert none.verdict == "warn" and "fedpatch-agent doctor" in none.remedy


@pytest.mark.broker
def test_other_online_coordinator_is_a_warning(settings):
    with Mosquitto() as broker, client(broker.url, "there") as there:
        online = encode(Envelope(CoordinatorState(online=True, boot="x")))
        there.link.publish(topics.coordinator_state(FLEET), online, retain=True)
        there.settle()
        found = find(replace(settings, broker=broker.url))["coordinator"]
    assert found.verdict == "warn" and "its own --fleet" in found.remedy


def test_running_coordinator_skips_the_checks_of_the_task(settings):
    settings.state_dir.mkdir()
    with FileLock(fleet_lock_file(settings.state_dir, FLEET), "held"):
        found = find(settings)
    assert found["task"].verdict == found["memory"].verdict == "skip"
    assert "a coordinator is at work with fleet home" in found["task"].detail


@pytest.mark.parametrize(
    ("task", "words"),
    [("no_such_module:TASK", "cannot be imported"), ("broken_tasks:TASK", "ValueError: no such layer")],
)
def test_broken_task_fails_and_the_other_checks_go_on(settings, tmp_path, monkeypatch, task, words):
    (tmp_path / "broken_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    found = find(replace(settings, task=task))
    assert found["task"].verdict == "fail" and words in found["task"].detail and found["task"].remedy
    assert found["broker_port"].verdict == "fail" and found["state_dir"].verdict == "ok"


def test_disk_too_small_for_the_updates_of_a_cohort_fails(settings, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", disk]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        few, many = (find(replace(settings, state_dir=disk, devices=count))["disk"] for count in (2, 1000))
    finally:
        subprocess.run(["umount", disk], check=True)
    assert few.verdict == "ok"
    assert many.verdict == "fail" and "updates of 1000 devices" in many.detail and "free some space" in many.remedy


def test_object_store_is_tried_and_named_with_a_remedy(settings, s3):
    assert find(replace(settings, blobs=s3))["blobs"].verdict == "ok"
    found = find(replace(settings, blobs="s3://nowhere/p"))["blobs"]
    assert found.verdict == "fail" and "NoSuchBucket" in found.detail and "make the bucket" in found.remedy
    assert "blobs" not in find(settings)


def test_directories_of_blobs_and_models_that_cannot_be_written_fail(settings: RunSettings, tmp_path: Path):
    (tmp_path / "file").touch()
    place = f"file://{tmp_path}/file/below"
    found = find(replace(settings, blobs=place, models_store=place, models_url="https://cdn.example/"))
    for name in ("blobs", "models_store"):
        assert found[name].verdict == "fail" and "a file is where a directory is expected" in found[name].detail, name


def test_without_a_broker_the_other_checks_go_on(settings):
    found = find(settings)
    assert (found["broker_port"].verdict, found["devices"].verdict) == ("fail", "skip")
    assert found["task"].verdict == found["state_dir"].verdict == "ok"


@pytest.mark.parametrize(("ahead_s", "is_named"), [(700 * 86_400.0, True), (-60.0, False)])
@pytest.mark.parametrize("of", ["run", "device"])
def test_time_in_the_registry_that_is_later_than_the_clock_is_named(
    settings: RunSettings, of: str, ahead_s: float, is_named: bool
):
    """As of a hub whose clock was ahead."""
    at = time.time() + ahead_s
    with Registry(settings.state_dir / REGISTRY_FILE) as registry:
        if of == "run":
            new_run(registry, created_at=at)
        else:
            seen(registry, "pi-1", now=at)
    found = find(settings)["clock"]
    assert (found.verdict == "warn" and "the newest time in the state directory" in found.detail) == is_named


def test_database_is_tried_before_the_first_run(settings: RunSettings, postgres: PostgresServer):
    url = postgres.url()
    found = find(replace(settings, state=url))
    assert found["database"].verdict == "ok" and "it is empty: a run makes its tables" in found["database"].detail
    assert "registry" not in found
    refused = find(replace(settings, state=f"{url}%20-cdefault_transaction_read_only%3Don"))["database"]
    assert refused.verdict == "fail" and "primary server" in refused.remedy
    with postgres.session() as session:
        session.execute("DROP ROLE IF EXISTS visitor; CREATE ROLE visitor LOGIN")
    refused = find(replace(settings, state=postgres.url(url.rpartition("%3D")[2], role="visitor")))["database"]
    assert refused.verdict == "fail" and "grant this user USAGE and CREATE" in refused.remedy
    assert not settings.state_dir.exists()


@pytest.mark.medium
def test_database_behind_a_pooler_of_transactions_fails(settings: RunSettings, postgres: PostgresServer):
    with transaction_pooler(postgres.folder, ROLE) as url:
        found = find(replace(settings, state=url))["database"]
    assert found.verdict == "fail"
    assert "a pooler is there" in found.detail and "the address of the server itself" in found.remedy


def test_database_of_the_state_directory_is_checked_and_its_registry_read(
    settings: RunSettings, postgres: PostgresServer
):
    with Registry(postgres.state(settings.state_dir)):
        pass
    found = find(settings)
    assert (found["database"].verdict, found["registry"].verdict) == ("ok", "ok")
    other = find(replace(settings, state=postgres.url()))["database"]
    assert other.verdict == "fail" and "its runs are in" in other.detail and "another --state-dir" in other.remedy


@pytest.mark.parametrize("reached", [True, False], ids=["reached", "away"])
def test_leader_of_a_fleet_with_standbys_is_named(settings: RunSettings, postgres: PostgresServer, reached: bool):
    url = postgres.url() if reached else "postgresql://fedpatch@/fedpatch?host=/nowhere"
    found = find(replace(settings, standby=True, state=url, blobs=f"file://{settings.state_dir}/blobs"))["leader"]
    expected = ("ok", "no coordinator has led the fleet yet") if reached else ("fail", "cannot be used")
    assert found.verdict == expected[0]
    assert expected[1] in found.detail


def test_id_with_two_starts_within_the_check_is_called_shared():
    def came(device: str, boot: str) -> Received:
        return Received(topics.device_state("home", device), encode(Envelope(DeviceState(True, boot))), False)

    presence = [came("pi", "b1"), came("other", "b1"), came("pi", "b2"), came("other", "b1")]
    assert _shared_ids("home", presence) == ["pi"]


def test_id_whose_agent_says_that_it_is_shared_is_called_shared():
    state = DeviceState(True, "b1", features=(SHARED_ID_FEATURE,))
    came = Received(topics.device_state("home", "pi"), encode(Envelope(state)), True)
    assert _shared_ids("home", [came]) == ["pi"]


@pytest.mark.parametrize("name", ["runs", "registry.sqlite3"])
def test_link_of_the_state_directory_to_an_absent_disk_is_named(settings, name):
    settings.state_dir.mkdir(mode=0o700)
    (settings.state_dir / name).symlink_to("/nowhere/disk")
    checkup = quiet_checkup()
    check_state_dir(settings.state_dir, Space(0, 0, ""), checkup, private=False, parts=("runs", "registry.sqlite3"))
    [one] = [one for one in checkup.findings if one.verdict == "fail"]
    assert one.detail == f"{settings.state_dir / name}: a link to /nowhere/disk, which is not there"
    with pytest.raises(StateError, match="a link to /nowhere/disk") if "registry" in name else contextlib.nullcontext():
        Registry(settings.state_dir / REGISTRY_FILE).close()


@pytest.mark.parametrize("part", ["runs", "registry.sqlite3"])
def test_doctor_fails_for_a_part_of_the_state_directory_on_an_absent_disk(settings, part):
    settings.state_dir.mkdir(mode=0o700)
    (settings.state_dir / part).symlink_to("/nowhere/disk")
    found = find(replace(settings, task="no_such_module:TASK"))["state_dir"]
    assert (found.verdict, f"{settings.state_dir / part}: a link to /nowhere/disk" in found.detail) == ("fail", True)
