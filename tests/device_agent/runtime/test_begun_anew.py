"""A state directory that is not the one of the device's last start."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fedpatch.device_agent.policy.usage import USAGE_NAME
from fedpatch.device_agent.runtime import begun_anew, startup
from fedpatch.device_agent.runtime.name_check import NameChecked
from fedpatch.device_agent.state.machine import MACHINE_NAME


@pytest.mark.parametrize(
    ("boots", "file", "warns"),
    [
        ((), "", True),
        ((), "identity/client.pem", True),
        (("older",), USAGE_NAME, True),
        ((), USAGE_NAME, False),
        ((), MACHINE_NAME, False),
    ],
    ids=["empty", "enrolled", "older copy", "restored", "without its status after a power cut"],
)
@pytest.mark.parametrize("is_foreign", [True, False])
def test_agent_warns_if_its_directory_lacks_the_last_start_of_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, boots: tuple[str, ...], file: str, warns: bool, is_foreign: bool
):
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    events: list[NameChecked] = []
    answer = startup._warning_of_lost_state(tmp_path, "pi", boots, events.append)
    checked = NameChecked(in_use=False, is_foreign=is_foreign)
    with caplog.at_level(logging.WARNING):
        answer(checked)
    assert events == [checked]
    assert bool(caplog.records) == (warns and is_foreign)
    if caplog.records:
        assert f"pi was last started with another state directory than {tmp_path}" in caplog.text


def test_directory_that_cannot_be_read_is_not_called_lost(tmp_path: Path):
    (tmp_path / "file").touch()
    assert begun_anew.may_be_lost(tmp_path / "absent", ())
    assert not begun_anew.may_be_lost(tmp_path / "file", ())
