"""Any message within the limits of shared.wire.messages: strategies derived from the types of the fields."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import UNSET, Meta, UnsetType

from fedpatch.shared.wire.codec import BODY_TYPES
from fedpatch.shared.wire.messages import PROTOCOL_VERSION, Envelope


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, up to the limits that its Meta states."""
    if get_origin(hint) is Annotated:
        base, *notes = get_args(hint)
        return _within(base, next(note for note in notes if isinstance(note, Meta)))
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        return st.one_of([of_type(arm) for arm in get_args(hint)])
    if hint is NoneType:
        return st.none()
    if hint is UnsetType:
        return st.just(UNSET)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return of_message(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    assert hint is bool, f"no strategy for {hint}"
    return st.booleans()


def of_message(kind: type) -> st.SearchStrategy[Any]:
    """Messages of one dataclass."""
    return st.builds(kind, **{name: of_type(hint) for name, hint in get_type_hints(kind, include_extras=True).items()})


def envelopes() -> st.SearchStrategy[Envelope]:
    """Envelopes around messages of every type, all types being equally likely."""
    fields = {n: of_type(h) for n, h in get_type_hints(Envelope, include_extras=True).items() if n not in _OWN_FIELDS}
    bodies = st.sampled_from(sorted(BODY_TYPES)).flatmap(lambda name: of_message(BODY_TYPES[name]))
    return st.builds(Envelope, body=bodies, version=st.just(PROTOCOL_VERSION), **fields)


_OWN_FIELDS = ("body", "version")


def _within(base: Any, meta: Meta) -> st.SearchStrategy[Any]:
    if meta.pattern is not None and meta.max_length is None:
        return st.binary(min_size=32, max_size=32).map(bytes.hex)
    if meta.pattern is not None:
        return st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=meta.max_length)
    if base is str:
        return st.text(max_size=meta.max_length)
    if base is bytes:
        least, most = meta.min_length or 0, meta.max_length or 0
        return st.binary(min_size=least, max_size=max(least, min(most, 64))) | st.just(b"\xff" * most)
    if base is int:
        return st.integers(int(meta.ge or 0), int(meta.le or 0))
    if base is float:
        low, high = (meta.ge if meta.gt is None else meta.gt), (meta.le if meta.lt is None else meta.lt)
        return st.floats(
            low, high, exclude_min=meta.gt is not None, exclude_max=meta.lt is not None, allow_nan=False
        ).map(float)
    assert get_origin(base) is tuple, f"no strategy for {base}"
    return st.lists(of_type(get_args(base)[0]), max_size=min(meta.max_length or 0, 8)).map(tuple)
