"""The owner's limit of privacy loss: whether a request stays within it, and the account for the owner."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.job_events import AdmissionDecision, decline
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME, DevicePrivacyAccount, RunAccount
from fedpatch.device_agent.state.storage_check import RETRY_S
from fedpatch.shared.errors import StateError, StateUnreadable
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases, steps_of
from fedpatch.shared.wire.messages import Manifest, WorkRequest
from fedpatch.shared.wire.privacy_messages import GAUSSIAN, SKELLAM, PrivacyTerms
from fedpatch.shared.wire.reason_codes import DeclineReason

_log = logging.getLogger("fedpatch.owner")
_TOLD_RUNS = 20


RESTORED_NAME = "privacy-ledger.restored"
"""While this file is there, the account is that of an old backup, and misses rounds that were offered since."""

RESTORED_ACCOUNT = decline(DeclineReason.STORAGE, "the device's account of privacy is from a backup", RETRY_S)
"""The answer to requests with differential privacy, until the owner has decided about rounds since the backup."""
DAMAGED_ACCOUNT = decline(DeclineReason.STORAGE, "the device's account of privacy cannot be read", RETRY_S)
"""The answer to requests with differential privacy, until the owner restores the account or moves it away."""


class PrivacyBudget:
    """The owner's limit of one agent, over all runs of its state directory.

    Args:
        directory: State directory, with the account.
        fleet: Fleet of the agent, whose coordinator sends the requests.
        max_epsilon: Greatest epsilon; None for no limit. With a limit, rounds without differential privacy are declined.
        required: Whether such rounds are declined without a limit too.
        delta: The delta of epsilon.

    Example:
        >>> from tempfile import mkdtemp
        >>> budget = PrivacyBudget(Path(mkdtemp()), fleet="home", max_epsilon=8.0)
        >>> budget.status()["max_epsilon"]
        8.0
    """

    def __init__(
        self,
        directory: Path,
        *,
        fleet: str,
        max_epsilon: float | None = None,
        required: bool = False,
        delta: float = 1e-5,
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._max_epsilon = max_epsilon
        self._required = required or max_epsilon is not None
        self._delta = delta
        self._account: DevicePrivacyAccount | None = None
        self._damage = ""
        self._shown: tuple[tuple[RunAccount, ...], dict[str, Any]] | None = None

    def refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request that the owner's limit does not allow; None if it does."""
        terms = request.privacy
        # A measurement has no noise and is in no account, even if its request has terms of differential privacy.
        if self._required and (terms is None or request.evaluates):
            return decline(DeclineReason.PRIVACY_REQUIRED, "the owner takes part with differential privacy only")
        if terms is None:
            return None
        if request.evaluates:
            return decline(
                DeclineReason.UNSUPPORTED, "no noise covers a measurement, and the request has terms for noise"
            )
        if why := _impossible(request, terms):
            return decline(DeclineReason.UNSUPPORTED, why)
        account = self._open()
        if account is None:
            _log.error("%s", self._damage)
            return self.answer_without_account
        after = epsilon_of_releases(Counter(account.releases()) + Counter([_release(terms)]), self._delta)
        if self._max_epsilon is None or after <= self._max_epsilon:
            return None
        _log.warning(
            "privacy: a further round would bring epsilon to %.4g; max_epsilon is %g", after, self._max_epsilon
        )
        return decline(DeclineReason.PRIVACY_SPENT, "its owner's limit of privacy loss is reached")

    @property
    def answer_without_account(self) -> AdmissionDecision:
        """The answer to requests while the account is that of a backup, or damaged."""
        return RESTORED_ACCOUNT if self._is_restored else DAMAGED_ACCOUNT

    @property
    def _is_restored(self) -> bool:
        return self._max_epsilon is not None and (self._directory / RESTORED_NAME).exists()

    @property
    def required(self) -> bool:
        """True if rounds without differential privacy are declined."""
        return self._required

    def requires_privacy_of(self, request: WorkRequest) -> bool:
        """Return whether an update must not leave because its request has no differential privacy."""
        return self._required and request.privacy is None

    @property
    def declines(self) -> str:
        """The damage of the account because of which every request is declined; "" for none, or if privacy is not required."""
        return self._damage if self._required and self._open() is None else ""

    def count(self, key: JobKey, request: WorkRequest, manifest: Manifest) -> None:
        """Count the round of an update before it is offered; the same update counts once until it is committed.

        Args:
            request: The request that the update answers. Without terms of differential privacy nothing is counted.

        Raises:
            StateError: The account is damaged or cannot be written. The update must not be offered.
        """
        if request.privacy is None:
            return
        account = self._open()
        if account is None:
            raise StateError(self._damage)
        account.count(self._fleet, key.run, key.task, manifest.digest, _release(request.privacy))

    def committed(self, run: str) -> None:
        """Note that the coordinator has taken the update of a run that was counted last. Raises StateError."""
        account = self._open()
        if account is not None:
            account.committed(self._fleet, run)

    def status(self) -> dict[str, Any]:
        """Return the account for status.json: the limit, epsilon of all runs, and the latest runs. It is never sent."""
        account = self._open()
        terms: dict[str, Any] = {"max_epsilon": self._max_epsilon, "required": self._required, "delta": self._delta}
        if account is None:
            return {**terms, "epsilon": None, "rounds": None, "runs": [], "problem": self._damage}
        if self._shown is None or self._shown[0] is not account.runs:
            self._shown = account.runs, {**terms, **self._content(account)}
        return self._shown[1]

    def _content(self, account: DevicePrivacyAccount) -> dict[str, Any]:
        runs = [
            {
                "fleet": one.fleet,
                "run": one.run,
                "task": one.task,
                "rounds": one.rounds,
                "noise_multipliers": [noisy.noise_multiplier for noisy in one.noisy],
                "epsilon": self._epsilon(one.releases),
            }
            for one in account.runs[-_TOLD_RUNS:]
        ]
        rounds = sum(one.rounds for one in account.runs)
        return {"epsilon": self._epsilon(account.releases()), "rounds": rounds, "runs": runs, "problem": ""}

    def _epsilon(self, releases: Mapping[Release, int]) -> float | None:
        found = epsilon_of_releases(releases, self._delta)
        return found if math.isfinite(found) else None

    def _open(self) -> DevicePrivacyAccount | None:
        """Return the account; None while it is damaged, or old with a limit to keep.

        Each call reads such an account again, since the owner may restore it.
        """
        if self._is_restored:
            self._damage = restored_in_words(self._directory)
            self._account = None
            return None
        if self._account is None:
            try:
                self._account = DevicePrivacyAccount(self._directory)
            except StateError as error:
                self._damage = str(error)
        return self._account


def restored_in_words(directory: Path) -> str:
    """Return what follows from the account of an old backup in a state directory, and the remedy."""
    return (
        f"{directory / ACCOUNT_NAME}: is from a backup, and misses rounds since then, so with max_epsilon rounds are declined; "
        f"if rounds were played since then, copy the file of the old card over it, then delete {directory / RESTORED_NAME}"
    )


def account_state(directory: Path) -> tuple[str, str]:
    """Return the state of the account in a state directory, and the problem with its remedy in words, "" for none.

    The state is a word: ok, restored (from a backup), damaged or unreadable.
    """
    if (directory / RESTORED_NAME).exists():
        return "restored", restored_in_words(directory)
    try:
        DevicePrivacyAccount(directory)
    except StateUnreadable as error:
        return "unreadable", str(error)
    except StateError as error:
        return "damaged", str(error)
    return "ok", ""


def privacy_in_words(account: dict[str, Any]) -> list[str]:
    """Return the account of `PrivacyBudget.status` in lines for people; no lines if it has no rounds and none are required."""
    if account.get("problem"):
        return [f"privacy: {account['problem']}"]
    if not account or not (account["rounds"] or account["required"]):
        return []
    epsilon = "unbounded" if account["epsilon"] is None else f"{account['epsilon']:.3g}"
    limit = "" if account["max_epsilon"] is None else f" of at most {account['max_epsilon']:g}"
    lines = [f"privacy: epsilon {epsilon}{limit} at delta {account['delta']:g}, rounds: {account['rounds']}"]
    return lines + [f"  run {one['run']}: rounds {one['rounds']}" for one in account["runs"]]


def _impossible(request: WorkRequest, terms: PrivacyTerms) -> str:
    """Return why this device cannot follow the terms; "" where it can."""
    secure = request.secure
    if terms.mechanism == GAUSSIAN:
        return "noise of the coordinator does not fit masked updates" if secure is not None or terms.steps else ""
    if terms.mechanism != SKELLAM:
        return f"mechanism {terms.mechanism!r} of differential privacy is not known here"
    if secure is None or terms.steps < 1:
        return "noise of the devices needs masked updates and a grid"
    if (secure.bits, secure.keep) != (16, 1) or secure.clip != terms.clip:
        return "noise of the devices needs 16 bits, all values, and the same clip in both terms"
    if terms.steps > steps_of(terms.noise_multiplier, secure.group_max):
        # The time and the memory for the noise grow with its deviation.
        return "the noise does not fit values of 16 bits beside the updates of the group"
    return ""


def _release(terms: PrivacyTerms) -> Release:
    return Release(terms.noise_multiplier, terms.steps)
