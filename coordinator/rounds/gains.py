"""Whether the devices of a round are better off than learning alone would have made them, in figures and in words.

The gain of a device is its user accuracy before the round's training less that of the model that it trained alone
(device_agent.independent); where the metric's goal is "min", the other way round. So a gain above 0 is always good.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from shared.messages import UpdateReport
from shared.metric_terms import MetricTerms
from shared.quantities import accuracy

_ALWAYS = frozenset({"measured", "user_accuracy", "gaining", "losing", "gain"})


def check_figures(independent: Mapping[str, float]) -> None:
    """Raise ValueError where some of the figures are there and others are missing."""
    missing = _ALWAYS - independent.keys()
    if independent and missing:
        raise ValueError(f"independent lacks {', '.join(sorted(missing))}")


def figures(reports: Iterable[UpdateReport], metric: MetricTerms) -> dict[str, float]:
    """Compare the reports of a round with learning alone.

    Args:
        reports: Those that count. A report without both user accuracies is left out.
        metric: That of their user accuracies.

    Returns:
        `measured` devices, the mean `user_accuracy` of learning alone, the shares `gaining` and `losing` (of equals
        neither), the mean `gain`, and `gain_after`, the same after local training where that was measured. Empty where
        no device measured it.
    """
    sign = -1.0 if metric.goal == "min" else 1.0
    gains, after, alone = [], [], []
    for report in reports:
        own, before = report.user_accuracy_independent, report.user_accuracy_before
        if own is None or before is None:
            continue
        alone.append(own)
        gains.append(sign * (before - own))
        if report.user_accuracy_after is not None:
            after.append(sign * (report.user_accuracy_after - own))
    if not gains:
        return {}
    found = {
        "measured": len(gains),
        "user_accuracy": statistics.fmean(alone),
        "gaining": sum(gain > 0 for gain in gains) / len(gains),
        "losing": sum(gain < 0 for gain in gains) / len(gains),
        "gain": statistics.fmean(gains),
    }
    return found | ({"gain_after": statistics.fmean(after)} if after else {})


def fleet_loses(independent: Mapping[str, float]) -> bool:
    """Whether more devices lose than gain, or all lose in the mean."""
    return bool(independent) and (independent["losing"] > independent["gaining"] or independent["gain"] < 0)


def gain_words(independent: Mapping[str, float], label: str) -> str:
    """The figures in one line, "" for none; `label` is what the user accuracies are called."""
    if not independent:
        return ""
    count = round(independent["measured"])
    after = f", {independent['gain_after']:+.3g} after local training" if "gain_after" in independent else ""
    return (
        f"alone {label} {accuracy(independent['user_accuracy'])}, {round(independent['gaining'] * count)} of {count} devices "
        f"gain, {round(independent['losing'] * count)} lose, by {independent['gain']:+.3g} in the mean{after}"
    )
