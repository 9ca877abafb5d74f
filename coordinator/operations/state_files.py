"""All files of a coordinator's state directory."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.shared.app.files import StateFile

STATE_FILES: Sequence[StateFile] = (
    StateFile(
        "registry.sqlite3",
        "runs, rounds, devices; other SQLite programs may read and change it",
        "replaced by its copy and the journals of the runs",
    ),
    StateFile("registry.sqlite3-wal", "latest changes of the registry; do not delete it", "the latest records"),
    StateFile("registry.sqlite3-shm", "SQLite's index of the -wal file", "none"),
    StateFile(
        "registry.sqlite3.before",
        "verified copy of the registry after each round",
        "none while the registry is intact; without both, `fedpatch runs --rebuild` restores it from `runs/`",
    ),
    StateFile("registry.sqlite3.damaged", "registry replaced by its copy or a rebuilt one", "none"),
    StateFile("registry.sqlite3.before.damaged", "replaced copy", "none"),
    StateFile("registry.sqlite3.lock", "lock of the process that writes the registry", "none"),
    StateFile("fleet-FLEET.lock", "lock of the fleet's coordinator", "none, unless two coordinators start"),
    StateFile(
        "runs/RUN/checkpoint-ROUND.fp",
        "model, server moments and record after the round; the last two are kept",
        "replaced by the checkpoint before it",
    ),
    StateFile(
        "runs/RUN/journal.jsonl",
        "settings, epochs and records of the run, one line each with a checksum",
        "written again from the registry",
    ),
    StateFile(
        "runs/RUN/delta-ROUND.fp", "change of the model in the round, for download", "devices download the whole model"
    ),
    StateFile(
        "runs/RUN/updates/ROUND/DEVICE.fp", "committed update of the open round", "the device's work in this round"
    ),
    StateFile("runs/RUN/model.npz", "global model for other programs", "written again after the next round"),
)
