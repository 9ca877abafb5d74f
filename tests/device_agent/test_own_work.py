"""What the work itself takes of the device."""

from __future__ import annotations

import os

from device_agent.own_work import own_work
from device_agent.preference_rules import Own


def test_a_process_has_its_memory_and_its_threads():
    """This one has some."""
    own = own_work(os.getpid(), threads=1)
    assert own.memory_mib > 5.0
    assert own.load_per_cpu == 1 / (os.cpu_count() or 1)


def test_no_process_takes_nothing():
    """None was started, or it has just ended."""
    assert own_work(None, threads=4) == Own()
    assert own_work(2**22 + 1, threads=4) == Own()
