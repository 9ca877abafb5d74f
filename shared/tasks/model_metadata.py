"""`metadata.json` of an exported model: its origin, its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.tasks.reading.readings_format import ReadingsFormat
from fedpatch.shared.typed_values import learn_types

FORMAT = 1
OPSET = 17
"""Opset of ONNX: every onnxruntime since 1.12 reads it, and torch's exporter has written it since 2.0."""

INPUT, OUTPUT = "input", "output"
"""Names of the model's only input and only output."""

MODEL_FILE, METADATA_FILE = "model.onnx", "metadata.json"
INPUTS_FILE = "inputs.json"
"""Statistics of the training inputs, for the agent's user alone: other programs may read the model, not the data's figures."""

FEDERATED, ALONE, PREVIOUS = "federated", "alone", "previous"
SOURCES = {FEDERATED: "federated", ALONE: "trained alone"}
"""Sources of a personal model, in words."""

MAX_FEATURES = 256
"""Longest flat example whose features are described one by one."""

PROBE_VALUES = 64
"""Outputs of a task's `prepare` that are kept, at most."""


@dataclass(frozen=True, kw_only=True)
class InputStatistics:
    """Mean, standard deviation, minimum and maximum of `examples` inputs.

    Each has one number for each feature where an example is flat and has at most MAX_FEATURES values, else one number
    for all values together. `untrained` and `untested` are the numbers of the classes of which the device has no training
    example, or no test example.
    """

    examples: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min: tuple[float, ...]
    max: tuple[float, ...]
    untrained: tuple[int, ...] = ()
    untested: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The `prepare` that a model was trained with.

    Attributes:
        raw_shape: Shape of one example before `prepare`.
        probe: Outputs of `prepare` for made-up inputs (`probe_inputs`), at most PROBE_VALUES of them; None for one that is not
            finite. Empty where `prepare` does not take made-up inputs.
    """

    raw_shape: tuple[int, ...]
    probe: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """One exported model.

    `kind` is `personal` (a device's own, with private values) or `global` (the coordinator's). `private` is the text
    of the patch policy, and `private_values` what the private tensors hold: `trained` on the device, the `initial` values, or
    `none` where nothing is private. `input_shape` and `output_shape` are those of one example: in the model, the number of
    examples comes first. `class_names` are in the order of the outputs, empty where the task has none.

    `metric` and `metric_goal` ("max" or "min") describe the user accuracies. `user_accuracy` is that of this
    model itself, run by onnxruntime on the device's `test_examples`; `user_accuracy_before` that of the global model with the
    device's patch, before the round's training (the one the paper reports), on test data too. `validation_accuracy` is the
    same metric on the `validation_examples` that this model was chosen on: use it to choose, never to report. None where
    nothing was measured. `best` is the best of this figure and of those of the device's models before it on the same data.

    `source` is the kind of a personal model: FEDERATED, or ALONE for one that the device trained on its own data only, which
    was better on validation data; `reason` is the reason in words. `candidates` are the validation accuracies that were
    compared, by source, and that of the `previous` model.

    `task_ref` is how the device's configuration names the task. `prepare` describes the task's `prepare`, which an application
    must apply to raw inputs (None: there is none), `inputs` the training inputs after it. Both are computed from the
    device's data, and stay on the device as the model does. The agent keeps `inputs` in INPUTS_FILE.

    `readings` are columns and windows of the files that the task's `load_data` reads, which predictions take too; None where
    the task does not declare them.

    `schema` is the digest of the model's schema, `parity` the largest difference to torch's outputs, relative to the largest
    of them (or to 1). `sha256` and `size_bytes` are of the model's file; `created` is a time of ISO 8601, in UTC.
    """

    kind: str
    task: str
    run: str
    round: int
    private: str
    private_values: str
    schema: str
    input_shape: tuple[int, ...]
    input_dtype: str
    output_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    metric: str
    metric_goal: str
    user_accuracy: float | None
    user_accuracy_before: float | None
    test_examples: int
    parity: float
    sha256: str
    size_bytes: int
    created: str
    fedpatch: str
    torch: str
    onnx: str
    opset: int = OPSET
    format: int = FORMAT
    validation_accuracy: float | None = None
    validation_examples: int = 0
    task_ref: str = ""
    prepare: Preparation | None = None
    inputs: InputStatistics | None = None
    source: str = FEDERATED
    reason: str = ""
    candidates: Mapping[str, float] = field(default_factory=dict)
    readings: ReadingsFormat | None = None
    best: float | None = None


learn_types(ModelMetadata)


def to_json(metadata: ModelMetadata) -> bytes:
    """Return JSON for people and programs; a number that is not finite becomes null."""
    return msgspec.json.format(msgspec.json.encode(metadata), indent=2) + b"\n"


def inputs_from_json(text: bytes, where: str) -> InputStatistics:
    """Read the content of INPUTS_FILE. StateError, which names `where`, if it is damaged."""
    try:
        return msgspec.json.decode(text, type=InputStatistics)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{where}: does not describe inputs ({error})") from error


def from_json(text: bytes, where: str) -> ModelMetadata:
    """Read the output of `to_json`, also of a later version with more keys. Else raise StateError, which names `where`."""
    try:
        metadata = msgspec.json.decode(text, type=ModelMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise StateError(f"{where}: does not describe a model ({error})") from error
    if metadata.format != FORMAT:
        raise StateError(f"{where}: is of format {metadata.format}, of another version of fedpatch; use that one")
    return metadata
