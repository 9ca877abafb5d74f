"""The words by which each side lists the parts of the messages that it understands (docs/reference/protocol.md, versions).

Version 1 grows by features. A program uses a feature only towards a peer that lists it, because a peer ignores unknown keys and
enumeration values.
"""

from __future__ import annotations

from fedpatch.shared.wire.plan_terms import CONTROL, PLAN_TERMS

# Features of the work request that devices of this version understand:
# ("control" is a moment in plans in which devices keep control variates; it also covers `counted` of the request.)
DEVICE_FEATURES: tuple[str, ...] = ("independent", "dp", "dp-masked", "carry", "evaluate", *PLAN_TERMS, CONTROL)
INDEPENDENT_FEATURE, PRIVACY_FEATURE, MASKED_PRIVACY_FEATURE, CARRY_FEATURE, EVALUATE_FEATURE = DEVICE_FEATURES[:5]
# The version of masked groups. It is in the features below, by which a coordinator chooses the members of a group, and in the
# digest that members sign and derive their masks from. A new rule on which the other members rely needs a new number.
MASKING_VERSION = 3
# A feature of devices that have `cryptography` and whose owner allows it:
MASKED_FEATURE = f"masked_{MASKING_VERSION}"
# A feature of coordinators that know the reasons of devices to decline a masked round.
MASKED_REASONS_FEATURE = "masked"
# A feature of such devices that can also sign their keys with a certificate of the fleet's CA:
SIGNED_FEATURE = "masked_signed"
# A feature of relays that play a masked round in their site and answer with its sum, in SUM_ENCODING:
SUMS_FEATURE = f"masked_sums_{MASKING_VERSION}"
# Features of a device's answers that the coordinator of this version understands:
COORDINATOR_FEATURES: tuple[str, ...] = (
    "storage",
    "owner_limits",
    PRIVACY_FEATURE,
    MASKED_REASONS_FEATURE,
)
STORAGE_FEATURE, OWNER_LIMITS_FEATURE = COORDINATOR_FEATURES[:2]
# A word in the features of a request to a device that registered several members: the report of its update, or its evaluation,
# may have `members`.
MEMBERS_FEATURE = "members"
# A feature of devices that fetch models by URL where their owner allows it: `url` of the manifests of a request.
URL_FEATURE = "url"
# A word of agents that have seen another agent with their id: the two end each other's connection.
SHARED_ID_FEATURE = "shared_id"
MAX_FEATURES = 32
