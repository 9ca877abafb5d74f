"""The owner's limits at the agent's two checks: before it accepts a request, and before an update leaves.

secure_limits has the terms of masks, plan_limit that of training, privacy_budget that of privacy loss, private_floor the
tensors that must stay. The training process also checks the floor by itself (device_agent.training.local_update). No numpy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_events import AdmissionDecision, decline
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.floor_status import DAMAGED, damaged_status, status_of
from fedpatch.device_agent.policy.plan_limit import why_too_long
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.policy.private_floor import (
    Floor,
    PrivateFloor,
    public_schema,
    undercut,
)
from fedpatch.device_agent.policy.secure_limits import SecureLimits
from fedpatch.device_agent.state.storage_check import RETRY_S
from fedpatch.shared.app.files import stamp_of
from fedpatch.shared.errors import FedpatchError, StateError, WireError
from fedpatch.shared.tensors.schema import Schema, listing
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS
from fedpatch.shared.wire.messages import Manifest, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason

_log = logging.getLogger("fedpatch.owner")

UNKNOWN_FLOOR = decline(DeclineReason.STORAGE, "the device's record of what stayed private cannot be read", RETRY_S)
"""The answer to every request while it is unknown what stayed private, until the owner decides."""


@dataclass(frozen=True)
class _Model:
    """The device's model as its training process reports it."""

    task: str
    schema: Schema
    num_examples: int
    floor: PrivateFloor


class OwnerLimits:
    """The owner's limits of one agent.

    Args:
        patch_dir: Directory of the patches, with the record of what stayed private.
        private: The owner's setting: a policy's text, "" for the default.
        max_steps: Most training steps of one request.
        max_epochs: Most passes over the data of one request.
        privacy: The owner's limit of privacy loss; None for none.
        secure: The owner's terms for masked rounds; None for the default ones.
        never: Whether the owner set admission to never.
    """

    def __init__(
        self,
        patch_dir: Path,
        *,
        private: str = "",
        max_steps: int,
        max_epochs: int,
        privacy: PrivacyBudget | None = None,
        secure: SecureLimits | None = None,
        never: bool = False,
    ) -> None:
        self.privacy = privacy
        self._never = never
        self._patch_dir = patch_dir
        self._private = private
        self._max_steps = max_steps
        self._max_epochs = max_epochs
        self._secure = SecureLimits() if secure is None else secure
        self._model: _Model | None = None
        self._status: tuple[object, dict[str, Any]] = None, {}

    def take(self, ready: Ready) -> None:
        """Take the model and data that the training process has loaded. UsageError where the setting does not fit the model."""
        schema = Schema(ready.tensors, ready.frozen)
        if schema.digest != ready.schema:
            raise WireError("training channel: the digest of the schema is not that of its tensors")
        floor = PrivateFloor(self._patch_dir, ready.task, self._private)
        floor.check(schema)
        known, self._model = self._model, _Model(ready.task, schema, ready.num_examples, floor)
        if known is None:
            private = self.status()
            _log.log(logging.ERROR if private["source"] == DAMAGED else logging.INFO, "private: %s", private["words"])
            if self.privacy is not None and (problem := self.privacy.status()["problem"]):
                _log.error("privacy: %s", problem)

    def refusal(self, task: str, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request beyond the limits; None if it is within them, or about another model."""
        if self.privacy is not None and (spent := self.privacy.refusal(request)) is not None:
            return spent
        model = self._model
        if model is None or (task, request.schema) != (model.task, model.schema.digest):
            return None
        if refused := self._secure.refusal(request):
            return refused
        try:
            lacking = undercut(self._floor(model), request.private, model.schema)
        except StateError as error:
            _log.error("%s", error)
            return UNKNOWN_FLOOR
        except FedpatchError as error:
            return decline(DeclineReason.UNSUPPORTED, f"private {request.private}: {error}")
        if lacking:
            least = self._floor(model).words
            _log.warning("private: a request with %s would publish %s", request.private, listing(lacking))
            why = f"the request keeps {request.private} private, the owner of this device at least {least}"
            return decline(DeclineReason.PRIVATE_POLICY, f"{why}; {listing(lacking)} would leave it")
        if request.evaluates and not request.plan.finish:
            return None  # no step is taken
        count, limit = why_too_long(
            request.plan,
            model.num_examples,
            max_steps=self._max_steps,
            max_epochs=self._max_epochs,
            hides_examples=self._secure.forbids_unmasked,
        )
        if not limit:
            return None
        # Steps of a plan in epochs, or epochs of a plan in steps, would reveal the number of examples: only the log names
        # them.
        _log.warning("a request is declined: %d %s", count, limit)
        return decline(DeclineReason.PLAN_LIMIT, f"more {limit}")

    def why_not_send(self, request: WorkRequest | None, manifest: Manifest) -> str:
        """Return why an update must not leave the device; "" if it holds only tensors that may leave.

        Args:
            request: The request that the update answers; None if it is unknown: then the update's tensors are unknown too.
        """
        model = self._model
        if model is None or request is None:
            return "the update does not name the request that it answers"
        if why := self._forbids_update(request):
            return why
        if (manifest.encoding in MASKED_ENCODINGS) != request.masks:
            return f"the update is encoded as {manifest.encoding}, which is not what the request asks for"
        try:
            floor = self._floor(model)
            lacking = undercut(floor, request.private, model.schema)
            allowed = public_schema(floor, request.private, model.schema, request.plan.moments)
        except FedpatchError as error:
            return str(error)
        if lacking:
            return f"the owner keeps {floor.words} private at least, and the update holds {listing(lacking)}"
        if manifest.schema != allowed.digest:
            return "the update does not hold just the tensors that may leave this device"
        return ""

    def _forbids_update(self, request: WorkRequest) -> str:
        """Return which limit forbids the update of a request; "" for none. The owner may have set it after the training."""
        if self._never:
            return "its owner set admission to never"
        if self._secure.forbids_unmasked and request.secure is None:
            return "the owner lets no update leave this device unmasked"
        if self.privacy is not None and self.privacy.requires_privacy_of(request):
            return "the owner lets no update leave this device without differential privacy"
        return "" if request.secure is None else self._secure.too_weak(request.secure)

    def terms(self) -> list[str]:
        """Return what a request must have, in words for the owner; none where any request may be accepted."""
        return terms_in_words(
            masked=self._secure.forbids_unmasked, private=self.privacy is not None and self.privacy.required
        )

    @property
    def declines(self) -> str:
        """The damage of a record because of which every request is declined; "" for none."""
        private = self.status()
        if private.get("source") == DAMAGED:
            return str(private["words"])
        return "" if self.privacy is None else self.privacy.declines

    def status(self) -> dict[str, Any]:
        """The floor for status.json; empty until the model is known."""
        if self._model is None:
            return {}
        now = (self._model, stamp_of(self._model.floor.path))
        if now != self._status[0]:
            self._status = now, self._look(self._model)
        return self._status[1]

    def _look(self, model: _Model) -> dict[str, Any]:
        try:
            return status_of(self._floor(model), model.schema)
        except StateError as error:
            return damaged_status(error)

    @staticmethod
    def _floor(model: _Model) -> Floor:
        return model.floor.of(model.schema)


def terms_in_words(*, masked: bool, private: bool) -> list[str]:
    """Return what a request must have, in words for the owner.

    Args:
        masked: Whether the owner requires masked updates.
        private: Whether the owner requires differential privacy.
    """
    terms = (
        (masked, 'only requests for masked updates (secure = "required")'),
        (private, "only requests with differential privacy (dp_required, max_epsilon)"),
    )
    return [words for wanted, words in terms if wanted]
