"""Private patches on disk."""

from __future__ import annotations

import hashlib
import logging
import stat
import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.state.patch_store import (
    MAGIC,
    PatchKey,
    PatchRecord,
    PatchState,
    PatchStore,
    list_patches,
)
from fedpatch.shared.errors import StateError
from tests.shared.arbitrary_tensors import schemas, tensors_of
from tests.support.paths import ROOT

KEY = PatchKey("digits", "ab" * 32, "affine")


def state(number: int) -> PatchState:
    """A patch that is distinguishable from others by `number`."""
    return PatchState(
        {"bn.weight": np.full(3, number, np.float32), "bn.weight:step": np.array(number, np.float32)}, number
    )


def record(number: int, run: str = "run", key: PatchKey = KEY) -> PatchRecord:
    """Round `number` took the patch from `number` - 1 to `number`."""
    return PatchRecord(key, run, number, state(number - 1), state(number))


def saved(directory: Path, *numbers: int) -> PatchStore:
    """A store after these rounds."""
    store = PatchStore(directory)
    for number in numbers:
        store.save(record(number))
    return store


def same(one: PatchState, other: PatchState) -> bool:
    """Whether names, values, dtypes and the place in the data are equal."""
    return (
        one.batches_done == other.batches_done
        and one.values.keys() == other.values.keys()
        and all(
            value.dtype == other.values[name].dtype and np.array_equal(value, other.values[name], equal_nan=True)
            for name, value in one.values.items()
        )
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "state" / "patches"


@pytest.fixture
def path(directory):
    return directory / KEY.file_name


def flip(path: Path, position: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_a_device_never_selected_before_has_the_initial_patch(directory):
    assert same(PatchStore(directory).load(KEY, "run", 1), PatchState())


def test_the_next_round_begins_where_the_last_one_ended(directory):
    saved(directory, 1)
    store = PatchStore(directory)
    assert same(store.load(KEY, "run", 2), state(1))
    assert same(store.load(KEY, "other", 1), state(1))


def test_a_repeated_round_begins_where_it_began_before(directory):
    """A crash after the save, or a coordinator that asks again, does not apply a round twice."""
    store = saved(directory, 1, 2)
    for _ in range(2):
        assert same(store.load(KEY, "run", 2), state(1))
        store.save(record(2))


def test_an_empty_patch_still_keeps_the_place_in_the_data(directory):
    key = PatchKey("digits", "ab" * 32, "none")
    store = PatchStore(directory)
    store.save(PatchRecord(key, "run", 1, PatchState(), PatchState({}, 15)))
    assert store.load(key, "run", 2).batches_done == 15


@pytest.mark.parametrize(
    "other",
    [
        PatchKey("mnist", "ab" * 32, "affine"),
        PatchKey("digits", "cd" * 32, "affine"),
        PatchKey("digits", "ab" * 32, "all"),
    ],
)
def test_tasks_models_and_policies_have_patches_of_their_own(directory, other):
    store = saved(directory, 1)
    assert same(store.load(other, "run", 2), PatchState())
    store.save(record(7, key=other))
    assert same(store.load(KEY, "run", 2), state(1))


@given(st.data(), schemas(), st.integers(0, 2**53), st.text(max_size=64), st.integers(0, 2**53))
def test_saved_patch_loads_unchanged(tmp_path_factory, data, schema, batches_done, run, number):
    store = PatchStore(tmp_path_factory.mktemp("patches"))
    before, after = (PatchState(data.draw(tensors_of(schema)), batches_done + i) for i in range(2))
    store.save(PatchRecord(KEY, run, number, before, after))
    assert same(store.load(KEY, run, number), before)
    assert same(store.load(KEY, run, number + 1), after)


def test_loaded_values_belong_to_who_loads_them(directory):
    store = saved(directory, 1)
    store.load(KEY, "run", 2).values["bn.weight"][:] = 0
    assert same(store.load(KEY, "run", 2), state(1))


def test_nobody_else_can_read_them(directory, path):
    saved(directory, 1, 2)
    assert mode(directory) == 0o700
    assert [mode(file) for file in sorted(directory.iterdir())] == [0o600, 0o600]


def test_wide_permissions_are_tightened_and_logged(directory, path, caplog):
    saved(directory, 1)
    path.chmod(0o644)
    directory.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert same(PatchStore(directory).load(KEY, "run", 2), state(1))
    assert (mode(directory), mode(path)) == (0o700, 0o600)
    assert "0755" in caplog.text and "0644" in caplog.text and str(path) in caplog.text


def test_nothing_is_written_when_nothing_changed(directory, path):
    """SD cards wear out: saving the same record again changes neither the file nor its time."""
    store = saved(directory, 1)
    before = path.stat()
    store.save(record(1))
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(directory.iterdir()) == [path]


@pytest.mark.parametrize("position", [0, len(MAGIC) + 3, len(MAGIC) + 40, -3])
def test_damage_anywhere_falls_back_to_the_version_before(directory, path, position, caplog):
    """The damage is logged, the file set aside, and the device continues from one round earlier."""
    store = saved(directory, 1, 2)
    flip(path, position)
    with caplog.at_level(logging.WARNING):
        assert same(store.load(KEY, "run", 3), state(1))
    assert str(path) in caplog.text and "round 1" in caplog.text
    assert path.with_name(path.name + ".damaged").exists()


@pytest.mark.parametrize("size", [0, 10, 60, 150])
def test_a_file_cut_short_falls_back_too(directory, path, size):
    store = saved(directory, 1, 2)
    path.write_bytes(path.read_bytes()[:size])
    assert same(store.load(KEY, "run", 3), state(1))


def test_after_a_fallback_the_good_version_is_kept(directory, path):
    store = saved(directory, 1, 2)
    flip(path)
    store.load(KEY, "run", 3)
    store.save(record(3))
    flip(path)
    assert same(store.load(KEY, "run", 4), state(1))


def test_damaged_patch_without_another_version_raises_with_a_remedy(directory, path):
    """A silent restart would discard the device's training; only a person may decide that."""
    store = saved(directory, 1)
    flip(path)
    with pytest.raises(StateError, match=r"is damaged .* delete it to begin again") as caught:
        store.load(KEY, "run", 2)
    assert str(caught.value).startswith(str(path))


def test_a_crash_between_the_two_renames_loses_nothing(directory, path):
    saved(directory, 1)
    path.rename(path.with_name(path.name + ".previous"))
    assert same(PatchStore(directory).load(KEY, "run", 2), state(1))


def test_a_patch_under_anothers_name_is_refused(directory, path):
    store = PatchStore(directory)
    other = PatchKey("mnist", "ab" * 32, "affine")
    store.save(record(1, key=other))
    (directory / other.file_name).rename(path)
    with pytest.raises(StateError, match="mnist"):
        store.load(KEY, "run", 2)


def test_unusable_patch_directory_raises(tmp_path):
    (tmp_path / "state").touch()
    with pytest.raises(StateError, match=r"state/patches: Not a directory; .*name another directory"):
        PatchStore(tmp_path / "state" / "patches")


def test_listing_has_task_and_policy_of_each_patch(directory):
    store = saved(directory, 1, 2)
    store.save(record(5, run="night", key=PatchKey("mnist", "cd" * 32, "all")))
    before = sorted(directory.iterdir())
    found = [(entry.task, entry.schema, entry.policy, entry.run, entry.round) for entry in list_patches(directory)]
    assert found == [("digits", "ab" * 32, "affine", "run", 2), ("mnist", "cd" * 32, "all", "night", 5)]
    for entry in list_patches(directory):
        assert (entry.size_bytes, entry.modified_s) == (entry.path.stat().st_size, entry.path.stat().st_mtime)
    assert sorted(directory.iterdir()) == before


def test_a_listing_shows_damage_and_the_rest(directory, path):
    store = saved(directory, 1)
    store.save(record(1, key=PatchKey("mnist", "cd" * 32, "all")))
    flip(path)
    damaged, whole = list_patches(directory)
    assert "is damaged" in damaged.problem and damaged.path == path
    assert (whole.task, whole.problem) == ("mnist", "")


def test_a_listing_of_nothing_is_empty(tmp_path):
    assert list_patches(tmp_path / "absent") == []


def test_a_file_that_is_no_patch_is_named(directory, path):
    PatchStore(directory)
    content = msgpack.packb(["foreign"])
    path.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)
    (entry,) = list_patches(directory)
    assert "has no readable header" in entry.problem
    with pytest.raises(StateError, match="has no readable header"):
        PatchStore(directory).load(KEY, "run", 1)


def test_to_list_patches_needs_neither_torch_nor_numpy(directory):
    saved(directory, 1)
    program = (
        "import sys; from pathlib import Path; from fedpatch.device_agent.state.patch_store import list_patches\n"
        "assert len(list_patches(Path(sys.argv[1]))) == 1; sys.exit(bool({'numpy', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program, directory], cwd=ROOT, check=False).returncode == 0
