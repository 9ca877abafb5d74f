"""Statistics of a model's training inputs, and the comparison of other inputs with them.

Their size is bounded: there is one number for each feature of a short flat example, else one for all values together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpatch.shared.tasks.model_metadata import MAX_FEATURES, InputStatistics
from fedpatch.shared.tensors.arrays import Array

_ROWS_AT_ONCE = 4096
_MARGIN_RANGES, _MARGIN_STDS = 0.5, 3.0
_FEW_ROWS, _FEW_VALUES = 0.1, 0.01  # shares that may lie outside without a warning: of the rows, of all values
_LEAST_VALUES = 20  # with at least so many values, their spread is compared too
_NARROW = 0.1
_SHOWN = 3


def statistics_of(inputs: Array) -> InputStatistics:
    """Describe inputs with examples along the first axis; at least one, all values finite."""
    rows = _columns(inputs, inputs[0].size if _by_feature(inputs) else 1)
    shift = rows[0].astype(np.float64)
    total, squares = np.zeros_like(shift), np.zeros_like(shift)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE] - shift
        total += part.sum(axis=0)
        squares += np.square(part).sum(axis=0)
    mean = total / len(rows)
    std = np.sqrt(np.maximum(squares / len(rows) - np.square(mean), 0.0))
    found = (mean + shift, std, rows.min(axis=0), rows.max(axis=0))
    means, stds, least, most = (tuple(float(f"{one:.6g}") for one in value) for value in found)
    return InputStatistics(examples=len(inputs), mean=means, std=stds, min=least, max=most)


def absent_classes(targets: Array, classes: int) -> tuple[int, ...]:
    """Return the classes, of so many, of which there is no target; none if targets are not one class for each example."""
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        return ()
    return tuple(np.setdiff1d(np.arange(classes), targets).tolist())


def doubtful_classes(outputs: Array, known: InputStatistics, names: Sequence[str]) -> list[str]:
    """Describe answers that the data of this device say nothing about.

    Args:
        outputs: Outputs of the model, one row for each example.
        known: Statistics of the data that the model was trained on.
        names: Names of the classes.

    Returns:
        One sentence for the answers of classes without a training example, and one for those without a test example.
    """
    if outputs.shape[1:] != (len(names),):
        return []
    count = np.bincount(outputs.argmax(axis=1), minlength=len(names))
    untested = [one for one in known.untested if one not in known.untrained]

    def listed(classes: Sequence[int]) -> str:
        found = [f"{names[one]} ({count[one]} of {len(outputs)})" for one in classes if count[one]]
        return ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more classes" if len(found) > _SHOWN else "")

    sentences = {
        "answers on which this device never trained": listed(known.untrained),
        "answers that could not be judged, because this device has no test example of them": listed(untested),
    }
    return [f"{what}: {found}" for what, found in sentences.items() if found]


def differences(inputs: Array, known: InputStatistics, names: Sequence[str] = ()) -> list[str]:
    """Describe how inputs differ from those that a model was trained on; empty if they do not differ.

    Args:
        inputs: Inputs of the model, examples along the first axis, at least one.
        known: Statistics of the training inputs.
        names: Names of the features, if there are as many.

    Returns:
        One sentence for each difference: values far outside the range of training, and values with far less spread than in
        training.
    """
    rows = _columns(inputs, len(known.mean)).astype(np.float64)
    least, most, std, mean = (np.asarray(one) for one in (known.min, known.max, known.std, known.mean))
    margin = np.maximum(_MARGIN_RANGES * (most - least), _MARGIN_STDS * std)
    margin = np.maximum(margin, 1e-4 * np.maximum(np.abs(least), np.abs(most)) + 1e-12)  # the statistics are rounded
    outside = ((rows < least - margin) | (rows > most + margin)).mean(axis=0)
    allowed = 0.0 if len(rows) == 1 else _FEW_ROWS if len(known.mean) > 1 else _FEW_VALUES
    flagged = np.flatnonzero(outside > allowed)
    found = []
    if len(flagged):
        shown = "; ".join(
            f"{_feature(int(one), known, names)} from {rows[:, one].min():.4g} to {rows[:, one].max():.4g}, trained on "
            f"{least[one]:.4g} to {most[one]:.4g}"
            for one in flagged[:_SHOWN]
        )
        more = f" (and {len(flagged) - _SHOWN} more)" if len(flagged) > _SHOWN else ""
        found.append(f"values lie outside of those that the model was trained on: {shown}{more}")
    elif len(rows) >= _LEAST_VALUES and (std > 0).any() and (rows.std(axis=0) < _NARROW * std)[std > 0].all():
        found.append(
            f"values differ far less from each other than those that the model was trained on: standard deviation "
            f"{rows.std(axis=0).max():.3g} at most, trained on {std.max():.3g} around {mean[std.argmax()]:.3g}"
        )
    return found


def _by_feature(inputs: Array) -> bool:
    return inputs.ndim == 2 and 1 <= inputs.shape[1] <= MAX_FEATURES


def _columns(inputs: Array, columns: int) -> Array:
    return inputs.reshape(-1, columns) if columns > 1 else inputs.reshape(-1, 1)


def _feature(number: int, known: InputStatistics, names: Sequence[str]) -> str:
    if len(names) == len(known.mean) > 1:
        return f"input {names[number]}"
    return f"feature {number}" if len(known.mean) > 1 else "values"
