"""Patches when a coordinator goes back to an earlier model: the same rounds are repeated, and are not applied twice."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.shared.errors import StateError

KEY = PatchKey("digits", "ab" * 32, "affine")
Rounds = tuple[int, ...]


def patch(rounds: Rounds) -> PatchState:
    """A patch that records which rounds were applied to it."""
    return PatchState({"bn.weight": np.array(rounds, np.float32)}, len(rounds))


def applied(state: PatchState) -> Rounds:
    return tuple(int(one) for one in state.values.get("bn.weight", ()))


def train(store: PatchStore, round: int, run: str = "run") -> None:
    """A round as LocalUpdate does it: load, train, save."""
    before = applied(store.load(KEY, run, round))
    store.save(PatchRecord(KEY, run, round, patch(before), patch((*before, round))))


def trained(directory: Path, rounds: Iterable[int]) -> PatchStore:
    """A store after these rounds."""
    store = PatchStore(directory)
    for round in rounds:
        train(store, round)
    return store


@pytest.mark.parametrize(
    ("rounds", "asked", "found"),
    [
        ([1, 2, 3], 4, (1, 2, 3)),
        ([1, 2, 3], 3, (1, 2)),
        ([1, 2, 3], 2, (1,)),
        ([1, 3], 2, (1,)),
        ([1, 2, 5], 4, (1, 2)),
        ([2], 1, ()),
        ([1, 2, 2, 2], 1, ()),
        ([1, 2, 3, 2], 2, (1,)),
        ([1, 2, 3, 2], 3, (1, 2)),
        ([1, 2, 3, 2, 3], 2, (1,)),
        # Two versions are kept, with three states of the patch; for rounds before them the oldest known state is used.
        ([1, 2, 3, 4], 2, (1, 2)),
        ([1, 2, 3, 1], 1, (1,)),
    ],
    ids=str,
)
def test_a_round_that_comes_again_begins_as_it_did(tmp_path, rounds, asked, found):
    """The coordinator goes back by one or two rounds, into a gap where this device was not asked, or a second time."""
    assert applied(trained(tmp_path, rounds).load(KEY, "run", asked)) == found


def test_an_earlier_run_is_not_gone_back_to(tmp_path):
    """The kept version of another run is not used for this run: the newest version began where that run ended."""
    store = trained(tmp_path, [5])
    train(store, 3, "night")
    assert applied(store.load(KEY, "night", 2)) == (5,)
    assert applied(store.load(KEY, "run", 5)) == (5, 3)


def test_a_repeated_round_leaves_the_kept_version_alone(tmp_path):
    """After any number of trainings of the open round, the way back to the round before it stays open."""
    store = trained(tmp_path, [1, 2])
    for number in range(3):
        store.save(PatchRecord(KEY, "run", 2, patch((1,)), patch((1, 2, 100 + number))))
    assert applied(store.load(KEY, "run", 2)) == (1,)
    assert applied(store.load(KEY, "run", 1)) == ()


def test_damaged_kept_version_is_logged_and_skipped(tmp_path, caplog):
    store = trained(tmp_path, [1, 2, 3])
    kept = tmp_path / (KEY.file_name + ".previous")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert applied(store.load(KEY, "run", 4)) == (1, 2, 3)
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        assert applied(store.load(KEY, "run", 2)) == (1, 2)
    assert str(kept) in caplog.text


def test_a_newest_that_was_damaged_does_not_become_the_kept_one(tmp_path):
    store = trained(tmp_path, [1, 2])
    newest = tmp_path / KEY.file_name
    newest.write_bytes(b"torn")
    store.save(PatchRecord(KEY, "run", 3, patch((1, 2)), patch((1, 2, 3))))
    assert applied(store.load(KEY, "run", 2)) == (1,)


def test_a_patch_that_may_not_be_read_is_an_error_and_not_an_older_patch(tmp_path, monkeypatch):
    """A temporary disk error must not cost the device a round of its training."""
    store = trained(tmp_path, [1, 2])
    monkeypatch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(5, "I/O error", str(path))))
    with pytest.raises(StateError, match="cannot be read now: I/O error"):
        store.load(KEY, "run", 3)


moves = st.lists(st.sampled_from(("train", "again", "crash", "skip", "back 1", "back 2")), max_size=25)


@given(moves)
def test_no_round_is_applied_twice_as_long_as_the_way_back_is_known(tmp_path_factory, moves):
    """Any sequence of rounds, repeats, crashes before and after the save, and coordinators that go back by one or two.

    The reference model maps each known round to the state with which it began. It forgets as the store does: a version of
    the same round or an earlier one replaces the newest version; before a later round, the newest version becomes the kept one.
    """
    directory = tmp_path_factory.mktemp("patches")
    store = PatchStore(directory)
    began: dict[int, Rounds] = {}
    asked, way_back_known = 1, True
    for move in moves:
        if move == "skip":
            asked += 1  # this device was not asked
            continue
        if move.startswith("back"):
            asked = max(1, asked - int(move[-1]))
        before = applied(store.load(KEY, "run", asked))
        assert before == expected(began, asked)
        twice = any(round >= asked for round in before)
        way_back_known = way_back_known and (not began or asked >= min(began) or not twice)
        assert not (way_back_known and twice)
        if move == "crash":
            store = PatchStore(directory)  # during training: nothing was saved
            continue
        for _ in range(2 if move == "again" else 1):
            store.save(PatchRecord(KEY, "run", asked, patch(before), patch((*before, asked))))
        began = kept(began, asked, before)
        asked += 1


def expected(began: dict[int, Rounds], asked: int) -> Rounds:
    """The state with which a round must begin: its earlier start, else that of the next known round, else the last end."""
    later = [round for round in sorted(began) if round >= asked]
    if later:
        return began[later[0]]
    return (*began[max(began)], max(began)) if began else ()


def kept(began: dict[int, Rounds], saved: int, before: Rounds) -> dict[int, Rounds]:
    """The known rounds after a save: the round itself, and the last one before it."""
    earlier = [round for round in sorted(began) if round < saved][-1:]
    return {**{round: began[round] for round in earlier}, saved: before}
