"""When the base of a masked round may be used, so that the model is moved before the next round.

A device masks one update from a base. A base may be used at the start of a process, unless an open round goes on with it,
after a round without a new model, and after a return to an older state.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from fedpatch.coordinator.aggregation.moved_base import moved
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.round_journal import RoundStart
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.model_packing import pack_model
from fedpatch.coordinator.runtime.run_preparation import Prepared

_SALT_BYTES = 16


class UsedBase:
    """The base of the next round of a run, and whether a masked round of any process may have begun with it.

    Args:
        state: The state after the last completed round, as in the newest checkpoint.
        prepared: The parts of the run that follow from its settings.
        spec: The terms of the run.
        opening: The open round of an earlier process, which goes on; None without.
        entropy: Randomness of moved bases.

    Attributes:
        state: The state with the base that goes on: that of the open round, else `state`.
        salt: The salt by which a resumed round finds its base from the newest checkpoint; empty for a base that is not moved.
    """

    def __init__(
        self,
        state: ServerState,
        prepared: Prepared,
        spec: RunSpec,
        opening: RoundStart | None,
        entropy: random.Random,
    ) -> None:
        base = None if opening is None or spec.secure is None else open_base(state, prepared, spec, opening)
        self.state = base or state
        self.salt = b"" if opening is None or opening.terms is None else opening.terms.seed
        self._saved = state
        self._is_used = base is None
        self._prepared = prepared
        self._is_masked = spec.secure is not None
        self._entropy = entropy

    def leave(self) -> ServerState | None:
        """Return the state with another base if this one may be used, else None. A round may begin with it from now on."""
        is_used, self._is_used = self._is_used, True
        if not (self._is_masked and is_used):
            return None
        self.salt = self._entropy.randbytes(_SALT_BYTES)
        return _moved(self._saved, self._prepared, self.salt)

    def note_saved(self, before: ServerState, state: ServerState) -> None:
        """Note a new state: its base is used if all values are those of the state before.

        Args:
            before: The state of the round.
            state: The state that is saved now.
        """
        self._saved, self.salt = state, b""
        names = self._prepared.travelling.names
        self._is_used = all(np.array_equal(before.tensors[name], state.tensors[name]) for name in names)


def open_base(state: ServerState, prepared: Prepared, spec: RunSpec, opening: RoundStart) -> ServerState | None:
    """Return the state whose model an open round began with: that of the last completed round, or this one moved a little.

    Args:
        state: The state after the last completed round.
        opening: The open round.

    Returns:
        The state; None if the round began with another model.

    Raises:
        WireError: The saved terms of the round are damaged.
    """
    terms = opening.terms
    found = (state,) if terms is None else (state, _moved(state, prepared, terms.seed))
    return next((one for one in found if pack_model(one, prepared, spec)[1].digest == opening.journal.base), None)


def _moved(state: ServerState, prepared: Prepared, salt: bytes) -> ServerState:
    return replace(state, tensors=moved(state.tensors, prepared.travelling, salt))
