"""Work in a forked copy of the training process: its memory is free once it ends, and its death costs only the work.

The copy shares the pages of this process until one of them writes. The export of a model uses it: exporter and ONNX runtime
take 50 MB that no training uses, and their libraries stay loaded until their process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

from fedpatch.shared.app.formatting import duration
from fedpatch.shared.errors import FedpatchError

LIMIT_S = 600.0
"""The copy is killed after this time: no round begins while the training process waits for it."""

_PR_SET_PDEATHSIG = 1
# Higher than that of the training process: the copy holds more memory, and its loss costs less.
_OOM_SCORE_ADJ = "700"
_OPENMP_RUNTIMES = ("libgomp", "libiomp", "libomp")

log = logging.getLogger("fedpatch.training")


class ForkedWorkDied(FedpatchError):
    """The copy ended before its work was done."""


def run_forked(work: Callable[[], str], *, limit_s: float = LIMIT_S) -> str:
    """Return the text that `work` returns in a forked copy of this process; its other effects on memory are lost.

    Call it on the main thread: the copy is killed when the calling thread ends.

    Raises:
        ForkedWorkDied: The copy was killed, took longer than `limit_s`, or `work` raised an exception, which is in the log.
        OSError: The system allows no other process.
    """
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no lock that the copy takes: they read
        try:
            pid = os.fork()
        except OSError:
            os.close(receiving)
            os.close(sending)
            raise
    if pid == 0:
        os.close(receiving)
        _serve(work, sending, limit_s)
    os.close(sending)
    with open(receiving, "rb") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGALRM:
        raise ForkedWorkDied(f"the process that makes it took longer than {duration(limit_s)}, and was ended")
    if code < 0:
        raise ForkedWorkDied(
            f"the process that makes it was ended by {signal.Signals(-code).name}; is there too little memory?"
        )
    if code:
        raise ForkedWorkDied(f"the process that makes it ended with exit code {code}")
    return text.decode()


def _serve(work: Callable[[], str], sending: int, limit_s: float) -> None:
    """Do the work in the copy, and end the copy."""
    code = 1
    try:
        # The kernel ends the copy, even where a library waits without end.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)
        _use_one_thread()
        with open(sending, "wb") as answer:
            answer.write(work().encode())
        code = 0
    except BaseException as error:
        log.error("unexpected error", exc_info=error)
    finally:
        os._exit(code)


def _use_one_thread() -> None:
    """Make each OpenMP runtime of this process run all parallel regions on the thread that begins them.

    A fork copies one thread, and GNU's runtime waits for the others of its pool without end. `torch.set_num_threads` is not
    enough: the Arm Compute Library, by which torch multiplies on aarch64, asks for the number of threads of its first call.
    """
    mapped = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    for library in {Path(line.split(maxsplit=5)[-1]) for line in mapped}:
        if library.name.startswith(_OPENMP_RUNTIMES):
            # A file that an upgrade has deleted cannot be opened, and a part of a runtime lacks the function.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(str(library)).omp_set_max_active_levels(0)
