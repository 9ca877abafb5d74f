"""Strategies for any schema, and for any tensors of a schema."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpatch.shared.tensors.arrays import DTYPES, TRAINABLE, Array, Role, Schema, Tensors, TensorSpec

FLOATS = ("float16", "float32", "float64")
NAMES = st.text("ab01._", min_size=1, max_size=6)


@st.composite
def specs(draw, roles: tuple[Role, ...] = ("weight", "affine", "stats", "buffer"), dtypes=DTYPES) -> TensorSpec:
    """Any tensor of a model, including scalars and empty tensors."""
    role = draw(st.sampled_from(roles))
    dtype = draw(st.sampled_from([dtype for dtype in dtypes if dtype in FLOATS or role not in TRAINABLE]))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    return TensorSpec(draw(NAMES), shape, dtype, role)


def schemas(min_size: int = 0, dtypes=DTYPES) -> st.SearchStrategy[Schema]:
    """Any schema of a model, without moments."""
    unique = st.lists(specs(dtypes=dtypes), min_size=min_size, max_size=5, unique_by=lambda spec: spec.name)
    return unique.map(lambda chosen: Schema(tuple(chosen)))


@st.composite
def tensors_of(draw, schema: Schema, finite: bool = False) -> dict[str, Array]:
    """Any values for `schema`."""
    return {
        spec.name: draw(hnp.arrays(spec.dtype, spec.shape, elements=_values(spec, finite))) for spec in schema.specs
    }


def awkward(array: Array, layout: str) -> Array:
    """Make another array of the same values, in the given layout."""
    if layout == "big-endian":
        return array.astype(array.dtype.newbyteorder(">"))
    if layout == "read-only":
        copy = array.copy()
        copy.flags.writeable = False
        return copy
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    return array.copy(order="F")


LAYOUTS = ("big-endian", "read-only", "strided", "fortran")


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    """Whether names, shapes, dtypes and every bit are the same (a NaN is the same as itself)."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def nested(depth: int) -> list:
    """Nest empty lists."""
    return [nested(depth - 1)] if depth else []


def _values(spec: TensorSpec, finite: bool) -> st.SearchStrategy:
    if spec.dtype in FLOATS and finite:
        return hnp.from_dtype(np.dtype(spec.dtype), allow_nan=False, min_value=-1000, max_value=1000)
    return hnp.from_dtype(np.dtype(spec.dtype))


def bits(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes by name: equal for equal values in any order and memory layout."""
    return {name: (array.dtype.name, array.shape, array.tobytes()) for name, array in tensors.items()}
