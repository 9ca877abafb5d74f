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

from fedpatch.shared.errors import FedpatchError

_PR_SET_PDEATHSIG = 1
# Higher than that of the training process: the copy holds more memory, and its loss costs less.
_OOM_SCORE_ADJ = "700"

log = logging.getLogger("fedpatch.training")


class ForkedWorkDied(FedpatchError):
    """The copy ended before its work was done."""


def run_forked(work: Callable[[], str]) -> str:
    """Return the text that `work` returns in a forked copy of this process; its other effects on memory are lost.

    Call it on the main thread: the copy is killed when the calling thread ends.

    Raises:
        ForkedWorkDied: The copy was killed, or `work` raised an exception, which is in the log.
        OSError: The system allows no other process.
    """
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold no lock that the copy takes: they read
        pid = os.fork()
    if pid == 0:
        os.close(receiving)
        _serve(work, sending)
    os.close(sending)
    with open(receiving, "rb") as answer:
        text = answer.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        raise ForkedWorkDied(
            f"the process that makes it was ended by {signal.Signals(-code).name}; is there too little memory?"
        )
    if code:
        raise ForkedWorkDied(f"the process that makes it ended with exit code {code}")
    return text


def _serve(work: Callable[[], str], sending: int) -> None:
    """Do the work in the copy, and end the copy."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE_ADJ)
        with open(sending, "wb") as answer:
            answer.write(work().encode())
        code = 0
    except BaseException as error:
        log.error("unexpected error", exc_info=error)
    finally:
        os._exit(code)
