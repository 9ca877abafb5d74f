"""One process that predicts, with torch or with onnxruntime, and prints the time and the memory that it took.

    python -m benchmarks.training.prediction_process torch|onnxruntime DIRECTORY

`DIRECTORY` has a personal model, as on a device, and the same values for torch in `values.npz`. One thread. The answer is one
line of JSON. All imports come after the clock starts; with onnxruntime torch is never imported.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

ONE_REPEATS, BATCH_REPEATS, BATCH = 300, 60, 32


def main(kind: str, directory: Path) -> dict[str, Any]:
    """Return the time to predict one example and a batch, after the first; `first_s` is the time from start to the first."""
    predict, metadata = (_with_torch if kind == "torch" else _with_onnxruntime)(directory)

    import numpy as np

    from benchmarks.device.process_memory import memory_bytes

    inputs = np.random.default_rng(1).random((BATCH, *metadata["input_shape"]), dtype=np.float32)
    outputs = predict(inputs[:1])
    first_s = time.perf_counter() - BEGAN
    one_s = _median_s(lambda: predict(inputs[:1]), ONE_REPEATS)
    batch_s = _median_s(lambda: predict(inputs), BATCH_REPEATS)
    return {
        "first_s": first_s,
        "one_s": one_s,
        "batch_s": batch_s,
        "resident_bytes": memory_bytes("VmRSS"),
        "peak_bytes": memory_bytes("VmHWM"),
        "outputs": outputs[0].tolist(),
        "torch_loaded": "torch" in sys.modules,
    }


def _median_s(deed: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        deed()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _with_onnxruntime(directory: Path) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    from fedpatch.device_agent.models.personal import PersonalModel

    model = PersonalModel(directory)
    return model.predict, {"input_shape": model.metadata.input_shape}


def _with_torch(directory: Path) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    import numpy as np
    import torch

    from fedpatch.shared.tasks.task import find_task
    from fedpatch.shared.tasks.torch_model import load_tensors

    metadata = json.loads((directory / "metadata.json").read_bytes())
    torch.set_num_threads(1)
    module = find_task(metadata["task"]).build_model().eval()
    with np.load(directory / "values.npz") as values:
        load_tensors(module, dict(values))

    def predict(inputs: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(inputs)).numpy()

    return predict, metadata


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))) + "\n")
