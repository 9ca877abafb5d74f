"""Attacks in another client's name, which the broker's access rules stop. They run with these rules and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Accept, Cancel, CoordinatorState, Decline, Envelope, Failed
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason
from tests.attacks.arena import state

FLEET, VICTIM, THIEF = "home", "pi-1", "pi-2"
DIGEST = "0123456789abcdef" * 4


@dataclass(frozen=True)
class Theft:
    """A message in another client's name, published on `topic`."""

    name: str
    does: str
    topic: str
    payload: bytes


def _encoded(body: Accept | Decline | Failed | Cancel) -> bytes:
    return encode(Envelope(body, task="digits", run="r", epoch=1, round=1))


_UP: Callable[[str], str] = lambda device: topics.up(FLEET, device)  # noqa: E731 - a short name for a long one

THEFTS = (
    Theft("id theft: gives up", "`failed` in another's name", _UP(VICTIM), _encoded(Failed(FailReason.TRAINING))),
    Theft(
        "id theft: declines", "`decline` in another's name", _UP(VICTIM), _encoded(Decline(DeclineReason.UNKNOWN_TASK))
    ),
    Theft("id theft: accepts", "`accept` in another's name", _UP(VICTIM), _encoded(Accept(10))),
    Theft("id theft: garbage", "offences in another's name", _UP(VICTIM), b"\xc1 not a message"),
    Theft("id theft: update", "chunks in another's name", topics.update_chunk(FLEET, VICTIM, DIGEST, 0), bytes(60)),
    Theft("id theft: leaves", "another's last will", topics.device_state(FLEET, VICTIM), state(online=False)),
    Theft("id theft: presence", "another's capabilities", topics.device_state(FLEET, VICTIM), state(boot="2")),
    Theft("forged cancel", "the coordinator's words to a device", topics.down(FLEET, VICTIM), _encoded(Cancel("late"))),
    Theft(
        "forged coordinator",
        "the coordinator's presence",
        topics.coordinator_state(FLEET),
        encode(Envelope(CoordinatorState(online=False, boot="x"))),
    ),
    Theft("poisoned model", "chunks of the global model", topics.model_chunk(FLEET, DIGEST, 0), bytes(60)),
    Theft("forged progress", "the status for watchers", topics.run_status(FLEET), b"\xc1"),
)
