"""Updates that nobody trained: the global model and a little noise, in the encoding that the coordinator asks for.

All devices of a process give the same update to the same request, so that it is made once a round: what costs time here
would be taken for the coordinator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np

from shared.compression import pack, unpack
from shared.messages import Manifest, UpdateReport, WorkRequest
from shared.patches import parse_policy
from shared.tensors import Array, Schema, TensorSpec
from shared.transfer import describe

NOISE = 1e-3
"""Standard deviation of what is added to each trained value: about what an epoch of the 2NN on MNIST adds in a later round."""
_ACCURACY = 0.5


class StandInUpdates:
    """Makes updates for a model of `schema` (without moments) from `num_examples` examples."""

    def __init__(self, schema: Schema, num_examples: int) -> None:
        self._schema = schema
        self._num_examples = num_examples
        self._asked: tuple[object, ...] = ()
        self._made: tuple[Manifest, bytes] | None = None

    def make(self, request: WorkRequest, model: bytes, round_number: int) -> tuple[Manifest, bytes]:
        """The update to a request, whose global model is `model`, as a manifest and a blob."""
        asked = (request.model.digest, request.encoding, request.chunk_bytes, request.private, request.plan)
        if self._made is None or self._asked != asked:
            self._asked, self._made = asked, self._pack(request, model, round_number)
        return self._made

    def _pack(self, request: WorkRequest, model: bytes, round_number: int) -> tuple[Manifest, bytes]:
        public = parse_policy(request.private).public(self._schema.with_moments(request.plan.moments))
        manifest = request.model
        _, base = unpack(model, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=public)
        update = trained(base, public, np.random.default_rng(round_number))
        report = UpdateReport(manifest.digest, self._num_examples, 1, 0.5, _ACCURACY, _ACCURACY, 0.0, 0.0)
        packed = pack(update, public, asdict(report), request.encoding)
        made = describe(
            packed.blob,
            chunk_bytes=request.chunk_bytes,
            encoding=packed.encoding,
            raw_bytes=packed.raw_bytes,
            schema=public.digest,
        )
        return made, packed.blob


def trained(base: Mapping[str, Array], schema: Schema, rng: np.random.Generator) -> dict[str, Array]:
    """What training might have made of `base`; moments as Adam's could be after a step with gradients of the noise's size."""
    return {spec.name: _stepped(base[spec.name], spec, rng) for spec in schema.specs}


def _stepped(values: Array, spec: TensorSpec, rng: np.random.Generator) -> Array:
    noise = rng.standard_normal(spec.shape)
    if spec.trainable:
        return (values + NOISE * noise).astype(spec.dtype)
    if spec.name.endswith(":exp_avg_sq"):
        return (0.999 * values + 0.001 * (NOISE * (1 + noise * noise)) ** 2).astype(spec.dtype)
    if spec.name.endswith(":step"):
        return (values + 1).astype(spec.dtype)
    return values
