"""A real coordinator that runs as many rounds as each line on stdin requests, and prints the record of the last of them.

    python -m benchmarks.network.coordinator_process SETTINGS        (JSON: names and values of `fedpatch run`'s options)

No part of the run is replaced. After the record of a round is on the disk and before the next model is published, the
coordinator's thread waits for a line with the number of rounds to run. The first round runs without a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from fedpatch.coordinator.observability.event_observer import Observer
from fedpatch.coordinator.observability.live_view import make_view
from fedpatch.coordinator.observability.metrics_endpoint import observed
from fedpatch.coordinator.rounds.run_effects import Effect, SaveRecord
from fedpatch.coordinator.runtime import play_rounds
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load

ENDLESS = 1_000_000


class Gate:
    """Stops a run between two rounds until a line on stdin requests more."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._left = 1
        self._began_s = time.process_time()

    def performed(self, effect: Effect) -> None:
        """After the requested rounds, print the last one, and wait for the next request."""
        if not isinstance(effect, SaveRecord):
            return
        self._left -= 1
        if self._left > 0:
            return
        record = effect.record
        figures = {"round": record.round, "outcome": record.outcome, "reported": record.reported}
        figures |= {"bytes_down": record.bytes_down, "bytes_up": record.bytes_up}
        self._answers.write(json.dumps({**figures, "cpu_s": time.process_time() - self._began_s}) + "\n")
        self._answers.flush()
        line = sys.stdin.readline()
        self._left, self._began_s = int(line or ENDLESS), time.process_time()
        if not line:
            os.kill(os.getpid(), signal.SIGINT)


class Gated:
    """An observer of a run, followed by the gate."""

    def __init__(self, gate: Gate, observer: Observer) -> None:
        self._gate = gate
        self.sent, self.received = observer.sent, observer.received
        self.presence, self.vitals = observer.presence, observer.vitals
        self.link, self.look = observer.link, observer.look
        self._performed = observer.performed

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """Call the run's own observer first, because its work is part of the round; then the gate."""
        self._performed(effect, began_at, ended_at)
        self._gate.performed(effect)


def main() -> None:
    """Run until stdin ends."""
    flags: dict[str, Any] = json.loads(sys.argv[1])
    gate = Gate(sys.stdout)

    @contextlib.contextmanager
    def gated(*arguments: Any, **named: Any) -> Iterator[Observer]:
        with observed(*arguments, **named) as observer:
            yield Gated(gate, observer)

    play_rounds.observed = gated  # type: ignore[attr-defined]
    settings = load(RunSettings, file=None, environ={}, flags={"rounds": ENDLESS, **flags})
    with make_view(sys.stderr, plain=True) as view:
        start_run(settings, view)


if __name__ == "__main__":
    main()
