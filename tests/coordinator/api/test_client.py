"""The client of a state directory: reading, changes, writing, and data frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch import Client
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import UsageError
from tests.coordinator.registry_builders import new_run, seen

RECORD = RoundRecord(
    1,
    "aggregated",
    cohort=2,
    accepted=2,
    declined=0,
    reported=2,
    user_accuracy=0.75,
    phase_seconds=PhaseSeconds(train=1.5, upload=0.5),
    bytes_up=51_000,
    user_accuracies={"pi-1": 0.5, "pi-2": 1.0},
)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """Return a client with one run of two rounds, and one device in each of two fleets."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        run = new_run(registry, 1.0e9).id
        registry.rounds.finish(run, RECORD)
        registry.rounds.finish(run, replace(RECORD, round=2, user_accuracy=0.875))
        registry.finish_run(run, stopped_because="max_rounds", user_accuracy=0.875, model="/models/a.npz")
        seen(registry, "pi-1", fleet="kitchen", tasks=["digits"])
        seen(registry, "pi-2", fleet="garden")
    return Client(tmp_path)


def test_state_directory_without_a_registry_is_an_error_and_not_created(tmp_path):
    with pytest.raises(UsageError):
        Client(tmp_path / "new").runs()
    assert not (tmp_path / "new").exists()


def test_show_gives_the_result_of_a_run_by_the_beginning_of_its_id(client):
    (info,) = client.runs()
    shown = client.show(info.id[:10])
    assert (shown.run, shown.stopped_because, shown.user_accuracy) == (info.id, "max_rounds", 0.875)
    assert shown.rounds[0] == RECORD
    assert client.run_info("last") == info


def test_unknown_run_is_an_error_that_names_the_known_ones(client):
    with pytest.raises(UsageError, match=r"known: .*last"):
        client.show("1999")


def test_frame_of_a_run_has_a_row_for_each_round_with_seconds_of_phases(client):
    pytest.importorskip("pandas")
    frame = client.show().to_frame()
    assert list(frame.index) == [1, 2]
    assert frame["user_accuracy"].tolist() == [0.75, 0.875]
    assert frame.loc[1, ["train_s", "upload_s", "seconds", "bytes_up"]].tolist() == [1.5, 0.5, 2.0, 51_000]


def test_devices_frame_has_the_user_accuracy_of_each_device_by_round(client):
    pytest.importorskip("pandas")
    frame = client.show().devices_frame().pivot(index="round", columns="device", values="user_accuracy")
    assert frame.loc[2].to_dict() == {"pi-1": 0.5, "pi-2": 1.0}


def test_frames_of_runs_and_devices_are_indexed_by_id(client):
    pytest.importorskip("pandas")
    assert client.runs().to_frame()["status"].tolist() == ["finished"]
    assert client.devices("kitchen").to_frame().loc["pi-1", "fleet"] == "kitchen"


def test_holds_change_the_device_once(client):
    change = client.quarantine("pi-1", "sends nonsense")
    assert change.changed and change.device.quarantined.reason == "sends nonsense"
    assert not client.quarantine("pi-1", "again").changed
    assert client.release("pi-1").device.quarantined is None
    assert client.drain("pi-2").device.drained.reason == "maintenance"
    assert client.resume_device("pi-2").changed
    assert not client.resume_device("pi-2").changed


def test_stop_of_a_run_that_has_ended_is_an_error(client):
    with pytest.raises(UsageError, match="is not at work"):
        client.stop()


def test_hold_of_an_unknown_device_is_an_error(client):
    with pytest.raises(UsageError, match="unknown device 'pi-3'"):
        client.drain("pi-3")


def test_report_writes_a_page_and_a_table(client, tmp_path):
    written = client.report("last", out=tmp_path / "a.html", csv=tmp_path / "a.csv")
    assert Path(written["report"]).read_text("utf-8").startswith("<!DOCTYPE html>")
    assert len((tmp_path / "a.csv").read_text("utf-8").splitlines()) == 3
    assert written["png"] is None


def test_resume_without_a_registry_creates_none(tmp_path):
    with pytest.raises(UsageError):
        Client(tmp_path).resume()
    assert list(tmp_path.iterdir()) == []


def test_resume_takes_a_password_file_as_text_or_path(client, tmp_path):
    for given in (tmp_path / "secret.txt", str(tmp_path / "secret.txt")):
        with pytest.raises(UsageError, match="set without a user name"):
            client.resume(password_file=given, progress=False)


def test_resume_of_an_unknown_setting_is_an_error_that_names_the_known_ones_before_a_job_starts(client):
    with pytest.raises(UsageError, match=r"cannot change 'round'; it can change .*rounds"):
        client.start_resume(round=3)


@pytest.mark.parametrize("participation", [0.0, -0.5, 1.5, float("nan")])
def test_evaluate_with_a_participation_that_is_no_share_is_an_error_before_any_contact(client, participation):
    with pytest.raises(UsageError, match="must be above 0 and at most 1"):
        client.evaluate(participation=participation)


def test_evaluate_in_a_directory_without_a_registry_is_an_error_and_creates_none(tmp_path):
    with pytest.raises(UsageError):
        Client(tmp_path).evaluate()
    assert list(tmp_path.iterdir()) == []
