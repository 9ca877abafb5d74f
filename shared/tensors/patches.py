"""Taking a model apart and together along the line that a patch policy draws (shared.tensors.patch_policy)."""

from __future__ import annotations

from fedpatch.shared.errors import SchemaMismatch
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, UnexpectedTensors, base_name, listing
from fedpatch.shared.tensors.patch_policy import KINDS as KINDS
from fedpatch.shared.tensors.patch_policy import MAX_TEXT as MAX_TEXT
from fedpatch.shared.tensors.patch_policy import ROLES_OF as ROLES_OF
from fedpatch.shared.tensors.patch_policy import PatchPolicy as PatchPolicy
from fedpatch.shared.tensors.patch_policy import parse_policy as parse_policy


def split(tensors: Tensors, policy: PatchPolicy, schema: Schema) -> tuple[dict[str, Array], dict[str, Array]]:
    """Take tensors apart into (public, patch); `merge` undoes it.

    `schema` is that of the whole model, with or without moments. A tensor whose model tensor is not in it raises
    UnexpectedTensors: what nobody agreed on must not slip through as public.
    """
    unknown = sorted(name for name in tensors if base_name(name) not in schema)
    if unknown:
        raise UnexpectedTensors(unknown, f"{listing(unknown)} is not in the model's schema; is it private or public?")
    private = policy.private_names(schema)
    patch = {name: array for name, array in tensors.items() if base_name(name) in private}
    return {name: array for name, array in tensors.items() if name not in patch}, patch


def merge(public: Tensors, patch: Tensors) -> dict[str, Array]:
    """Put the public tensors and a patch together. Raises SchemaMismatch if a tensor is in both."""
    both = set(public) & set(patch)
    if both:
        raise SchemaMismatch(f"{listing(both)} is public and private at once; the patch is of another policy")
    return {**public, **patch}
