"""All files of a coordinator's state directory."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.shared.app.files import StateFile

STATE_FILES: Sequence[StateFile] = (
    StateFile(
        "registry.sqlite3",
        "runs, rounds, devices; SQLite programs may change it",
        "restored from copy and journals",
    ),
    StateFile("registry.url", "URL of a database that has the registry", "write it again"),
    StateFile("registry.sqlite3-wal", "latest changes of the registry", "the latest records"),
    StateFile("registry.sqlite3-shm", "index of the -wal file", "none"),
    StateFile(
        "registry.sqlite3.before",
        "verified copy after each round",
        "none; without both `fedpatch runs --rebuild` restores it",
    ),
    StateFile("registry.sqlite3.damaged", "replaced registry", "none"),
    StateFile("registry.sqlite3.before.damaged", "replaced copy", "none"),
    StateFile("registry.sqlite3.lock", "lock of the writing process", "none"),
    StateFile("fleet-FLEET.lock", "lock of the fleet's coordinator", "none, unless two start"),
    StateFile(
        "runs/RUN/checkpoint-ROUND.fp",
        "model, server moments and record; two are kept, with `late = carry` more",
        "the one before is used",
    ),
    StateFile(
        "runs/RUN/journal.jsonl",
        "settings, epochs, records",
        "written again from the registry",
    ),
    StateFile("runs/RUN/delta-ROUND.fp", "change of the model, for download", "devices download the whole model"),
    StateFile("runs/RUN/updates/ROUND/DEVICE.fp", "committed update that waits for a model", "the device's work"),
    StateFile(
        "runs/RUN/noise-ROUND.fp",
        "noise of the open round with differential privacy",
        "the round draws new noise",
    ),
    StateFile(
        "runs/RUN/privacy-book.fp",
        "number of releases of each device's updates",
        "the run's epsilon is unknown: **restore it, or start a new run**",
    ),
    StateFile("runs/RUN/stop-after-round", "request of `fedpatch stop`", "the run goes on"),
    StateFile("console-token", "token of the web console", "a new one"),
    StateFile("console-NAME.log", "messages of the runs of a file of the web console", "this log"),
    StateFile("runs/RUN/model.npz", "global model for other programs", "written after the next round"),
)
