"""All attacks, by the kinds that docs/explanation/threat-model.md counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.attacks.attack import Attack
from tests.attacks.by_floods import FLOODS
from tests.attacks.by_masking import MASKED_ATTACKS
from tests.attacks.by_messages import MESSAGE_ATTACKS
from tests.attacks.by_poison import POISONS
from tests.attacks.by_sockets import SOCKET_ATTACKS
from tests.attacks.by_stalling import STALLING_ATTACKS
from tests.attacks.by_steps import STEP_ATTACKS
from tests.attacks.by_theft import THEFTS
from tests.attacks.by_updates import UPDATE_ATTACKS

ATTACKS: tuple[Attack, ...] = (
    *UPDATE_ATTACKS,
    *STEP_ATTACKS,
    *STALLING_ATTACKS,
    *FLOODS,
    *MESSAGE_ATTACKS,
    *SOCKET_ATTACKS,
)

KINDS: dict[str, Sequence[Any]] = {
    "false updates": UPDATE_ATTACKS,
    "false steps": STEP_ATTACKS,
    "stalling": STALLING_ATTACKS,
    "floods": FLOODS,
    "false messages": MESSAGE_ATTACKS,
    "connections": SOCKET_ATTACKS,
    "poison": POISONS,
    "identity theft": THEFTS,
    "masked groups": MASKED_ATTACKS,
}
"""The attacks of each row of the page's table; each attack has a name of its own within its kind."""
