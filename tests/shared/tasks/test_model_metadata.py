"""fedpatch.shared.tasks.model_metadata: the metadata of an exported model are read back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.shared.errors import StateError
from fedpatch.shared.tasks.model_metadata import FORMAT, from_json, to_json
from tests.device_agent.exported_models import describe


def test_metadata_with_unknown_keys_are_read():
    made = describe(1)
    assert from_json(to_json(made).replace(b"{", b'{"colour": "red",', 1), "m.json") == made


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"task": 1}', b"[" * 9999])
def test_invalid_metadata_are_refused_with_the_place(text):
    with pytest.raises(StateError, match=r"^m\.json: does not describe a model"):
        from_json(text, "m.json")


def test_a_description_in_another_format_is_not_guessed_at():
    other = to_json(replace(describe(1), format=FORMAT + 1))
    with pytest.raises(StateError, match=r"^m\.json: is of format 2, of another version of fedpatch"):
        from_json(other, "m.json")
