"""Runs whose models devices fetch by URL instead of mosquitto: from nginx, or presigned from an S3 server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device.light_devices import LightDevices, LightReport
from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.shared.tasks.bundled.mnist import TASK
from tests.support.brokers import PATIENCE_S, Mosquitto
from tests.support.nginx import Nginx
from tests.support.s3_server import SECRET
from tests.system.commands import Command, Done
from tests.system.fleet import Fleet
from tests.system.stage import PATIENT, Stage, assert_complete, outcomes

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(900)]

DEVICES, ROUNDS = 3, 2
LIGHT = {"devices": DEVICES, "rounds": ROUNDS, "task": "mnist", "strategy": "fedavg", "private": "none", "wait-s": 100}
LIGHT |= {"quorum": 1, "grace-s": 100, "recruit-deadline-s": 100, "encoding": "fp16", "chunk-kib": 32}
MEDIUM = "benchmarks.support.synthetic_task:MEDIUM"
MODEL_BYTES = 398_804  # at least: 199,210 values in 2 bytes each


def by_nginx(nginx: Nginx) -> dict[str, str]:
    return {"models-store": nginx.store, "models-url": nginx.url}


def settings_of(nginx: Nginx) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in by_nginx(nginx).items()}


def played(broker: Mosquitto, directory: Path, **options: Any) -> Done:
    """Run with these options of `fedpatch run`, with devices that are already there."""
    given = {**LIGHT, "broker": broker.url, "fleet": "demo", "state-dir": directory, **options}
    with Command("fedpatch", "run", "--json", *(f"--{name}={value}" for name, value in given.items())) as command:
        return command.done()


def play(broker: Mosquitto, directory: Path, ca_file: Path | None, **options: Any) -> tuple[Done, LightReport]:
    """Run with light devices, which fetch by URL if they have a CA; return the result and the devices' report."""
    with LightDevices(
        broker=broker.url, fleet="demo", task=TASK, count=DEVICES, processes=1, ca_file=ca_file
    ) as devices:
        devices.wait_ready()
        done = played(broker, directory, **options)
    assert done.code == 0, done.err
    return done, devices.report


def model_of(done: Done) -> bytes:
    return Path(done.document["model"]).read_bytes()


def test_models_by_url_are_the_same_and_not_on_the_broker(mosquitto: Mosquitto, nginx: Nginx, s3: str, tmp_path: Path):
    """The same run over MQTT, from nginx and presigned gives equal models; by URL devices get less than a model by MQTT."""
    plain, chunks = play(mosquitto, tmp_path / "mqtt", None)
    served, fetched = play(mosquitto, tmp_path / "nginx", nginx.ca_file, **by_nginx(nginx))
    signed, presigned = play(mosquitto, tmp_path / "s3", nginx.ca_file, **{"models-store": s3})
    assert model_of(plain) == model_of(served) == model_of(signed)
    all_models = ROUNDS * DEVICES * MODEL_BYTES
    assert chunks.received_bytes > all_models and chunks.fetched_bytes == 0
    for report in (fetched, presigned):
        assert report.fetched_bytes > all_models
        assert report.received_bytes < MODEL_BYTES / 4
    for done, directory in ((served, "nginx"), (signed, "s3")):
        assert SECRET not in done.err and "Signature" not in done.err
        assert not [one for one in (tmp_path / directory).rglob("*") if one.is_file() and b"X-Amz" in one.read_bytes()]
    assert not list(nginx.root.rglob("*/*")) and open_blobs(s3, Path("demo")).list() == []


@pytest.mark.slow
def test_old_device_gets_chunks_beside_devices_that_fetch(mosquitto: Mosquitto, nginx: Nginx, tmp_path: Path):
    """A device without the feature gets no URL, and the others get no chunks."""
    common: dict[str, Any] = {"broker": mosquitto.url, "fleet": "demo", "task": TASK, "processes": 1}
    with (
        LightDevices(**common, count=1) as old,
        LightDevices(**common, count=2, first=2, ca_file=nginx.ca_file) as new,
    ):
        old.wait_ready()
        new.wait_ready()
        done = played(mosquitto, tmp_path, **by_nginx(nginx))
    assert done.code == 0, done.err
    assert old.report.fetched_bytes == 0 and old.report.received_bytes > ROUNDS * MODEL_BYTES
    assert new.report.fetched_bytes > 2 * ROUNDS * MODEL_BYTES and new.report.received_bytes < MODEL_BYTES / 4


@pytest.mark.slow
def test_server_that_dies_in_mid_download_costs_no_round(mosquitto: Mosquitto, nginx: Nginx, tmp_path: Path):
    """The missing chunks arrive over MQTT; the model is equal to that of a run without a server."""
    nginx.restart("limit_rate 50k;")
    killer = threading.Thread(target=_stop_when_serving, args=(nginx,))
    killer.start()
    done, report = play(mosquitto, tmp_path / "nginx", nginx.ca_file, rounds=1, **by_nginx(nginx))
    killer.join()
    plain, _ = play(mosquitto, tmp_path / "mqtt", None, rounds=1)
    assert model_of(done) == model_of(plain)
    assert 0 < report.fetched_bytes < DEVICES * MODEL_BYTES
    assert report.outcomes == {"committed": DEVICES}


def _stop_when_serving(nginx: Nginx) -> None:
    """End the server once some chunks of a slow download have arrived."""
    until = time.monotonic() + PATIENCE_S
    while not nginx.busy and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(2.0)
    nginx.stop()


class TestAgents:
    """Real agents that trust the CA of the server."""

    @pytest.fixture
    def trust(self, nginx: Nginx) -> list[str]:
        return ["--models-ca-file", str(nginx.ca_file)]

    def play(self, stage: Stage, nginx: Nginx, trust: Sequence[str], **changes: Any) -> Done:
        for device in ("ann", "bob"):
            stage.start_agent(device, trust)
        terms: dict[str, Any] = {"rounds": 2, "encoding": "fp32", **settings_of(nginx), **changes}
        with stage.begin(**terms) as coordinator:
            return coordinator.done()

    @pytest.mark.slow
    def test_server_that_is_gone_costs_no_round(self, stage: Stage, nginx: Nginx, trust: list[str]):
        nginx.stop()
        assert_complete(stage, self.play(stage, nginx, trust), rounds=2)
        for agent in stage.fleet.agents.values():
            assert f"{nginx.url}demo/" in agent.log and "downloading the missing chunks by MQTT" in agent.log

    def test_wrong_bytes_are_refused_and_their_server_is_named(self, stage: Stage, nginx: Nginx, trust: list[str]):
        nginx.restart("sub_filter_types *; sub_filter tensors tensorz;")
        assert_complete(stage, self.play(stage, nginx, trust), rounds=2)
        for agent in stage.fleet.agents.values():
            assert f"{nginx.url}demo/" in agent.log and "SHA-256 differs" in agent.log

    @pytest.mark.slow
    def test_server_of_another_ca_is_not_trusted(self, stage: Stage, nginx: Nginx):
        done = self.play(stage, nginx, (), rounds=1)
        assert_complete(stage, done, rounds=1)
        assert "set models_ca_file to its CA" in stage.fleet.agents["ann"].log
        assert not nginx.requests

    @pytest.mark.slow
    def test_download_of_a_killed_agent_goes_on_where_it_was(
        self, mosquitto: Mosquitto, nginx: Nginx, trust: list[str], tmp_path: Path
    ):
        """The agent is killed in mid-download; after its restart it requests the missing ranges."""
        nginx.restart("limit_rate 150k;")
        with Fleet(mosquitto.url, tmp_path) as fleet:
            agent = fleet.start("ann", MEDIUM, "client:1,seed=0", options=trust)
            with fleet.coordinator(
                tmp_path / "state", task=MEDIUM, devices=1, rounds=1, **PATIENT, encoding="fp32", **settings_of(nginx)
            ) as coordinator:
                downloads = agent.state_dir / "downloads"
                agent.wait(lambda: any(have.stat().st_size >= 20 for have in downloads.glob("*.have")), "has chunks")
                agent.kill()
                nginx.restart("")
                agent.start()
                done = coordinator.done()
        assert outcomes(done.document) == [(1, "aggregated", 1)], done.err
        last = nginx.requests[-1]
        assert " 206 bytes=" in last and not last.rpartition("bytes=")[2].startswith("0-")

    @pytest.mark.slow
    def test_daily_volume_refuses_a_model_by_url_as_one_by_mqtt(
        self, mosquitto: Mosquitto, nginx: Nginx, trust: list[str], tmp_path: Path
    ):
        """Model and update have 2 MB each, and 5 MiB a day are allowed: the first round passes, the second does not."""
        refusals = []
        for name, served in (("mqtt", {}), ("nginx", settings_of(nginx))):
            with Fleet(mosquitto.url, tmp_path / name, name=name) as fleet:
                allowed = ["--max-mib-per-day", "5", *trust]
                agent = fleet.start("ann", MEDIUM, "client:1,seed=0", admission="preferences", options=allowed)
                agent.wait_ready()
                terms = {**PATIENT, "wait_s": 5, "strategy": "fedavg", "encoding": "fp32", **served}
                with fleet.coordinator(
                    tmp_path / name / "state", task=MEDIUM, devices=1, rounds=2, **terms
                ) as coordinator:
                    done = coordinator.done()
                assert (agent.state_dir / "usage.json").exists(), done.err + agent.log
                spent = json.loads((agent.state_dir / "usage.json").read_text())["latest"]["spent"]["traffic_bytes"]
                refusals.append((outcomes(done.document), spent, "declined: unwilling traffic spent" in agent.log))
        (rounds, spent, declined), (rounds_by_url, spent_by_url, declined_by_url) = refusals
        assert (rounds_by_url, declined_by_url) == (rounds, declined)
        assert spent_by_url == pytest.approx(spent, rel=0.05)  # headers of HTTP, and other bytes of MQTT
        assert rounds[0] == (1, "aggregated", 1) and "aggregated" not in [one[1] for one in rounds[1:]]
        assert spent > 2 * 1_900_000 and declined
