"""The site's share of the hub's deadline: the times of a round of the site, which ends before the relay's own update is due."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.relay.settings import RelaySettings

LEAST_S = 2.0
"""A round of the site is not begun with less time than this."""
_MARGIN_SHARE = 0.2
_WAIT_S = 5.0


@dataclass(frozen=True)
class SiteDeadlines:
    """The times of a round of the site, in seconds from its begin.

    Attributes:
        deadline_s: Time to report.
        recruit_deadline_s: Time to accept or decline.
        unmask_s: Time to unmask a masked round, after `deadline_s`; None in a round without masks.
        wait_s: Time that the round waits for `min_cohort` devices, if some have left since the request was accepted.
        share_deadline_s: Time of a masked group to exchange shares.
    """

    deadline_s: float
    recruit_deadline_s: float
    unmask_s: float | None
    wait_s: float
    share_deadline_s: float

    @classmethod
    def of(cls, settings: RelaySettings, left_s: float, *, masked: bool) -> SiteDeadlines:
        """Divide the time to the hub's deadline.

        Args:
            left_s: Time to the hub's deadline, in seconds.
            masked: Whether the round is masked: then collecting and unmasking end before the relay's margin.
        """
        site, unmask_s = settings.downwards, None
        deadline_s = left_s - min(settings.relay_margin_s, _MARGIN_SHARE * left_s)
        if masked:
            unmask_s = min(site.unmask_s, _MARGIN_SHARE * deadline_s)
            deadline_s -= unmask_s
        return cls(
            deadline_s=deadline_s,
            recruit_deadline_s=min(settings.recruit_deadline_s, deadline_s / 2),
            unmask_s=unmask_s,
            wait_s=min(_WAIT_S, deadline_s / 4),
            share_deadline_s=min(site.share_deadline_s, deadline_s / 4),
        )

    def policy(self, policy: RoundPolicy) -> RoundPolicy:
        """Return the policy of the site with these times."""
        return replace(
            policy,
            deadline_s=self.deadline_s,
            recruit_deadline_s=self.recruit_deadline_s,
            unmask_s=self.unmask_s,
        )
