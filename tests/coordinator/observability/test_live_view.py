"""How a run is shown while it goes on."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedpatch.coordinator.observability.live_view import MAX_DEVICES, LiveView, PlainView, draw, make_view
from fedpatch.coordinator.observability.round_text import round_line
from fedpatch.coordinator.observability.snapshot import DeviceLine, Snapshot
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.run_records import PhaseSeconds, RoundRecord
from tests.support.paths import ROOT

WAITING = Snapshot(
    run="20260504-101500-3fa9c1",
    round=0,
    rounds=30,
    target_ua=0.97,
    phase="waiting",
    devices=(),
    present=3,
    wanted=10,
    unwilling={},
    reported=0,
    needed=0,
    user_accuracy=None,
    eta_s=None,
    elapsed_s=0.0,
    pause_s=0.0,
    records=(),
)


def record(number: int, ua: float = 0.912, **more: Any) -> RoundRecord:
    """A round that went well."""
    usual = RoundRecord(
        number,
        "aggregated",
        cohort=10,
        accepted=10,
        declined=0,
        reported=10,
        user_accuracy=ua,
        user_accuracy_min=0.83,
        phase_seconds=PhaseSeconds(train=1.5, upload=0.4),
        bytes_down=54_000,
        bytes_up=51_000,
    )
    return replace(usual, **more)


def collecting(*devices: DeviceLine, **more: Any) -> Snapshot:
    """Round 3 of 30 under way."""
    reported = sum(one.state is State.REPORTED for one in devices)
    known = replace(WAITING, round=3, phase="collecting", devices=devices, present=10, reported=reported, needed=8)
    return replace(known, **{"elapsed_s": 4.2, "records": (record(1, 0.4), record(2, 0.8)), **more})


def text_of(snapshot: Snapshot, *, over: bool = False, width: int = 80) -> list[str]:
    """Lines of the picture as a terminal shows them."""
    console = Console(file=io.StringIO(), width=width, record=True, markup=False)
    console.print(draw(snapshot, over=over))
    return console.export_text().splitlines()


def fleet(count: int) -> tuple[DeviceLine, ...]:
    """Devices in all states; those that train are at different points."""
    states = list(State)
    return tuple(
        DeviceLine(
            f"device-{index:03}", states[index % len(states)], "a reason" if index % 5 == 0 else "", index / count
        )
        for index in range(count)
    )


def test_a_round_says_who_reported_of_how_many_and_when_it_may_be_enough():
    """Also how many are in each state, and why some are out."""
    lines = "\n".join(
        text_of(
            collecting(
                DeviceLine("pi-1", State.REPORTED, "", 0.0),
                DeviceLine("pi-2", State.TRAINING, "", 0.5),
                DeviceLine("pi-3", State.DECLINED, "unwilling", 0.0),
                eta_s=65.0,
                user_accuracy=0.875,
                bytes_down=1_200_000,
                bytes_up=340_000,
            )
        )
    )
    open_round = next(line.split() for line in lines.splitlines() if line.split()[:2] == ["3", "collecting"])
    assert open_round == ["3", "collecting", "1/3", "0.875", "4.2", "s", "1.2", "MB", "340", "kB"]
    assert "round 3/30  collecting  4.2 s" in lines
    assert "1/3 8 needed, in about 1 min 5 s" in lines
    assert "training 1  reported 1  declined 1 (unwilling 1)" in lines
    assert "user accuracy 0.875 of 0.970 so far in this round" in lines
    assert any("pi-2 training" in line and "50%" in line for line in lines.splitlines())
    assert any("pi-3 declined" in line and "unwilling" in line for line in lines.splitlines())


def test_waiting_says_how_many_devices_are_there():
    """As long as they are too few."""
    assert any("devices there" in line and "3/10" in line for line in text_of(WAITING))


def test_the_picture_fits_a_terminal_however_many_devices_there_are():
    """80 columns, and no more lines than a small terminal has."""
    lines = text_of(collecting(*fleet(200), records=tuple(record(number) for number in range(1, 40))))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 23


def test_of_many_devices_the_slowest_are_named():
    """Those whose training is least far, and how many are not named."""
    devices = [DeviceLine(f"pi-{index}", State.TRAINING, "", index / 100) for index in range(100)]
    lines = text_of(collecting(*reversed(devices)))
    named = [line.split()[0] for line in lines if line.startswith("  pi-")]
    assert named == [f"pi-{index}" for index in range(MAX_DEVICES)]
    assert f"  and {100 - MAX_DEVICES} more" in [line.rstrip() for line in lines]


def test_what_is_only_passing_is_gone_when_all_is_over():
    """The last picture keeps the run, the accuracy and the last rounds."""
    lines = "\n".join(text_of(collecting(*fleet(3)), over=True))
    assert "collecting" not in lines and "device-" not in lines
    assert "user accuracy 0.800" in lines and "10/10" in lines


def plain_lines(*snapshots: Snapshot) -> list[str]:
    """What a plain view says."""
    stream = io.StringIO()
    with PlainView(stream) as view:
        for snapshot in snapshots:
            view.show(snapshot)
    return stream.getvalue().splitlines()


def test_a_plain_round_is_one_line():
    """With everything that is worth a look, once only."""
    after = replace(WAITING, present=10, round=3, records=(record(3),))
    assert plain_lines(replace(WAITING, present=10), after, after) == [
        "round 3/30 aggregated: 10/10 reported, UA 0.912 (min 0.830), 1.9 s, 54 kB down, 51 kB up"
    ]


def test_a_plain_round_is_told_once_also_where_only_the_last_rounds_are_known():
    """Rounds are told by their numbers, not by how many are known."""
    known = [replace(WAITING, present=10, records=(record(n), record(n + 1))) for n in (1, 2, 4)]
    assert [line[:9] for line in plain_lines(replace(WAITING, present=10), *known)] == [
        f"round {n}/3" for n in (1, 2, 3, 4, 5)
    ]


def test_a_plain_failed_round_says_why():
    """The failure, and what became of the devices."""
    failed = record(1, reported=4, failure="quorum_missed", outcome="failed", decline_reasons={"unwilling": 3}, late=2)
    line = plain_lines(WAITING, replace(WAITING, records=(failed,)))[-1]
    assert line.startswith("round 1/30 failed (quorum_missed): 4/10 reported")
    assert line.endswith("declined: unwilling 3, 2 late")


def test_plain_waiting_is_said_once_per_wait():
    """Not for each device that comes, but again when too many have left."""
    there = replace(WAITING, present=10)
    assert plain_lines(WAITING, replace(WAITING, present=4), there, replace(WAITING, present=2)) == [
        "waiting for devices: 3 of 10 are there",
        "waiting for devices: 2 of 10 are there",
    ]


def test_missing_devices_are_named_while_they_are_waited_for():
    """In lines, a new one where others are missing; of a large fleet, no line for each that comes or goes."""
    stream = io.StringIO()
    few = replace(WAITING, present=1, wanted=4)
    with PlainView(stream) as view:
        for missing in ("b (offline)", "b (offline)", "b (offline), c (offline)", "a, b, c, d, e, 8 more", "a, 9 more"):
            view.show(replace(few, missing=missing))
    assert stream.getvalue().splitlines() == [
        "waiting for devices: 1 of 4 are there; missing: b (offline)",
        "waiting for devices: 1 of 4 are there; missing: b (offline), c (offline)",
        "waiting for devices: 1 of 4 are there; missing: a, b, c, d, e, 8 more",
    ]
    assert any("missing: b (offline)" in line for line in text_of(replace(few, missing="b (offline)")))


def test_a_round_names_its_offenders_and_says_whose_accuracy_it_is():
    """An accuracy that a minority measured reaches no target."""
    one = record(1, offenders={"foe": "not_finite"}, measured=2, needed=8)
    words = "not asked again: foe (not_finite), user accuracy of 2 devices only, which is below the quorum of 8"
    assert round_line(one, 30).endswith(words)
    assert "user accuracy of" not in round_line(record(1, measured=8, needed=8), 30)


def test_why_devices_are_unwilling_is_said_while_others_are_waited_for():
    """Again when it changes, and it stands in the picture too."""
    hot = replace(WAITING, unwilling={"too_hot": 1, "not_charging": 2})
    assert plain_lines(WAITING, hot, hot, WAITING)[1] == (
        "waiting for devices: 3 of 10 are there; unwilling: not_charging 2, too_hot 1"
    )
    assert len(plain_lines(hot, hot)) == 1
    assert any("unwilling: not_charging 2, too_hot 1" in line for line in text_of(hot))


def test_the_rounds_before_a_resume_are_not_told_again():
    """A resumed run begins with the records of its first part."""
    before = replace(WAITING, present=10, records=(record(1), record(2)))
    assert [line[:10] for line in plain_lines(before, replace(before, records=(*before.records, record(3))))] == [
        "round 3/30"
    ]


@pytest.fixture
def terminal(monkeypatch) -> Iterator[io.TextIOWrapper]:
    """A terminal's end, open for writing."""
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream
    os.close(master)


def test_only_a_terminal_that_can_be_drawn_on_gets_a_live_view(terminal, monkeypatch):
    """A pipe, a dumb terminal and one without the characters get plain lines, as does whoever asks for them."""
    assert isinstance(make_view(terminal), LiveView)
    assert isinstance(make_view(terminal, plain=True), PlainView)
    assert isinstance(make_view(io.StringIO()), PlainView)
    with open(os.dup(terminal.fileno()), "w", encoding="ascii") as ascii_terminal:
        assert isinstance(make_view(ascii_terminal), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(terminal), PlainView)


def live_output(snapshots: list[Snapshot]) -> str:
    """All that a live view wrote."""
    stream = io.StringIO()
    with LiveView(Console(file=stream, force_terminal=True, width=80)) as view:
        for snapshot in snapshots:
            view.show(snapshot)
        view.say("a word")
    return stream.getvalue()


def test_a_live_view_draws_at_its_own_pace():
    """Ten thousand events are not ten thousand pictures; the last one is always drawn."""
    shown = [collecting(DeviceLine("pi-1", State.TRAINING, "", 0.5), elapsed_s=float(n)) for n in range(10_000)]
    written = live_output([*shown, replace(WAITING, run="the-last")])
    assert written.count("pi-1") < 1_000
    assert "the-last" in written and "a word" in written


def test_no_color_is_respected(monkeypatch):
    """NO_COLOR leaves no colour in what is written."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colourful = live_output([collecting(*fleet(9))])
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = live_output([collecting(*fleet(9))])
    assert "\x1b[32m" in colourful
    assert not any(f"\x1b[{code}m" in colourless for code in range(30, 38))


_IN_TMUX = """
import sys, threading
from fedpatch.coordinator.observability.live_view import make_view
from tests.coordinator.observability.test_live_view import collecting, fleet
with make_view(sys.stderr) as view:
    view.say("a word")
    view.show(collecting(*fleet(200)))
    threading.Event().wait()
"""


def _is_one_picture(shown: list[str]) -> bool:
    return (
        shown[:1] == ["a word"]
        and sum("reported " in line and "needed" in line for line in shown) == 1
        and any(line.startswith("user accuracy 0.800 of 0.970") for line in shown)
    )


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian: apt install tmux)")
def test_a_real_terminal_shows_one_picture(tmp_path: Path, socket_folder: Path):
    """In tmux, 80 columns wide: every line whole, the picture there once although drawn many times, what was said above."""
    root = ROOT
    script = tmp_path / "show.py"
    script.write_text(_IN_TMUX)
    tmux = ["tmux", "-S", str(socket_folder / "socket"), "-f", "/dev/null"]
    shell = f"cd {root} && PYTHONPATH=. LC_ALL=C.UTF-8 {sys.executable} {script}"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "30", shell], check=True)
    try:
        shown: list[str] = []
        give_up_at = time.monotonic() + 100.0
        while not _is_one_picture(shown):  # it may be looked at while it is drawn on
            assert time.monotonic() < give_up_at, shown
            capture = [*tmux, "capture-pane", "-p"]
            shown = subprocess.run(capture, capture_output=True, text=True, check=True).stdout.splitlines()
            time.sleep(0.1)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_nobody_to_read_is_no_reason_to_stop():
    """`fedpatch run 2>&1 | head` ends the reading, not the training."""

    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with make_view(Closed()) as view:
        view.say("a line")
