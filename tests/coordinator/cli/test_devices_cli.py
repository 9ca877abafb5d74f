"""`fedpatch devices quarantine`, `release`, `drain` and `resume`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from tests.coordinator.registry_builders import seen
from tests.support.programs import Ended, Program


@pytest.fixture
def devices(fedpatch: Program, tmp_path: Path) -> Callable[..., Ended]:
    """`fedpatch devices` with two fleets, which both have a device pi-1."""
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        for fleet, device in (("kitchen", "pi-1"), ("kitchen", "pi-2"), ("garden", "pi-1")):
            seen(registry, device, fleet=fleet, now=1.0, online=True)
    return lambda *argv: fedpatch("devices", "--state-dir", tmp_path, *argv)


@pytest.mark.parametrize(
    ("ahead_s", "words"), [(400 * 86_400.0, r"20\d\d-\d\d-\d\d \d\d:\d\d"), (30.0, "now"), (-90.0, "1 min ago")]
)
def test_device_that_was_seen_while_the_clock_was_ahead_is_not_shown_as_seen_now(
    fedpatch: Program, tmp_path: Path, ahead_s: float, words: str
):
    with Registry(tmp_path / REGISTRY_FILE) as registry:
        seen(registry, "pi-1", now=time.time() + ahead_s, online=False)
    assert re.search(f"offline +{words} ", fedpatch("devices", "--state-dir", tmp_path).out)


@pytest.mark.parametrize(
    ("hold", "lift", "field"), [("quarantine", "release", "quarantined"), ("drain", "resume", "drained")]
)
def test_repeated_hold_or_lift_changes_nothing_and_prints_a_note(devices, hold, lift, field):
    first = devices(hold, "pi-2", "--reason", "hums", "--json")
    again = devices(hold, "pi-2", "--reason", "smells", "--json")
    assert (first.err, again.err) == ("", f"pi-2 is {field} already; reason and time stay as they were\n")
    assert json.loads(first.out) == json.loads(again.out) and json.loads(again.out)[field]["reason"] == "hums"
    assert f"{field} " in devices("--fleet", "kitchen").out
    assert devices(lift, "pi-2").err == ""
    over = devices(lift, "pi-2", "--json")
    assert (over.code, over.err, json.loads(over.out)[field]) == (0, f"pi-2 was not {field}\n", None)


@pytest.mark.parametrize(
    ("lift", "other", "remedy"), [("release", "drained", "resume"), ("resume", "quarantined", "release")]
)
def test_device_with_both_holds_is_named_with_the_one_that_is_left(devices, tmp_path, lift, other, remedy):
    """An operator who resumes a device in quarantine would wait for it in vain."""
    devices("quarantine", "pi-2", "--reason", "hums")
    devices("drain", "pi-2")
    command = f"fedpatch devices {remedy} pi-2 --fleet kitchen --state-dir {tmp_path}"
    assert devices(lift, "pi-2", "--fleet", "kitchen").err == f"pi-2 is still {other}; end that with {command}\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("pi-9",), "pi-9"),
        (("pi-1",), "there is a device 'pi-1' in each of the fleets garden, kitchen; name one with --fleet"),
        (("pi-2", "--fleet", "garden"), "pi-2"),
        (("pi-2", "--reason", " "), "the reason must have 1 to 500 printable characters"),
        (("pi-2", "--reason", "a\nb"), "the reason must have 1 to 500 printable characters"),
        (("pi-2", "--reason", "x" * 501), "the reason must have 1 to 500 printable characters"),
    ],
)
def test_ambiguous_device_or_bad_reason_is_a_usage_error(devices, argv, words):
    reason = () if "--reason" in argv else ("--reason", "hums")
    ended = devices("quarantine", *argv, *reason)
    assert (ended.code, ended.out) == (2, "") and words in ended.err
    assert all(one["quarantined"] is None for one in json.loads(devices("--json").out))


@pytest.mark.parametrize(("before", "after"), [(2, 0), (1, 1), (0, 2)])
def test_options_of_logs_before_a_subcommand_apply_to_it(devices, before, after):
    options = ["--debug", "--log-format=logfmt"]
    ended = devices(*options[:before], "drain", "pi-9", *options[2 - after :])
    assert ended.code == 2
    assert "level=debug logger=fedpatch.command message=UsageError trace=" in ended.err


def test_fleet_selects_one_of_two_devices_with_the_same_id(devices):
    assert devices("drain", "pi-1", "--fleet", "garden").code == 0
    held = [(one["fleet"], one["id"]) for one in json.loads(devices("--json").out) if one["drained"]]
    assert held == [("garden", "pi-1")]


@pytest.mark.parametrize(
    ("before", "after", "variable", "looked"),
    [("a", None, "c", "a"), ("a", "b", "c", "b"), (None, "b", "c", "b"), (None, None, "c", "c")],
)
def test_option_on_either_side_of_the_command_overrides_the_variable(
    fedpatch, tmp_path, monkeypatch, before, after, variable, looked
):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        with Registry(tmp_path / name / REGISTRY_FILE) as registry:
            seen(registry, f"pi-in-{name}", fleet="kitchen", now=1.0, online=True)
    monkeypatch.setenv("FEDPATCH_STATE_DIR", str(tmp_path / variable))
    options = [["--state-dir", tmp_path / one] if one else [] for one in (before, after)]
    ended = fedpatch("devices", "--json", *options[0], "drain", f"pi-in-{looked}", *options[1])
    assert (ended.code, ended.err) == (0, "")


def test_revoked_device_is_not_online_and_named_revoked(devices, tmp_path):
    """The broker refuses it, so its last presence stays in the registry. The same name in another fleet is another device."""
    with Authority.create(tmp_path / "ca", "kitchen", now=1e9) as authority:
        authority.issue(DEVICE, "pi-1", now=1e9)
        authority.revoke(DEVICE, "pi-1", now=1e9 + 1)
    listed = {(one["fleet"], one["id"]): (one["online"], one["revoked"]) for one in json.loads(devices("--json").out)}
    assert listed == {
        ("kitchen", "pi-1"): (False, True),
        ("kitchen", "pi-2"): (True, False),
        ("garden", "pi-1"): (True, False),
    }
    assert devices("--fleet", "kitchen").out.count("revoked") == 1
