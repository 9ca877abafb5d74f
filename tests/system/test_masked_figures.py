"""An honest coordinator of masked rounds shows no figure of a device, in files, logs, metrics, traces, status and console.

Eight agents with certificates. The victim has 29 test examples and the others 20, so a user accuracy of k / 29 is the victim's.
"""

from __future__ import annotations

import re
import shutil
import struct
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.console.snapshot import Cursor, events_since
from tests.attacks.arena import Spy
from tests.coordinator.console.consoles import served
from tests.support.brokers import HOST, free_port
from tests.support.identities import Certified, url_of
from tests.system.commands import Command, run
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

FLEET, VICTIM = "kitchen", "pi-0"
DEVICES = {f"pi-{place}": f"n=24,test=20,seed={place}" for place in range(8)} | {VICTIM: "n=37,test=29,seed=0"}
ACCURACIES = [k / 29 for k in range(1, 29)]
_TEXTS = [str(value)[:9].encode() for value in ACCURACIES]
"""With seven decimals: durations have the same first digits by chance."""
_NUMBER = re.compile(rb'"?num_examples"?\W{1,3}37\b')


def figures_in(data: bytes) -> set[bytes]:
    """Return the figures of the victim in some bytes: as text, or as a float64 of either order."""
    binary = [struct.pack(f"{order}d", value) for value in ACCURACIES for order in "<>"]
    return {one for one in (*binary, *_TEXTS) if one in data} | set(_NUMBER.findall(data))


@contextmanager
def receiver(bodies: list[bytes]) -> Iterator[str]:
    """Receive traces; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer((HOST, 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(server.serve_forever)
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()


def scrape(port: int, command: Command) -> set[bytes]:
    """Return all lines of the metrics until the command ends."""
    lines: set[bytes] = set()
    until = time.monotonic() + 400.0
    while command.running and time.monotonic() < until:
        with suppress(OSError, HTTPException):
            lines.update(urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5).read().splitlines())
        time.sleep(0.2)
    return lines


def test_masked_run_shows_no_figure_of_a_device_anywhere(tmp_path: Path):
    """And the search finds these figures in the victim's own files."""
    certificates = Certified(tmp_path / "ca", FLEET).make(*DEVICES)
    public = tmp_path / "public"  # the CA's key stays elsewhere
    public.mkdir()
    for name in ("ca.crt", "ca.crl"):
        shutil.copy(certificates.directory / name, public)
    state, port, traces = tmp_path / "state", free_port(), list[bytes]()
    with certificates.broker() as broker, Fleet(url_of(broker), tmp_path / "agents", name=FLEET) as fleet:
        for device, data in DEVICES.items():
            cert, key = (str(path) for path in certificates.pair(device))
            files = ["--ca-file", str(certificates.ca_file), "--cert-file", cert, "--key-file", key]
            fleet.start(device, REFERENCE, data, options=[*files, "--secure", "required"])
        fleet.wait_ready(600.0)
        spy = Spy(broker.url.replace("mqtt:", "mqtts:"), FLEET, tls=certificates.files("coordinator"))
        cert, key = (str(path) for path in certificates.pair("coordinator"))
        terms = {"task": REFERENCE, "devices": 8, "rounds": 2, "quorum": 1.0, "wait_s": 120, "secure": "groups"}
        terms |= {"strategy": "fedavg", "private": "affine", "norm_bound": "off", "max_num_examples": "off"}
        terms |= {"group_size": 8, "encoding": "masked-u16", "ca_file": public / "ca.crt", "cert_file": cert}
        terms |= {"key_file": key, "metrics": f"{HOST}:{port}", "deadline_s": 200, "ca_dir": public}
        with receiver(traces) as url, fleet.coordinator(state, **terms, traces=url) as command:
            metrics = scrape(port, command)
            done = command.done()
        assert done.code == 0, done.err
        assert [one["reported"] for one in done.document["rounds"]] == [8, 8]
        spy.stop()
        own = b"".join(path.read_bytes() for path in fleet.agents[VICTIM].state_dir.rglob("*.json"))
    assert figures_in(own)
    shown = [run("fedpatch", *words, "--state-dir", state) for words in _SHOWS]
    assert {one.code for one in shown} == {0}
    places = {str(path): path.read_bytes() for path in state.rglob("*") if path.is_file()}
    places |= {
        "output": done.out.encode() + done.err.encode(),
        "metrics": b"\n".join(metrics),
        "traces": b"".join(traces),
    }
    places |= {"commands": b"".join(one.out.encode() for one in shown), "console": console_pages(state)}
    places |= {f"{one.topic} {number}": one.payload for number, one in enumerate(spy.messages)}
    assert metrics and traces
    assert {place: found for place, data in places.items() if (found := figures_in(data))} == {}


def console_pages(state: Path) -> bytes:
    """Return what the console tells of the run, of each device, and of the whole fleet."""
    with served(state, fleet=FLEET) as console:
        snapshot = console.streams.snapshot
        assert snapshot.rounds and snapshot.devices
        assert not {"worst", "best"} & {name for row in snapshot.rounds for name in row}
        histories = [console.ask(f"/api/devices/{FLEET}/{device}") for device in DEVICES]
        pages = [console.ask(f"/api/runs/{snapshot.run}"), *histories]
    assert {one.status for one in pages} == {200}
    assert [one.json["rounds"] for one in histories] == [[]] * len(DEVICES)
    events, _ = events_since(Cursor(), snapshot)
    return events + b"".join(one.body for one in pages)


_SHOWS = (("show", "last", "--json"), ("show", "last"), ("devices", "--json"), ("runs", "--json"))
