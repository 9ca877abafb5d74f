"""The notebook of the tutorials, executed in a kernel as its reader executes it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.system]

NOTEBOOK = ROOT / "docs" / "tutorials" / "notebook.ipynb"


def _texts(cell: Any) -> str:
    return "".join(
        output.get("text", "") or str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs
    )


@pytest.mark.timeout(600)
def test_notebook_gives_frames_plots_and_a_progress_bar(tmp_path, monkeypatch):
    """The kernel is that of this Python, regardless of the user's other kernels."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    for module in ("amqtt", "ipykernel", "ipywidgets", "pandas"):
        pytest.importorskip(module)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("JUPYTER_PATH", f"{sys.prefix}/share/jupyter")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nbclient and its event loop
        client = nbclient.NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    kinds = [kind for cell in notebook.cells for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    assert kinds.count("image/png") == 3
    assert kinds.count("text/html") >= 3  # data frames
    assert "application/vnd.jupyter.widget-view+json" in kinds  # the progress bar
    shown = "\n".join(_texts(cell) for cell in notebook.cells if cell.cell_type == "code")
    assert "none, round 12" in shown
    assert "all rounds done after 3 rounds" in shown
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"
    ]
