"""Patch policies: which tensors of a schema are private. No array, so no numpy.

The policies are those of the paper (section 4.2, Table 2): batch norm's statistics (mu, sigma), its trainable values
(gamma, beta), or both; and any set of names. The optimizer moments of a private value are private too (section 3.3).
"""

from __future__ import annotations

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
MAX_TEXT = 500


@dataclass(frozen=True)
class PatchPolicy:
    """What stays private. `str(policy)` is its text form, the same for policies that mean the same.

    `globs` are shell patterns for whole names of the model's tensors, only with kind "names"; `*` also matches dots.
    """

    kind: str
    globs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("patch policy", self.kind, KINDS)
        object.__setattr__(self, "globs", tuple(sorted(set(self.globs))))
        readable = all(glob and glob.isprintable() and not set(glob) & {",", " "} for glob in self.globs)
        if not readable or (self.kind == "names") != bool(self.globs):
            raise UsageError(f"patch policy {self}: write names: and what stays private, as in names:fc2.*,bn1.*")
        length = len(str(self))
        if length > MAX_TEXT:
            raise UsageError(f"a patch policy has at most {MAX_TEXT} characters, this one {length}; use wider globs")

    def __str__(self) -> str:
        return f"names:{','.join(self.globs)}" if self.kind == "names" else self.kind

    def private_names(self, schema: Schema) -> frozenset[str]:
        """Names in `schema`, which is that of the whole model, that never leave the device.

        Moments in the schema go with their parameters. Raises UsageError if the policy finds nothing to keep private,
        or leaves nothing to federate.
        """
        private = self._private_bases(schema)
        names = frozenset(name for name in schema.names if base_name(name) in private)
        if len(names) == len(schema) and names:
            raise UsageError(f"patch policy {self} keeps every tensor private; nothing is left to federate")
        return names

    def keeps(self, schema: Schema) -> frozenset[str]:
        """Names of the model's tensors that stay, without moments. A part of the policy that finds none is no error here."""
        model = [spec for spec in schema.specs if spec.role != "moment"]
        if self.kind == "names":
            return frozenset(spec.name for spec in model if any(fnmatchcase(spec.name, glob) for glob in self.globs))
        return frozenset(spec.name for spec in model if spec.role in ROLES_OF[self.kind])

    def public(self, schema: Schema) -> Schema:
        """Schema of what travels."""
        return schema.subset(set(schema.names) - self.private_names(schema))

    def patch(self, schema: Schema) -> Schema:
        """Schema of what stays."""
        return schema.subset(self.private_names(schema))

    def _private_bases(self, schema: Schema) -> frozenset[str]:
        names = [spec.name for spec in schema.specs if spec.role != "moment"]
        for glob in self.globs:
            _require_match(glob, names)
        found = self.keeps(schema)
        if not found and self.kind != "none":
            values = {"stats": "statistics", "affine": "trainable gamma or beta", "all": "values"}[self.kind]
            raise UsageError(f"patch policy {self}: the model has no batch norm {values}; use none or names:<glob,...>")
        return found


def parse_policy(text: str) -> PatchPolicy:
    """Read none, stats, affine, all or names:<glob,...>. Raises UsageError, with the nearest name that exists."""
    kind, colon, globs = text.strip().partition(":")
    if colon and kind in ROLES_OF:
        raise UsageError(f"patch policy {kind!r} takes nothing after it; write {kind} or names:<glob,...>")
    return PatchPolicy(kind, tuple(glob.strip() for glob in globs.split(",")) if colon else ())


def _require_match(glob: str, names: list[str]) -> None:
    if not any(fnmatchcase(name, glob) for name in names):
        near = get_close_matches(glob, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the model has {listing(names)}"
        raise UsageError(f"patch policy: {glob!r} matches no tensor of the model; {hint}")
