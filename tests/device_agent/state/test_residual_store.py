"""Residuals of coarse encodings: kept for the next update, through repeats, crashes and damage, and never sent."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore, list_patches
from fedpatch.device_agent.state.residual_store import ResidualOf, ResidualStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.tensors.encoding_rules import FEEDBACK
from fedpatch.shared.tensors.error_feedback import residual_name
from fedpatch.shared.tensors.packing import unpack
from fedpatch.shared.wire.messages import ENCODINGS, Manifest
from tests.device_agent.device_rounds import ADAM, SGD, Scene, raw_update
from tests.device_agent.disk_change_killer import Guillotine
from tests.device_agent.toy_tasks import TOY, random_data

KEY = PatchKey("toy", "ab" * 32, "affine")
PUBLIC = Schema(
    (
        TensorSpec("fc.weight", (64, 40), "float32", "weight"),
        TensorSpec("fc.weight:exp_avg", (64, 40), "float32", "moment"),
        TensorSpec("bn.running_mean", (40,), "float32", "stats"),
    )
)
OF = ResidualOf("delta-int8", PUBLIC.digest, "run", 1)


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    return memory_path


def left(number: float) -> dict[str, np.ndarray]:
    """The residual of a round: its number everywhere."""
    return {"fc.weight:residual": np.full((64, 40), number, np.float32)}


def number_in(values: dict[str, np.ndarray]) -> float:
    """The number in a residual, 0 without one."""
    return round(float(values["fc.weight:residual"].mean()), 3) if values else 0.0


@pytest.fixture
def store(tmp_path):
    """A store with the residual of round 1."""
    made = ResidualStore(tmp_path)
    made.save(KEY, OF, PUBLIC, left(1), 5)
    return made


class TestStore:
    def test_gives_a_round_what_the_one_before_it_left(self, store):
        """A second load gives the same, also after the round has saved its own residual."""
        second = replace(OF, round=2)
        assert number_in(store.load(KEY, second, PUBLIC)) == 1
        for number in (2, 2.5):
            store.save(KEY, second, PUBLIC, left(number), 6)
            assert number_in(store.load(KEY, second, PUBLIC)) == 1
        assert number_in(store.load(KEY, replace(OF, round=9), PUBLIC)) == 2.5

    @pytest.mark.parametrize(
        "other",
        [{"run": "night"}, {"encoding": "delta-int4"}, {"schema": "00" * 32}, {"round": 1}, {"round": 0}],
        ids=str,
    )
    def test_gives_nothing_where_it_would_not_fit(self, store, other):
        """A residual of another run, encoding or shape, or of a round that is not before the requesting one."""
        assert store.load(KEY, replace(OF, **{"round": 2, **other}), PUBLIC) == {}

    def test_keeps_tasks_and_policies_apart(self, store):
        assert store.load(replace(KEY, policy="all"), replace(OF, round=2), PUBLIC) == {}

    def test_drops_what_is_left_once_nothing_is(self, store, tmp_path):
        store.save(KEY, replace(OF, round=2, encoding="fp32"), PUBLIC, {}, 5)
        assert list(tmp_path.iterdir()) == []

    def test_damaged_residual_is_logged_and_skipped(self, store, tmp_path, caplog):
        [path] = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:-1])
        with caplog.at_level(logging.WARNING):
            assert store.load(KEY, replace(OF, round=2), PUBLIC) == {}
        assert "is damaged (its SHA-256 does not fit); the next update goes without it" in caplog.text
        store.save(KEY, replace(OF, round=2), PUBLIC, left(2), 5)
        assert number_in(store.load(KEY, replace(OF, round=3), PUBLIC)) == 2

    def test_is_small_and_loses_little(self, store, tmp_path):
        """Half a byte for a value; for values of any size the loss is at most a fiftieth of their energy, without bias."""
        rng = np.random.default_rng(3)
        values = {"fc.weight:residual": rng.uniform(-0.01, 0.01, (64, 40)).astype(np.float32)}
        store.save(KEY, replace(OF, round=2), PUBLIC, values, 5)
        found = store.load(KEY, replace(OF, round=3), PUBLIC)["fc.weight:residual"]
        lost = found - values["fc.weight:residual"]
        assert np.square(lost).sum() < np.square(values["fc.weight:residual"]).sum() / 50
        assert abs(lost.mean()) < 1e-4
        assert max(path.stat().st_size for path in tmp_path.iterdir()) < 64 * 40 / 2 + 800

    def test_is_no_patch(self, store, tmp_path):
        assert list_patches(tmp_path) == []
        assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0]


@given(st.lists(st.sampled_from(("train", "again", "crash", "skip", "back", "other run")), max_size=20))
def test_a_round_that_comes_again_finds_what_it_found_before(tmp_path_factory, moves):
    """For any earlier rounds; rounds are repeated at once, as after a crash, and a coordinator may go back by one."""
    store = ResidualStore(tmp_path_factory.mktemp("patches"))
    run, number, trained = "run", 1, 0
    for move in moves:
        of = replace(OF, run=run, round=number)
        found = number_in(store.load(KEY, of, PUBLIC))
        assert found <= trained
        if move in ("train", "again"):
            trained += 1
            for _ in range(2 if move == "again" else 1):
                store.save(KEY, of, PUBLIC, left(trained), 5)
                assert number_in(store.load(KEY, of, PUBLIC)) == found
            assert number_in(store.load(KEY, replace(of, round=number + 1), PUBLIC)) == trained
            number += 1
        elif move == "skip":
            number += 1
        elif move == "back":
            number = max(1, number - 1)
        elif move == "other run":
            run = f"{run}-later"


def test_killed_before_any_write_a_round_finds_what_it_found_before(tmp_path_factory):
    fatal = deaths = 0
    while True:
        fatal += 1
        directory = tmp_path_factory.mktemp("patches")
        store = ResidualStore(directory)
        for number in (1, 2):
            store.save(KEY, replace(OF, round=number), PUBLIC, left(number), 5)
        third = replace(OF, round=3)
        if Guillotine(fatal).run(partial(store.save, KEY, third, PUBLIC, left(3), 5)) < fatal:
            break
        deaths += 1
        PatchStore(directory)  # the next start removes unfinished files
        assert number_in(store.load(KEY, third, PUBLIC)) == 2
        store.save(KEY, third, PUBLIC, left(3), 5)
        assert number_in(store.load(KEY, replace(OF, round=4), PUBLIC)) == 3
        assert len(list(directory.iterdir())) == 2
    assert deaths >= 4


@cache
def trainer() -> LocalTrainer:
    """A trainer with the same data each time: its result depends on its input only."""
    return LocalTrainer(TOY, random_data("ann", 23))


class Device:
    """A LocalUpdate with its own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = PatchStore(folder / "patches")
        self.local_update = LocalUpdate(trainer(), self.store, "ann", private="none")

    def run(self, command: TrainCommand) -> Manifest:
        here = replace(command, update_path=str(self.folder / "update"))
        done = self.local_update.run(here, lambda done, total: None, lambda: False)
        assert done is not None
        return done[0]

    def tensors(self, command: TrainCommand) -> bytes:
        """The update's tensors as they travel, without the report, whose training time is never the same twice."""
        self.run(command)
        raw = raw_update(self.folder / "update", command.encoding)
        return raw[raw.index(b"tensors") :]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("private", "encoding"),
    [
        *(("affine", one) for one in ENCODINGS),
        ("none", "delta-int8"),
        ("all", "delta-int4"),
        ("names:fc2.*", "delta-int8"),
    ],
)
def test_a_round_that_is_killed_before_any_write_gives_the_same_bits_again(tmp_path, private, encoding):
    """Moments included; patch, residual and update are written one after the other."""
    scene = Scene(tmp_path, TOY, ADAM, private)
    commands = [scene.command(round=number, encoding=encoding) for number in (1, 2, 3)]
    whole = Device(tmp_path)
    expected = [whole.tensors(commands[0])]
    shutil.copytree(tmp_path / "patches", tmp_path / "after-1" / "patches")
    expected += [whole.tensors(one) for one in commands[1:]]
    fatal = 0
    while True:
        fatal += 1
        folder = tmp_path / f"killed-{fatal}"
        shutil.copytree(tmp_path / "after-1", folder)
        if Guillotine(fatal).run(partial(Device(folder).run, commands[1])) < fatal:
            break
        again = Device(folder)
        assert [again.tensors(one) for one in commands[1:]] == expected[1:]
    assert fatal > (10 if encoding in FEEDBACK else 7)


@pytest.mark.medium
def test_residual_of_an_update_is_added_to_the_next_updates(tmp_path, encoding="delta-int4"):
    """With the same model in each round, the sum of the updates stays close to the sum of the trained steps."""
    scene = Scene(tmp_path, TOY, replace(SGD, steps=1), "affine")
    steps: dict[str, list[np.ndarray]] = {"fp32": [], encoding: []}
    for how, taken in steps.items():
        device = Device(tmp_path / how)
        for number in range(1, 31):
            manifest = device.run(scene.command(round=number, encoding=how))
            blob = (device.folder / "update").read_bytes()
            base, raw_bytes = scene.initial(), manifest.raw_bytes
            _, tensors = unpack(blob, encoding=how, raw_bytes=raw_bytes, schema=scene.public, base=base)
            taken.append(tensors["fc1.weight"] - base["fc1.weight"])
    worst = np.abs(steps[encoding][0] - steps["fp32"][0]).max()
    drift = np.abs(sum(steps[encoding]) - sum(steps["fp32"])).max()
    assert worst > 0
    assert drift < 4 * worst  # without feedback it is twice that


@pytest.mark.parametrize("encoding", sorted(FEEDBACK))
def test_nothing_of_what_was_left_out_leaves_the_device(tmp_path, encoding):
    scene = Scene(tmp_path, TOY, SGD, "affine")
    device = Device(tmp_path)
    for number in (1, 2):
        device.run(scene.command(round=number, encoding=encoding))
    raw = raw_update(tmp_path / "update", encoding)
    assert b"residual" not in raw
    [patch] = [path for path in (tmp_path / "patches").iterdir() if path.suffix == ".patch"]
    assert b"residual" not in patch.read_bytes()
    record = device.store.load(PatchKey(TOY.name, scene.model.digest, "affine"), "another", 0)
    assert record.values.keys() == {"bn.weight", "bn.bias"}
    assert not {residual_name(name) for name in scene.whole.names} & set(scene.public.names)
    found = sorted(path.suffix for path in (tmp_path / "patches").iterdir())
    assert found == [".patch", ".previous", ".previous", ".private", ".residual"]
