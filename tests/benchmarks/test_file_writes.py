"""The count of a device's writes, from the trace of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device.file_writes import bytes_by_file
from fedpatch.shared.errors import FedpatchError

DIGEST = "0123456789abcdef"
TRACE = f"""\
11 write(5</state/patches/.mnist-{DIGEST}.patch.kx2_1a9z.tmp>, ""..., 3000) = 3000
11 write(5</state/patches/..mnist-{DIGEST}.patch.tmp.k3b0____.tmp>, ""..., 10) = 10
12 pwrite64(7</state/models/mnist/.unfinished/.model.onnx.abcd0123.tmp>, ""..., 500, 0) = 500
12 write(7</state/models/mnist/.unfinished/.model.onnx.abcd0123.tmp>, ""..., 9 <unfinished ...>
11 write(3</elsewhere/log>, ""..., 77) = 77
11 write(4<socket:[9]>, ""..., 77) = 77
12 <... write resumed>)              = 9
11 write(6</state/status.json>, ""..., 40) = -1 ENOSPC (No space left on device)
11 +++ exited with 0 +++
"""


def test_bytes_by_file_sums_writes_by_the_name_of_the_finished_file():
    assert bytes_by_file(TRACE.splitlines(), Path("/state")) == {
        "patches/mnist-DIGEST.patch": 3010,
        "models/mnist/VERSION/model.onnx": 509,
    }


def test_bytes_by_file_call_that_it_cannot_count_is_an_error():
    with pytest.raises(FedpatchError, match="cannot count: sendfile"):
        bytes_by_file(["11 sendfile(5</state/a>, 6</state/b>, NULL, 10) = 10"], Path("/state"))
