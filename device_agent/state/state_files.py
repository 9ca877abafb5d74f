"""All files of an agent's state directory."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.shared.app.files import StateFile

STATE_FILES: Sequence[StateFile] = (
    StateFile(
        "patches/TASK-DIGEST.patch",
        "private patch of a task, model and policy, mode 0600",
        "the device begins with a new patch: **there is no other copy**",
    ),
    StateFile(
        "patches/TASK-DIGEST.patch.previous", "patch before the last round", "no replacement for a damaged patch"
    ),
    StateFile(
        "patches/independent/",
        "models of [learning alone](../explanation/concepts.md#learning-alone), mode 0700",
        "learning alone starts again",
    ),
    StateFile(
        "patches/TASK.private",
        "names and roles of all tensors that stayed private in any round, mode 0600",
        "written again from the existing patches; tensors of lost patches "
        "[are no longer protected](preferences.md#what-stays-private)",
    ),
    StateFile(
        "patches/TASK-DIGEST.residual", "rounding error of the last `delta-int4` update", "the error is not corrected"
    ),
    StateFile(
        "held/global.model",
        "last global model, base of the next deltas; not private",
        "one download of the whole model",
    ),
    StateFile("models/TASK/current", "link to the personal model in use", "restored by `fedpatch-agent rollback`"),
    StateFile("models/TASK/NUMBER-RUN-ROUND/model.onnx", "version of the personal model", "this version"),
    StateFile(
        "models/TASK/NUMBER-RUN-ROUND/metadata.json", "description, accuracy and checksum", "this version is not used"
    ),
    StateFile(
        "models/TASK/NUMBER-RUN-ROUND/SHA256SUMS",
        "checksums of both files, for `sha256sum -c` and the doctor",
        "the doctor checks the model alone",
    ),
    StateFile(
        "models/TASK/kept.json", "reason why the last round's model did not come into use", "the reason is not shown"
    ),
    StateFile("models/TASK/.lock", "lock while models are published", "none"),
    StateFile("spool", "update that waits for `committed` (`update.bin`, `offer.msgpack`)", "the round's work"),
    StateFile("downloads", "received chunks of a global model", "downloaded again"),
    StateFile("status.json", "status for `fedpatch-agent status`", "written again"),
    StateFile("usage.json", "today's use of the daily allowance", "today counts from zero"),
    StateFile("agent.lock", "lock of the running agent", "none, unless two agents start"),
)
