"""Readers of files: files of fedpatch, perhaps of another version or on a faulty disk; files of a user; data sets.

A file with a checksum is tested twice: unchanged, and with a checksum that always fits its content (`sealed`).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import load_update, store_update
from fedpatch.device_agent.masking.masking_round import MaskingRound
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.download_files import PartialBlob
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.patch_store import MAGIC, PatchKey, PatchRecord, PatchState, PatchStore, list_patches
from fedpatch.device_agent.state.status_file import read_standing
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.shared.config.fields import Settings
from fedpatch.shared.config.load import load, to_toml
from fedpatch.shared.errors import ConfigError, DataError, StateError, UsageError
from fedpatch.shared.tasks.bundled.cifar10 import read_archive
from fedpatch.shared.tasks.bundled.mnist import read_idx
from fedpatch.shared.tasks.examples import ReadingsFormat, read
from fedpatch.shared.wire.codec import to_bytes
from fedpatch.simulator.experiment import checkpoint as simulation
from fedpatch.simulator.experiment.output_folder import OUTCOME_FILE, StudyFolder, to_json
from fedpatch.simulator.spec.study import Outcome, Point, Study
from studies.paper.experiments import select_cells, study_of
from studies.paper.results import Result, Results
from tests.coordinator.fake_link import RecordedLink
from tests.coordinator.registry_builders import seen
from tests.device_agent.jobs import REQUEST
from tests.fuzz.decoders import _KEY, PUBLIC, TENSORS, Decoder
from tests.fuzz.held_decoders import held_decoders
from tests.fuzz.identity_decoders import identity_decoders
from tests.fuzz.privacy_decoders import privacy_decoders
from tests.support.masked_group import PlayedGroup
from tests.support.specs import model

_PATCH = PatchKey("digits", "ab" * 32, "affine")
_CHECKPOINT = b"fedpatch checkpoint 1\n"
_UPDATE = b"fedpatch update 1\n"
_NOTE = b"fedpatch offer 1\n"
_CELL = select_cells("table2", None)[0]
_STUDY = Study("digits", 2, "fedavg", "none", "shard:{index}/{count}", 1.0, 1, None, 0, 0.1, 20)
_POINT = Point(0, 0.5, 0.5, 0.5, 2, None, 1.0)
_RECORD = RoundRecord(1, "aggregated", 2, 2, 0, 2)
_NOW = BootTime("boot", 1.0, 2.0)
_LONG_KEY = b"a." * 1900 + b"a"


def _sealed(magic: bytes, content: bytes) -> bytes:
    return magic + hashlib.sha256(content).digest() + content


def _patch(data: bytes, folder: Path) -> None:
    path = folder / _PATCH.file_name
    path.write_bytes(data)
    path.chmod(0o600)
    list_patches(folder)
    PatchStore(folder).load(_PATCH, "run", 1)


def _checkpoint(data: bytes, folder: Path) -> None:
    (folder / "checkpoint-000001.fp").write_bytes(data)
    load_checkpoint(folder)


def _stored_update(data: bytes, folder: Path) -> None:
    store_update(folder, 1, "a", b"")
    (folder / "updates" / "000001" / "a.fp").write_bytes(data)
    load_update(folder, 1, "a")


def _masking(data: bytes, folder: Path) -> MaskingRound | None:
    file = MaskingFile(folder)
    file.path.write_bytes(data)
    return file.load()


def _bases(data: bytes, folder: Path) -> frozenset[str] | None:
    bases = OfferedBases(folder)
    bases.path.write_bytes(data)
    return bases.load()


def _bases_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        bases = OfferedBases(Path(folder))
        bases.add("ec" * 32)
        bases.add("ed" * 32)
        return bases.path.read_bytes()


def _masking_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = MaskingFile(Path(folder))
        group = PlayedGroup.of(3)
        group.share()
        file.save(group.devices[0].state)
        return file.path.read_bytes()


def _spool(data: bytes, folder: Path) -> None:
    (folder / "offer.msgpack").write_bytes(data)
    (folder / "update.bin").write_bytes(b"m" * 250)
    spooled = UpdateSpool(folder).load()
    assert spooled is None or spooled.manifest.digest == model().digest


def _partial(data: bytes, folder: Path) -> None:
    (folder / f"{model().digest}.part").write_bytes(b"m" * 250)
    (folder / f"{model().digest}.have").write_bytes(data)
    with contextlib.closing(PartialBlob(folder, model())) as blob:
        assert blob.have <= frozenset(range(3))


def _publisher_note(data: bytes, folder: Path) -> None:
    (folder / "note").write_bytes(data)
    link = RecordedLink()
    link.full = True
    ModelPublisher(link, "field", folder / "note")


def _read_registry(path: Path) -> None:
    with Registry(path, readonly=True) as registry:
        for run in registry.runs():
            registry.rounds.records(run.id)
            registry.rounds.updates(run.id, 1)
            registry.rounds.unfinished(run.id, _NOW)
        registry.devices()


def _registry(data: bytes, folder: Path) -> None:
    (folder / "registry.sqlite3").write_bytes(data)
    _read_registry(folder / "registry.sqlite3")


@cache
def _registry_file() -> bytes:
    """Return the bytes of a registry with a row in each table, in one file."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "registry.sqlite3"
        with Registry(path) as registry:
            run = registry.create_run(
                created_at=0.0, task="digits", strategy="fedavg", private="affine", settings={"rounds": 1}, schema="ab"
            )
            registry.rounds.finish(run.id, _RECORD)
            registry.rounds.open(run.id, RoundJournal(2, 1, ("a",), "ab" * 32, frozenset("a")), _NOW)
            seen(registry, "a", fleet="field", now=0.0, online=True, version="1", tasks=["digits"])
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = DELETE")
        return path.read_bytes()


def _row(table: str, column: str, data: bytes, folder: Path) -> None:
    """Read a valid registry with one damaged column: SQLite stores any type in any column."""
    path = folder / "registry.sqlite3"
    path.write_bytes(_registry_file())
    value: Any = data.decode("utf-8", "replace")
    if data[:1] == b"\xff":  # JSON never begins with this byte: here it damages the type of the value
        value = (None, 7, 1.5, data)[len(data) % 4]
    with contextlib.closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.IntegrityError):
        db.execute(f"UPDATE {table} SET {column} = ?", (value,))
        db.commit()
    _read_registry(path)


def _settings(kind: type[Settings], data: bytes, folder: Path) -> None:
    (folder / "settings.toml").write_bytes(data)
    load(kind, file=folder / "settings.toml", environ={}, flags={})


def _status(data: bytes, folder: Path) -> None:
    (folder / "agent.lock").touch()
    (folder / "patches").mkdir(exist_ok=True)
    (folder / "status.json").write_bytes(data)
    read_standing(folder)


def _outcome(data: bytes, folder: Path) -> None:
    (folder / OUTCOME_FILE).write_bytes(data)
    StudyFolder(folder, _STUDY)


def _result(data: bytes, folder: Path) -> None:
    results = Results(folder)
    results.table(_CELL).path.write_bytes(data)
    results.read(_CELL, 0)


def _saved(data: bytes, folder: Path) -> None:
    (folder / simulation.STATE_FILE).write_bytes(data)
    simulation.load(folder, _STUDY)


def _saved_meta(data: bytes, folder: Path) -> None:
    with (folder / simulation.STATE_FILE).open("wb") as file:
        model_part: dict[str, Any] = {f"model/{name}": array for name, array in TENSORS.items()}
        np.savez(file, meta=np.frombuffer(data, np.uint8), **model_part)
    simulation.load(folder, _STUDY)


def _data_file(read: Callable[[Path], Any], pack: Callable[[bytes], bytes], data: bytes, folder: Path) -> None:
    (folder / "data").write_bytes(pack(data))
    read(folder / "data")


def _as_it_is(data: bytes) -> bytes:
    return data


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, 1)


def _archive() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = 3073
            archive.addfile(info, io.BytesIO(bytes(3073)))
    return stream.getvalue()


def _kept_bytes(write: Callable[[Path], Path]) -> bytes:
    """Return the bytes of the file that one of our writers makes."""
    with tempfile.TemporaryDirectory() as place:
        return write(Path(place)).read_bytes()


def _written_patch(folder: Path) -> Path:
    state = PatchState({"bn.weight": np.ones(3, np.float32)}, 4)
    PatchStore(folder).save(PatchRecord(_PATCH, "run", 1, PatchState(), state))
    return folder / _PATCH.file_name


def _written_result(folder: Path) -> Path:
    study = study_of(_CELL, 0)
    curve = (0.5,) * (study.rounds + 1)
    result = Result(
        cell=_CELL.name, dataset="MNIST", study=study, rounds_to_target=None, user_accuracy=0.5, seconds=1.0,
        curve=curve, p10=curve, train_loss=curve[1:], started_at="", command="", workers=1, device="cpu",
        fedpatch="1", versions={},
    )  # fmt: skip
    results = Results(folder)
    results.write(_CELL, 0, result)
    return results.table(_CELL).path


def _written_state(folder: Path) -> Path:
    simulation.save(folder, _STUDY, simulation.Saved(ServerState(0, TENSORS, {}), {}, [1, 2], (_POINT,)))
    return folder / simulation.STATE_FILE


def _meta(state: bytes) -> bytes:
    with np.load(io.BytesIO(state), allow_pickle=False) as file:
        return bytes(file["meta"].tobytes())


def _readings(data: bytes, folder: Path) -> None:
    """A file of readings, in training and in prediction."""
    (folder / "x.csv").write_bytes(data)
    form = ReadingsFormat(["x"], "mode", ["off", "on"], damaged_share=0.5, window=1)
    for for_prediction in (False, True):
        with contextlib.suppress(DataError):
            read(folder / "x.csv", form, for_prediction=for_prediction)


def _file_decoders() -> Iterator[Decoder]:
    note = to_bytes(Spooled(_KEY, model(), REQUEST))
    state, update = (StateError,), _kept_bytes(lambda folder: folder / store_update(folder, 1, "a", b"blob"))
    patch = _kept_bytes(_written_patch)
    kept = _kept_bytes(
        lambda folder: (
            folder / save_checkpoint(folder, ServerState(1, TENSORS, {"beta": np.array(0.9)}), PUBLIC, {"a": 1})
        )
    )
    yield Decoder("patch", _patch, state, (patch,))
    yield Decoder("sealed patch", lambda data, folder: _patch(_sealed(MAGIC, data), folder), state,
                  (patch[len(MAGIC) + 32 :],), "msgpack", frugal=False)  # fmt: skip
    yield Decoder("checkpoint", _checkpoint, state, (kept,))
    yield Decoder("sealed checkpoint", lambda data, folder: _checkpoint(_sealed(_CHECKPOINT, data), folder), state,
                  (kept[len(_CHECKPOINT) + 32 :],), "msgpack", frugal=False)  # fmt: skip
    yield Decoder("stored update", _stored_update, state, (update,))
    yield Decoder("masking", _masking, (), (_masking_file(),))
    yield Decoder("bases", _bases, (), (_bases_file(),))
    yield Decoder("spool", _spool, (), (_sealed(_NOTE, note),))
    yield Decoder("sealed spool", lambda data, folder: _spool(_sealed(_NOTE, data), folder), (), (note,), "msgpack")
    yield Decoder("partial download", _partial, (), (bytes(12), b"\0\0\0\2\0\0\0\1\0\0"))
    yield Decoder("publisher's note", _publisher_note, (), (f"{'ab' * 32} 7\n{'cd' * 32} 65536\n".encode(),), "text")
    yield Decoder("registry", _registry, (StateError, UsageError), (_registry_file(),))
    rows = {("runs", "settings"): b'{"rounds": 1}', ("devices", "tasks"): b'["digits"]', ("open_rounds", "invited"): b'["a"]',
            ("rounds", "record"): json.dumps(_RECORD.to_dict()).encode()}  # fmt: skip
    for (table, column), seed in rows.items():
        yield Decoder(f"registry, {table}", partial(_row, table, column), state, (seed,), "json",
                      found=(b"\xff", b"\xff\xff", b"null", b"7"))  # fmt: skip
    terms = {"url": "mqtt://localhost"}
    for kind, flags in ((RunSettings, terms), (AgentSettings, terms | {"data": "shard:0/10"})):
        given = {name: value for name, value in flags.items() if name in kind.__dataclass_fields__}
        text = to_toml(load(kind, file=None, environ={}, flags=given)).encode()
        yield Decoder(f"settings, {kind.__name__}", partial(_settings, kind), (ConfigError,), (text,), "text",
                      found=tuple(text % _LONG_KEY for text in (b"%s = 1\n", b"[%s]\n", b"x = {%s = 1}\n")))  # fmt: skip
    yield from identity_decoders()
    yield from held_decoders()
    yield from privacy_decoders()
    yield Decoder("status", _status, state, (b'{"device_id": "a", "fleet": "field", "tasks": []}',), "json")
    outcome = to_json(Outcome(_STUDY, (_POINT,), complete=False))
    yield Decoder("outcome", _outcome, (UsageError,), (outcome.encode(),), "json")
    yield Decoder("result", _result, (UsageError,), (_kept_bytes(_written_result),), "json")
    saved = _kept_bytes(_written_state)
    yield Decoder("simulation", _saved, (UsageError,), (saved,), frugal=False)
    yield Decoder("simulation's terms", _saved_meta, (UsageError,), (_meta(saved),), "json")
    idx = b"\0\0\x08\x02" + b"\0\0\0\2\0\0\0\3" + bytes(6)
    yield Decoder("idx file", partial(_data_file, read_idx, _as_it_is), (DataError,), (_zipped(idx),))
    many_axes = b"\0\0\x08\x50" + b"\0\0\0\1" * 0x50 + b"\0"
    long_axes = b"\0\0\x08\x04" + bytes(4) + b"\xff" * 12
    yield Decoder("zipped idx file", partial(_data_file, read_idx, _zipped), (DataError,), (idx,),
                  found=(many_axes, long_axes))  # fmt: skip
    readings = b'time,x,mode\n2026-01-01T00:00:00Z,0.5,on\n2026-01-01T00:00:01Z,,off\n2026-01-01T00:00:02Z,"1e3",on\n'
    yield Decoder("readings", _readings, (DataError,), (readings, readings.replace(b",", b";")), "text")
    yield Decoder("archive", partial(_data_file, read_archive, _as_it_is), (DataError,), (_archive(),), frugal=False)
    yield Decoder("zipped archive", partial(_data_file, read_archive, _zipped), (DataError,),
                  (gzip.decompress(_archive()),), frugal=False)  # fmt: skip


FILE_DECODERS = tuple(replace(one, on_disk=True) for one in _file_decoders())
