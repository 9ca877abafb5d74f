"""The terms of a masked round: those of its journal, or new ones that fit its cohort; and the relays that answer with sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fedpatch.coordinator.aggregation.medians import lower_median
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.round_journal import MaskingEntry, RoundStart, terms_entry
from fedpatch.coordinator.rounds.run_effects import Effect, SaveGroupSteps
from fedpatch.coordinator.rounds.secure_policy import SecurePolicy
from fedpatch.shared.wire.masking_messages import SecureTerms


def terms_of(
    policy: SecurePolicy | None, offered: SecureTerms | None, opening: RoundStart, fleet: Fleet
) -> SecureTerms | None:
    """Return the terms of a masked round: the terms of the journal, or the given terms adapted to the cohort.

    Values are finer if the largest group is smaller. The weight cap is the median of the registered numbers of examples; a
    relay counts as its devices with their mean. A device that hides its number registers 1; if all do, all weigh the same.

    Args:
        policy: The conditions of the run; None without masks.
        offered: The terms that follow from the model's state.
        opening: The round, new or continued.
    """
    if policy is None or offered is None:
        return None
    if (known := opening.terms) is not None:
        return known
    if policy.given is not None:
        return policy.given
    members = {device: fleet.members_of(device) for device in opening.journal.invited}
    registered = {device: (fleet.registered(device) or 0) / count for device, count in members.items()}
    examples = [count for device, count in registered.items() if count > 1 for _ in range(members[device])]
    usual = round(lower_median(examples)) if examples else 1
    largest = min(policy.largest, max(policy.least, sum(members.values())))
    return replace(offered, group_max=largest, weight_cap=policy.weight_cap or usual)


def relays_of_sums(opening: RoundStart, fleet: Fleet) -> frozenset[str]:
    """Return the relays that send the sum of their site; a continued round keeps its first relays."""
    if opening.masking:
        return frozenset(entry.device for entry in opening.masking if entry.step == "terms" and entry.device)
    return frozenset(device for device in opening.journal.invited if fleet.sums(device))


def save_terms(
    terms: SecureTerms | None, opening: RoundStart, sums: Collection[str], *, measures: bool
) -> list[Effect]:
    """Return the effect that saves new terms and the relays, before the first request that has them.

    Args:
        terms: The terms; None without masks.
        opening: The round; a continued round has saved its terms.
        sums: The relays that answer with sums.
        measures: Whether devices measure learning alone.
    """
    if terms is None or any(entry.step == "terms" for entry in opening.masking):
        return []
    relays = (MaskingEntry(0, "terms", device, b"") for device in sorted(sums))
    return [SaveGroupSteps(opening.journal.round, (terms_entry(terms, measures=measures), *relays))]
