"""Split a model into public tensors and a private patch by a patch policy (shared.tensors.patch_policy), and merge them."""

from __future__ import annotations

from fedpatch.shared.errors import SchemaMismatch
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, UnexpectedTensors, base_name, listing
from fedpatch.shared.tensors.patch_policy import KINDS as KINDS
from fedpatch.shared.tensors.patch_policy import MAX_TEXT as MAX_TEXT
from fedpatch.shared.tensors.patch_policy import ROLES_OF as ROLES_OF
from fedpatch.shared.tensors.patch_policy import PatchPolicy as PatchPolicy
from fedpatch.shared.tensors.patch_policy import parse_policy as parse_policy
from fedpatch.shared.tensors.patch_policy import policy_of_names as policy_of_names


def split(tensors: Tensors, policy: PatchPolicy, schema: Schema) -> tuple[dict[str, Array], dict[str, Array]]:
    """Split tensors into public ones and a patch. `merge` is the exact inverse.

    Args:
        tensors: Tensors of the model, and optionally moments.
        schema: Schema of the whole model, with or without moments.

    Returns:
        The public tensors, and the private ones.

    Raises:
        UnexpectedTensors: A tensor does not belong to the schema. It must not become public by mistake.
        UsageError: The policy does not fit the schema.
    """
    unknown = sorted(name for name in tensors if base_name(name) not in schema)
    if unknown:
        raise UnexpectedTensors(unknown, f"{listing(unknown)} is not in the model's schema; is it private or public?")
    private = policy.private_names(schema)
    patch = {name: array for name, array in tensors.items() if base_name(name) in private}
    return {name: array for name, array in tensors.items() if name not in patch}, patch


def merge(public: Tensors, patch: Tensors) -> dict[str, Array]:
    """Merge public tensors and a patch. Raises SchemaMismatch if a tensor is in both."""
    both = set(public) & set(patch)
    if both:
        raise SchemaMismatch(f"{listing(both)} is public and private at once; the patch belongs to another policy")
    return {**public, **patch}
