"""The comparison of a round with learning alone.

The gain of a device is its user accuracy before the round's training minus the user accuracy of the model that it trained alone
(device_agent.training.local_only_training). For a metric with the goal "min" the sign is the opposite, so that a gain above 0
is always good.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fedpatch.shared.app.formatting import accuracy
from fedpatch.shared.tasks.gains import gain_figures, gain_of, gain_words
from fedpatch.shared.tasks.metric_spec import ACCURACY, MetricTerms
from fedpatch.shared.wire.messages import UpdateReport

if TYPE_CHECKING:
    from fedpatch.coordinator.rounds.round_record import RoundRecord

_ALWAYS = frozenset({"measured", "user_accuracy", "gaining", "losing", "gain"})


def check_figures(independent: Mapping[str, float]) -> None:
    """Raise ValueError if some of the figures are present and others are missing."""
    missing = _ALWAYS - independent.keys()
    if independent and missing:
        raise ValueError(f"independent lacks {', '.join(sorted(missing))}")


def comparison(reports: Iterable[UpdateReport], metric: MetricTerms) -> dict[str, float]:
    """Compare the reports of a round with learning alone.

    Args:
        reports: Reports of committed updates. A report without both user accuracies is left out.

    Returns:
        `measured`: number of devices; `user_accuracy`: mean of learning alone; the figures of `gain_figures`; `gain_after`:
        mean gain after local training, if that was measured. Empty if no device measured it.
    """
    gains, after, alone = [], [], []
    for report in reports:
        own, before = report.user_accuracy_independent, report.user_accuracy_before
        if own is None or before is None:
            continue
        alone.append(own)
        gains.append(gain_of(before, own, metric))
        if report.user_accuracy_after is not None:
            after.append(gain_of(report.user_accuracy_after, own, metric))
    if not gains:
        return {}
    found = {"measured": len(gains), "user_accuracy": statistics.fmean(alone), **gain_figures(gains)}
    return found | ({"gain_after": statistics.fmean(after)} if after else {})


def fleet_loses(independent: Mapping[str, float]) -> bool:
    """Return whether more devices lose than gain, or the mean gain is below 0."""
    return bool(independent) and (independent["losing"] > independent["gaining"] or independent["gain"] < 0)


_GAINS = {
    "gain": "mean",
    "gain_median": "median",
    "gain_p10": "10th percentile",
    "gain_after": "mean after local training",
}


def headline(independent: Mapping[str, float], label: str) -> str:
    """Return how many devices gain from taking part, and by how much, "" for none; `label` names the user accuracies."""
    if not independent:
        return ""
    count = round(independent["measured"])
    gains = [f"{gain_words(independent[key], label)} ({word})" for key, word in _GAINS.items() if key in independent]
    return (
        f"{round(independent['gaining'] * count)} of {count} devices gain ({independent['gaining']:.0%}), "
        f"{round(independent['losing'] * count)} lose, by {', '.join(gains)}; alone {label} "
        f"{accuracy(independent['user_accuracy'])}"
    )


def last_comparison(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the last record with a comparison with learning alone."""
    return next((record for record in reversed(records) if record.independent), None)


def loss_warning(records: Sequence[RoundRecord], private: str) -> str:
    """Return a warning, with a remedy, if the fleet loses by the last comparison with learning alone, else "".

    The figures are not repeated: they are in the text of the round and of the summary (`headline`).

    Args:
        records: Rounds, in order.
        private: The patch policy of the run; its remedy is another policy.
    """
    last = last_comparison(records)
    if last is None or not fleet_loses(last.independent):
        return ""
    remedy = "compare the policies with `fedpatch simulate compare`"
    further = "" if private == "all" else ", and try --private all"
    return f"round {last.round} shows that devices are worse off than learning alone; {remedy}{further}"


def measure_words(records: Sequence[RoundRecord]) -> str:
    """Return the name of `last_user_accuracy`: `user accuracy`, or the name of the task's own metric."""
    return MetricTerms(records[-1].metric if records else ACCURACY).words
