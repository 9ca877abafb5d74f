"""The benchmark of an agent's footprint when its run fails."""

from __future__ import annotations

import pytest

from benchmarks.device import footprint
from fedpatch.shared.errors import FedpatchError


@pytest.mark.broker
def test_a_run_that_fails_is_reported_with_the_end_of_its_log(monkeypatch, tmp_path):
    process = footprint._process

    def refused(folder, package, *options):
        return process(folder, package, *options, *(["--quorum", "7"] if package == "fedpatch" else []))

    monkeypatch.setattr(footprint, "_process", refused)
    with pytest.raises(FedpatchError, match=r"the run failed: .*--quorum"):
        footprint._measure(tmp_path, "digits", "shard:0/10", 1, 0.0)
