"""A device in masked rounds, in one process that is recorded: `accept` with a revocation list, then `offer` of an update."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_events import ChunkReceived, UpdateTrained
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.device_agent.state.status_file import lock_state_dir
from fedpatch.device_agent.state.storage_check import SPOOL
from fedpatch.device_agent.state.update_spool import UpdateSpool
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import cut, describe
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import Accept, Offer
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.fake_link import Wire
from tests.device_agent.job.test_masked_job import MASKED, ask_masked, group_with, receive
from tests.device_agent.jobs import BLOB, KEY, REQUEST
from tests.power_cut.judging import Mark, Marks
from tests.support.identities import Certified
from tests.support.masked_group import terms_of
from tests.support.specs import model

BASE, UPDATE = "ec" * 32, b"masked" * 50


class _Wire(Wire):
    """Calls `sent` with each message before it is delivered."""

    def __init__(self, sent: Callable[[Any], None]) -> None:
        super().__init__()
        self._sent = sent

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        if topic == topics.up("lab", "pi"):
            self._sent(decode(payload).body)
        return super().publish(topic, payload, qos=qos, retain=retain)


class _Idle:
    """A training process that does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_given, **_named: None


def attend_masked_rounds(state: Path, mark: Callable[..., None]) -> None:
    """Offer a masked update, and then accept a strict request with a revocation list."""
    with lock_state_dir(state), tempfile.TemporaryDirectory() as elsewhere:
        _attend(state, Certified(Path(elsewhere) / "ca", "lab").make("pi"), mark)


def _attend(state: Path, fleet: Certified, mark: Callable[..., None]) -> None:
    listed = x509.load_pem_x509_crl((fleet.directory / "ca.crl").read_bytes()).public_bytes(Encoding.DER)
    certificates = CertificateFiles.of(fleet.files("pi"), "pi", "lab", state)

    def sent(body: Any) -> None:
        if isinstance(body, Accept):
            mark("accepted with a list" if body.keys is not None and body.keys.signature else "accepted")
        elif isinstance(body, Offer):
            mark("offered")

    masking = MaskingRounds("pi", random.Random(0).randbytes, certificates=certificates)
    job = Job(max_blob_bytes=10_000, masking=masking)
    performer = performer_of(state, _Wire(sent), _Idle())

    def perform(effects: list[Effect]) -> None:
        drive_job(job, effects, performer, lambda: 0.0)

    perform(ask_masked(job))
    for index in range(3):
        perform(job.handle(ChunkReceived(cut(BLOB, model(), index)), 12.0))
    assert masking.state is not None
    roster, inbox, _ = group_with(masking.state.keys)
    perform(receive(job, roster))
    perform(receive(job, inbox))
    spool = UpdateSpool(state / SPOOL)
    write_atomic(spool.update_path, UPDATE)
    update = describe(UPDATE, chunk_bytes=100, encoding="masked-u8", raw_bytes=len(UPDATE), schema=REQUEST.schema)
    perform(job.handle(UpdateTrained(KEY, update), 14.0))
    terms = terms_of(3, threshold=ThresholdRule.TWO_THIRDS, strict=True)
    perform(ask_masked(job, replace(MASKED, secure=terms, content="ab" * 32, revocations=listed), round_number=2))


def masked_device_keeps(state: Path, marks: Marks, _end: Mark) -> Iterator[str]:
    """What the device must know after a cut, so that it masks no second update from a base, and takes no older list."""
    whats = {one["what"] for one in marks}
    if "offered" in whats and BASE not in (OfferedBases(state).load() or ()):
        yield "an update was offered, and its base is not in the record"
    if "accepted" in whats and MaskingFile(state).load() is None:
        yield "keys were sent, and their secrets are not there"
    if "accepted with a list" in whats and not RevocationFile(state).load():
        yield "a request with a revocation list was accepted, and the list is not there"
