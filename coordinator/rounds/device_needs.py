"""The features that a run needs of each device, with the reason to leave out a device that lacks one."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.wire.features import (
    MASKED_FEATURE,
    MASKED_PRIVACY_FEATURE,
    PRIVACY_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
)
from fedpatch.shared.wire.messages import DeviceState
from fedpatch.shared.wire.plan_terms import CONTROL

OLD_VERSION = "its version does not know {}, which this run needs; update it"

CANNOT_MASK = (
    "cannot mask its update in the groups of this version; update it, with `cryptography`, and let its owner allow it"
)

CANNOT_SIGN = "cannot sign its masking keys; give it a certificate (fedpatch-agent enrol), or take threshold = half"

OF_RELAY = (
    "it is a relay, which passes on no dp or SCAFFOLD, and masked groups from this version on; update it, or have its devices "
    "take part without it"
)

TOO_MANY = "it speaks for {} devices, and max_members is {}; raise max_members if it is a relay of yours"


def needs_of(spec: RunSpec) -> dict[str, str]:
    """Return the features that a device must list to be invited to a run, each with the reason to leave it out."""
    no_privacy = OLD_VERSION.format("dp")
    needs = {PRIVACY_FEATURE: no_privacy} if spec.privacy is not None else {}
    if spec.secure is not None:
        needs |= {MASKED_FEATURE: CANNOT_MASK} | ({SIGNED_FEATURE: CANNOT_SIGN} if spec.secure.strict else {})
    needs |= {term: OLD_VERSION.format(term) for term in spec.plan.terms}
    needs |= {CONTROL: OLD_VERSION.format("control variates")} if spec.plan.has_controls else {}
    both = spec.privacy is not None and spec.secure is not None
    return needs | ({MASKED_PRIVACY_FEATURE: no_privacy} if both else {})


def answers_with_sums(state: DeviceState, max_members: int) -> bool:
    """Return whether the device is a relay that answers a masked round with the sum of its site."""
    return SUMS_FEATURE in state.features and max(members_in(state), max_members) > 1


def lacking(state: DeviceState, needs: Mapping[str, str], max_members: int) -> str:
    """Return the reason to leave out a device that lacks a feature or speaks for too many devices; "" for none.

    Args:
        state: Its presence.
        needs: The features that the run needs (`needs_of`).
        max_members: Most devices that one device may speak for.
    """
    # A relay of sums hands masked rounds on to its site, whose devices mask and sign.
    known = {*state.features, *((MASKED_FEATURE, SIGNED_FEATURE) if answers_with_sums(state, max_members) else ())}
    members = members_in(state)
    if state.tasks and (missing := [why for word, why in needs.items() if word not in known]):
        return OF_RELAY if members > 1 else missing[0]
    return TOO_MANY.format(members, max_members) if members > max_members else ""


def members_in(state: DeviceState) -> int:
    """Return the greatest number of devices that a presence says to speak for."""
    return max((one.num_members for one in state.tasks), default=1)
