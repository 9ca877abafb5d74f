"""The state of an unfinished simulation on disk: written completely or not at all, and loaded for the same study only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.shared.app.files import open_atomic, refusals_of, remove_unfinished
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array
from fedpatch.simulator.spec.study import Point, Study

STATE_FILE = "state.npz"


@dataclass(frozen=True)
class Saved:
    """State of a simulation: the server's state, every client's patch (clients first), batches taken, and the curve.

    `versions` is the model that each client holds, `frozen` the digest of the task's frozen values, `pulls` what bounds and
    rule removed of every client's updates.
    """

    server: ServerState
    patches: dict[str, Array]
    batches: list[int]
    points: tuple[Point, ...]
    versions: Mapping[str, Any] = field(default_factory=dict)
    frozen: str = ""
    pulls: list[float] = field(default_factory=list)


def save(folder: Path, study: Study, saved: Saved) -> None:
    """Write the state into `folder`; an older state is replaced."""
    arrays = {f"model/{name}": array for name, array in saved.server.tensors.items()}
    arrays |= {f"server/{name}": array for name, array in saved.server.server.items()}
    arrays |= {f"patch/{name}": array for name, array in saved.patches.items()}
    meta = {
        "study": study.to_dict(),
        "round": saved.server.round,
        "references": saved.server.references,
        "counted": dict(saved.server.counted),
        "batches": saved.batches,
        "points": [asdict(one) for one in saved.points],
        "versions": dict(saved.versions),
        "frozen": saved.frozen,
        "pulls": saved.pulls,
        "tensors": list(arrays),
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with refusals_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open_atomic(folder / STATE_FILE, mode=0o644) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes the names for its own options


def load(folder: Path, study: Study) -> Saved | None:
    """Return the state that `save` wrote, None if there is none.

    Raises UsageError if the state belongs to another study, or cannot be read.
    """
    path = folder / STATE_FILE
    if folder.is_dir():
        remove_unfinished(folder)  # from a simulation that was killed during `save`
    if not path.exists():
        return None
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes())
            if {*meta["tensors"], "meta"} != set(file.files):  # the list of names in an archive has no checksum
                raise ValueError("tensors are missing")
            parts: dict[str, dict[str, Array]] = {"model": {}, "server": {}, "patch": {}}
            for name in file.files:
                kind, _, tensor = name.partition("/")
                if tensor:
                    parts[kind][tensor] = file[name]
        begun = Study.from_dict(meta["study"])
        points = tuple(Point(**one) for one in meta["points"])
        past = {part: tuple(values) for part, values in meta.get("references", {}).items()}
        server = ServerState(meta["round"], parts["model"], parts["server"], past, counted=meta.get("counted", {}))
        versions = meta.get("versions", {})
        frozen, pulls = meta.get("frozen", ""), meta.get("pulls", [])
        saved = Saved(server, parts["patch"], meta["batches"], points, versions, frozen, pulls)
    except Exception as error:  # a damaged archive can raise any exception
        raise UsageError(f"{path} cannot be read ({error}); delete it to begin this simulation anew") from error
    if begun != study:
        raise UsageError(f"{path} belongs to another simulation ({begun.differences(study)}); use another folder")
    return saved
