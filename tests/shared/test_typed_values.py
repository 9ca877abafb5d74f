"""Types that threads convert to are described at the import of their module: msgspec crashes if two threads describe one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Runs in a process of its own, since other tests have converted to these types already.
DESCRIBED = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
lacking = [kind.__name__ for kind in eval(sys.argv[2], vars(module)) if "__msgspec_cache__" not in vars(kind)]
sys.exit(f"not described: {lacking}" if lacking else 0)
"""
RACE = """
import sys, threading
from contextlib import suppress
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.codec import BODY_TYPES, from_plain

sys.setswitchinterval(1e-6)
together = threading.Barrier(16)

def convert():
    together.wait()
    for kind in BODY_TYPES.values():
        with suppress(WireError):
            from_plain({}, kind)

threads = [threading.Thread(target=convert) for _ in range(16)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        ("fedpatch.shared.wire.codec", "[*BODY_TYPES.values(), UpdateReport, _Frame]"),
        ("fedpatch.device_agent.job.training_messages", "[*COMMANDS.values(), *ANSWERS.values()]"),
        ("fedpatch.coordinator.rounds.round_record", "[RoundRecord]"),
    ],
)
def test_types_are_described_when_their_module_is_imported(module, kinds):
    subprocess.run([sys.executable, "-c", DESCRIBED, module, kinds], check=True)


@pytest.mark.medium
def test_first_conversions_in_many_threads_end_no_process():
    for _ in range(10):
        subprocess.run([sys.executable, "-c", RACE], check=True)
