"""A run whose state directory is deleted or replaced ends with StateDirectoryLost, and writes nothing to the new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.runtime.model_publisher import FileNote
from fedpatch.coordinator.runtime.ports import REAL
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.guarded_blobs import GuardedBlobs
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.shared.errors import StateDirectoryLost
from tests.coordinator.effect_runners import Bench
from tests.coordinator.registry_builders import new_run
from tests.support.brokers import Mosquitto


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir()
    return place


@pytest.fixture
def registry(place: Path) -> Iterator[Registry]:
    with Registry(place / REGISTRY_FILE) as registry:
        yield registry


@pytest.fixture
def guard(place: Path, registry: Registry) -> DirectoryGuard:
    guard = DirectoryGuard(place, registry.path)
    registry.guard(guard.check)
    return guard


def delete(place: Path) -> None:
    place.rename(place.with_name("lost"))


def replace_by_new(place: Path) -> None:
    delete(place)
    place.mkdir()


LOSSES = pytest.mark.parametrize("lose", [delete, replace_by_new])


def assert_nothing_is_written(place: Path) -> None:
    assert not place.exists() or not list(place.iterdir())


@LOSSES
def test_round_that_is_aggregated_after_the_loss_writes_no_checkpoint(place, registry, guard, prepared, lose):
    bench = Bench(place, prepared, registry, blobs=GuardedBlobs(FileBlobs(place / "runs" / "one"), guard)).begin()
    bench.upload("a", 1.0)
    lose(place)
    with pytest.raises(StateDirectoryLost):
        bench.upload("b", 2.0)
    assert_nothing_is_written(place)


@LOSSES
@pytest.mark.parametrize(
    "write",
    [
        lambda registry, run: registry.finish_run(run, stopped_because="rounds", user_accuracy=None, model=None),
        lambda registry, run: registry.next_epoch(run),
        lambda registry, run: registry.journal.bring_up_to_date(run),
        lambda registry, _run: registry.restore(),
    ],
)
def test_registry_writes_no_row_journal_or_copy_after_the_loss(
    place, registry, guard, lose, write: Callable[[Registry, str], object]
):
    run = new_run(registry).id
    lose(place)
    with pytest.raises(StateDirectoryLost):
        write(registry, run)
    assert_nothing_is_written(place)


@LOSSES
@pytest.mark.parametrize("note", [b"", b"a line"])
def test_note_of_published_models_is_not_written_after_the_loss(place, guard, lose, note):
    lose(place)
    with pytest.raises(StateDirectoryLost):
        FileNote(place / "note", guard.check).write(note)
    assert_nothing_is_written(place)


def lose_in_a_run(place: Path, prepared: Prepared, lose: Callable[[Path], object]) -> StateDirectoryLost:
    """Play a run in which `lose` is called, and return its end."""

    def show(_status: object) -> None:
        if (place / REGISTRY_FILE).exists():
            lose(place)

    view: Any = SimpleNamespace(say=lambda _line: None, show=show)
    ports = replace(REAL, prepare=lambda _settings: prepared)
    settings = RunSettings(state_dir=place, fleet="lab", devices=2, rounds=1)
    with Mosquitto() as broker, pytest.raises(StateDirectoryLost) as caught:
        start_run(replace(settings, broker=broker.url), view, ports)
    return caught.value


@pytest.mark.broker
@LOSSES
def test_whole_run_ends_with_the_loss_and_writes_nothing_more(tmp_path, prepared, lose):
    place = tmp_path / "run"
    error = lose_in_a_run(place, prepared, lose)
    assert (str(error).startswith(f"{place}: was "), error.exit_code) == (True, 1)
    assert_nothing_is_written(place)


@pytest.mark.broker
def test_run_ends_without_its_lock_file_because_a_second_coordinator_could_begin(tmp_path, prepared):
    place = tmp_path / "run"
    error = lose_in_a_run(place, prepared, lambda place: fleet_lock_file(place, "lab").unlink(missing_ok=True))
    assert str(error).startswith(f"{fleet_lock_file(place, 'lab')}: was deleted")
