"""The coarse cause of a failed training, which travels with `failed`: a word, without texts and values of the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedpatch.shared.errors import DataError
from fedpatch.shared.wire.reason_codes import FailCause

_ATTRIBUTE = "_fedpatch_cause"
# Words of PyTorch, which raises RuntimeError if the system gives it no memory, and of the loader of shared libraries.
_OUT_OF_MEMORY = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory"),
    *("cannot map zero-fill pages", "failed to map segment from shared object"),
)
# The loader's words for a full table of thread-local data: the order of imports matters, not the memory.
_NO_MATTER_OF_MEMORY = "static tls block"


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
    if tells_of_memory(error):
        return FailCause.MEMORY
    known = getattr(error, _ATTRIBUTE, None)
    if isinstance(error, DataError) and known is not FailCause.METRIC:
        return FailCause.DATA
    return known if isinstance(known, FailCause) else FailCause.PROCESS


def tells_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, PyTorch or the loader of shared libraries says that memory ran out.

    Example:
        >>> tells_of_memory(ImportError("libtorch_cpu.so: cannot map zero-fill pages"))
        True
    """
    text = str(error).lower()
    says_so = any(words in text for words in _OUT_OF_MEMORY) and _NO_MATTER_OF_MEMORY not in text
    return isinstance(error, MemoryError) or says_so
