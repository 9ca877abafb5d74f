"""Bytes and processor time of masked updates, beside Flower and NVFlare: `python -m benchmarks.masking.cost`.

One masked group of the protocol's own code: each device's keys, shares, vector, masks and reveal, and the coordinator's sum.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.support.documents import Document, Out, Show, Toy, deliver, machine_line, read_document, table
from benchmarks.support.programs import ROOT
from benchmarks.support.report import begun
from benchmarks.training.peer_rounds import HOW_TO_GET, PEERS_PYTHON, version
from fedpatch.coordinator.aggregation.masked_mean import masked_mean
from fedpatch.coordinator.masking.group import MaskedGroup
from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingBody, MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.app.formatting import size
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.group_context import request_digest, write_grid
from fedpatch.shared.masking.group_threshold import threshold_of
from fedpatch.shared.masking.masked_blob import MaskedUpdate, mask_blob, read_masked_blob, write_masked_blob
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.masking_messages import GroupMember, Reveal, Roster, SecureTerms, Shares, ThresholdRule
from fedpatch.shared.wire.messages import Accept, Body, Envelope, Manifest, Offer, TrainPlan, UpdateReport, WorkRequest

BENCHMARK = "masked-cost"
SHAPES = ((200, 784), (200,), (200, 200), (200,), (10, 200), (10,))
"""Tensors of the paper's 2NN without batch norm: 199,210 values."""
LOST, SILENT = 10, 3
NAME = RoundName("mnist", "run", 1)
_BASE = "00" * 32
_UPDATE = Manifest(_BASE, 10, 10, 1, "masked-u8", 10, _BASE)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Variant:
    """Terms of a masked group."""

    name: str
    rule: ThresholdRule = ThresholdRule.HALF
    signed: bool = False


VARIANTS = (
    Variant("masked-u8"),
    Variant("masked-u8, signed keys", rule=ThresholdRule.TWO_THIRDS, signed=True),
)
PEER_NAMES = {"flower": "Flower's SecAgg+", "nvflare": "NVFlare's CKKS"}


@command(app, "cost", example="python -m benchmarks.masking.cost --out results/benchmarks/masked-cost.json")
def cost(
    turns: Annotated[int, typer.Option(min=1, metavar="N", help="Turns; each measures everything once.")] = 5,
    group: Annotated[int, typer.Option(min=8, max=42, metavar="N", help="Members of the group.")] = 32,
    peers_python: Annotated[Path, typer.Option(metavar="FILE", help="Python of `make bench-peers`.")] = PEERS_PYTHON,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure a masked update of the 2NN: bytes, processor time of a device and of the coordinator.

    Ten of 32 members are lost after sharing, and three more are silent at the end. Seconds are those of the processor.
    """
    if show is not None:
        deliver(read_document(show, BENCHMARK), tables, None, as_json)
        return
    document = begun(BENCHMARK, turns) | {"group": group, "lost": group * LOST // 32, "measured": {}}
    document["not_measured"] = {} if version("tenseal", peers_python) else dict.fromkeys(PEER_NAMES, HOW_TO_GET)
    shapes = SHAPES[-2:] if toy else SHAPES
    measured = document["measured"]
    for _ in range(1 if toy else turns):
        for variant in VARIANTS:
            measured.setdefault(variant.name, []).append(Play(variant, group, shapes).play())
        if not document["not_measured"]:
            for name, found in _peers(peers_python, group, shapes, document["lost"]).items():
                measured.setdefault(PEER_NAMES[name], []).append(found)
    deliver(document, tables, out, as_json)


def _peers(python: Path, group: int, shapes: tuple[tuple[int, ...], ...], lost: int) -> dict[str, dict[str, float]]:
    values = sum(int(np.prod(shape)) for shape in shapes)
    words = [group, threshold_of(ThresholdRule.HALF, group), values, lost]
    line = [str(python), "-m", "benchmarks.peers.masked_updates", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise FedpatchError(
            f"{' '.join(line)} failed: {done.stderr.strip()[-500:]}; is its environment whole ({HOW_TO_GET})?"
        )
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass
class Play:
    """A masked group, of which one device and the coordinator are timed."""

    variant: Variant
    size: int
    shapes: tuple[tuple[int, ...], ...]
    device_s: float = 0.0
    coordinator_s: float = 0.0
    up: list[Body] = field(default_factory=list)
    down: list[Body] = field(default_factory=list)

    def play(self) -> dict[str, float]:
        """Return the figures of a round."""
        with TemporaryDirectory() as folder:
            return self._play(Path(folder))

    def _play(self, folder: Path) -> dict[str, float]:
        layout, request = self._request()
        names = [f"pi-{number:02}" for number in range(self.size)]
        rounds = {name: MaskingRounds(name, os.urandom, None, one) for name, one in self._certificates(folder, names)}
        keys = {name: self._timed(name, one.begin, NAME, request) for name, one in rounds.items()}
        members = tuple(GroupMember(name, keys[name]) for name in names)
        roster = Roster(0, threshold_of(self.variant.rule, self.size), members)
        digest = request_digest(NAME.task, NAME.run, NAME.round, request)
        group = self._coordinated(MaskedGroup, digest, roster, strict=self.variant.signed)
        for name in names:
            shares = self._answer(name, rounds, roster)
            assert isinstance(shares, Shares)
            self._coordinated(group.add_shares, name, shares)
        group.end_sharing()
        for name in names:
            self._answer(name, rounds, self._coordinated(group.inbox, name))
        # With a threshold of two thirds, a group of 32 can lose ten members.
        lost = min(self.size * LOST // 32, self.size - roster.threshold)
        silent = min(self.size * SILENT // 32, self.size - roster.threshold - lost)
        reporting = names[: self.size - lost]
        vectors = {name: self._vector(layout, number) for number, name in enumerate(reporting)}
        masked = {}
        for name in reporting:
            blob = self._timed(name, vectors[name])
            context = group.context
            masked[name] = self._timed(name, mask_blob, blob, context, self._timed(name, rounds[name].masks), 8)
            state = self._timed(name, rounds[name].note_update, hashlib.sha256(masked[name]).hexdigest())
            self._coordinated(group.add_codes, name, state.codes)
            if name == names[0]:
                self.up.append(Offer(_UPDATE, state.codes))
        group.end_collecting(reporting)
        group.begin_agreeing()
        staying = reporting[: len(reporting) - silent]
        for name in staying:
            agreement = self._answer(name, rounds, self._coordinated(group.request, name))
            self._coordinated(group.add_agreement, name, agreement)
        for name in staying:
            if (agreed := self._coordinated(group.request, name)) is None:
                break  # enough shares are there
            reveal = self._answer(name, rounds, agreed)
            assert isinstance(reveal, Reveal)
            self._coordinated(group.add_reveal, name, reveal)
            self._coordinated(group.open)
        updates = {name: read_masked_blob(blob, layout) for name, blob in masked.items()}
        base = {spec.name: np.zeros(spec.shape, np.float32) for spec in layout.specs}
        made = self._coordinated(
            masked_mean, [group.result()], updates.__getitem__, layout=layout, schema=layout.schema, base=base
        )
        assert made.report is not None
        assert made.report.devices == len(reporting)
        self.up.insert(0, Accept(1, keys[names[0]]))
        return {
            "bytes": float(len(masked[names[0]])),
            "protocol_bytes_up": float(sum(len(encode(Envelope(body))) for body in self.up)),
            "protocol_bytes_down": float(sum(len(encode(Envelope(body))) for body in self.down)),
            "device_s": self.device_s,
            "server_s": self.coordinator_s,
        }

    def _request(self) -> tuple[VectorLayout, WorkRequest]:
        schema = Schema(
            tuple(TensorSpec(f"t{number}", shape, "float32", "weight") for number, shape in enumerate(self.shapes))
        )
        terms = SecureTerms(
            threshold=self.variant.rule,
            group_min=8,
            group_max=self.size,
            bits=8,
            keep=1,
            seed=bytes(16),
            clip=100.0,
            weight_cap=600,
            grid=write_grid((0.1,) * len(self.shapes)),
            strict=self.variant.signed,
        )
        request = WorkRequest(
            schema.digest,
            "affine",
            TrainPlan("sgd", 0.1, 20),
            Manifest(_BASE, 10, 10, 1, "fp32", 10, schema.digest),
            "masked-u8",
            2**15,
            60.0,
            secure=terms,
            content=_BASE,
        )
        return VectorLayout(schema, terms), request

    def _certificates(self, folder: Path, names: list[str]) -> Iterator[tuple[str, CertificateFiles | None]]:
        if not self.variant.signed:
            yield from ((name, None) for name in names)
            return
        authority = Authority.create(folder / "ca", "fleet", now=time.time())
        try:
            for name in names:
                pair = authority.issue(DEVICE, name, now=time.time()).pair
                write_atomic(folder / name, pair.certificate + pair.key)
                yield (
                    name,
                    CertificateFiles(
                        TlsFiles(folder / "ca" / "ca.crt", folder / name), name, "fleet", RevocationFile(folder)
                    ),
                )
        finally:
            authority.close()

    def _vector(self, layout: VectorLayout, number: int) -> Callable[[], bytes]:
        rng = np.random.default_rng(number)
        step = {spec.name: rng.normal(0, 0.01, spec.shape).astype(np.float32) for spec in layout.specs}
        report = UpdateReport(_BASE, 300, 15, 0.5, 0.5, 0.6, 0.0, 0.0)

        def make() -> bytes:
            vector = make_vector(layout, step=step, report=report, metric=MetricTerms(), seed=number)
            return write_masked_blob(MaskedUpdate(bytes(32), _BASE, vector))

        return make

    def _answer(self, name: str, rounds: dict[str, MaskingRounds], body: MaskingBody) -> Body | None:
        answer = self._timed(name, rounds[name].handle, NAME, body)
        assert not answer.problem, answer.problem
        if name.endswith("-00"):
            self.down.append(body)
            self.up += [answer.body] if answer.body is not None else []
        found: Body | None = answer.body
        return found

    def _timed(self, name: str, work: Callable[..., Any], *given: Any) -> Any:
        """Return the result of a device's work; the first device is timed."""
        began = time.process_time()
        found = work(*given)
        self.device_s += time.process_time() - began if name.endswith("-00") else 0.0
        return found

    def _coordinated(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        began = time.process_time()
        found = work(*given, **named)
        self.coordinator_s += time.process_time() - began
        return found


def tables(document: Document) -> Iterator[str]:
    """Yield the lines of the tables: medians, and their ratio to the first variant."""
    yield machine_line(document)
    yield ""
    measured = document["measured"]
    heads = (
        "update",
        "bytes",
        "protocol up",
        "protocol down",
        "a device",
        "coordinator, a device",
        "times device",
        "times bytes",
    )
    rows = {name: _medians(found) for name, found in measured.items()}
    first = next(iter(rows.values()))
    yield from table(heads, (_row(name, one, first, document["group"]) for name, one in rows.items()))
    for name, why in document["not_measured"].items():
        yield f"{PEER_NAMES[name]}: not measured: {why}"


def _medians(found: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def _row(name: str, one: dict[str, float], first: dict[str, float], group: int) -> list[str]:
    down = one.get("protocol_bytes_down")
    return [
        name,
        size(one["bytes"]),
        size(one["protocol_bytes_up"]),
        "-" if down is None else size(down),
        f"{one['device_s'] * 1e3:.1f} ms",
        f"{one['server_s'] / group * 1e3:.2f} ms",
        f"{one['device_s'] / first['device_s']:.1f}",
        f"{one['bytes'] / first['bytes']:.2f}",
    ]


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.masking.cost")
