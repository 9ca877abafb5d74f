"""`fedpatch-agent doctor`: findings on the task, its data, the name and the coordinator; brokers are in tests/broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.device_agent.cli.doctor import _check_network, _check_private, _check_validation, examine
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.floor_status import DAMAGED
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import DECLINED, DeviceHistory
from fedpatch.device_agent.state.status_file import StatusFile, lock_state_dir
from fedpatch.shared.diagnostics.broker_reachability import Reached
from fedpatch.shared.diagnostics.checks import Finding
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import CoordinatorState, DeviceState, Envelope
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.device_agent.sensors.scenes import BATTERY, Scene
from tests.support.brokers import HOST, PATIENCE_S, Mosquitto, client, free_port
from tests.support.checkups import COORDINATOR, DEVICE, FLEET, PASSWORDS, guarded, patient_doctors, quiet_checkup

pytestmark = pytest.mark.usefixtures("installed")

TASKS = """
import os
from dataclasses import replace
from fedpatch.shared.errors import DataError
from fedpatch.shared.tasks.bundled import digits

def load_data(spec, root):
    raise DataError(f"{root}/examples.csv: no such file")

TASK = replace(digits.TASK, name="dataless", load_data=load_data)
"""
DEADLY = "import os; os._exit(7)"
# Fails before torch is imported, for tests of other checks.
QUICK = "no_such_module:TASK"


PARTS = {"task": "training examples", "validation": "validation examples"}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentSettings:
    """Settings for an absent broker, in a directory with faulty tasks."""
    (tmp_path / "dataless.py").write_text(TASKS)
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    return AgentSettings(
        broker=f"mqtt://{HOST}:{free_port()}",
        fleet=FLEET,
        device_id=DEVICE,
        task=QUICK,
        data="shard:0/10",
        state_dir=tmp_path / "state",
    )


def find(settings: AgentSettings, root: Path = Path("/")) -> dict[str, Finding]:
    checkup = quiet_checkup()
    with patient_doctors():
        examine(settings, checkup, root)
    return {one.name: one for one in checkup.findings}


@pytest.mark.medium
def test_a_task_and_its_data_are_loaded_as_an_agent_does(settings):
    found = find(replace(settings, task="digits", data="shard:0/10,validation=0.1"))
    assert found["task"].verdict == found["validation"].verdict == "ok"
    examples = [int(found[name].detail.partition(f" {name_of}")[0].split()[-1]) for name, name_of in PARTS.items()]
    assert sum(examples) == 143 and min(examples) > 5 and "schema " in found["task"].detail
    assert "training process, which holds" in found["memory"].detail
    assert not settings.state_dir.exists()


@pytest.mark.parametrize(("keep_models", "verdicts"), [(3, ["warn"]), (0, [])])
def test_doctor_warns_of_a_personal_model_that_no_validation_data_would_choose(settings, keep_models, verdicts):
    checkup = quiet_checkup()
    _check_validation(Ready("toy", "ab", 20), replace(settings, keep_models=keep_models), checkup)
    assert [(one.name, one.verdict) for one in checkup.findings] == [("validation", one) for one in verdicts]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("task", "words", "remedy"),
    [
        (QUICK, "cannot be imported", "--task"),
        ("dataless:TASK", "/nowhere/examples.csv: no such file", "below /nowhere"),
        ("deadly:TASK", "exit code 7", "--debug"),
    ],
)
def test_a_task_that_cannot_be_used(settings, task, words, remedy):
    found = find(replace(settings, task=task, data_root=Path("/nowhere")))
    assert found["task"].verdict == "fail"
    assert words in found["task"].detail and remedy in found["task"].remedy
    assert found["broker_port"].verdict == "fail"


def test_user_without_a_home_directory_fails_the_task_and_the_other_checks_go_on(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
):
    """As in a container with a user of its own."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FEDPATCH_DATA", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    found = find(replace(settings, data_root=None))
    assert found["task"].verdict == "fail" and "no home directory" in found["task"].detail
    assert "--data-root" in found["task"].remedy
    assert found["broker_port"].verdict == "fail"


@pytest.mark.parametrize(
    ("admission", "status", "verdict", "words"),
    [
        ("preferences", "Discharging", "warn", "would be declined now: "),
        ("preferences", "Charging", "ok", "would be accepted"),
        ("always", "Discharging", "ok", "would be accepted"),
        ("never", "Charging", "warn", "would be declined now: "),
    ],
)
def test_a_device_that_would_decline(settings, tmp_path, admission, status, verdict, words):
    scene = Scene(tmp_path)
    scene.supply("BAT0", BATTERY | {"status": status})
    found = find(replace(settings, admission=admission, unmetered=False), scene.root)["preferences"]
    assert (found.verdict, words in found.detail) == (verdict, True)
    assert ("fedpatch-agent conditions" in found.remedy) is (verdict == "warn")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("private", "record", "verdict", "words"),
    [
        ("", None, "ok", "at least affine: 2 of 11 tensors of the model never leave this device (the default)"),
        ("all", None, "ok", "at least all: 5 of 11 tensors"),
        ("none", None, "warn", "at least none: 0 of 11 tensors"),
        ("stats", None, "warn", "a request may have gamma and beta"),
        ("", b"damaged", "fail", "every request is declined"),
        ("affine", b"damaged", "ok", "at least affine"),
    ],
)
def test_doctor_reports_the_private_tensors(settings, private, record, verdict, words):
    if record is not None:
        (settings.state_dir / "patches").mkdir(parents=True)
        (settings.state_dir / "patches" / "digits.private").write_bytes(record)
    found = find(replace(settings, task="digits", private=private))["private"]
    assert (found.verdict, words in found.detail) == (verdict, True)


def test_record_of_another_user_has_its_owner_as_remedy_and_no_setting():
    checkup, back = quiet_checkup(), "give it back to the agent's user: sudo chown -R pi: x"
    _check_private({"words": f"what stayed is not known: x: Permission denied; {back}", "source": DAMAGED}, checkup)
    assert [(one.verdict, one.remedy) for one in checkup.findings] == [("fail", back)]


@pytest.mark.medium
def test_a_private_setting_that_the_model_does_not_fit_is_named(settings):
    found = find(replace(settings, task="digits", private="names:fc9.weight"))["task"]
    assert found.verdict == "fail"
    assert "private = names:fc9.weight" in found.detail and "did you mean" in found.detail
    assert "--private" in found.remedy


def test_an_agent_at_work_is_left_alone(settings):
    with lock_state_dir(settings.state_dir):
        fixed = {"device_id": DEVICE, "fleet": FLEET, "broker": settings.broker, "version": "1"}
        tasks = [{"task": "digits", "schema": "0" * 64, "num_examples": 144}]
        StatusFile(settings.state_dir, fixed).write({"state": "idle", "tasks": tasks})
        found = find(settings)
    assert found["task"].verdict == found["memory"].verdict == "skip"
    assert "at least affine" in found["private"].detail
    assert "an agent is at work here: digits with 144 training examples" in found["task"].detail


@pytest.mark.parametrize("again", [False, True])
def test_doctor_fails_for_an_agent_whose_state_directory_was_deleted_or_replaced(settings, again):
    with lock_state_dir(settings.state_dir):
        shutil.rmtree(settings.state_dir)
        if again:
            settings.state_dir.mkdir(mode=0o700)
        found = find(settings)["agent"]
    assert (found.verdict, f"pid {os.getpid()}" in found.detail) == ("fail", True)
    assert "restart the agent" in found.remedy
    assert "agent" not in find(settings)


def test_doctor_fails_for_an_agent_whose_state_directory_was_moved_and_made_again(settings, tmp_path):
    with lock_state_dir(settings.state_dir):
        settings.state_dir.rename(tmp_path / "moved")
        settings.state_dir.mkdir(mode=0o700)
        StatusFile(settings.state_dir, {"device_id": DEVICE, "fleet": FLEET}).write({"state": "idle"})
        assert find(settings)["agent"].verdict == "fail"


def test_doctor_fails_for_an_agent_at_work_that_declines_every_round(settings):
    with lock_state_dir(settings.state_dir):
        status = StatusFile(settings.state_dir, {"device_id": DEVICE, "fleet": FLEET})
        status.write({"state": "idle", "declines": "/state: cannot be written: worn; replace the card"})
        found = find(settings)["agent"]
    assert (found.verdict, found.remedy) == ("fail", "replace the card")
    assert "declines every round: /state: cannot be written: worn" in found.detail


def test_doctor_fails_for_a_models_ca_file_that_cannot_be_used(settings, tmp_path):
    found = find(replace(settings, models_ca_file=tmp_path / "misspelt.crt"))["models_ca_file"]
    assert found.verdict == "fail"
    assert "misspelt.crt" in found.detail
    assert "models_ca_file" not in find(settings)


@pytest.mark.broker
def test_a_name_that_another_agent_has(settings, mosquitto):
    online = encode(Envelope(DeviceState(online=True, boot="x")))
    with client(mosquitto.url, "other") as other:
        other.link.publish(topics.device_state(FLEET, DEVICE), online, retain=True)
        other.settle()
        found = find(replace(settings, broker=mosquitto.url))
    assert found["device_name"].verdict == "warn"
    assert "--device-id" in found["device_name"].remedy


def test_time_in_the_history_that_is_later_than_the_clock_is_named(settings):
    settings.state_dir.mkdir(mode=0o700)
    history = DeviceHistory(settings.state_dir, clock=lambda: time.time() + 700 * 86_400.0)
    history.note(DECLINED, "unwilling", Traffic())
    found = find(settings)["clock"]
    assert found.verdict == "warn" and "the newest time in the state directory" in found.detail


@pytest.mark.broker
@pytest.mark.parametrize(("boots", "warns"), [((), True), (("y",), True), (("x",), False)])
def test_directory_without_the_last_start_of_the_device_is_a_warning(settings, mosquitto, boots, warns):
    """As after a reboot that deleted the state, or in the place of a disk that is not mounted."""
    if boots:
        settings.state_dir.mkdir(mode=0o700)
        StatusFile(settings.state_dir, {"boots": boots}).write({"state": "idle"})
    topic, gone = topics.device_state(FLEET, DEVICE), encode(Envelope(DeviceState(online=False, boot="x")))
    with client(mosquitto.url, "other") as other:
        other.link.publish(topic, gone, retain=True)
        other.settle()
        found = find(replace(settings, broker=mosquitto.url))
    lost = found.get("state_lasts")
    assert (lost is not None and "was last started with another state directory" in lost.detail) == warns


@pytest.mark.medium
@pytest.mark.broker
@pytest.mark.parametrize(
    ("online", "verdict", "words"),
    [
        (None, "warn", "no coordinator was ever seen"),
        (False, "ok", "none is at work"),
        (True, "warn", "did not answer"),
    ],
)
def test_doctor_reports_the_coordinator_by_its_presence(settings, online, verdict, words):
    """No coordinator, one that left, and one that is online but does not answer, under the generated rules."""
    with guarded(mosquitto_acl(FLEET, devices=[DEVICE])) as broker:
        login = {"username": COORDINATOR, "password": PASSWORDS[COORDINATOR]}
        with client(broker.url, "there", **login) as there:
            there.link.wait_connected(PATIENCE_S)
            if online is not None:
                kept = encode(Envelope(CoordinatorState(online=online, boot="x")))
                there.link.publish(topics.coordinator_state(FLEET), kept, retain=True)
            while not there.link.idle:
                time.sleep(0.01)
        ours = replace(settings, broker=broker.url, username=DEVICE, password=PASSWORDS[DEVICE])
        found = find(ours)["coordinator"]
    assert found.verdict == verdict
    assert words in found.detail


@pytest.mark.medium
@pytest.mark.broker
def test_doctor_warns_of_a_broker_without_access_rules_unless_it_is_local(settings, monkeypatch):
    """On a network any client could pose as the coordinator; on this machine alone no other machine can."""
    with Mosquitto() as broker:
        ours = replace(settings, broker=broker.url)
        assert "access" not in find(ours)
        monkeypatch.setattr(
            "fedpatch.shared.diagnostics.broker_reachability.Reached",
            lambda **found: Reached(**{**found, "loopback": False}),
        )
        found = find(ours)["access"]
    assert found.verdict == "warn" and "fedpatch broker acl --fleet home" in found.remedy


@pytest.mark.parametrize("part", ["patches", "models"])
def test_part_of_the_state_directory_on_an_absent_disk_fails(settings, part):
    settings.state_dir.mkdir(mode=0o700)
    (settings.state_dir / part).symlink_to("/nowhere/disk")
    found = find(settings)["state_dir"]
    assert (found.verdict, f"{settings.state_dir / part}: a link to /nowhere/disk" in found.detail) == ("fail", True)


def test_a_name_that_no_topic_can_hold(settings):
    with pytest.raises(UsageError, match="is not possible"):
        find(replace(settings, device_id="Pi/1"))


@pytest.mark.medium
def test_its_process_loads_neither_torch_nor_numpy():
    program = "import sys, fedpatch.device_agent.cli.doctor; print(*sorted({'numpy', 'torch'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("open_since", "verdicts"),
    [("", ["ok"]), ("the kernel refuses a seccomp filter (Invalid argument)", ["warn"]), (None, [])],
)
def test_doctor_says_whether_the_kernel_closes_the_network_of_the_training_process(open_since, verdicts):
    checkup = quiet_checkup()
    _check_network(open_since, checkup)
    assert [(one.name, one.verdict) for one in checkup.findings] == [("network", verdict) for verdict in verdicts]
    assert all(open_since in one.detail for one in checkup.findings if open_since)
