"""fedpatch.shared.app.files: sealed content is read back, and other bytes are refused."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.app.files import content_start, read_header, seal, unseal
from fedpatch.shared.errors import StateError

LINE, PATH, FIELDS = b"fedpatch thing 1\n", Path("thing.fp"), {"name": str, "round": int}


@given(st.binary())
def test_unseal_of_sealed_content_returns_the_content(content):
    data = seal(LINE, content)
    assert bytes(unseal(PATH, LINE, data, "a thing")) == data[content_start(LINE) :] == content


@given(st.binary(), st.data())
def test_unseal_of_changed_bytes_raises_state_error(content, data):
    sealed = bytearray(seal(LINE, content))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    what = "is (not a thing, or is damaged|a thing of another version)" if place < len(LINE) else "is damaged"
    with pytest.raises(StateError, match=f"^thing.fp: {what}"):
        unseal(PATH, LINE, bytes(sealed), "a thing")


def test_unseal_of_another_version_raises_state_error_with_remedy():
    with pytest.raises(StateError, match="a thing of another version of fedpatch; use that version"):
        unseal(PATH, LINE, seal(b"fedpatch thing 2\n", b"content"), "a thing")


@given(st.text(), st.integers(0, 2**63), st.binary())
def test_read_header_returns_its_length(name, number, rest):
    header = msgpack.packb({"name": name, "round": number})
    found, length = read_header(PATH, header + rest, FIELDS)
    assert (found, length) == ({"name": name, "round": number}, len(header))


@pytest.mark.parametrize(
    "header",
    [None, [], {"name": "a"}, {"name": "a", "round": True}, {"name": 1, "round": 1}, {"name": "a", "round": 1, "b": 1}],
)
def test_header_with_other_fields_raises_state_error(header):
    with pytest.raises(StateError, match=r"thing\.fp: has no readable header"):
        read_header(PATH, msgpack.packb(header), FIELDS)
    with pytest.raises(StateError, match=r"thing\.fp: has no readable header \("):
        read_header(PATH, b"", FIELDS)
