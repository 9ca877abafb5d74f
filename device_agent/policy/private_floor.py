"""The private floor: tensors that stay on this device for any work request, by the owner's decision and its record on disk.

The floor is a set of the model's tensors. The owner's setting `private` names it. Without the setting it is every tensor that
stayed private in any earlier round of the task, and at least the policy `affine`. Requests are compared with the floor by the
names of tensors, never by the texts of policies: the moments of a tensor belong to the tensor.

The record of earlier rounds is beside the patches, one file per task. It has the names of tensors, and the roles of which
every tensor stayed private, so that it also covers new layers of the task's next version. It grows before a patch is saved,
and nothing here makes it smaller. If it is damaged, every request is declined until the owner decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgpack

from fedpatch.device_agent.state.patch_store import RECORD_LINE, RECORD_SUFFIX, kept_in_patches
from fedpatch.shared.app.files import read_header, read_state, refusals_of, seal, unseal, write_atomic
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.tensors.patch_policy import ROLES_OF, PatchPolicy, parse_policy
from fedpatch.shared.tensors.schema import Schema, base_name, listing

LEAST = PatchPolicy("affine")
"""The floor of an owner who has set none, and of a device that has taken part in no round."""
_FIELDS = {"task": str, "roles": list, "names": list}


@dataclass(frozen=True)
class FloorRecord:
    """Record of earlier rounds: `roles` of which every tensor stayed private, and `names` of tensors that did."""

    roles: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def names_in(self, schema: Schema) -> frozenset[str]:
        """Names of the tensors of `schema` that the record covers."""
        return frozenset(one.name for one in schema.specs if one.role in self.roles or one.name in self.names)

    def plus(self, names: Iterable[str], schema: Schema) -> FloorRecord:
        """The record with the tensors `names` that stayed private in a round on a model of `schema`."""
        bases = {base_name(name) for name in names}
        known = {spec.role for spec in schema.specs}
        whole = {role for role in known if all(one.name in bases for one in schema.specs if one.role == role)}
        return FloorRecord(self.roles | whole, self.names | bases)

    def or_also(self, other: FloorRecord) -> FloorRecord:
        """Union of both records."""
        return FloorRecord(self.roles | other.roles, self.names | other.names)

    def __str__(self) -> str:
        """Describe the record in short words."""
        kinds = [kind for kind, roles in ROLES_OF.items() if roles and roles <= self.roles]
        tensors = f"{len(self.names)} tensors, {listing(self.names, 3)}"
        return f"{kinds[-1]} ({tensors})" if kinds else tensors


@dataclass(frozen=True)
class Floor:
    """Tensors of one model that stay private at least. `words` is a policy that names just these, `source` the reason."""

    names: frozenset[str]
    words: str
    source: str


class PrivateFloor:
    """Floor of one task, with patches and record in `directory`. `setting` is the owner's: a policy's text, or ""."""

    def __init__(self, directory: Path, task: str, setting: str = "") -> None:
        self.path = directory / f"{task}{RECORD_SUFFIX}"
        self._directory = directory
        self._task = task
        self._policy = parse_policy(setting) if setting else None

    def check(self, schema: Schema) -> None:
        """Raise UsageError where the owner's setting names tensors that the model does not have, or all that it has."""
        if self._policy is not None and self._policy.kind == "names":
            try:
                self._policy.private_names(schema)
            except UsageError as error:
                raise UsageError(f"private = {self._policy}: {error}") from error

    def of(self, schema: Schema) -> Floor:
        """Compute the floor of a model. StateError where the record is damaged and the owner has set nothing."""
        if self._policy is not None:
            return Floor(self._policy.keeps(schema), str(self._policy), "setting")
        least, earlier = LEAST.keeps(schema), self.kept().names_in(schema)
        names = least | earlier
        return Floor(names, _in_words(names, schema), "earlier rounds" if earlier - least else "default")

    def kept(self) -> FloorRecord:
        """Read the record of earlier rounds. StateError where it is damaged, or cannot be read.

        A device with patches but no record worked before records existed: its patches are used as the record.
        """
        remedy = f"delete {self.path} to begin with the patches that are there"
        try:
            try:
                data = read_state(self.path)
            except (FileNotFoundError, NotADirectoryError):
                remedy = "move the patch away"
                with refusals_of(self.path):
                    return self._of_patches()
            return _decode(self.path, data, self._task)
        except StateError as error:
            unknown = "what stayed private in earlier rounds is not known, so every request is declined"
            if isinstance(
                error.__cause__, PermissionError
            ):  # only its owner or mode is wrong: the remedy is in the error
                raise StateError(f"{unknown}: {error}") from error
            # An unreadable file may be undamaged: then the message does not suggest to delete it.
            also = "" if isinstance(error.__cause__, OSError) else f", or {remedy}"
            raise StateError(f"{error}; {unknown}. Set `private` to what is to stay at least{also}") from error

    def note(self, names: Iterable[str], schema: Schema) -> None:
        """Add `names` to the record; durable once this returns. StateError where the disk refuses.

        A damaged record stays as it is, which is the strict choice: then only the owner's setting lets a round come this far.
        """
        try:
            known = self.kept()
        except StateError:
            if self._policy is None:
                raise
            return
        now = known.plus(names, schema)
        if now == known and self.path.exists():
            return
        header = {"task": self._task, "roles": sorted(now.roles), "names": sorted(now.names)}
        with refusals_of(self.path):
            write_atomic(self.path, seal(RECORD_LINE, msgpack.packb(header)))

    def _of_patches(self) -> FloorRecord:
        kept = FloorRecord()
        for policy, names in kept_in_patches(self._directory, self._task):
            kept = kept.or_also(FloorRecord(frozenset(ROLES_OF.get(policy.partition(" ")[0], ())), names))
        return kept


def undercut(floor: Floor, private: str, schema: Schema) -> frozenset[str]:
    """Return the names of the floor that a policy would let travel.

    Args:
        floor: Tensors that the owner keeps at least.
        private: The request's policy, as text.
        schema: Schema of the whole model, without moments.

    Raises:
        UsageError: The policy does not fit the model.
    """
    return floor.names - parse_policy(private).private_names(schema)


def public_schema(floor: Floor, private: str, schema: Schema, moments: tuple[str, ...]) -> Schema:
    """Schema of the tensors that may leave the device in a round.

    Args:
        floor: Tensors that the owner keeps at least.
        private: The request's policy, as text.
        schema: Schema of the whole model, without moments.
        moments: Optimizer moments that the request's plan lets travel.
    """
    stays = floor.names | parse_policy(private).private_names(schema)
    whole = schema.with_moments(moments)
    return whole.subset(name for name in whole.names if base_name(name) not in stays)


def tasks_with_records(directory: Path) -> list[str]:
    """Tasks that have a record or a patch in `directory`. OSError where it cannot be read."""
    if not directory.is_dir():
        return []
    records = {path.name.removesuffix(RECORD_SUFFIX) for path in directory.glob(f"[!.]*{RECORD_SUFFIX}")}
    patches = (re.fullmatch(r"([^.].*)-[0-9a-f]{16}\.patch(\.previous)?", path.name) for path in directory.iterdir())
    return sorted(records | {found[1] for found in patches if found})


def _in_words(names: frozenset[str], schema: Schema) -> str:
    kinds = (PatchPolicy(kind) for kind in ROLES_OF)
    return next((str(one) for one in kinds if one.keeps(schema) == names), f"names {listing(names, 3)}")


def _decode(path: Path, data: bytes, task: str) -> FloorRecord:
    content = unseal(path, RECORD_LINE, data, "a record of what stayed private")
    header, _ = read_header(path, content, _FIELDS)
    if header["task"] != task or not all(isinstance(one, str) for one in (*header["roles"], *header["names"])):
        raise StateError(f"{path}: is not the record of task {task!r}")
    return FloorRecord(frozenset(header["roles"]), frozenset(header["names"]))
