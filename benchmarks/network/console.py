"""Cost of the web console: its process, its pages, and the rounds beside it: `python -m benchmarks.network.console`."""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import typer

from benchmarks.device.process_memory import memory_of
from benchmarks.network.fleets import FLEET, FedpatchFleet
from benchmarks.support.documents import Document, Out, Toy, deliver
from benchmarks.support.report import begun
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry, Sighting
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.signals import interruptible

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_RECORD = RoundRecord(
    1,
    "aggregated",
    cohort=200,
    accepted=196,
    declined=4,
    reported=190,
    user_accuracy=0.91,
    user_accuracy_min=0.62,
    user_accuracy_after=0.95,
    user_accuracy_p10=0.8,
    phase_seconds=PhaseSeconds(0.1, 0.4, 1.2, 9.5, 2.1, 0.3),
    bytes_down=54_000_000,
    bytes_up=51_000_000,
    decline_reasons={"too_hot": 2, "metered": 2},
    failures={"training": 1},
    late=5,
)


@command(app, "console", example="python -m benchmarks.network.console --out results/benchmarks/console.json")
def console(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Devices of the fleet on the page.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of the run on the page.")] = 500,
    watchers: Annotated[int, typer.Option(min=1, max=90, metavar="N", help="Open pages.")] = 50,
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns with and without these pages.")] = 10,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure a console of a large fleet, then real rounds without training while pages watch and while none does."""
    if toy:
        devices, rounds, watchers, turns = 3, 4, 2, 1
    document = begun("network.console", turns)
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-console-") as name:
        folder = Path(name)
        document["page"] = _measure_page(folder / "page", devices, rounds, watchers)
        document["rounds"] = _measure_rounds(folder / "rounds", 2 if toy else 20, watchers, turns)
    deliver(document, _lines, out, as_json)


def _measure_page(state_dir: Path, devices: int, rounds: int, watchers: int) -> dict[str, Any]:
    """Return sizes in bytes and times in seconds of a console whose registry a test program writes."""
    state_dir.mkdir()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.create_run(
            created_at=1.78e9,
            task="digits",
            strategy="fedavg",
            private="affine",
            settings={"fleet": FLEET},
            schema="0" * 64,
        ).id
        registry.seen_devices(
            FLEET, [Sighting(f"pi-{number:03}", 1.78e9, True, "0.1.0", ("digits",)) for number in range(devices)]
        )
        for number in range(1, rounds + 1):
            registry.rounds.finish(run, replace(_RECORD, round=number))
        with _console(state_dir, "none") as (port, pid), ExitStack() as stack:
            first = stack.enter_context(_watching(port))
            whole = _until(first, f'"n":{rounds},')
            alone = memory_of(pid)
            others = [stack.enter_context(_watching(port)) for _ in range(watchers - 1)]
            for one in others:
                _until(one, f'"n":{rounds},')
            delays, sizes = [], []
            for number in range(rounds + 1, rounds + (3 if rounds < 100 else 21)):
                registry.rounds.finish(run, replace(_RECORD, round=number))
                began = time.monotonic()
                sizes.append(_until(first, f'"n":{number},'))
                delays.append(time.monotonic() - began)
            full = memory_of(pid)
        with _console(state_dir, "none") as (port, _):
            shown = _measure_browser(port, registry, run, delays, state_dir)
    files = {name: len((_static() / name).read_bytes()) for name in ("console.js", "charts.js", "console.css")}
    return {
        "devices": devices,
        "rounds": rounds,
        "watchers": watchers,
        "static_bytes": sum(files.values()),
        "first_bytes": whole,
        "update_bytes": statistics.median(sizes),
        "record_to_page_s": {"median": statistics.median(delays), "max": max(delays)},
        "browser": shown,
        "rss_bytes": {"one_page": alone.rss_bytes if alone else 0, "all_pages": full.rss_bytes if full else 0},
    }


def _measure_browser(
    port: int, registry: Registry, run: str, updates: Sequence[float], folder: Path
) -> dict[str, float] | None:
    """Return times of a page in Chromium in ms: first paint, complete drawing, drawing of a record; None without Chromium."""
    if shutil.which("chromium") is None:
        return None
    from tests.support.browser import Browser

    last = max(record.round for record in registry.rounds.records(run))
    newest = "+document.querySelector('#rounds-table tbody th')?.textContent"
    drawn = "performance.getEntriesByName('draw').map(one => one.duration)"
    with Browser(folder.with_name("profile")) as page:
        page.open(f"http://127.0.0.1:{port}/", width=1280)
        page.wait_for(f"{newest} === {last}")
        paint = page.ask("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        whole = page.ask(drawn)
        page.ask("performance.clearMeasures()")
        delays = []
        for number in range(last + 1, last + 1 + len(updates)):
            registry.rounds.finish(run, replace(_RECORD, round=number))
            began = time.monotonic()
            page.wait_for(f"{newest} === {number}")
            delays.append(1e3 * (time.monotonic() - began))
        each = page.ask(drawn)
    return {
        "first_paint_ms": round(paint, 1),
        "first_drawing_ms": round(sum(whole), 1),
        "record_drawing_ms": round(sum(each) / len(delays), 1),
        "record_drawing_max_ms": round(max(each), 1),
        "record_to_page_ms": round(statistics.median(delays), 1),
        "record_to_page_max_ms": round(max(delays), 1),
    }


def _measure_rounds(folder: Path, devices: int, watchers: int, turns: int) -> dict[str, Any]:
    """Return processor and wall time of rounds without training, alternately with open pages and without."""
    rounds = 5
    fleet = FedpatchFleet("digits", devices, "delta-int8", rounds, folder)
    cpu_s: dict[str, list[float]] = {"watched": [], "alone": []}
    wall_s: dict[str, list[float]] = {"watched": [], "alone": []}
    try:
        fleet.play()
        with _console(folder / "state", "newest") as (port, _):
            for turn in range(turns):
                for kind in ("watched", "alone") if turn % 2 else ("alone", "watched"):
                    with ExitStack() as stack:
                        for _ in range(watchers if kind == "watched" else 0):
                            _until(stack.enter_context(_watching(port)), '"n":1,')
                        began = time.monotonic()
                        fleet.play()
                        wall_s[kind].append((time.monotonic() - began) / rounds)
                        cpu_s[kind].append(float(fleet.answers[-1]["cpu_s"]) / rounds)
    finally:
        fleet.close()
    ratio = {
        name: statistics.median(a / b for a, b in zip(one["watched"], one["alone"], strict=True))
        for name, one in (("cpu", cpu_s), ("wall", wall_s))
    }
    return {"devices": devices, "watchers": watchers, "cpu_s": cpu_s, "wall_s": wall_s, "ratio": ratio}


def _static() -> Path:
    import fedpatch.coordinator.console

    return Path(fedpatch.coordinator.console.__path__[0]) / "static"


@contextmanager
def _console(state_dir: Path, broker: str) -> Iterator[tuple[int, int]]:
    """Yield port and process id of a console; `broker` is none, or newest for the broker of the newest run."""
    words = ["--state-dir", str(state_dir), "--listen", "127.0.0.1:0", "--json", "--fleet", FLEET]
    words += ["--broker", broker] if broker == "none" else []
    process = subprocess.Popen([sys.executable, "-m", "fedpatch", "console", *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = str(json.loads(process.stdout.readline())["url"])
        yield int(url.rstrip("/").rpartition(":")[2]), process.pid
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def _watching(port: int) -> Iterator[SimpleQueue[bytes]]:
    """Yield the lines of an event stream, which a thread reads as a page does."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()

    def read() -> None:
        try:
            while line := answer.readline():
                lines.put(line)
        except (OSError, ValueError, AttributeError):
            pass  # the connection was closed

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        thread.join()
        connection.close()


def _until(lines: SimpleQueue[bytes], text: str) -> int:
    """Wait for a line with a text; return the bytes up to it."""
    count = 0
    while True:
        line = lines.get(timeout=60)
        count += len(line)
        if text.encode() in line:
            return count


def _lines(document: Document) -> list[str]:
    page, rounds = document["page"], document["rounds"]
    return [f"{name}: {value}" for name, value in page.items()] + [
        f"rounds with {rounds['watchers']} pages, to none: {rounds['ratio']['cpu']:.3f} of the coordinator's processor time, "
        f"{rounds['ratio']['wall']:.3f} of the time"
    ]


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.network.console")
