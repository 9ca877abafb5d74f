"""Settings of rounds and of the transfer with which no round could end, or messages would be lost."""

from __future__ import annotations

from typing import Final

from fedpatch.coordinator.setting_conflicts.conflict import Conflict
from fedpatch.shared.wire.messages import MAX_CHUNKS

MAX_CHUNKS_IN_FLIGHT = 500
"""Chunks at once: a broker drops messages from a full queue silently (mosquitto holds 1000 by default)."""

ROUNDS_AND_TRANSFER: Final = (
    Conflict(
        "max_devices",
        ("devices",),
        lambda s: s.devices > s.max_devices,
        "{s.max_devices} is less than devices = {s.devices}, which are waited for; make it larger",
    ),
    Conflict(
        "max_devices",
        ("min_cohort",),
        lambda s: s.min_cohort > s.max_devices,
        "{s.max_devices} is less than min_cohort = {s.min_cohort}, without which no round begins; make it larger",
    ),
    Conflict(
        "recruit_deadline_s",
        ("deadline_s",),
        lambda s: s.deadline_s is not None and s.recruit_deadline_s >= s.deadline_s,
        "{s.recruit_deadline_s:g} must be below deadline_s = {s.deadline_s:g}: training takes time too",
    ),
    Conflict(
        "epochs",
        ("steps",),
        lambda s: s.epochs == 0 and s.steps == 0,
        "0 with steps = 0 leaves nothing to train; set one of them to 1 or more",
    ),
    Conflict(
        "upload_window",
        ("upload_slots",),
        lambda s: s.upload_slots * s.upload_window > MAX_CHUNKS_IN_FLIGHT,
        "{s.upload_window} for each of upload_slots = {s.upload_slots} is more than "
        f"{MAX_CHUNKS_IN_FLIGHT} chunks at once, which a broker's queue may drop; make one of them smaller",
    ),
    Conflict(
        "chunk_kib",
        ("max_model_mib",),
        lambda s: s.max_model_mib * 1024 > s.chunk_kib * MAX_CHUNKS,
        "{s.chunk_kib} is too small for max_model_mib = {s.max_model_mib}; make it at least {s.least_chunk_kib}",
    ),
)
