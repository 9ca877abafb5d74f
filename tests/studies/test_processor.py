"""The processor that a result names."""

from __future__ import annotations

import pytest
import torch

from fedpatch.shared.app.provenance import processor_name
from fedpatch.shared.errors import UsageError
from studies.processor import name_processor


def test_result_of_the_cpu_names_the_cpu():
    assert name_processor("cpu") == processor_name()


def test_device_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="torch finds no GPU; use --device cpu"):
        name_processor("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_result_of_a_gpu_names_the_gpu():
    assert name_processor("cuda") == torch.cuda.get_device_name()
