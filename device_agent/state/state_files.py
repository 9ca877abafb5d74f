"""The files that an agent writes into its state directory; `identity/` is of `fedpatch-agent enrol`, `pause` of the owner."""

from __future__ import annotations

from collections.abc import Sequence

from fedpatch.shared.app.files import StateFile

STATE_FILES: Sequence[StateFile] = (
    StateFile(
        "patches/TASK-DIGEST.patch",
        "private patch of a task, model and policy",
        "a new patch: **there is no other copy**",
    ),
    StateFile(
        "patches/TASK-DIGEST.patch.previous", "patch before the last round", "no replacement for a damaged patch"
    ),
    StateFile(
        "patches/independent/",
        "models [trained alone](../explanation/concepts.md#learning-alone)",
        "starts again",
    ),
    StateFile(
        "patches/personal/",
        "personal copies and finished models of runs [that have them](../how-to/personalisation.md)",
        "a new copy",
    ),
    StateFile(
        "patches/control/", "control variates of [SCAFFOLD](../how-to/own-strategy.md#scaffold)", "begin at zero"
    ),
    StateFile(
        "patches/TASK.private",
        "all tensors that ever stayed private",
        "made from the patches; [tensors of lost patches are unprotected](preferences.md#what-stays-private)",
    ),
    StateFile(
        "patches/TASK-DIGEST.residual",
        "rest of the last `delta-int4`, `-half` or `-quarter` update",
        "not corrected",
    ),
    StateFile(
        "held/global.model",
        "global model, base of deltas",
        "a whole download",
    ),
    StateFile("models/TASK/current", "link to the personal model in use", "`fedpatch-agent rollback` restores it"),
    StateFile("models/TASK/NUMBER-RUN-ROUND/model.onnx", "personal model", "this version"),
    StateFile("models/TASK/NUMBER-RUN-ROUND/model.int8.onnx", "the same in int8", "this version in int8"),
    StateFile("models/TASK/NUMBER-RUN-ROUND/metadata.json", "description, accuracy, checksum", "this version"),
    StateFile(
        "models/TASK/NUMBER-RUN-ROUND/inputs.json",
        "statistics of the training inputs",
        "no warning of unlike inputs",
    ),
    StateFile(
        "models/TASK/NUMBER-RUN-ROUND/SHA256SUMS",
        "checksums of both",
        "the doctor checks the model alone",
    ),
    StateFile("models/TASK/kept.json", "why the last round's model is not in use", "this reason"),
    StateFile("models/TASK/.lock", "lock while models are published", "none"),
    StateFile("spool", "update that waits for `committed`", "the round's work"),
    StateFile("masking.bin", "secrets and answers of the last masked round", "the device is lost to its group"),
    StateFile(
        "revocations.bin",
        "the CA's latest list of revoked certificates",
        "an older list counts until the next one; if damaged: no masked round with signed keys until it is deleted",
    ),
    StateFile(
        "masked-bases",
        "digests of the models from which masked updates were offered",
        "an update from such a model may leave again: **two sums may differ in this device alone**",
    ),
    StateFile(
        "privacy-ledger",
        "offered updates with differential privacy, and their noise",
        "counted from zero: **`max_epsilon` is void for earlier rounds**",
    ),
    StateFile(
        "privacy-ledger.restored",
        "the account is that of a backup; with `max_epsilon` every round is declined",
        "rounds since the backup are not counted",
    ),
    StateFile("downloads", "chunks of a global model above 1 MiB", "downloaded again"),
    StateFile("status.json", "for `fedpatch-agent status`", "written again"),
    StateFile(
        "leader-epoch",
        "highest epoch of the fleet's [leaders](../how-to/standby.md)",
        "a former leader is obeyed until its successor's next request",
    ),
    StateFile("usage.json", "today's use of the allowance", "counted from zero"),
    StateFile(
        "history.jsonl",
        "for `fedpatch-agent history`, 90 days if a time server sets the clock, at most 4 MiB",
        "these entries",
    ),
    StateFile("models/TASK/held", "the owner went back to a model", "the next round's model replaces it"),
    StateFile("machine", "digest of the board on which the directory was begun", "no warning about a cloned card"),
    StateFile("agent.lock", "lock of the running agent", "none, unless two start"),
)
