"""`fedpatch-agent pause`, `resume`, `history` and `status`: the commands of the device's owner."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from fedpatch.device_agent.cli import pause_and_history
from fedpatch.device_agent.cli.pause_and_history import parse_duration
from fedpatch.device_agent.cli.state_dir import place_of, settings_file
from fedpatch.device_agent.cli.status import OwnersView, differences_of, entry_in_words, standing_in_words
from fedpatch.device_agent.policy.usage import ALL_SPENT, Usage
from fedpatch.device_agent.runtime.settings_in_force import SettingsInForce
from fedpatch.device_agent.sensors.host import read_pause
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import DECLINED, WORKED, DeviceHistory, HistoryEntry
from fedpatch.device_agent.state.pause_file import end_pause, is_paused, write_pause
from fedpatch.device_agent.state.status_file import AgentStatus, StatusFile, lock_state_dir
from fedpatch.shared.config.load import Source
from fedpatch.shared.errors import ConfigError, StateError, UsageError
from fedpatch.shared.mqtt.traffic import Traffic
from tests.support.other_users import acting_as_nobody, open_directory

STATUS = {"device_id": "pi-1", "fleet": "kitchen", "broker": "mqtt://hub", "state": "idle", "admission": "preferences"}


NOTHING_MORE = OwnersView()


def shown(status: dict[str, object], about: OwnersView = NOTHING_MORE) -> list[str]:
    """The lines of the status of a running agent."""
    standing = AgentStatus(running=True, status={**STATUS, **status}, update_waits=False, patches=(), held_version="")
    return standing_in_words(standing, about, 0.0)


@pytest.mark.parametrize("admission", ["preferences", "always", "file:/etc/accept"])
def test_status_knows_of_a_pause_before_the_agent_does(admission):
    lines = shown({"admission": admission, "unwilling": []}, OwnersView(pause="/st/pause"))
    assert lines[2:4] == ["it would not accept work now:", "  its owner has paused it"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("accept\n", "it would accept work now: {file} says accept"),
        ("decline: on holiday\n", "it would not accept work now: on holiday ({file})"),
        (None, "it would not accept work now: its owner's file cannot be read ({file})"),
    ],
)
def test_status_says_what_the_owners_file_says(tmp_path, text, answer):
    file = tmp_path / "order"
    if text is not None:
        file.write_text(text)
    assert shown({"admission": f"file:{file}", "unwilling": []})[2] == answer.format(file=file)


@pytest.mark.parametrize("closed", ["order", ""], ids=["file", "folder"])
def test_status_gives_no_answer_by_an_owners_file_that_this_user_may_not_read(closed):
    """The agent may run as another user, who may."""
    with open_directory() as place:
        folder = place / "owner"
        folder.mkdir()
        (folder / "order").write_text("accept\n")
        (folder / closed).chmod(0o700)
        with acting_as_nobody():
            answer = shown({"admission": f"file:{folder}/order", "unwilling": []})[2]
    assert answer == f"whether it would accept work now, its owner's file:{folder}/order says"


def test_status_knows_of_the_end_of_a_pause_before_the_agent_does():
    lines = shown({"unwilling": ["its owner has paused it, until 2026-11-29 06:29"]})
    assert lines[2] == "it would accept work now: all that its owner demands is met"


def source_of(file: Path, **flags: object) -> Source[AgentSettings]:
    return Source(AgentSettings, file, {}, flags)


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800.0), ("2h", 7200.0), ("3d", 259_200.0)])
def test_duration_is_in_minutes_hours_or_days(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "-1h", "2w", "1h30m"])
def test_other_duration_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="such as 30m, 2h or 3d"):
        parse_duration(text)


def test_pause_with_an_end_is_over_then_and_a_clock_that_is_behind_makes_it_longer(tmp_path):
    write_pause(tmp_path, until_s=1000.0)
    found = [read_pause(tmp_path / "pause", now).value for now in (0.0, 999.0, 1000.0)]
    assert found == [True, True, False]


def test_pause_without_an_end_lasts_until_it_is_resumed(tmp_path):
    write_pause(tmp_path)
    assert read_pause(tmp_path / "pause", 1e12).value is True
    assert is_paused(tmp_path)
    assert [end_pause(tmp_path), end_pause(tmp_path)] == [True, False]
    assert not is_paused(tmp_path)


def test_end_of_a_pause_that_is_over_ends_none(tmp_path):
    write_pause(tmp_path, until_s=1000.0)
    assert not end_pause(tmp_path)
    assert not (tmp_path / "pause").exists()


@pytest.mark.parametrize("text", ["until", "until x", "until 5 6", "until -5", "off"])
def test_pause_file_with_other_words_is_a_pause_without_end(tmp_path, text):
    (tmp_path / "pause").write_text(text)
    assert read_pause(tmp_path / "pause", 1e12).value is True


def test_state_directory_is_that_of_the_option_else_of_the_settings_file(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text('state_dir = "/var/lib/x"\nquiet_hours = 7\n')
    assert place_of(Path("/elsewhere"), file) == Path("/elsewhere")
    assert place_of(None, file) == Path("/var/lib/x")
    assert place_of(None, None) == AgentSettings.state_dir


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("= =", ":1: not TOML"),
        ("nice = 1\nnice = 2\n", ":2: not TOML: nice is set a second time; keep one of its lines"),
    ],
)
def test_settings_file_that_is_no_toml_is_named_with_the_line(tmp_path, text, problem):
    (tmp_path / "agent.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"agent\.toml{problem}"):
        place_of(None, tmp_path / "agent.toml")


def test_command_finds_the_settings_of_the_agent_in_its_state_directory(tmp_path):
    file = tmp_path / "agent.toml"
    file.write_text("")
    (tmp_path / "status.json").write_text(json.dumps({"settings": {"file": str(file)}}))
    assert settings_file({"state_dir": str(tmp_path)}, {}) == file
    assert settings_file({}, {"FEDPATCH_AGENT_STATE_DIR": str(tmp_path)}) == file
    assert settings_file({}, {}) is None
    assert settings_file({"state_dir": str(tmp_path / "absent")}, {}) is None


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a service that was started with agent.toml, which names none; its owner is in a folder without."""
    (tmp_path / "agent.toml").write_text('data = "shard:0/2"\ncharging = false\nunmetered = false\n')
    service = tmp_path / "service"
    service.mkdir()
    StatusFile(service, {}).write({"settings": {"file": str(tmp_path / "agent.toml")}})
    monkeypatch.setattr("fedpatch.device_agent.cli.state_dir.SERVICE", service)
    monkeypatch.chdir(tmp_path)
    return service


def test_settings_that_name_no_state_directory_lead_to_that_of_their_service(agent, service):
    assert agent("pause", "--config", "agent.toml").code == 0
    assert is_paused(service)
    shown = json.loads(agent("conditions", "--json", "--config", "agent.toml").out)
    assert (shown["would_accept"], shown["why"]) == (False, "paused")
    assert agent("evaluate", "--config", "agent.toml").err.count(str(service)) == 1


def test_settings_of_another_agent_do_not_lead_to_the_service(agent, service, tmp_path):
    """The conditions of a device that has not worked yet are shown, and the missing directory is named."""
    (tmp_path / "other.toml").write_text('data = "shard:0/2"\ncharging = false\nunmetered = false\n')
    write_pause(service)
    assert place_of(None, tmp_path / "other.toml") == AgentSettings.state_dir
    done = agent("conditions", "--config", "other.toml")
    assert done.code == 0 and "paused it" not in done.out
    assert f"no agent has run in {AgentSettings.state_dir}; say where its state is with --state-dir" in done.err


def test_user_who_may_not_look_into_the_state_directory_is_told_so_and_asked_for_no_settings():
    with open_directory() as folder:
        place = folder / "state"
        place.mkdir(mode=0o700)
        (place / "status.json").write_text(json.dumps({"settings": {"file": str(folder / "agent.toml")}}))
        with acting_as_nobody(), pytest.raises(StateError, match="Permission denied; run as the user that owns it"):
            settings_file({"state_dir": str(place)}, {})


def test_settings_file_that_this_user_may_not_read_is_named():
    with open_directory() as folder:
        file = folder / "agent.toml"
        file.write_text("")
        file.chmod(0o600)
        (folder / "status.json").write_text(json.dumps({"settings": {"file": str(file)}}))
        with acting_as_nobody():
            assert settings_file({"state_dir": str(folder)}, {}) == file


def test_pause_and_status_name_the_same_end_by_the_clock_of_the_device(agent, tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        end = agent("pause", "--for", "2h", "--state-dir", tmp_path).out.strip().partition("until ")[2]
        assert read_pause(tmp_path / "pause").source.endswith(f", until {end}") and " CE" in end
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_status_declines_where_the_last_request_was_beyond_a_limit():
    lines = shown({"refused": "the owner lets no update leave this device unmasked"})
    assert any(line.startswith("it would not accept work now: a request like the last one") for line in lines)


def test_status_names_the_terms_of_a_request_that_would_be_accepted():
    lines = shown({"terms": ['only requests for masked updates (secure = "required")']})
    at = lines.index("it would accept work now: all that its owner demands is met")
    assert lines[at + 1] == '  only requests for masked updates (secure = "required")'


def test_status_shows_pause_last_decline_and_todays_allowance():
    declined = HistoryEntry(
        at=60.0, what=DECLINED, words="unwilling: quiet hours", run="a-run", round=3, broker="mqtt://hub"
    )
    spent = {"rounds": 2, "traffic_bytes": 3 * 2**20, "training_s": 120.0}
    settings = {"file": "", "values": {"max_mib_per_day": 5, "max_rounds_per_day": None}, "overridden": []}
    lines = shown({"spent": spent, "settings": settings}, OwnersView("/state/pause", declined))
    assert "pause: /state/pause" in lines
    assert "today: 2 rounds, 3 of 5 MiB, 2 minutes" in lines
    assert f"last decline: {entry_in_words(declined)}" in lines
    assert "round 3 of run a-run: unwilling: quiet hours" in entry_in_words(declined)


def test_status_of_a_restored_day_says_that_its_allowance_counts_as_spent():
    lines = shown({"spent": asdict(ALL_SPENT.plus(Usage(rounds=1)))})
    assert "today: the allowance counts as spent, since the state was restored from a backup" in lines


def test_history_entry_names_bytes_both_ways_broker_and_model():
    entry = HistoryEntry(
        at=60.0,
        what=WORKED,
        words="committed",
        run="r",
        round=1,
        broker="mqtt://hub",
        sent_bytes=2000,
        model="ab" * 32,
    )
    words = entry_in_words(entry)
    assert words.startswith(
        "1970-01-01 00:01 UTC worked, round 1 of run r: committed, global model abababababab, sent "
    )
    assert words.endswith(", mqtt://hub")


class TestSettingsInForce:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "agent.toml"
        file.write_text('data = "shard:0/2"\nmin_battery = 10\nthreads = 1\n')
        return file

    def test_reload_uses_changed_preferences_and_names_what_needs_a_restart(self, file, caplog):
        source = source_of(file)
        begun = SettingsInForce(source.load().settings, source)
        file.write_text('data = "shard:0/2"\nmin_battery = 40\nthreads = 2\n')
        used: list[AgentSettings] = []
        with caplog.at_level("INFO"):
            begun.reload(used.append)
        assert [(one.min_battery, one.threads) for one in used] == [(40, 1)]
        assert "changed preferences: min_battery" in caplog.text
        assert "restart the agent to use the changed threads" in caplog.text

    def test_reload_of_a_wrong_file_keeps_the_former_preferences_and_names_each_problem(self, file, caplog):
        source = source_of(file)
        begun = SettingsInForce(source.load().settings, source)
        file.write_text('data = "shard:0/2"\nmin_battery = 400\nquiet_hours = ["x"]\n')
        begun.reload(lambda _: pytest.fail("used"))
        assert "min_battery" in caplog.text and "quiet_hours" in caplog.text
        assert "the former preferences stay in force" in caplog.text

    def test_file_that_was_edited_is_shown_beside_the_settings_in_force(self, file):
        source = source_of(file, min_battery="20")
        status = SettingsInForce(source.load().settings, source).status()
        assert differences_of(status) == []
        file.write_text('data = "shard:0/2"\nmin_battery = 30\nquiet_hours = ["22:00-07:00"]\nthreads = 3\n')
        quiet, threads = differences_of(status)
        assert quiet.startswith("quiet_hours is []") and quiet.endswith("; systemctl reload fedpatch-agent")
        assert threads.startswith("threads is 1 in the running agent and 3 in ") and threads.endswith(
            "; restart the agent"
        )


def test_conditions_show_the_reasons_and_the_settings_of_the_running_agent(agent, tmp_path, monkeypatch):
    """A twin declines everything; an option of the agent is no fault of the file, nor is another name of the directory."""
    file, state_dir = tmp_path / "agent.toml", tmp_path / "state"
    file.write_text('data = "shard:0/2"\nstate_dir = "state"\nthreads = 1\n')
    source = source_of(file, threads="2", state_dir=str(state_dir))
    status = {**STATUS, "declines": "another agent uses the device id 'pi-1'"}
    with lock_state_dir(state_dir):
        StatusFile(state_dir, status).write({"settings": SettingsInForce(source.load().settings, source).status()})
        monkeypatch.chdir(tmp_path)
        shown = json.loads(agent("conditions", "--json", "--no-charging", "--no-unmetered", "--config", file).out)
    assert (shown["would_accept"], shown["why"]) == (False, f"every request is declined: {status['declines']}")
    threads, *others = [one for one in shown["settings_not_in_force"] if "charging" not in one and "unmet" not in one]
    assert threads.startswith("threads is 2 in the running agent and 1 in these settings; an option") and others == []


def test_answer_by_edited_settings_is_told_from_that_of_the_running_agent(agent, tmp_path):
    """The agent declines by its quiet hours, which the file no longer has."""
    file, state_dir = tmp_path / "agent.toml", tmp_path / "state"
    file.write_text('data = "shard:0/2"\ncharging = false\nunmetered = false\n')
    source = source_of(file, quiet_hours="00:00-24:00")
    with lock_state_dir(state_dir):
        StatusFile(state_dir, STATUS).write({"settings": SettingsInForce(source.load().settings, source).status()})
        shown = agent("conditions", "--config", file, "--state-dir", state_dir).out.splitlines()
    assert shown[-1] == "it would accept work now with these settings"


def test_owner_pauses_resumes_and_reads_the_history_with_the_same_options(agent, tmp_path):
    file, state_dir = tmp_path / "agent.toml", tmp_path / "state"
    state_dir.mkdir()
    file.write_text(f'state_dir = "{state_dir}"\n')
    assert agent("pause", "--for", "2h", "--config", file).out.startswith("paused until ")
    assert is_paused(state_dir)
    assert agent("resume", "--state-dir", state_dir).out == "resumed\n"
    assert "nothing was asked of this device in the last 90 days" in agent("history", "--config", file).out


def test_settings_that_name_no_state_directory_send_the_owner_to_the_option_for_it(agent, tmp_path, monkeypatch):
    """A service gets its state directory by an option, and so its settings file names none."""
    (tmp_path / "agent.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    done = agent("pause", "--config", "agent.toml")
    assert done.code == 2 and done.err.endswith("say where its state is with --state-dir\n")


@pytest.mark.parametrize(("synchronised", "refused"), [(False, True), (None, True), (True, False)])
def test_pause_with_an_end_by_a_clock_that_is_behind_is_refused_unless_a_time_server_has_set_it(
    agent, tmp_path, monkeypatch, synchronised, refused
):
    """Once the clock is right the pause would be over, and the device would train without a word."""
    monkeypatch.setattr(pause_and_history, "is_synchronised", lambda: synchronised)
    DeviceHistory(tmp_path, "", lambda: time.time() + 3600.0).note(WORKED, "committed", Traffic())
    done = agent("pause", "--for", "2h", "--state-dir", tmp_path)
    assert (done.code == 2, is_paused(tmp_path)) == (refused, not refused)
    assert not refused or "set it if it is wrong, else pause without --for" in done.err
    assert agent("pause", "--state-dir", tmp_path).code == 0


def test_history_of_zeros_is_said_to_be_damaged(agent, tmp_path):
    (tmp_path / "history.jsonl").write_bytes(bytes(800))
    done = agent("history", "--state-dir", tmp_path)
    assert f"{tmp_path / 'history.jsonl'}: damaged lines, which are left out: 1" in done.err
    assert "nothing was asked" not in done.out
