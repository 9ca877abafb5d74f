"""The views of a run: frames on a terminal, lines in a pipe."""

from __future__ import annotations

import errno
import io
import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedpatch.coordinator.observability.live_view import (
    MAX_DEVICES,
    SPARKS,
    LiveView,
    PlainView,
    draw,
    make_view,
    sparkline,
)
from fedpatch.coordinator.observability.round_text import round_line
from fedpatch.coordinator.observability.status_message import StatusMessage
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.wire.run_status import DeviceStatus
from tests.coordinator.observability.statuses import collecting, fleet, record, text_of, waiting
from tests.support.paths import ROOT


class TestDraw:
    def test_user_accuracy_is_that_of_the_last_aggregated_round(self):
        failed = record(2, 0.1, outcome="failed", failure="quorum_missed", reported=2)
        evaluated = record(3, 0.2, outcome="evaluated")
        lines = text_of(waiting(records=(record(1, 0.8), failed, evaluated)))
        assert any(line.startswith("user accuracy 0.800 of 0.970  ") for line in lines)

    def test_frame_of_an_open_round_has_phase_quorum_states_accuracy_and_bytes(self):
        lines = text_of(
            collecting(
                DeviceStatus("pi-1", State.REPORTED, "", 0.0),
                DeviceStatus("pi-2", State.TRAINING, "", 0.5),
                DeviceStatus("pi-3", State.DECLINED, "unwilling", 0.0),
                eta_s=65.0,
                user_accuracy=0.875,
                round_bytes_down=1_200_000,
                round_bytes_up=340_000,
            )
        )
        text = "\n".join(lines)
        open_round = next(line.split() for line in lines if line.split()[:2] == ["3", "collecting"])
        assert open_round == ["3", "collecting", "1/3", "0.875", "4.2", "s", "1.2", "MB", "340", "kB"]
        assert "round 3/30  collecting  4.2 s" in text
        assert "1/3 8 needed, in about 1 min 5 s" in text
        assert "training 1  reported 1  declined 1 (unwilling 1)" in text
        assert "user accuracy 0.875 of 0.970 so far in this round" in text
        assert any("pi-2 training" in line and "50%" in line for line in lines)
        assert any("pi-3 declined" in line and "unwilling" in line for line in lines)

    def test_frame_of_a_waiting_run_has_devices_reasons_and_missing_devices(self):
        lines = text_of(waiting(unwilling={"too_hot": 1, "not_charging": 2}, missing="b (offline)"))
        assert any("devices there" in line and "3/10" in line for line in lines)
        assert any("unwilling: not_charging 2, too_hot 1" in line for line in lines)
        assert any("missing: b (offline)" in line for line in lines)

    def test_frame_names_silent_stores(self):
        lines = text_of(collecting(silent_stores="s3://fleet has not answered for 20 s"))
        assert any("the coordinator waits: s3://fleet has not answered for 20 s" in line for line in lines)

    def test_frame_of_200_devices_fits_a_small_terminal(self):
        lines = text_of(collecting(*fleet(200), records=[record(number) for number in range(1, 40)]))
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 23

    def test_frame_of_many_devices_names_the_slowest(self):
        devices = [DeviceStatus(f"pi-{index}", State.TRAINING, "", index / 100) for index in range(100)]
        lines = text_of(collecting(*reversed(devices)))
        named = [line.split()[0] for line in lines if line.startswith("  pi-")]
        assert named == [f"pi-{index}" for index in range(MAX_DEVICES)]
        assert f"  and {100 - MAX_DEVICES} more" in [line.rstrip() for line in lines]

    def test_taller_terminal_names_more_devices(self):
        devices = [DeviceStatus(f"pi-{index}", State.TRAINING, "", index / 100) for index in range(10)]
        devices += [DeviceStatus(f"hot-{index}", State.DECLINED, "too_hot", 0.0) for index in range(90)]
        console = Console(file=io.StringIO(), width=200, record=True, markup=False)
        console.print(draw(collecting(*devices), lines=50))
        lines = console.export_text().splitlines()
        named = [
            line.split() for line in lines if line.startswith("  ") and line.split()[1] in ("training", "declined")
        ]
        assert [words[0] for words in named[:10]] == [f"pi-{index}" for index in range(10)]
        assert len(named) == MAX_DEVICES + 50 - 24 and named[-1][1:3] == ["declined", "too_hot"]
        assert len(lines) < 50

    def test_last_frame_keeps_accuracy_and_rounds_alone(self):
        text = "\n".join(text_of(collecting(*fleet(3)), over=True))
        assert "collecting" not in text and "device-" not in text
        assert "user accuracy 0.800" in text and "10/10" in text


@given(st.lists(st.floats(0.0, 1.0), max_size=50))
def test_sparkline_keeps_number_and_order_of_values(values):
    marks = sparkline(values)
    assert len(marks) == len(values)
    levels = [SPARKS.index(mark) for mark in marks]
    ranked = sorted(zip(values, levels, strict=True))
    assert [level for _, level in ranked] == sorted(levels)


def plain_lines(*messages: StatusMessage) -> list[str]:
    """Return the lines that a plain view prints."""
    stream = io.StringIO()
    with PlainView(stream) as view:
        for message in messages:
            view.show(message)
    return stream.getvalue().splitlines()


class TestPlainView:
    def test_completed_round_is_one_line_printed_once(self):
        after = waiting(present=10, round=3, records=[record(3)])
        assert plain_lines(waiting(present=10), after, after) == [
            "round 3/30 aggregated: 10/10 reported, UA 0.912 (min 0.830), 1.9 s, 54 kB down, 51 kB up"
        ]

    @pytest.mark.parametrize(
        ("known", "printed"),
        [
            ([[], [1, 2], [2, 3], [4, 5]], [1, 2, 3, 4, 5]),
            ([[1, 2], [1, 2, 3]], [3]),  # the first status of a resumed run has the earlier rounds
        ],
    )
    def test_each_new_round_is_printed_once(self, known, printed):
        shown = [waiting(present=10, records=[record(number) for number in numbers]) for numbers in known]
        assert [line[:10] for line in plain_lines(*shown)] == [f"round {number}/30"[:10] for number in printed]

    def test_failed_round_has_failure_and_reasons(self):
        failed = record(
            1, reported=4, failure="quorum_missed", outcome="failed", decline_reasons={"unwilling": 3}, late=2
        )
        line = plain_lines(waiting(), waiting(records=[failed]))[-1]
        assert line.startswith("round 1/30 failed (quorum_missed): 4/10 reported")
        assert line.endswith("declined: unwilling 3, 2 late")

    def test_wait_is_one_line_until_the_run_waits_again(self):
        assert plain_lines(waiting(), waiting(present=4), waiting(present=10), waiting(present=2)) == [
            "waiting for devices: 3 of 10 are there",
            "waiting for devices: 2 of 10 are there",
        ]

    def test_wait_is_printed_with_the_devices_that_have_come_every_ten_seconds_at_most(self):
        shown = ((0, 120.0), (4, 119.0), (4, 111.0), (4, 110.0), (4, 50.0), (5, 49.0), (6, 45.0), (6, 38.0), (5, 0.0))
        assert plain_lines(*(waiting(present=there, waits_s=left) for there, left in shown)) == [
            "waiting for devices: 0 of 10 are there; 2 min 0 s left",
            "waiting for devices: 4 of 10 are there; 1 min 50 s left",
            "waiting for devices: 5 of 10 are there; 49 s left",
            "waiting for devices: 6 of 10 are there; 38 s left",
        ]

    def test_wait_is_printed_again_when_its_causes_change(self):
        prefix = "waiting for devices: 3 of 10 are there"
        hot = waiting(unwilling={"too_hot": 1, "not_charging": 2})
        assert plain_lines(waiting(), hot, hot) == [prefix, f"{prefix}; unwilling: not_charging 2, too_hot 1"]
        missing = ("b (offline)", "b (offline)", "b (offline), c (offline)", "a, b, c, d, e, 8 more", "a, 9 more")
        assert plain_lines(*(waiting(missing=text) for text in missing)) == [
            f"{prefix}; missing: b (offline)",
            f"{prefix}; missing: b (offline), c (offline)",
            f"{prefix}; missing: a, b, c, d, e, 8 more",
        ]
        assert plain_lines(*(waiting(starting=count) for count in (0, 7, 6, 0))) == [
            prefix,
            f"{prefix}; 7 starting",
            prefix,
        ]


def test_round_line_names_offenders_and_an_accuracy_of_a_minority():
    """An accuracy of fewer devices than the quorum is marked, since it cannot reach the target."""
    one = record(1, offenders={"foe": "not_finite"}, measured=2, needed=8)
    line = round_line(one, 30)
    assert "not asked again: foe (not_finite)" in line and "user accuracy of 2 devices only" in line
    assert "user accuracy of" not in round_line(record(1, measured=8, needed=8), 30)


@pytest.fixture
def terminal(monkeypatch) -> Iterator[io.TextIOWrapper]:
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream
    os.close(master)


def test_make_view_draws_only_on_a_capable_terminal(terminal, monkeypatch):
    assert isinstance(make_view(terminal), LiveView)
    assert isinstance(make_view(terminal, plain=True), PlainView)
    assert isinstance(make_view(io.StringIO()), PlainView)
    with open(os.dup(terminal.fileno()), "w", encoding="ascii") as ascii_terminal:
        assert isinstance(make_view(ascii_terminal), PlainView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(terminal), PlainView)


def live_output(messages: list[StatusMessage]) -> str:
    """Return the characters that a live view writes."""
    stream = io.StringIO()
    with LiveView(Console(file=stream, force_terminal=True, width=80)) as view:
        for message in messages:
            view.show(message)
        view.say("a word")
    return stream.getvalue()


@pytest.mark.medium
def test_live_view_draws_at_its_own_pace():
    training = DeviceStatus("pi-1", State.TRAINING, "", 0.5)
    shown = [collecting(training, elapsed_s=float(n)) for n in range(10_000)]
    written = live_output([*shown, waiting(run="the-last")])
    assert written.count("pi-1") < 1_000
    assert "the-last" in written and "a word" in written


def test_no_color_turns_colours_off(monkeypatch):
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
from tests.coordinator.observability.statuses import collecting, fleet
with make_view(sys.stderr) as view:
    view.say("a word")
    view.show(collecting(*fleet(200)))
    threading.Event().wait()
"""


def _is_one_frame(shown: list[str]) -> bool:
    return (
        shown[:1] == ["a word"]
        and sum("reported " in line and "needed" in line for line in shown) == 1
        and any(line.startswith("user accuracy 0.800 of 0.970") for line in shown)
    )


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (Debian: apt install tmux)")
def test_terminal_shows_one_whole_frame_below_the_lines(tmp_path: Path, socket_folder: Path):
    """In tmux with 80 columns one frame is visible, although the frame is drawn many times."""
    script = tmp_path / "show.py"
    script.write_text(_IN_TMUX)
    tmux = ["tmux", "-S", str(socket_folder / "socket"), "-f", "/dev/null"]
    shell = f"cd {ROOT} && PYTHONPATH=src:. LC_ALL=C.UTF-8 {sys.executable} {script}"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "30", shell], check=True)
    try:
        shown: list[str] = []
        give_up_at = time.monotonic() + 100.0
        while not _is_one_frame(shown):  # a capture may happen during a redraw
            assert time.monotonic() < give_up_at, shown
            capture = [*tmux, "capture-pane", "-p"]
            shown = subprocess.run(capture, capture_output=True, text=True, check=True).stdout.splitlines()
            time.sleep(0.1)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_closed_stderr_does_not_stop_the_run():
    """The case of `fedpatch run 2>&1 | head`."""

    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with make_view(Closed()) as view:
        view.say("a line")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the thread that draws
def test_terminal_that_is_gone_does_not_stop_the_run():
    """The case of `fedpatch run --json > result.json` that goes on after its terminal window was closed."""

    class Terminal(io.StringIO):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

    stream = Terminal()
    with LiveView(Console(file=stream, force_terminal=True)) as view:
        view.show(collecting(*fleet(3)))
        stream.gone = True
        view.say("a line")
