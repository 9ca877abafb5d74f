"""Imports of torch without the modules that no training needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HEAD = """
import sys
from fedpatch.shared.tasks.deferred_imports import DEFERRED, _DeferredModule, defer_imports, load_deferred
defer_imports({names})
"""


def _outputs(code: str, folder: Path | None = None, names: str = "") -> list[str]:
    """Run `code` in a new interpreter and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAD.format(names=names) + code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Package `late` with a module `part`, which print when they are executed."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "__init__.py").write_text("print('late')\nfrom late import part\nvalue = 5\n")
    (tmp_path / "late" / "part.py").write_text("print('part')\nvalue = 7\n")
    return tmp_path


@pytest.mark.parametrize(
    ("use", "printed"),
    [
        ("import late; print('end')", ["end"]),
        ("import late; import late; print('end')", ["end"]),
        ("import late; print(late.value)", ["late", "part", "5"]),
        ("from late import value; print(value)", ["late", "part", "5"]),
        ("import late; import late.part; print(late.part.value)", ["late", "part", "7"]),
        ("import late.part; print(late.part.value)", ["late", "part", "7"]),
        ("import late; print(load_deferred(), load_deferred())", ["late", "part", "True False"]),
    ],
)
def test_deferred_package_is_executed_once_at_its_first_use(package, use, printed):
    assert _outputs(f"sys.path.insert(0, '.')\n{use}", package, "['late']") == printed


def test_missing_attribute_of_a_deferred_module_is_an_attribute_error(package):
    code = "sys.path.insert(0, '.')\nimport late\nprint(hasattr(late, 'nothing'), hasattr(late, 'value'))"
    assert _outputs(code, package, "['late']")[-1] == "False True"


@pytest.mark.medium
def test_torch_trains_without_the_deferred_modules():
    """None of them is executed by the import, a step of a model with batch norm, or the optimizers."""
    code = """
import torch
from fedpatch.shared.tasks.optimizers import Adam, Sgd
from tests.device_agent.toy_tasks import TOY
model = TOY.build_model()
for _ in range(2):
    TOY.loss(model(torch.randn(6, 12)), torch.zeros(6, dtype=torch.int64)).backward()
    Sgd(list(model.parameters()), 0.1).step()
print(sorted(name for name in DEFERRED if name in sys.modules and not isinstance(sys.modules[name], _DeferredModule)))
"""
    assert _outputs(code) == ["[]"]


@pytest.mark.medium
def test_operation_on_tensors_without_storage_is_known_after_load_deferred():
    code = """
import torch
values = torch.empty(3, device="meta")
try:
    torch.linalg.lstsq(torch.empty(3, 3, device="meta"), torch.empty(3, 1, device="meta"))
except NotImplementedError:
    print("unknown")
print(load_deferred())
print(torch.nn.functional.ctc_loss is not None, torch.distributions.Normal(0.0, 1.0).mean.item())
"""
    assert _outputs(code)[-2:] == ["True", "True 0.0"]
