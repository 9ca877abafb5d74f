"""Metrics of a model's outputs: accuracy, macro F1, mean absolute error, root mean squared error.

They take NumPy arrays and torch's tensors, examples along the first axis; torch itself is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedpatch.shared.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def accuracy(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Share of the examples whose largest output is that of their class.

    Args:
        outputs: Logits or probabilities, shape (n, classes).
        targets: Classes, integers from 0, shape (n,).

    Returns:
        A fraction from 0 to 1.

    Raises:
        DataError: The shapes do not fit each other, or there is no example.

    Example:
        >>> from fedpatch import metrics
        >>> metrics.accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1])
        0.5
    """
    predicted, wanted = _classes(outputs, targets)
    return float((predicted == wanted).mean())


def macro_f1(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Mean of the F1 scores of the classes: a rare class weighs as much as a frequent one.

    F1 is the harmonic mean of precision and recall. A class counts if it is a target or a prediction at least once.

    Args:
        outputs: Logits or probabilities, shape (n, classes).
        targets: Classes, integers from 0, shape (n,).

    Returns:
        A fraction from 0 to 1.

    Raises:
        DataError: The shapes do not fit each other, or there is no example.

    Example:
        >>> from fedpatch import metrics
        >>> metrics.macro_f1([[0.1, 0.9], [0.8, 0.2]], [1, 0])
        1.0
    """
    predicted, wanted = _classes(outputs, targets)
    scores = []
    for one in np.union1d(predicted, wanted):
        hits = int(((predicted == one) & (wanted == one)).sum())
        scores.append(2 * hits / int((predicted == one).sum() + (wanted == one).sum()))
    return float(np.mean(scores))


def mae(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Mean absolute error.

    Args:
        outputs: Predictions, of the targets' shape or with one more axis of length 1.
        targets: Values, any shape with examples along the first axis.

    Returns:
        The error in the unit of the targets.

    Raises:
        DataError: The shapes do not fit each other, or there is no example.

    Example:
        >>> from fedpatch import metrics
        >>> metrics.mae([20.0, 23.0], [21.0, 20.0])
        2.0
    """
    return float(np.abs(_errors(outputs, targets)).mean())


def rmse(outputs: ArrayLike, targets: ArrayLike) -> float:
    """Root of the mean squared error.

    Args:
        outputs: Predictions, of the targets' shape or with one more axis of length 1.
        targets: Values, any shape with examples along the first axis.

    Returns:
        The error in the unit of the targets.

    Raises:
        DataError: The shapes do not fit each other, or there is no example.

    Example:
        >>> from fedpatch import metrics
        >>> metrics.rmse([3.0, 0.0], [0.0, 4.0])
        3.5355339059327378
    """
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
