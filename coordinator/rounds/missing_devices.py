"""The words for devices that a run waits for, or is without: which ones, the reason of each, and the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedpatch.coordinator.rounds.decline_hints import hint_for_decline
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.round_phases import STARTING_S
from fedpatch.shared.app.formatting import counted

_NAMED = 5
"""Devices that a line names; it counts the others."""


def missing_words(fleet: Fleet, most: int = _NAMED) -> str:
    """Return the first `most` missing devices, each with its reason; "" if no known device is missing."""
    return _with_reasons(sorted(fleet.count.missing_by_name), fleet.why_missing, most)


def left_out_words(fleet: Fleet, most: int = _NAMED) -> str:
    """Return the first `most` present devices that are not asked in this run, each with what it lacks; "" for none.

    Devices that declined are not among them: their rounds count them.
    """
    members = fleet.members
    lacking = sorted(name for name, one in members.items() if one.state.online and one.barred and not one.barred_for)
    return _with_reasons(lacking, lambda name: members[name].barred, most)


def missing_text(fleet: Fleet, wanted: int, wait_s: float) -> str:
    """Return an error text for too few devices.

    Args:
        wanted: Devices that the run waits for.
        wait_s: The time that it waited, in seconds.
    """
    came = f"{fleet.present} of {wanted} devices came within {wait_s:g} s"
    if fleet.starting:
        came += (
            f", and {fleet.starting} more are still starting {STARTING_S:g} s later; see the logs of their agents, "
            "start fewer of them on one machine, or give them longer with --wait-s"
        )
    words = [*_held_words(fleet), *_unable_words(fleet)]
    if missing := missing_words(fleet):
        words.append(f"missing: {missing}; `fedpatch devices drain DEVICE` takes one out of the count")
    words += fleet.false_presence.words()
    if not words and not fleet.starting:
        words.append(
            "are the agents running, with this broker, fleet and task? "
            "--wait-s gives longer to those that are still on their way"
        )
    return "; ".join([came, *words])


def _held_words(fleet: Fleet) -> Iterable[str]:
    online = {device for device, member in fleet.members.items() if member.state.online}
    if there := {device: fleet.held(device) for device in online if fleet.held(device)}:
        yield f"{len(there)} of those that are there are held back, as {_first(there)}"
    if gone := {device: fleet.held(device) for device in fleet.count.held_of_fleet - online}:
        yield f"{len(gone)} of those that are not there are held back, as {_first(gone)}"


def _unable_words(fleet: Fleet) -> Iterable[str]:
    there = {device: member for device, member in fleet.members.items() if member.state.online}
    if barred := {device: member.barred for device, member in there.items() if member.barred}:
        hints = _decline_hints(there[device].barred_for for device in barred)
        yield f"{len(barred)} of those that are there cannot take part, as {_first(barred)}{hints}"
    if fleet.offenders:
        yield f"{len(fleet.offenders)} are not asked again in this run, as {_first(fleet.offenders)}"
    if unwilling := fleet.unwilling():
        yield f"{unwilling.total()} of those that are there are unwilling: {counted(unwilling)}"


def _with_reasons(devices: Sequence[str], why: Callable[[str], str], most: int) -> str:
    """Return the first `most` devices, each with its reason, and the number of the others."""
    named = [f"{device} ({why(device)})" for device in devices[:most]]
    more = [f"{len(devices) - most} more"] if len(devices) > most else []
    return ", ".join(named + more)


def _first(reasons: Mapping[str, str]) -> str:
    device = min(reasons)
    return f"{device}: {reasons[device]}"


def _decline_hints(words: Iterable[str]) -> str:
    """Return the number of declines by reason, each with its remedy."""
    return "".join(
        f". {count} declined with {word}: {remedy}"
        for word, count in sorted(Counter(words).items())
        if (remedy := hint_for_decline(word))
    )
