"""Watches a run from outside, in the files of coordinator and devices: its events, and the updates committed to devices.

    watch = Watch(scene)
    while ...:
        for seen in watch.poll():
            ...

A device's own log has the `committed` messages that it received. The watch keeps the model of each round before the coordinator
deletes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgpack

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from tests.faults.scene import Scene
from tests.support.listing import content, listed

_BEGAN = re.compile(r"(\S+) round (\d+)(: training| waits to be committed)")
_COMMITTED = "job over: committed"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)\.fp")


class Happening(StrEnum):
    """A device trains, has an update to offer, received `committed`; the coordinator stored an update, or saved a model.

    `CREATED`: there is a registry, perhaps still empty.
    """

    CREATED = "created"
    TRAINING = "training"
    TRAINED = "trained"
    STORED = "stored"
    COMMITTED = "committed"
    SAVED = "saved"


@dataclass(frozen=True)
class Seen:
    """An event in a round, with its device if it belongs to one."""

    what: Happening
    round: int
    device: str = ""


class Watch:
    """Watches the one run of a scene; earlier output of the agents does not count.

    `happened` has all events so far, so that a caller may look later. `committed` has the rounds and devices of all such
    messages, `trained` those of all saved patches. `models` has the directory of the model after each number of rounds, and
    `problems` the violations.
    """

    def __init__(self, scene: Scene) -> None:
        self.happened: set[Seen] = set()
        self.committed: set[tuple[int, str]] = set()
        self.trained: set[tuple[int, str]] = set()
        self.models: dict[int, Path] = {}
        self.problems: list[str] = []
        self._scene = scene
        self._run = ""
        self._tails = {device: _Tail(scene.log(device)) for device in scene.devices}
        self._round_of: dict[str, int] = {}
        self._created = False
        self._known = {_identity(scene.offer(device)) for device in scene.devices}

    def poll(self) -> list[Seen]:
        seen = self._look()
        self.happened.update(seen)
        return seen

    def _look(self) -> list[Seen]:
        self._run = self._scene.run
        created = [] if self._created else self._look_for_registry()
        if not self._run:
            return created
        seen = created + [one for device in self._scene.devices for one in self._of_agent(device)]
        directory = self._scene.run_dir(self._run)
        for path in listed(directory, "updates/*/*.fp"):
            if self._is_new(path):
                seen.append(Seen(Happening.STORED, int(path.parent.name), path.stem))
        for path in listed(directory, "checkpoint-*.fp"):
            found = _CHECKPOINT.fullmatch(path.name)
            if found and self._is_new(path):
                seen += self._keep(path, int(found[1]))
        return seen

    def _look_for_registry(self) -> list[Seen]:
        self._created = (self._scene.state_dir / REGISTRY_FILE).exists()
        return [Seen(Happening.CREATED, 0)] if self._created else []

    def _of_agent(self, device: str) -> Iterator[Seen]:
        for line in self._tails[device].lines():
            began = _BEGAN.search(line)
            if began and began[1] == self._run:
                self._round_of[device] = int(began[2])
                if began[3] == ": training":
                    yield Seen(Happening.TRAINING, int(began[2]), device)
            elif began:
                self._round_of.pop(device, None)  # the device works for another run
            elif _COMMITTED in line and device in self._round_of:
                self.committed.add((self._round_of[device], device))
                yield Seen(Happening.COMMITTED, self._round_of[device], device)
        # A saved patch stays, also if its update is lost or refused.
        for path in listed(self._scene.fleet.agents[device].patches, "[!.]*.patch*"):
            if self._is_new(path):
                self.trained |= {(number, device) for run, number in _made_in(path) if run == self._run}
        if self._is_new(self._scene.offer(device)):
            yield Seen(Happening.TRAINED, self._round_of.get(device, 0), device)

    def _is_new(self, path: Path) -> bool:
        identity = _identity(path)
        new = identity is not None and identity not in self._known
        self._known.add(identity)
        return new

    def _keep(self, path: Path, number: int) -> list[Seen]:
        kept = self._scene.directory / "models" / f"{number:06d}" / path.name
        with contextlib.suppress(FileNotFoundError):  # the coordinator has already deleted it
            if number in self.models:
                if kept.read_bytes() != path.read_bytes():
                    self.problems.append(f"round {number} was saved twice, with different models")
                return []
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, kept)
            self.models[number] = kept.parent
            return [Seen(Happening.SAVED, number)]
        return []


class _Tail:
    """The lines that were added to a file since the last poll."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def lines(self) -> Iterator[str]:
        if not self._path.exists() or self._path.stat().st_size == self._at:
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                yield line.decode("utf-8", errors="replace")


def _made_in(patch: Path) -> list[tuple[str, int]]:
    """Return run and round in which a patch was made; none if the file is gone or not yet complete."""
    with contextlib.suppress(msgpack.OutOfData, KeyError):
        unpacker = msgpack.Unpacker()
        unpacker.feed((content(patch) or b"").partition(b"\n")[2][32:])  # after a line of text and a SHA-256
        header = unpacker.unpack()
        return [(header["run"], header["round"])]
    return []


def _identity(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return str(path), status.st_ino, status.st_mtime_ns
