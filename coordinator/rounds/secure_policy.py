"""The conditions of a masked run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpatch.coordinator.masking.masked_groups import largest_group
from fedpatch.shared.masking.revocation import RevocationList
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.wire.masking_messages import SecureTerms, ThresholdRule


@dataclass(frozen=True)
class SecurePolicy:
    """The conditions of a masked run (coordinator.rounds.masked_round).

    Attributes:
        size: Greatest size of a group, except where groups are merged (coordinator.masking.masked_groups).
        least: Least size of a group.
        threshold: Rule for the number of members that must reveal their shares.
        bits: Bits of a masked value.
        clip: Greatest L2 norm of a device's step; None: it follows from the model (coordinator.aggregation.masked_scale).
        weight_cap: Most examples that count as a weight; None: the median of the numbers that devices registered.
        colluders: Members of a group whose noise of differential privacy does not count.
        share_deadline_s: Time for the members of a group to send their shares, in seconds.
        unix_time: Returns the time at which certificates must be valid, in Unix seconds.
        authorities: CAs of the certificates that sign the devices' keys; None: keys are not signed.
        revocations: Returns the CA's list of revoked certificates at the begin of a round; None: there is none.
        given: The terms of the hub's round, which a relay's site uses unchanged; None: they follow from the rest.
    """

    size: int
    least: int
    threshold: ThresholdRule
    bits: int
    clip: float | None
    weight_cap: int | None
    share_deadline_s: float
    unix_time: Callable[[], float]
    authorities: Authorities | None = None
    colluders: int = 0
    given: SecureTerms | None = None
    revocations: Callable[[], RevocationList | None] = lambda: None

    @property
    def strict(self) -> bool:
        """True if the devices' keys must be signed."""
        return self.authorities is not None

    @property
    def largest(self) -> int:
        """The greatest number of devices that a group can have."""
        return largest_group(self.size, self.least)
