"""The owner's limits for work requests: the tensors that must stay private, the amount of training, and the masking of updates.

The agent checks them before it accepts a request and downloads anything, and again before it offers an update. The training
process also checks the floor by itself (device_agent.training.local_update). No numpy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedpatch.device_agent.job.job_events import AdmissionDecision, decline
from fedpatch.device_agent.job.training_messages import Ready
from fedpatch.device_agent.policy.privacy_budget import PrivacyBudget
from fedpatch.device_agent.policy.private_floor import (
    LEAST,
    Floor,
    FloorRecord,
    PrivateFloor,
    public_schema,
    tasks_with_records,
    undercut,
)
from fedpatch.shared.app.files import refusals_of, stamp_of
from fedpatch.shared.errors import FedpatchError, StateError, WireError
from fedpatch.shared.masking.group_context import check_terms
from fedpatch.shared.masking.keys import is_available
from fedpatch.shared.tensors.schema import Schema, listing
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, SecureTerms, ThresholdRule
from fedpatch.shared.wire.messages import Manifest, TrainPlan, WorkRequest
from fedpatch.shared.wire.plan_terms import DITTO
from fedpatch.shared.wire.reason_codes import DeclineReason

_log = logging.getLogger("fedpatch.owner")

OFF, ALLOWED, REQUIRED = SECURE_MODES = ("off", "allowed", "required")
MIN_GROUP = 8


@dataclass(frozen=True)
class SecureLimits:
    """The owner's terms for masked rounds.

    Attributes:
        mode: One of SECURE_MODES. "required": no update or measurement leaves unmasked, even if a coordinator asks for it.
        min_group: Smallest group that the coordinator may form.
        clip: Longest L2 norm of a step that a request may allow; 0: any. A smaller clip passes on less of this device's step.
        min_threshold: Weakest accepted rule for the number of members that must reveal; with two_thirds, keys must also be
            signed.
        signs: Whether this device can sign its keys with a certificate of the fleet's CA.
        min_colluders: Least number of members whose noise of differential privacy does not count.
        max_weight_cap: Greatest weight of a device, in examples; 0: any.

    Example:
        >>> SecureLimits("off").offers, SecureLimits("required").forbids_unmasked
        (False, True)
    """

    mode: str = ALLOWED
    min_group: int = MIN_GROUP
    clip: float = 0.0
    min_threshold: ThresholdRule = ThresholdRule.HALF
    signs: bool = False
    min_colluders: int = 0
    max_weight_cap: int = 0

    @property
    def offers(self) -> bool:
        """True if this device masks updates: its owner allows it, and `cryptography` is installed."""
        return self.mode != OFF and is_available()

    @property
    def forbids_unmasked(self) -> bool:
        """True if no update or measurement may leave unmasked."""
        return self.mode == REQUIRED

    def refusal(self, request: WorkRequest) -> AdmissionDecision | None:
        """Return the decision to decline a request that does not meet the owner's terms; None if it does."""
        terms = request.secure
        # A measurement is sent unmasked, with the number of examples, even if its request has terms of masking.
        if self.forbids_unmasked and (terms is None or request.evaluates):
            why = "the owner lets no update or measurement leave this device unmasked"
            return decline(DeclineReason.INSECURE_REQUEST, why)
        if terms is None:
            return None
        if request.evaluates:
            return decline(
                DeclineReason.UNSUPPORTED, "a measurement is not masked, and the request has terms for masks"
            )
        if why := self._impossible(request, terms):
            return decline(DeclineReason.UNSUPPORTED, why)
        why = self.too_weak(terms) or self._too_little_noise(request, terms)
        return decline(DeclineReason.SECURE_TERMS, why) if why else None

    def _too_little_noise(self, request: WorkRequest, terms: SecureTerms) -> str:
        colluders = terms.colluders or 0
        if request.privacy is None or colluders >= self.min_colluders:
            return ""
        return f"the noise counts on {colluders} colluders; the owner's limit is min_colluders = {self.min_colluders}"

    def too_weak(self, terms: SecureTerms) -> str:
        """Return how terms fall short of the owner's limits; "" where they do not."""
        if terms.group_min < self.min_group:
            return f"groups may have {terms.group_min} devices; the owner's limit is min_group = {self.min_group}"
        if self.clip and terms.clip > self.clip:
            return f"a step may have a norm of {terms.clip:g}; the owner's limit is clip = {self.clip:g}"
        if self.max_weight_cap and terms.weight_cap > self.max_weight_cap:
            limit = f"the owner's limit is max_weight_cap = {self.max_weight_cap}"
            return f"a device may have the weight of {terms.weight_cap} examples; {limit}"
        if self.min_threshold is ThresholdRule.TWO_THIRDS and not terms.strict:
            return (
                "keys are not signed, and half of a group may open it; the owner's limit is min_threshold = two_thirds"
            )
        return ""

    def _impossible(self, request: WorkRequest, terms: SecureTerms) -> str:
        """Return why this device cannot follow the terms; "" where it can."""
        if terms.strict and not self.signs:
            return "keys must be signed, and this device has no certificate of its fleet's CA (cert_file, ca_file)"
        if request.plan.moments:
            return "moments of the optimizer cannot be masked"
        if not request.content:
            return "the request does not name the values of its model; update the coordinator"
        try:
            check_terms(terms, request.encoding if request.masks else f"masked-u{terms.bits}")
        except WireError as error:
            return f"terms of the masked round: {error}"
        return ""


DAMAGED = "damaged"
UNKNOWN_FLOOR = decline(DeclineReason.PRIVATE_POLICY, "the device's record of what stayed private cannot be read")
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
        secure: The owner's terms for masked rounds.
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
        secure: SecureLimits = SecureLimits(),
        never: bool = False,
    ) -> None:
        self.privacy = privacy
        self._never = never
        self._patch_dir = patch_dir
        self._private = private
        self._max_steps = max_steps
        self._max_epochs = max_epochs
        self._secure = secure
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
            manifest: Manifest of the update.
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


def status_of(floor: Floor, schema: Schema) -> dict[str, Any]:
    """Describe a floor for people and programs on this device.

    `below_default` is true if the owner lets more tensors travel than the default, `keeps_nothing` if the owner's setting is
    not `none` but names no tensor of this model.
    """
    of = len([one for one in schema.specs if one.role != "moment"])
    words = f"at least {floor.words}: {len(floor.names)} of {of} tensors of the model never leave this device"
    below = not LEAST.keeps(schema) <= floor.names
    words = f"{words} ({SOURCES[floor.source]})"
    nothing = floor.source == "setting" and floor.words != "none" and not floor.names
    return _status(floor.words, floor.source, words, tensors=sorted(floor.names), below=below, nothing=nothing)


def least_without_model(setting: str, patch_dir: Path, task: str = "") -> dict[str, Any]:
    """Describe the floor as far as it is known without the model.

    Args:
        setting: The owner's setting, "" for the default.
        patch_dir: Directory of the patches.
        task: Name of the task; "" for the records of all tasks of this device.

    Returns:
        The same keys as `status_of`; `tensors` are those that stayed private in earlier rounds.

    Raises:
        StateError: The directory cannot be read.
    """
    if setting:
        return _status(
            setting, "setting", f"at least {setting} ({SOURCES['setting']})", below=setting in ("none", "stats")
        )
    kept = FloorRecord()
    with refusals_of(patch_dir):
        known = tasks_with_records(patch_dir)
    try:
        for one in [task] if task else known:
            kept = kept.or_also(PrivateFloor(patch_dir, one).kept())
    except StateError as error:
        return damaged_status(error)
    if kept == FloorRecord():
        return _status(str(LEAST), "default", f"at least {LEAST} ({SOURCES['default']})")
    words = f"at least {LEAST}, and what stayed in earlier rounds: {kept}"
    return _status(str(LEAST), "earlier rounds", words, tensors=sorted(kept.names))


def damaged_status(error: StateError) -> dict[str, Any]:
    """Return the status of a device whose record of what stayed private cannot be read."""
    return _status("", DAMAGED, str(error))


def _status(
    least: str, source: str, words: str, *, tensors: Sequence[str] = (), below: bool = False, nothing: bool = False
) -> dict[str, Any]:
    return {
        "least": least,
        "source": source,
        "tensors": list(tensors),
        "below_default": below,
        "keeps_nothing": nothing,
        "words": words,
    }


SOURCES = {
    "setting": "the owner's setting",
    "default": "the default",
    "earlier rounds": "it stayed in earlier rounds",
}


def why_too_long(
    plan: TrainPlan,
    num_examples: int,
    *,
    max_steps: int,
    max_epochs: int,
    measured: bool = False,
    hides_examples: bool = False,
) -> tuple[int, str]:
    """Name the limit of the owner that a plan exceeds.

    Args:
        plan: The plan of one work request.
        num_examples: Training examples of this device.
        max_steps: Most minibatches that one request may ask for, in any unit of its plan.
        max_epochs: Most passes over the data that one request may ask for, in any unit of its plan.
        measured: Whether learning alone is measured too, which takes as many steps again.
        hides_examples: Whether the answer depends only on the powers of 4 next to the number of examples: the plan must be
            within the limits for both. Else a few plans near a limit would show the number.

    Returns:
        The steps or epochs that are asked for, and the words after this number, which do not depend on `num_examples`; 0 and
        "" where no limit is exceeded.
    """
    if hides_examples:
        least = 4 ** ((max(1, num_examples).bit_length() - 1) // 2)
        limits = partial(why_too_long, plan, max_steps=max_steps, max_epochs=max_epochs, measured=measured)
        return next((one for one in map(limits, (least, 4 * least)) if one[1]), (0, ""))
    ditto = bool(plan.personal and plan.personal.kind == DITTO)
    asked = {
        "learning alone": plan.parts * measured,
        "the personal copy": plan.parts * ditto,
        "finish": plan.finish or (),
    }
    others = [word for word, parts in asked.items() if parts]
    also = f", those of {' and '.join(others)} among them" if others else ""
    parts = sum(asked.values(), plan.parts)
    steps = sum(part.steps_for(num_examples, plan.batch_size) for part in parts)
    size = min(plan.batch_size, num_examples)
    in_steps = any(part.steps for part in parts)
    passes = -(-steps * size // max(1, num_examples))
    epochs = passes if in_steps else sum(part.epochs for part in parts)
    found = [
        (count, f"{unit} are asked for{also}; the owner's limit is {name} = {most}")
        for count, unit, name, most in (
            (epochs, "epochs", "max_epochs", max_epochs),
            (steps, "training steps", "max_steps", max_steps),
        )
        if count > most
    ]
    # If both limits are exceeded, name the one in the plan's unit.
    return found[-1 if in_steps else 0] if found else (0, "")
