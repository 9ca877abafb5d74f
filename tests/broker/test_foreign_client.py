"""A client written from docs/reference/protocol.md and topics.md alone takes part in rounds of a real coordinator over TLS."""

from __future__ import annotations

import ast
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.wire.chunks import cut, encode_chunk
from fedpatch.shared.wire.messages import Manifest
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.support.brokers import HOST
from tests.support.identities import Certified
from tests.support.secured import SecuredMosquitto
from tests.system.commands import Command, Done

pytestmark = [pytest.mark.broker, pytest.mark.system, pytest.mark.timeout(300)]

CLIENT = Path(__file__).with_name("foreign_client.py")
FLEET = "home"
EXAMPLES = {"pi-1": 30, "pi-2": 10}
SHIFTS = {"pi-1": 0.25, "pi-2": -0.5}
MEAN_SHIFT = (30 * 0.25 - 10 * 0.5) / 40
MAX_LINES = 200
"""Without blank lines."""
PATIENT = {"recruit-deadline-s": 100, "deadline-s": 200, "rejoin-s": 100, "wait-s": 100, "quorum": 1.0}
# Many chunks, few in flight, one upload slot: windows, acknowledgements and `retry_after` all occur.
NARROW = {"chunk-kib": 8, "upload-window": 2, "upload-slots": 1}


def entries() -> list[list[object]]:
    """Return the schema of the task as plain values."""
    return [[one.name, list(one.shape), one.dtype, str(one.role)] for one in schema_of(digits.build_model()).specs]


@contextmanager
def foreign(device: str, broker: SecuredMosquitto, directory: Path, **changes: object) -> Iterator[Path]:
    """Run a process of the client, and end it with SIGTERM; yields the file with its output."""
    certificate, key = broker.certificates.pair(device)
    settings = {"host": HOST, "port": broker.port, "ca": str(broker.certificates.ca_file), "fleet": FLEET}
    settings |= {"certificate": str(certificate), "key": str(key), "device": device, "task": digits.TASK.name}
    settings |= {"schema": entries(), "policies": ["none", "affine"], "examples": EXAMPLES[device]}
    settings |= {"shift": SHIFTS[device], **changes}
    path, log = directory / f"{device}.json", directory / f"{device}.log"
    path.write_text(json.dumps(settings), "utf-8")
    with log.open("wb") as out, path.open("rb") as given:
        # In isolated mode and from another directory, so that it cannot import our modules.
        command = [sys.executable, "-I", "-u", str(CLIENT)]
        process = subprocess.Popen(command, cwd=directory, stdin=given, stdout=out, stderr=out)
    try:
        yield log
        process.terminate()
        assert process.wait(60) == 0, log.read_text("utf-8")
    finally:
        process.kill()
        process.wait()


def play(directory: Path, changes: dict[str, Any], **of_pi_2: object) -> tuple[Done, dict[str, str]]:
    """Run the real coordinator with two foreign clients; return its output and the clients' output."""
    acl = mosquitto_acl(FLEET, devices=list(EXAMPLES))
    certificates = Certified(directory / "ca", FLEET).make(*EXAMPLES)
    with SecuredMosquitto(certificates, acl) as broker, ExitStack() as clients:
        logs = {
            device: clients.enter_context(foreign(device, broker, directory, **(of_pi_2 if device == "pi-2" else {})))
            for device in EXAMPLES
        }
        certificate, key = certificates.pair("coordinator")
        given = {"broker": broker.coordinator_url, "fleet": FLEET, "task": digits.TASK.name, "devices": len(EXAMPLES)}
        given |= {"ca-file": certificates.ca_file, "cert-file": certificate, "key-file": key, "encoding": "fp32"}
        given |= {"state-dir": directory / "state", **PATIENT, **changes}
        with Command("fedpatch", "run", "--json", *(f"--{name}={value}" for name, value in given.items())) as run:
            done = run.done()
    return done, {device: log.read_text("utf-8") for device, log in logs.items()}


@pytest.mark.parametrize(
    ("strategy", "private", "more"),
    [("fedavg", "none", {}), ("fedavg-adam", "affine", NARROW)],
    ids=["fedavg", "fedavg-adam in a narrow window"],
)
def test_foreign_clients_update_is_aggregated(
    tmp_path: Path, strategy: str, private: str, more: dict[str, object]
) -> None:
    """Two rounds of two foreign clients: each round adds the weighted mean of the clients' shifts to the model."""
    done, logs = play(tmp_path, {"strategy": strategy, "private": private, "rounds": 2, **more})
    assert done.code == 0, (done.err, logs)
    assert [(one["outcome"], one["reported"]) for one in done.document["rounds"]] == [("aggregated", 2)] * 2
    for log in logs.values():
        assert [line.strip() for line in log.splitlines()] == ["round 1: committed", "round 2: committed"]
    initial, found = initial_tensors(digits.TASK, 0), np.load(done.document["model"])
    kept = {one.name for one in schema_of(digits.build_model()).specs if one.role == private}
    assert {name for name in found if ":" not in name} == set(initial) - kept
    trained = {one.name for one in schema_of(digits.build_model()).specs if one.role in ("weight", "affine")}
    for name in set(initial) - kept:
        expected = initial[name] + (2 * MEAN_SHIFT if name in trained else 0)
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5, err_msg=name)


def test_foreign_client_asks_for_chunks_that_have_not_come() -> None:
    """A device asks once no new chunk has arrived for a while; a chunk that is damaged or of another blob does not count."""
    blob, known = bytes(range(250)), runpy.run_path(str(CLIENT))
    manifest = Manifest(sha256(blob).hexdigest(), 250, 100, 3, "fp32", 250, "0" * 64)
    job = known["Job"](dict(zip("kren", "kr12", strict=True)), {"model": asdict(manifest)}, [])
    chunks = [encode_chunk(cut(blob, manifest, index)) for index in range(3)]
    other = encode_chunk(cut(blob, replace(manifest, digest="1" * 64), 2))
    for payload in (chunks[1], chunks[0][:-1] + b"x", other):
        job.take(payload)
    device, sent = object.__new__(known["Device"]), []
    device.send = lambda _about, kind, **body: sent.append((kind, body))
    device.work(job)
    assert sent == []
    job.due = 0.0
    device.work(job)
    assert sent == [("need", {"digest": manifest.digest, "missing": bytes([0b101])})]


def test_round_fails_without_foreign_clients_update(tmp_path: Path) -> None:
    """A round fails if a client's updates are refused: so the updates in the test above were committed for good reasons."""
    done, logs = play(tmp_path, {"strategy": "fedavg", "private": "none", "rounds": 1}, shift=float("inf"))
    assert done.code == 1, (done.err, logs)
    assert "round 1: refused not_finite" in logs["pi-2"]
    assert not any(one["outcome"] == "aggregated" for one in done.document["rounds"])


def test_foreign_client_imports_only_the_standard_library_paho_and_msgpack() -> None:
    text = CLIENT.read_text("utf-8")
    assert sum(line.strip() != "" for line in text.splitlines()) <= MAX_LINES
    modules = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            modules.add(node.module.partition(".")[0])
    assert modules - sys.stdlib_module_names == {"paho", "msgpack"}
    assert "importlib" not in modules and "__import__" not in text
