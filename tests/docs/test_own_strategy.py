"""The class and the entry point on docs/how-to/own-strategy.md work as shown."""

from __future__ import annotations

import re
import sys
import tomllib

import numpy as np
import pytest

from fedpatch import Schema, TensorSpec
from fedpatch.coordinator.strategies import ENTRY_POINT_GROUP, find_strategy
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/how-to/own-strategy.md").read_text("utf-8")


def _block(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    (tmp_path / "half_step.py").write_text(_block("python"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("half_step", None)


def test_strategy_of_the_page_moves_half_of_the_way_to_the_mean(workdir):
    (ref,) = set(re.findall(r"--strategy (\S+:\S+)", PAGE))
    strategy = find_strategy(ref)
    schema = Schema((TensorSpec("fc.bias", (2,), "float32", "weight"),))
    state = strategy.init({"fc.bias": np.zeros(2, np.float32)}, schema)
    after = strategy.finish(state, {"fc.bias": np.ones(2, np.float32)}, schema)
    np.testing.assert_array_equal(after.tensors["fc.bias"], np.full(2, 0.5, np.float32))


def test_entry_point_of_the_page_is_in_the_group_that_is_searched(workdir):
    (group,) = tomllib.loads(_block("toml"))["project"]["entry-points"]
    assert group == ENTRY_POINT_GROUP
