"""docs/how-to/personal-model.md: its code runs, and its tables are correct."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np

from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.training.alone_schedule import FIRST_ROUNDS
from fedpatch.shared.onnx.runtime import TOLERANCE
from fedpatch.shared.tasks.bundled import digits
from fedpatch.shared.tasks.model_metadata import OPSET, ModelMetadata
from fedpatch.shared.tasks.task import Task
from tests.device_agent.exported_models import onnx_of, publish
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "personal-model.md").read_text("utf-8")
IMAGES = np.random.default_rng(1).random((4, 64), dtype=np.float32)


def test_the_shown_code_classifies_images(tmp_path):
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    shown = {"task": "digits", "input_shape": (64,), "output_shape": (10,), "class_names": tuple("0123456789")}
    publish(ModelStore(tmp_path / MODELS_DIRECTORY), 1, onnx_of(digits.TASK, (64,)), **shown)
    names: dict[str, Any] = {"state_dir": str(tmp_path), "images": IMAGES}
    exec(block, names)
    assert len(names["names"]) == 4
    assert set(names["names"]) <= set("0123456789")
    assert names["outputs"].shape == (4, 10)
    assert (names["accuracy"], names["newer"]) == (0.5, False)


def test_every_key_of_the_metadata_is_on_the_page():
    part = PAGE.partition("## What is in the files")[2].partition("\n## ")[0]
    rows = re.findall(r"^- (`.*?`): ", part, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == {one.name for one in fields(ModelMetadata)}


def test_figures_and_names_are_those_of_the_code():
    defaults = {one.name: one.default for one in fields(AgentSettings)}
    assert f"`keep_margin` ({defaults['keep_margin']:g})" in PAGE
    assert f"`alone_every`-th round of the device ({defaults['alone_every']}; 0: never)" in PAGE
    assert f"in the first {FIRST_ROUNDS} rounds" in PAGE
    assert f"`keep_models` ({defaults['keep_models']})" in PAGE
    assert f"operator set {OPSET}" in PAGE
    assert f"more than {TOLERANCE:g} of".replace("0.0001", "1e-4") in " ".join(PAGE.split())
    for name in ("class_names", "input_shape", "input_dtype", "metric_takes_arrays"):
        assert name in {one.name for one in fields(Task)}
        assert f"`{name}" in PAGE
