"""Schema: name, shape, dtype and role of each tensor, as coordinator and device agree on them. It needs no NumPy.

A model and the moments of its optimizer are one flat mapping from names to arrays (shared.tensors.arrays).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedpatch.shared.app.formatting import size
from fedpatch.shared.errors import SchemaMismatch, WireError
from fedpatch.shared.wire.plan_terms import CONTROL

if TYPE_CHECKING:
    import numpy as np

Role = Literal["weight", "affine", "stats", "buffer", "moment"]
"""weight: trainable, outside batch norm. affine: trainable, of batch norm. stats: tracked by batch norm. buffer: any other
value that is not trained. moment: state of the optimizer for a weight or affine tensor. Frozen values have no role: they are no
tensors of a schema (`Frozen`)."""

ROLES: tuple[Role, ...] = get_args(Role)
TRAINABLE: frozenset[Role] = frozenset({"weight", "affine"})
_ITEM_BYTES = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "bool": 1,
}
DTYPES = tuple(_ITEM_BYTES)
MOMENTS = ("exp_avg", "exp_avg_sq", "step")

MAX_TENSORS = 65_536
MAX_NAME_BYTES = 256
MAX_RANK = 8
MAX_SCHEMA_BYTES = 2**31


class UnexpectedTensors(SchemaMismatch):
    """There are tensors that the schema does not have; `names` are their names, sorted."""

    def __init__(self, names: Sequence[str], message: str) -> None:
        self.names = tuple(names)
        super().__init__(message)


def moment_name(parameter: str, moment: str) -> str:
    """Return the name of an optimizer moment: `fc1.weight`, `exp_avg` -> `fc1.weight:exp_avg`."""
    return f"{parameter}:{moment}"


def base_name(name: str) -> str:
    """Return the name of the model's tensor that `name` belongs to: `fc1.weight:exp_avg` -> `fc1.weight`."""
    return name.partition(":")[0]


def listing(names: Iterable[str], limit: int = 5) -> str:
    """Return names for an error message: sorted, quoted, and at most `limit` of them."""
    ordered = sorted(names)
    shown = ", ".join(repr(name) for name in ordered[:limit])
    return shown if len(ordered) <= limit else f"{shown} and {len(ordered) - limit} more"


@dataclass(frozen=True)
class TensorSpec:
    """Schema of one tensor.

    Args:
        name: 1 to MAX_NAME_BYTES printable bytes in UTF-8; only a moment's name has a colon.
        shape: At most MAX_RANK sizes.
        dtype: One of DTYPES.
        role: One of ROLES.

    Raises:
        SchemaMismatch: An attribute is not of that kind.

    Example:
        >>> from fedpatch import TensorSpec
        >>> TensorSpec("fc1.weight", (128, 64), "float32", "weight").nbytes
        32768
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not 1 <= len(self.name.encode()) <= MAX_NAME_BYTES:
            raise SchemaMismatch(f"tensor name {self.name[:40]!r} must have 1 to {MAX_NAME_BYTES} printable bytes")
        if self.role not in ROLES:
            raise SchemaMismatch(f"{self.name}: unknown role {self.role!r} (known: {', '.join(ROLES)})")
        if self.dtype not in DTYPES:
            raise SchemaMismatch(f"{self.name}: dtype {self.dtype!r} cannot travel; use one of {', '.join(DTYPES)}")
        if len(self.shape) > MAX_RANK or any(count < 0 for count in self.shape):
            raise SchemaMismatch(f"{self.name}: shape {self.shape} must have at most {MAX_RANK} sizes, none negative")
        if (self.role == "moment") != (":" in self.name):
            raise SchemaMismatch(
                f"{self.name}: ':' must separate a parameter from its moment, and is allowed only there"
            )

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes, uncompressed."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]

    # Both are read for each tensor of each message, and are computed once.
    @cached_property
    def trainable(self) -> bool:
        """True if an optimizer trains the tensor."""
        return self.role in TRAINABLE

    @cached_property
    def never_negative(self) -> bool:
        """True if the values are at least zero by definition: variances, counts, second moments."""
        if self.role == "stats":
            return self.name.rpartition(".")[2] in ("running_var", "num_batches_tracked")
        return self.role == "moment" and self.name.endswith((":exp_avg_sq", ":step"))


@dataclass(frozen=True)
class Frozen:
    """Values of a model that never change: each side has them from the task, and no message or checkpoint has them.

    Args:
        names: Their names, sorted.
        digest: SHA-256 (hexadecimal) of names, shapes, dtypes and values; "" without any.
        nbytes: Size of the values, in bytes.

    Example:
        >>> str(Frozen(("base.weight",), "9f86d081884c7d65", 4096))
        "1 tensor (4.1 kB, digest 9f86d081884c): 'base.weight'"
    """

    names: tuple[str, ...] = ()
    digest: str = ""
    nbytes: int = 0

    def __str__(self) -> str:
        """Describe the values in words."""
        tensors = "1 tensor" if len(self.names) == 1 else f"{len(self.names)} tensors"
        return f"{tensors} ({size(self.nbytes)}, digest {self.digest[:12]}): {listing(self.names, 3)}"


NOTHING_FROZEN = Frozen()


@dataclass(frozen=True)
class Schema:
    """Schema of a set of tensors.

    Args:
        specs: The tensors; they are kept sorted by name.
        frozen: The model's values that never change, which are no tensors of the schema; only the schema of a whole model
            has them.

    Raises:
        SchemaMismatch: A name appears twice.

    Example:
        >>> from fedpatch import Schema, TensorSpec
        >>> schema = Schema((TensorSpec("fc.bias", (2,), "float32", "weight"),))
        >>> schema.with_moments(["step"]).names
        ('fc.bias', 'fc.bias:step')
    """

    specs: tuple[TensorSpec, ...]
    frozen: Frozen = NOTHING_FROZEN

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.specs, key=lambda spec: spec.name))
        twice = [spec.name for spec, after in pairwise(ordered) if spec.name == after.name]
        if twice:
            raise SchemaMismatch(f"the schema has {listing(set(twice))} twice")
        object.__setattr__(self, "specs", ordered)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.specs)

    @cached_property
    def _by_name(self) -> dict[str, TensorSpec]:
        return {spec.name: spec for spec in self.specs}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(self._by_name)

    @cached_property
    def nbytes(self) -> int:
        """Size of all values in bytes, uncompressed."""
        return sum(spec.nbytes for spec in self.specs)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hexadecimal); equal if and only if all names, shapes, dtypes and roles, and the frozen values, are equal."""
        frozen = [["frozen", self.frozen.digest]] if self.frozen.names else []
        canonical = json.dumps([*self.to_lists(), *frozen], separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def __contains__(self, name: object) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._by_name

    def spec(self, name: str) -> TensorSpec:
        """Return the schema of one tensor. Raises UnexpectedTensors if there is none of this name."""
        if name not in self._by_name:
            raise UnexpectedTensors([name], f"{name!r} is not in the schema (it has {listing(self.names)})")
        return self._by_name[name]

    def subset(self, names: Iterable[str]) -> Schema:
        """Return the schema of the tensors `names`. Raises UnexpectedTensors if one is not in this schema."""
        return Schema(tuple(self.spec(name) for name in set(names)))

    def with_moments(self, moments: Sequence[str]) -> Schema:
        """Return this schema plus the moments of every trainable tensor. Raises SchemaMismatch for an unknown moment."""
        unknown = set(moments) - {*MOMENTS, CONTROL}
        if unknown:
            raise SchemaMismatch(f"unknown optimizer moment {listing(unknown)} (known: {', '.join(MOMENTS)})")
        added = [_moment_spec(spec, moment) for spec in self.specs if spec.trainable for moment in moments]
        return Schema((*self.specs, *added), self.frozen)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise SchemaMismatch unless `names` are exactly the schema's; UnexpectedTensors if there are others among them."""
        given = set(names)
        unexpected, missing = given - set(self.names), set(self.names) - given
        problems = [f"unexpected tensors {listing(unexpected)}"] if unexpected else []
        problems += [f"missing tensors {listing(missing)}"] if missing else []
        message = f"{'; '.join(problems)}: both sides need the same task, model and patch policy"
        if unexpected:
            raise UnexpectedTensors(sorted(unexpected), message)
        if missing:
            raise SchemaMismatch(message)

    def check(self, tensors: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
        """Raise SchemaMismatch unless names, shapes and dtypes (in native byte order) are exactly those of the schema."""
        self.check_names(tensors)
        for spec in self.specs:
            array = tensors[spec.name]
            if array.shape != spec.shape:
                raise SchemaMismatch(f"{spec.name}: shape {array.shape}, agreed {spec.shape}")
            if array.dtype != spec.dtype:
                raise SchemaMismatch(f"{spec.name}: dtype {array.dtype}, agreed {spec.dtype}")

    def to_lists(self) -> list[list[Any]]:
        """Plain lists for msgpack and JSON: [name, shape, dtype, role] by name."""
        return [[spec.name, list(spec.shape), spec.dtype, spec.role] for spec in self.specs]

    @classmethod
    def from_lists(cls, lists: Any) -> Schema:
        """Undo `to_lists`. Raises WireError for any other value, or for one beyond this program's limits."""
        if not isinstance(lists, list) or len(lists) > MAX_TENSORS:
            raise WireError(f"a schema must be a list of at most {MAX_TENSORS} tensors")
        try:
            schema = cls(tuple(_spec_from_list(entry) for entry in lists))
        except SchemaMismatch as error:
            raise WireError(f"schema: {error}") from error
        if schema.nbytes > MAX_SCHEMA_BYTES:
            raise WireError(f"a schema of {schema.nbytes} bytes is more than the limit of {MAX_SCHEMA_BYTES}")
        return schema


def _moment_spec(spec: TensorSpec, moment: str) -> TensorSpec:
    shape, dtype = ((), "float32") if moment == "step" else (spec.shape, spec.dtype)
    return TensorSpec(moment_name(spec.name, moment), shape, dtype, "moment")


def _spec_from_list(entry: Any) -> TensorSpec:
    match entry:
        case [str(name), list(shape), str(dtype), str(role)] if all(type(count) is int for count in shape):
            return TensorSpec(name, tuple(shape), dtype, role)  # type: ignore[arg-type]  # __post_init__ checks the role
    raise WireError("a tensor of a schema must be [name, shape, dtype, role]")
