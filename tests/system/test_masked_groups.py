"""A masked round of sixteen agents over a broker with TLS, of which five are killed after their group has its secret shares."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.masked_mean import MaskedMean, masked_mean
from fedpatch.coordinator.masking.group import GroupState
from fedpatch.coordinator.masking.masked_groups import draw_groups
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.runtime import aggregator, engine_at_start
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.shared.masking.masked_blob import HEADER_BYTES
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.wire.chunks import decode_chunk
from fedpatch.shared.wire.topics import parse_topic
from tests.support import oracle
from tests.support.identities import Certified
from tests.support.secured import SecuredMosquitto, rules
from tests.system.fleet import Fleet
from tests.system.held_task import REFERENCE, Hold
from tests.system.oracle_task import build_model, device_data
from tests.system.recording import Recorder
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(1500)]

RECORDER = "recorder"
EXAMPLES, WEIGHT = 16, 40
DEVICES = {f"pi-{number:02}": f"n={EXAMPLES},test=20,seed={number}" for number in range(16)}
SEED, LEARNING_RATE = 3, 0.005
GROUPS = draw_groups(DEVICES, SEED, 1, size=8, least=8)
KILLED = [*GROUPS[0][:3], *GROUPS[1][:2]]


@dataclass
class Stage:
    """Sixteen agents with certificates, five of them held in their training; and the options of other connections."""

    fleet: Fleet
    connects: dict[str, Any]
    recorder: tuple[int, tuple[object, ...]]
    holds: dict[str, Hold] = field(default_factory=dict)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The shipped broker, with TLS, certificates and rules; only the recorder may read everything."""
    certificates = Certified(tmp_path / "ca", "demo").make(*DEVICES, watchers=[RECORDER])
    acl = rules("demo", list(DEVICES)) + f"\nuser {RECORDER}\ntopic readwrite #\n\npattern readwrite barrier/%u\n"
    with (
        SecuredMosquitto(certificates, acl, options="max_queued_messages 0\nmax_queued_bytes 0") as broker,
        Fleet(broker.url, tmp_path / "agents") as fleet,
    ):
        cert_file, key_file = certificates.pair("coordinator")
        connects = {"broker": broker.coordinator_url, "ca_file": certificates.ca_file}
        connects |= {"cert_file": cert_file, "key_file": key_file}
        cert, key = certificates.pair(RECORDER)
        reads = ("--cafile", certificates.ca_file, "--cert", cert, "--key", key)
        stage = Stage(fleet, connects, (broker.coordinator_port, reads))
        for device, data in DEVICES.items():
            stage.holds[device] = Hold(tmp_path / f"{device}.hold")
            if device in KILLED:
                stage.holds[device].at(1)
            own = [str(path) for path in certificates.pair(device)]
            options = ["--ca-file", str(certificates.ca_file), "--cert-file", own[0], "--key-file", own[1]]
            fleet.start(
                device,
                REFERENCE,
                f"{data};{stage.holds[device].path}",
                options=[*options, "--secure", "required", "--min-threshold", "half"],
            )
        fleet.wait_ready(600.0)
        yield stage


class Killer(Silent):
    """A view that kills the five agents once all groups have exchanged their shares."""

    def __init__(self, stage: Stage, patch: pytest.MonkeyPatch) -> None:
        self.engine: Engine | None = None
        self.means: list[tuple[MaskedMean, VectorLayout]] = []
        self.lines: list[str] = []
        self._stage = stage
        self._left = list(KILLED)

        def engine(*args: Any, **given: Any) -> Engine:
            self.engine = Engine(*args, **given)
            return self.engine

        def mean(groups: Any, read: Any, **given: Any) -> MaskedMean:
            made = masked_mean(groups, read, **given)
            self.means.append((made, given["layout"]))
            return made

        patch.setattr(engine_at_start, "Engine", engine)
        patch.setattr(aggregator, "masked_mean", mean)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, message: Any) -> None:
        """Check the groups; the coordinator's loop calls this in each turn."""
        current = self.engine.open if self.engine is not None else None
        groups = current.masked.groups if current is not None and current.masked is not None else []
        shared = groups and all(one.state is GroupState.SHARED and one.masking == one.members for one in groups)
        if shared and all(self._stage.holds[device].reached for device in self._left):
            while self._left:
                self._stage.fleet.agents[self._left.pop()].kill()


def test_round_closes_with_the_oracle_s_mean_though_five_of_sixteen_are_killed_after_sharing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """An eavesdropper at the broker sees only masked updates."""
    terms = {
        "secure": "groups",
        "threshold": "half",  # the CA's key is on this machine
        "strategy": "fedavg",
        "encoding": "masked-u16",
        "norm_bound": "off",
        "max_num_examples": "off",
        "group_size": 8,
        "weight_cap": WEIGHT,
        "batch_size": EXAMPLES,  # the order of batches is secret, and the oracle does not know it
        "share_deadline_s": 200.0,
        "unmask_s": 100.0,
    }
    terms |= {"private": "all", "learning_rate": LEARNING_RATE, "seed": SEED, "rounds": 1, "quorum": 0.6}
    settings = replace(stage.fleet.settings(tmp_path / "state", REFERENCE, **terms, rejoin_s=5.0), **stage.connects)
    view = Killer(stage, monkeypatch)
    port, options = stage.recorder
    with Recorder(port, tmp_path, options) as recorder:
        summary = start_run(settings, view)
    survivors = sorted(DEVICES.keys() - set(KILLED))
    [record] = summary.rounds
    assert (record.outcome, record.reported) == ("aggregated", len(survivors)), view.lines
    assert record.num_examples == WEIGHT * len(survivors), "owners who require masks hide the number of examples"
    assert record.user_accuracies == {}
    assert_mean_of(survivors, view)
    assert_only_masked_updates(recorder.messages, survivors)


def assert_mean_of(cohort: list[str], view: Killer) -> None:
    """Check that the mean is the oracle's, up to the rounding of the grid: less than one code for each device."""
    [(made, layout)] = view.means
    assert made.report is not None and made.report.clipped_values == 0
    data = {name: oracle.arrays_of(device_data(spec)) for name, spec in DEVICES.items()}
    [last] = oracle.run_mtfl(
        build_model, data, [cohort], "fedavg", "all", LEARNING_RATE, batch_size=EXAMPLES, seed=SEED
    )
    unit = len(cohort) * layout.terms.weight_cap / made.report.weight / layout.top
    for spec, scale in zip(layout.specs, layout.ranges, strict=True):
        found, expected = made.mean[spec.name], last.omega[spec.name]
        np.testing.assert_allclose(found, expected, rtol=0, atol=unit * scale + 1e-6, err_msg=spec.name)


def assert_only_masked_updates(messages: list[tuple[str, bytes]], cohort: list[str]) -> None:
    """Check that each update on the broker is masked, from a device of the cohort, and looks random."""
    blobs: dict[tuple[str, str], dict[int, bytes]] = defaultdict(dict)
    for name, payload in messages:
        topic = parse_topic("demo", name)
        if topic is not None and topic.kind == "update_chunk" and payload:
            chunk = decode_chunk(payload)
            blobs[topic.device, chunk.digest][chunk.index] = chunk.data
    assert sorted(device for device, _ in blobs) == cohort
    for chunks in blobs.values():
        blob = b"".join(chunks[index] for index in sorted(chunks))
        assert blob.startswith(b"fpm1")
        vector = blob[HEADER_BYTES:]
        assert len(zlib.compress(vector, 9)) > 0.99 * len(vector)
