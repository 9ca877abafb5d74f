"""Untrained updates: the global model and a little noise, in the encoding that the coordinator requests.

All devices of a process answer the same request with the same update, so it is made only once a round: time spent here
would count as the coordinator's.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache

import numpy as np

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.training.masked_update import unmasked_blob
from fedpatch.shared.errors import WireError
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.messages import Evaluation, Manifest, UpdateReport, WorkRequest

NOISE = 1e-3
"""Standard deviation of the noise on each trained value: about the change by an epoch of the 2NN on MNIST in a later round."""
_ACCURACY = 0.5
_VERSIONS = 3


class StandInUpdates:
    """Makes updates for a model of `schema` (without moments) from `num_examples` examples.

    The last few global models, which updates are made from, are kept once for all devices of the process.
    """

    def __init__(self, schema: Schema, num_examples: int) -> None:
        self._schema = schema
        self._num_examples = num_examples
        self._models: OrderedDict[str, dict[str, Array]] = OrderedDict()
        self._asked: tuple[object, ...] = ()
        self._made: tuple[Manifest, bytes] | None = None
        self._vector: tuple[tuple[object, ...], bytes] | None = None

    def has(self, version: str) -> bool:
        """Return whether this global model is held, so that steps can be applied to it."""
        return version in self._models

    def make(
        self, request: WorkRequest, way: DownloadPlan, blobs: Mapping[str, bytes], round_number: int
    ) -> tuple[Manifest, bytes]:
        """Return the update for a request as manifest and blob; `blobs` has the blobs of the download plan `way`, by digest."""
        asked = (request.model.digest, request.encoding, request.chunk_bytes, request.private, request.plan)
        if self._made is None or self._asked != asked:
            self._asked, self._made = asked, self._pack(request, way, blobs, round_number)
        return self._made

    def _pack(
        self, request: WorkRequest, way: DownloadPlan, blobs: Mapping[str, bytes], round_number: int
    ) -> tuple[Manifest, bytes]:
        public = parse_policy(request.private).public(self._schema.with_moments(request.plan.moments))
        base = self._come_to(way, blobs, public)
        update = trained(base, public, round_number)
        report = UpdateReport(request.model.digest, self._num_examples, 1, 0.5, _ACCURACY, _ACCURACY, 0.0, 0.0)
        packed = pack(update, public, asdict(report), request.encoding, base=base, seed=round_number)
        return packed.manifest(request.chunk_bytes, public), packed.blob

    def evaluation(self, request: WorkRequest) -> Evaluation:
        """Return the answer to a request of an evaluate round."""
        return Evaluation(request.model.digest, _ACCURACY, 100, 0.0)

    def travelling(self, request: WorkRequest) -> Schema:
        """Return the tensors of an update without moments."""
        return parse_policy(request.private).public(self._schema)

    def vector(self, request: WorkRequest, way: DownloadPlan, blobs: Mapping[str, bytes], round_number: int) -> bytes:
        """Return the vector of a masked round before masking; it is made once a round for all devices."""
        assert request.secure is not None
        asked = (request.model.digest, request.secure, request.private)
        if self._vector is None or self._vector[0] != asked:
            public = self.travelling(request)
            base = self._come_to(way, blobs, public)
            report = UpdateReport(request.model.digest, self._num_examples, 1, 0.5, _ACCURACY, _ACCURACY, 0.0, 0.0)
            blob = unmasked_blob(
                request.secure,
                public,
                model=base,
                update=trained(base, public, round_number),
                report=report,
                metric=MetricTerms(),
                seed=round_number,
            )
            self._vector = asked, blob
        return self._vector[1]

    def _come_to(self, way: DownloadPlan, blobs: Mapping[str, bytes], public: Schema) -> dict[str, Array]:
        """Return the tensors of the global model, checked as a device checks them."""
        version = way.model.digest
        if version in self._models:
            return self._models[version]
        if way.held:
            tensors = self._models[way.held]
            for step in way.steps:
                tensors = _read(blobs, step.manifest, public, tensors)
                if values_digest(tensors, public) != step.content:
                    raise WireError(f"a step does not lead to {version[:12]}")
        else:
            tensors = _read(blobs, way.model, public)
        self._models[version] = tensors
        while len(self._models) > _VERSIONS:
            self._models.popitem(last=False)
        return tensors


def _read(
    blobs: Mapping[str, bytes], manifest: Manifest, schema: Schema, base: Tensors | None = None
) -> dict[str, Array]:
    blob = blobs[manifest.digest]
    return unpack(blob, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=schema, base=base)[1]


def trained(base: Mapping[str, Array], schema: Schema, round_number: int) -> dict[str, Array]:
    """Return a plausible result of training `base`; moments are Adam's after a step with gradients of the noise's size."""
    return {spec.name: _stepped(base[spec.name], spec, round_number % 2) for spec in schema.specs}


def _stepped(values: Array, spec: TensorSpec, odd: int) -> Array:
    if spec.trainable:
        return values + _noise(spec, odd)
    if spec.name.endswith(":exp_avg_sq"):
        return (0.999 * values + 0.001 * (NOISE + _noise(spec, odd) ** 2 / NOISE) ** 2).astype(spec.dtype)
    if spec.name.endswith(":step"):
        return (values + 1).astype(spec.dtype)
    return values


@cache
def _noise(spec: TensorSpec, odd: int) -> Array:
    """Return the noise, drawn once because drawing is not measured. Its sign alternates by round, so it does not add up."""
    if odd:
        return -_noise(spec, 0)
    drawn = np.random.default_rng(zlib.crc32(spec.name.encode())).standard_normal(spec.shape)
    return (NOISE * drawn).astype(spec.dtype)
