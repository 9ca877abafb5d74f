"""Patch policies: they decide which tensors of a schema are private. This module needs no NumPy.

The policies are those of the paper (section 4.2, Table 2): the statistics of batch norm (mu, sigma), its trainable values
(gamma, beta), or both; and any set of names. The optimizer moments of a private value are private too (section 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.tensors.schema import Role, Schema, base_name, listing

ROLES_OF: dict[str, frozenset[Role]] = {
    "none": frozenset(),
    "stats": frozenset({"stats"}),
    "affine": frozenset({"affine"}),
    "all": frozenset({"stats", "affine"}),
}
KINDS = (*ROLES_OF, "names")
NORMS, HEAD = "norms", "head"
SHORTHANDS = (NORMS, HEAD)
"""Policies of a user that depend on the model or the task. They become names before a device is asked
(shared.tasks.torch_model.resolve_private)."""
MAX_TEXT = 500


@dataclass(frozen=True)
class PatchPolicy:
    """The rule that decides which tensors stay private. Equal policies have equal text forms (`str`).

    Attributes:
        kind: One of KINDS.
        globs: With kind "names", shell patterns for whole names of the model's tensors; `*` also matches dots.

    Example:
        >>> policy = parse_policy("names:fc3.*")
        >>> policy, str(policy)
        (PatchPolicy(kind='names', globs=('fc3.*',)), 'names:fc3.*')
    """

    kind: str
    globs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            error = unknown_name("patch policy", self.kind, KINDS)
            raise UsageError(f"{error}; named tensors are written as names:fc2.*,bn1.*")
        object.__setattr__(self, "globs", tuple(sorted(set(self.globs))))
        readable = all(glob and glob.isprintable() and not set(glob) & {",", " "} for glob in self.globs)
        if not readable or (self.kind == "names") != bool(self.globs):
            shown = str(self).removesuffix(":")
            raise UsageError(f"patch policy {shown}: write names: and the private tensors, as in names:fc2.*,bn1.*")
        length = len(str(self))
        if length > MAX_TEXT:
            raise UsageError(f"a patch policy has at most {MAX_TEXT} characters, this one {length}; use wider globs")

    def __str__(self) -> str:
        return f"names:{','.join(self.globs)}" if self.kind == "names" else self.kind

    def private_names(self, schema: Schema) -> frozenset[str]:
        """Return the names of the private tensors in `schema`, the schema of the whole model.

        A moment is private if its parameter is. Raises UsageError if no tensor matches the policy, or if every tensor would
        be private.
        """
        private = self._private_bases(schema)
        names = frozenset(name for name in schema.names if base_name(name) in private)
        if len(names) == len(schema) and names:
            raise UsageError(f"patch policy {self} keeps every tensor private; nothing is left to federate")
        return names

    def keeps(self, schema: Schema) -> frozenset[str]:
        """Return the names of the private tensors, without moments. A policy that matches no tensor is no error here."""
        model = [spec for spec in schema.specs if spec.role != "moment"]
        if self.kind == "names":
            return frozenset(spec.name for spec in model if any(fnmatchcase(spec.name, glob) for glob in self.globs))
        return frozenset(spec.name for spec in model if spec.role in ROLES_OF[self.kind])

    def public(self, schema: Schema) -> Schema:
        """Return the schema of the public tensors."""
        return schema.subset(set(schema.names) - self.private_names(schema))

    def patch(self, schema: Schema) -> Schema:
        """Return the schema of the private tensors."""
        return schema.subset(self.private_names(schema))

    def _private_bases(self, schema: Schema) -> frozenset[str]:
        names = [spec.name for spec in schema.specs if spec.role != "moment"]
        for glob in self.globs:
            require_match(glob, names, "patch policy", frozen=schema.frozen.names)
        private = self.keeps(schema)
        if not private and self.kind != "none":
            values = {"stats": "statistics", "affine": "trainable gamma or beta", "all": "values"}[self.kind]
            raise UsageError(f"patch policy {self}: the model has no batch norm {values}; use none or names:<glob,...>")
        return private


def parse_policy(text: str) -> PatchPolicy:
    """Read the text form: none, stats, affine, all or names:<glob,...>. Raises UsageError, which suggests a known name."""
    kind, colon, globs = text.strip().partition(":")
    if colon and kind in ROLES_OF:
        raise UsageError(f"patch policy {kind!r} takes nothing after it; write {kind} or names:<glob,...>")
    return PatchPolicy(kind, tuple(glob.strip() for glob in globs.split(",")) if colon else ())


def check_private(text: str) -> str:
    """Return the text form of a user's policy: one of `parse_policy`, or of SHORTHANDS. Raises UsageError."""
    kind = text.strip()
    if kind in SHORTHANDS:
        return kind
    if ":" not in kind and kind not in KINDS:
        raise unknown_name("patch policy", kind, (*KINDS, *SHORTHANDS))
    return str(parse_policy(text))


def names_policy(private: Collection[str], names: Collection[str]) -> PatchPolicy:
    """Return the policy "names" that keeps exactly these tensors private, with few patterns.

    Args:
        private: Names of the private tensors, at least one.
        names: Names of all tensors of the model.

    Raises:
        UsageError: The names take more than MAX_TEXT characters.

    Example:
        >>> str(names_policy({"block.0.norm.bias", "block.1.norm.bias"}, {"block.0.norm.bias", "block.1.norm.bias", "fc.bias"}))
        'names:block.*.norm.*'
    """
    globs: list[str] = []
    for name in sorted(private):
        if not any(fnmatchcase(name, glob) for glob in globs):
            globs.append(
                next(glob for glob in _wider(name) if {one for one in names if fnmatchcase(one, glob)} <= set(private))
            )
    return PatchPolicy("names", tuple(globs))


def _wider(name: str) -> Iterator[str]:
    """Yield patterns that match a name, the widest first and the name itself last."""
    exact = re.sub(r"[*?[]", "[\\g<0>]", name)
    numbered = re.sub(r"(^|\.)\d+(?=\.)", r"\1*", exact)
    for pattern in (numbered, exact):
        yield re.sub(r"[^.]+$", "*", pattern)
        yield pattern


def policy_of_names(private: Collection[str], schema: Schema) -> PatchPolicy:
    """Return the policy of a set of private tensors, the same for each policy that keeps just these.

    Args:
        private: Names of the private tensors, without moments.

    Example:
        >>> from fedpatch.shared.tensors.schema import TensorSpec
        >>> norm, rest = TensorSpec("bn.bias", (2,), "float32", "affine"), TensorSpec("fc.bias", (2,), "float32", "weight")
        >>> schema = Schema((norm, rest))
        >>> str(policy_of_names({"bn.bias"}, schema)), str(policy_of_names({"fc.bias"}, schema))
        ('affine', 'names:fc.*')
    """
    kinds = (PatchPolicy(kind) for kind in ROLES_OF)
    named = next((one for one in kinds if one.keeps(schema) == frozenset(private)), None)
    names = [spec.name for spec in schema.specs if spec.role != "moment"]
    return named or names_policy(private, names)


def require_match(glob: str, names: Collection[str], what: str, *, frozen: Collection[str] = ()) -> None:
    """Raise UsageError unless a pattern matches a name.

    Args:
        names: Names of the model's tensors.
        what: The part of the settings that has the pattern, for the message.
        frozen: Names of the frozen values, which no patch can have.
    """
    if any(fnmatchcase(name, glob) for name in names):
        return
    if held := [name for name in frozen if fnmatchcase(name, glob)]:
        raise UsageError(
            f"{what}: {glob!r} matches only frozen values ({listing(held, 3)}), which never leave a device; leave it out"
        )
    nearest = get_close_matches(glob, names)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the model has {listing(names)}"
    raise UsageError(f"{what}: {glob!r} matches no tensor of the model; {hint}")
