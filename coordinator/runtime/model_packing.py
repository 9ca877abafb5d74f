"""The global model as it is packed for devices: in a run with a delta encoding, the whole model is packed without loss."""

from __future__ import annotations

from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.rounds.encoding_for_device import whole_model_encoding
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.shared.tensors.arrays import Schema, Tensors, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import Manifest

LOSSLESS = ("fp32+zstd", "fp32")
"""Encodings from which a device decodes the very tensors that were packed."""


def pack_model(state: ServerState, prepared: Prepared, spec: RunSpec) -> tuple[bytes, Manifest]:
    """Pack the whole global model; equal states give equal bytes. With a delta encoding it is packed without loss.

    Returns:
        The packed model and its manifest.
    """
    travelling = prepared.travelling
    packed = pack(state.tensors, travelling, {"round": state.round + 1}, whole_model_encoding(spec.encoding))
    return packed.blob, packed.manifest(spec.chunk_bytes, travelling)


def content_of(tensors: Tensors, blob: bytes, manifest: Manifest, schema: Schema) -> str:
    """Return the digest of the tensors that a device decodes from a model's blob.

    Args:
        tensors: The tensors that were packed.
        blob: The packed model.
        schema: Names, shapes and dtypes of its tensors.
    """
    if manifest.encoding not in LOSSLESS:
        _, tensors = unpack(blob, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=schema)
    return values_digest(tensors, schema)
