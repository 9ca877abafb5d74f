"""The coarse cause of a failed training, which travels with `failed`: a word, without texts and values of the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedpatch.shared.errors import DataError
from fedpatch.shared.wire.reason_codes import FailCause

_ATTRIBUTE = "_fedpatch_cause"
# Words in the messages of PyTorch, which raises RuntimeError if the system gives it no memory.
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


@contextmanager
def attributed(cause: FailCause) -> Iterator[None]:
    """Attribute errors of the block, which calls code of the task, to a cause; an inner block's cause stays."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, _ATTRIBUTE):
            setattr(error, _ATTRIBUTE, cause)
        raise


def cause_of(error: Exception) -> FailCause:
    """Return the cause of an error of the training process.

    Example:
        >>> cause_of(MemoryError())
        <FailCause.MEMORY: 'memory'>
    """
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY):
        return FailCause.MEMORY
    known = getattr(error, _ATTRIBUTE, None)
    if isinstance(error, DataError) and known is not FailCause.METRIC:
        return FailCause.DATA
    return known if isinstance(known, FailCause) else FailCause.PROCESS
