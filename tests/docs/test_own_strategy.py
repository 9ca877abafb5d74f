"""The class and the entry point on docs/how-to/own-strategy.md work as shown."""

from __future__ import annotations

import re
import sys
import tomllib

import numpy as np
import pytest

from fedpatch import Schema, TensorSpec
from fedpatch.coordinator.aggregation.strategy_calls import apply_strategy, begin_strategy
from fedpatch.coordinator.find_strategy import ENTRY_POINT_GROUP, find_strategy
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.experiment.options import check_strategy
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/how-to/own-strategy.md").read_text("utf-8")


def _blocks(language: str) -> list[str]:
    return [str(block) for block in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)]


def _block(language: str, at: int = 0) -> str:
    return _blocks(language)[at]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    (tmp_path / "half_step.py").write_text(_block("python"))
    (tmp_path / "capped_momentum.py").write_text(_block("python", 1))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("half_step", "capped_momentum"):
        sys.modules.pop(name, None)


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


def test_second_strategy_of_the_page_keeps_its_own_state_and_limits_its_step(workdir):
    strategy = find_strategy("capped_momentum:CappedMomentum", 0.5)
    schema = Schema(
        (TensorSpec("fc.bias", (1,), "float32", "weight"), TensorSpec("bn.running_var", (1,), "float32", "stats"))
    )
    state = begin_strategy(
        strategy, {"fc.bias": np.zeros(1, np.float32), "bn.running_var": np.ones(1, np.float32)}, schema
    )
    assert set(state.server) == {"fc.bias:exp_avg"}
    mean = {"fc.bias": np.array([100.0], np.float32), "bn.running_var": np.array([2.0], np.float32)}
    after = apply_strategy(strategy, state, mean, schema)
    assert (after.tensors["fc.bias"][0], after.server["fc.bias:exp_avg"][0], after.tensors["bn.running_var"][0]) == (
        2.5,
        5,
        2,
    )


@pytest.mark.parametrize("check", [find_strategy, check_strategy], ids=["run", "simulate"])
@pytest.mark.parametrize("ref", ["half_step.py", "./half_step.py", "half_step"])
def test_file_in_place_of_a_name_is_answered_with_the_class_in_it(workdir, check, ref):
    with pytest.raises(UsageError, match=r"the strategy HalfStep in half_step\.py is named module:attribute"):
        check(ref)
