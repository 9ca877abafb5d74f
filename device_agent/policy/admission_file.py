"""The owner's file that decides about requests, in the admission mode `file:PATH`."""

from __future__ import annotations

import errno
import logging
import os
import stat

from fedpatch.device_agent.policy.admission_mode import AdmissionMode

_MOST_FILE_BYTES = 4096
_log = logging.getLogger("fedpatch.owner")


def text_of(order: AdmissionMode, *, warn: bool = True) -> str | None:
    """Beginning of the mode's file; None where there is none, or it cannot be read, which is logged with `warn`."""
    if not order.path:
        return None
    try:
        return _beginning_of(order.path)
    except OSError as error:
        if warn:
            _log.warning("admission: %s: %s; write 'accept' into it to take part", order.path, error.strerror)
        return None


def _beginning_of(path: str) -> str:
    """Return the first kilobytes of a file. OSError for anything else, such as a pipe, on which a reader would wait."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        return file.read(_MOST_FILE_BYTES).decode("utf-8", errors="replace")
