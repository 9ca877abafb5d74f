"""A broker that closes the connection of each client that exceeds the limits of a hosted broker."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.demo.amqtt_server import serve
from fedpatch.coordinator.demo.broker import EmbeddedBroker
from tests.support.brokers import free_port
from tests.support.paths import ROOT


@dataclass
class LimitedBroker:
    """A running broker; `violations` has a line for each time that a client exceeded a limit."""

    url: str
    report: Path

    @property
    def violations(self) -> list[str]:
        return self.report.read_text().splitlines()


@contextmanager
def limited_broker(profile: str) -> Iterator[LimitedBroker]:
    """A broker with the limits of a profile."""
    with tempfile.TemporaryDirectory(prefix="fedpatch-limited-") as directory:
        report = Path(directory) / "violations"
        report.touch()
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), path]))
        broker = EmbeddedBroker(free_port(), (__name__, "--profile", profile, "--report", str(report)))
        try:
            broker.start()
        finally:
            os.environ.pop("PYTHONPATH")
            if path is not None:
                os.environ["PYTHONPATH"] = path
        try:
            yield LimitedBroker(broker.url, report)
        finally:
            broker.stop()


def main() -> None:
    """Run the broker in this process."""
    parser = argparse.ArgumentParser()
    for name in ("profile", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--fd", type=int, required=True)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    plugin = {"tests.broker.hosted.limits_plugin.Limits": {"profile": given.profile, "report": given.report}}
    asyncio.run(serve(socket.socket(fileno=given.fd), plugin))


if __name__ == "__main__":
    main()
