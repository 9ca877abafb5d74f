"""The command to the training process that a work request leads to."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.update_spool import UpdateSpool
from fedpatch.shared.wire.messages import WorkRequest, is_delta


def command_of(key: JobKey, request: WorkRequest, spool: UpdateSpool) -> TrainCommand:
    """Return the training command of a request, without the files of its global model."""
    return TrainCommand(
        key=key,
        plan=request.plan,
        private=request.private,
        schema=request.schema,
        blob=None,
        model=request.model,
        hold=not request.evaluates and (bool(request.deltas) or is_delta(request.encoding)),
        encoding=request.encoding,
        base=request.model.digest,
        update_path=str(spool.vector_path if request.masks else spool.update_path),
        secure=request.secure,
        privacy=request.privacy,
        download_s=0.0,
        chunk_bytes=request.chunk_bytes,
        evaluate=request.evaluates,
        counted=request.counted or 0,
        content=request.content or "",
    )
