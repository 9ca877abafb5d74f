"""The wire, byte by byte: one message of each type and one chunk, as stored in tests/golden.

A change here is a change of the protocol: devices in the field use the old bytes.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunks import Chunk, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import BODY_TYPES, decode, encode
from fedpatch.shared.wire.masking_messages import (
    Agreed,
    Agreement,
    GroupMember,
    Inbox,
    MaskingKeys,
    Reveal,
    Roster,
    SecureTerms,
    Shares,
    ThresholdRule,
    Unmask,
)
from fedpatch.shared.wire.messages import (
    MAX_URL,
    Accept,
    Ack,
    Body,
    Cancel,
    Claim,
    Committed,
    CoordinatorState,
    Decline,
    DeviceState,
    Envelope,
    Evaluation,
    Failed,
    Grant,
    JobStatus,
    Manifest,
    ModelDelta,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    StateBody,
    TaskCapability,
    TrainPlan,
    WorkRequest,
)
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, PrivacyTerms
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, JobPhase, LinkKind, RefuseReason
from fedpatch.shared.wire.run_status import DeviceStatus, ReasonCount, RoundStatus, RunStatus, StateCount
from fedpatch.shared.wire.vitals import LastRound, Vitals
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden"

SCHEMA = "5c" * 32
MODEL = "0123456789abcdef" * 4
UPDATE = "fedcba9876543210" * 4
MANIFEST = Manifest(MODEL, 300_000, 98_304, 4, "fp32+zstd", 400_000, SCHEMA)
PLAN = TrainPlan("adam", 0.001, 20, moments=("exp_avg", "exp_avg_sq", "step"), seed=7)
TERMS = SecureTerms(
    ThresholdRule.HALF, 8, 32, 8, 4, bytes(range(16)), 1.5, 600, bytes.fromhex("0000803f0000003f"), strict=False
)
KEYS = MaskingKeys(b"\x11" * 32, b"\x22" * 32)
OTHER_KEYS = MaskingKeys(b"\x33" * 32, b"\x44" * 32, b"certificate", b"signature")
CONTEXT = b"\xc7" * 32
STATUS = RunStatus(
    phase="collecting",
    stopped="",
    rounds_in_all=30,
    target_ua=0.97,
    metric="accuracy",
    lower_is_better=False,
    devices=(DeviceStatus("pi-1", "training", "", 0.5), DeviceStatus("pi-2", "declined", "too_hot", 0.0)),
    others=(StateCount("reported", "", 7),),
    present=9,
    wanted=3,
    unwilling=(ReasonCount("quiet_hours", 2),),
    reported=7,
    needed=8,
    user_accuracy=0.75,
    eta_s=12.5,
    elapsed_s=4.0,
    pause_s=0.0,
    rounds=(
        RoundStatus(
            2, "failed", "quorum_missed", 9, 3, 0.5, 0.25, None, 1.5, 300, 200, (ReasonCount("too_hot", 1),), (), (), 5
        ),
    ),
    earlier=(0.25,),
    bytes_down=600,
    bytes_up=400,
    round_bytes_down=70,
    round_bytes_up=30,
    starting=2,
    missing="pi-7 (offline)",
)

BODIES: dict[str, Body] = {
    "work_request": WorkRequest(
        SCHEMA,
        "affine",
        PLAN,
        MANIFEST,
        "fp16+zstd",
        98_304,
        600.0,
        (ModelDelta(UPDATE, SCHEMA, MANIFEST),),
        ("answers",),
        True,
        PrivacyTerms(GAUSSIAN, 1.5, 0.25, 1e-5, 200),
        TERMS,
    ),
    "grant": Grant(UPDATE, 8, b"\x05"),
    "ack": Ack(UPDATE, b"\x0f"),
    "committed": Committed(UPDATE, 90.5),
    "refused": Refused(UPDATE, RefuseReason.NOT_FINITE, "fc1.weight holds NaN"),
    "retry_after": RetryAfter(UPDATE, 2.5),
    "cancel": Cancel("late"),
    "roster": Roster(1, 2, (GroupMember("pi-1", KEYS), GroupMember("pi-2", OTHER_KEYS))),
    "inbox": Inbox(CONTEXT, (b"", b"\xb0" * 82)),
    "unmask": Unmask(CONTEXT, b"\x03", (b"", b"\xc0" * 32)),
    "agreed": Agreed(CONTEXT, b"\x03", (b"", b"\xc1" * 32)),
    "accept": Accept(1, KEYS),
    "shares": Shares(CONTEXT, (b"", b"\xb1" * 82), b"\xcc" * 32),
    "agreement": Agreement(CONTEXT, b"\x03", (b"", b"\xc2" * 32)),
    "reveal": Reveal(CONTEXT, b"\x03", (b"\x05" * 33, b"")),
    "decline": Decline(DeclineReason.UNWILLING, "on battery", Condition.NOT_CHARGING, 60.5),
    "need": Need(MODEL, b"\x0a"),
    "progress": Progress(JobPhase.TRAINING, 15, 30),
    "offer": Offer(Manifest(UPDATE, 200_000, 98_304, 3, "fp16+zstd", 400_000, SCHEMA)),
    "evaluation": Evaluation(MODEL, 0.875, 100, 0.25),
    "failed": Failed(FailReason.UNWILLING, Condition.PAUSED),
    "coordinator_state": CoordinatorState(True, "c0ffee"),
    "claim": Claim("c0ffee"),
    "run_status": STATUS,
    "device_state": DeviceState(
        True,
        "b007",
        "0.1.0",
        (TaskCapability("mnist", SCHEMA, 600),),
        ("fp32+zstd", "fp16+zstd"),
        JobStatus("run-1", 2, 3, JobPhase.UPLOADING),
        Condition.METERED,
        ("requests",),
    ),
    "vitals": Vitals(
        False, 0.75, True, False, 61.5, LinkKind.WIFI, 0.25, 512 * 2**20, None, LastRound("run-1", 3, 20.5, 2.25)
    ),
}
CHUNK = Chunk(UPDATE, 1, 3, b"patches stay at home")


def envelope(name: str) -> Envelope:
    """The message of a golden file. Presence belongs to no run."""
    body = BODIES[name]
    if isinstance(body, StateBody):
        return Envelope(body)
    return Envelope(body, id=9, task="mnist", run="run-1", epoch=2, round=3)


def golden(name: str) -> bytes:
    """The bytes of a golden file."""
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text("ascii"))


@pytest.mark.parametrize("name", sorted(BODIES))
def test_messages_are_encoded_to_these_bytes(name):
    assert encode(envelope(name)).hex() == golden(name).hex()


@pytest.mark.parametrize("name", sorted(BODIES))
def test_golden_bytes_are_decoded_to_messages(name):
    assert decode(golden(name)) == envelope(name)


def test_a_request_that_asks_to_measure_differs_by_one_key_and_any_other_request_by_none():
    known = BODIES["work_request"]
    assert isinstance(known, WorkRequest)
    asked = replace(envelope("work_request"), body=replace(known, evaluate=True))
    assert decode(encode(asked)) == asked
    assert encode(asked).endswith(b"\xa8evaluate\xc3")
    assert b"evaluate" not in golden("work_request")


def test_a_request_by_a_plan_with_control_variates_differs_by_one_key_and_any_other_request_by_none():
    known = BODIES["work_request"]
    assert isinstance(known, WorkRequest)
    asked = replace(envelope("work_request"), body=replace(known, counted=7))
    assert decode(encode(asked)) == asked
    assert encode(asked).endswith(b"\xa7counted\x07")
    assert b"counted" not in golden("work_request")


def test_a_request_with_urls_differs_by_one_key_of_its_manifests_and_any_other_request_by_none():
    known = BODIES["work_request"]
    assert isinstance(known, WorkRequest)
    asked = replace(envelope("work_request"), body=known.at({MODEL: "https://cdn.example/ab?X-Amz-Signature=secret"}))
    found = decode(encode(asked)).body
    assert isinstance(found, WorkRequest)
    assert {found.model.url, found.deltas[0].manifest.url} == {"https://cdn.example/ab?X-Amz-Signature=secret"}
    assert found == known and "secret" not in repr(found)
    assert encode(replace(asked, body=found.at({}))) == golden("work_request")
    assert b"url" not in golden("work_request")


def test_url_longer_than_the_codec_takes_is_refused():
    known = BODIES["work_request"]
    assert isinstance(known, WorkRequest)
    for length, fits in ((MAX_URL, True), (MAX_URL + 1, False)):
        payload = encode(replace(envelope("work_request"), body=known.at({MODEL: "u" * length})))
        with nullcontext() if fits else pytest.raises(WireError):
            decode(payload)


def test_chunk_is_encoded_to_these_bytes():
    assert encode_chunk(CHUNK).hex() == golden("chunk").hex()
    assert decode_chunk(golden("chunk")) == CHUNK


def test_every_message_type_has_golden_bytes():
    assert {path.stem for path in GOLDEN.glob("*.hex")} == {*BODY_TYPES, "chunk"}
