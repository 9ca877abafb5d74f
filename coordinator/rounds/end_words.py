"""The words for the end of a run that did not reach its aim: the reason, and the remedy where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.coordinator.rounds.false_presence import FalsePresence
from fedpatch.coordinator.rounds.round_record import RoundRecord


def failed_words(records: Sequence[RoundRecord], in_a_row: int, false_presence: FalsePresence) -> str:
    """Return an error text for a run that ends after failed rounds in a row.

    Args:
        in_a_row: The number of failed rounds since the last one that succeeded.
        false_presence: Devices whose presence may be the cause.
    """
    return f"{in_a_row} rounds in a row failed, {_why(records[-1], false_presence)}"


def fruitless_words(records: Sequence[RoundRecord], false_presence: FalsePresence) -> str:
    """Return an error text for a run in which no training round succeeded; "" if one did, or if none began."""
    trained = [record for record in records if not record.is_evaluation]
    if not trained or any(record.outcome == "aggregated" for record in trained):
        return ""
    return f"no round succeeded, so the model is unchanged; {_why(trained[-1], false_presence)}"


def _why(record: RoundRecord, false_presence: FalsePresence) -> str:
    last = f"the last one: {record.failure}, with {record.reported} of the {record.needed} updates needed"
    return "; ".join((last, *false_presence.words()))
