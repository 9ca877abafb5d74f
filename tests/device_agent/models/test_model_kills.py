"""After a kill at any moment, there is a whole personal model at the same path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from fedpatch.device_agent.models.store import ModelStore
from fedpatch.shared.errors import UsageError
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.exported_models import RUN, describe, present, publish, rounds
from tests.support.paths import ROOT


def _story(root: Path) -> list[Callable[[], object]]:
    """Rounds and a rollback; the process may be killed before any of their changes."""
    store = ModelStore(root, 2)
    return [
        lambda: publish(store, 1),
        lambda: publish(store, 2),
        lambda: publish(store, 3),
        lambda: store.roll_back("toy"),
        lambda: store.discard_staged("toy"),
        lambda: store.release("toy"),
        lambda: publish(store, 4),
    ]


@pytest.mark.medium
def test_killed_before_any_change_the_present_model_is_whole(tmp_path_factory):
    """The present model is the one before or after the change, later rounds work, and no extra model remains."""
    expected = [None, 1, 2, 3, 2, 2, 2, 4]
    deaths = 0
    for place in range(len(expected) - 1):
        fatal = 0
        while True:
            fatal += 1
            root = tmp_path_factory.mktemp("models")
            story = _story(root)
            for deed in story[:place]:
                deed()
            if Guillotine(fatal).run(story[place]) < fatal:
                break
            deaths += 1
            assert present(root) in expected[place : place + 2], (place, fatal)
            after = ModelStore(root, 2)
            after.publish(
                "toy", RUN, max(one for one in expected[: place + 2] if one)
            )  # the update is committed once more
            with suppress(UsageError):  # no model yet
                after.release("toy")
            assert publish(after, 9) is not None
            assert present(root) == 9
            assert len(rounds(after)) <= 2
            leftovers = {path.name for path in (root / "toy").iterdir() if path.name.startswith(".")}
            assert leftovers <= {".lock"}, (place, fatal, leftovers)
    assert deaths > 60


def test_a_commit_after_a_kill_publishes_what_was_renamed(tmp_path_factory):
    """After a kill between the two renames the round's model exists but is not present; the next commit publishes it."""
    for fatal in range(1, 100):
        root = tmp_path_factory.mktemp("models")
        store = ModelStore(root, 2)
        publish(store, 1)
        store.stage(b"second", describe(2, b"second"))
        done = Guillotine(fatal).run(partial(store.publish, "toy", RUN, 2)) < fatal
        ModelStore(root, 2).publish("toy", RUN, 2)
        assert present(root) == 2, fatal
        if done:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.medium
def test_killed_for_real_it_is_whole_too(tmp_path):
    program = (
        "import sys; from pathlib import Path; from fedpatch.device_agent.models.store import ModelStore\n"
        "from tests.device_agent.exported_models import publish\n"
        "store = ModelStore(Path(sys.argv[1]), 2); round = int(sys.argv[2])\n"
        "while True:\n"
        "    round += 1; publish(store, round, bytes(10000)); print(round, flush=True)\n"
    )
    last = 0
    for wanted in (1, 3, 7, 2):
        command = [sys.executable, "-c", program, str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(wanted):
                last = int(process.stdout.readline())
            process.kill()
        found = present(tmp_path)
        assert found is not None
        assert found >= last
        last = found
