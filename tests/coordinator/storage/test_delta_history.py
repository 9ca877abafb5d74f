"""The deltas that a device may download instead of the whole model: the chain that leads to the present model."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.storage.delta_files import ServerDelta
from fedpatch.coordinator.storage.delta_history import chain
from fedpatch.shared.tensors.packing import Packed
from fedpatch.shared.wire.messages import MAX_DELTAS

contents = st.sampled_from("abcdef")
steps_of_any_history = st.lists(
    st.builds(
        lambda number, before, content, size: ServerDelta(
            number, f"v-{before}", before, content, Packed(bytes(size), size, "delta-int8")
        ),
        st.integers(1, 30),
        contents,
        contents,
        st.integers(1, 40),
    ),
    max_size=40,
)


def straight(count: int, size: int = 10) -> list[ServerDelta]:
    """Return a history without gaps: after round 1 the content is "1", after round 2 it is "2"."""
    return [
        ServerDelta(n, f"v-{n - 1}", str(n - 1), str(n), Packed(bytes(size), size, "delta-int8"))
        for n in range(1, count + 1)
    ]


@example(  # two steps of one round, of which one begins where the other one ends
    steps=[ServerDelta(3, "v", start, end, Packed(bytes(9), 9, "delta-int8")) for start, end in ("bc", "ab")],
    content="c",
    most=99,
)
@given(steps=steps_of_any_history, content=contents, most=st.integers(0, 200))
def test_chain_of_any_steps_is_connected_and_leads_to_the_model(steps, content, most):
    found = chain(steps, content, most)
    assert all(step in steps for step in found)
    ends = [step.content for step in found]
    assert [step.before for step in found[1:]] == ends[:-1]
    assert ends[-1:] in ([], [content])
    assert sorted({step.round for step in found}) == [step.round for step in found]
    assert sum(len(step.packed.blob) for step in found) <= most
    assert len(found) <= MAX_DELTAS


@given(count=st.integers(0, 40), size=st.integers(1, 20), most=st.integers(0, 300))
def test_chain_has_as_many_steps_as_are_worth_it(count, size, most):
    found = chain(straight(count, size), str(count), most)
    assert len(found) == min(count, MAX_DELTAS, most // size)
    assert found == tuple(straight(count, size)[count - len(found) :])


def test_missing_step_cuts_the_chain():
    steps = straight(9)
    del steps[4]
    assert [step.round for step in chain(steps, "9", 1000)] == [6, 7, 8, 9]


def test_steps_of_a_repeated_round_are_left_out():
    steps = [*straight(5)[:2], *straight(5)[3:], replace(straight(3)[2], content="3 again")]
    assert [step.round for step in chain(steps, "3 again", 1000)] == [1, 2, 3]
    assert [step.round for step in chain(steps, "5", 1000)] == [4, 5]


def test_model_without_a_step_has_no_chain():
    assert chain(straight(3), "0", 1000) == ()
