"""Metrics to choose from, of NumPy arrays or of torch's tensors; torch itself is not imported.

`outputs` are a model's, examples along the first axis, `targets` what they should have been. Each raises DataError where the
two do not belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def accuracy(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Share of the n examples, from 0 to 1, whose largest logit, shape (n, classes), is that of their class, shape (n,)."""
    predicted, wanted = _classes(outputs, targets)
    return float((predicted == wanted).mean())


def macro_f1(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Mean over the classes of their F1, from 0 to 1; shapes as of `accuracy`.

    F1 is the harmonic mean of precision and recall. A class counts where it is wanted or predicted at least once, so a rare
    one weighs as much as a frequent one.
    """
    predicted, wanted = _classes(outputs, targets)
    scores = []
    for one in np.union1d(predicted, wanted):
        hits = int(((predicted == one) & (wanted == one)).sum())
        scores.append(2 * hits / int((predicted == one).sum() + (wanted == one).sum()))
    return float(np.mean(scores))


def mae(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Mean absolute error, in the unit of the targets; outputs have their shape, or one more axis of length 1."""
    return float(np.abs(_errors(outputs, targets)).mean())


def rmse(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Root of the mean squared error; unit and shapes as of `mae`."""
    return float(np.sqrt(np.square(_errors(outputs, targets)).mean()))


def _classes(outputs: ArrayLike, targets: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    logits, wanted = _array(outputs), _array(targets)
    if logits.ndim != 2 or wanted.shape != logits.shape[:1] or not len(wanted):
        raise DataError(
            f"outputs of shape {logits.shape} and targets of shape {wanted.shape} are no (n, classes) and (n,), n at least 1"
        )
    return logits.argmax(axis=1), wanted


def _errors(outputs: ArrayLike, targets: ArrayLike) -> NDArray[Any]:
    found, wanted = _array(outputs).astype(np.float64), _array(targets).astype(np.float64)
    if found.shape == (*wanted.shape, 1):
        found = found[..., 0]
    if found.shape != wanted.shape or not wanted.size:
        # numpy would make a table of every output with every target of it
        raise DataError(f"outputs of shape {found.shape} and targets of shape {wanted.shape} are not pairs")
    return found - wanted


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
