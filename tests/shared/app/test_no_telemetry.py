"""Libraries send no telemetry to their makers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

OF_A_TASK = "import onnxruntime\nTASK = None\n"
PROGRAMS = {
    "a personal model": "from fedpatch.shared.onnx.runtime import OnnxModel\nOnnxModel(b'', 'nothing')",
    "a task's own import": "from fedpatch.shared.tasks.task import find_task\nfind_task('reporting_task:TASK')",
}


@pytest.mark.medium
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_onnxruntime_leaves_no_id_of_the_machine(tmp_path, program):
    """Unless this is forbidden, onnxruntime writes an id on import, besides the telemetry that it sends."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install 'fedpatch[agent]')")
    (tmp_path / "reporting_task.py").write_text(OF_A_TASK)
    home = tmp_path / "home"
    home.mkdir()
    overridden = {"CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in overridden}
    ending = "\nexcept FedpatchError: pass\nassert 'onnxruntime' in sys.modules"
    lines = program.replace("\n", "\n    ")
    code = f"import sys\nfrom fedpatch.shared.errors import FedpatchError\ntry:\n    {lines}{ending}"
    subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
    )
    assert [str(path) for path in home.rglob("*") if path.is_file()] == []
