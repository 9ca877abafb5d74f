"""shared.signals: what SIGINT and SIGTERM do to a command."""

from __future__ import annotations

import os
import signal
import time

import pytest

from shared.signals import ignore_signals, interruptible, stoppable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_unwind_what_was_started(number):
    """SIGTERM too: what a command started is ended on the way out, and the handlers are then those of before."""
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    unwound = []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            unwound.append(number)

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()
    assert unwound == [number]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_result_that_is_there_is_not_lost_to_a_signal():
    """Only until the command is over."""
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        ignore_signals()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_can_be_taken_up_again_is_asked_to_stop(capfd, number):
    """The first signal is only told, a second ends the work at once; the handlers are then those of before."""
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stoppable("stops soon") as stopped:
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        assert capfd.readouterr().err == "stops soon\n"
        os.kill(os.getpid(), number)
        time.sleep(60)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
