"""Updates in a spool and in memory, and their aggregation: the work of benchmarks.coordinator.aggregation.

`python -m benchmarks.coordinator.spooled_updates TASK COUNT fold|pass` does one of these in a process of its own, and
prints by how many bytes the process grew after all was ready.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import typer

from benchmarks.device.process_memory import memory_bytes
from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.limit_syntax import Limits
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.runtime.decoded_cache import MOST_BYTES
from fedpatch.coordinator.storage.update_files import load_update, store_update
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.tensors.packing import pack
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport

_BASE = "0" * 64
_ENCODING = "fp32"


class SpooledUpdates:
    """Updates of a task's model, each in the spool in `folder`, in memory, and as one flat array.

    Only as many of the `count` updates differ as a round keeps in memory, more than a cache holds; they are repeated.
    """

    def __init__(self, task_ref: str, count: int, folder: Path, *, resident: bool = True) -> None:
        task = find_task(task_ref)
        self.schema = schema_of(task.build_model())
        self._folder = folder
        self._model = initial_tensors(task, 0)
        report = UpdateReport(_BASE, 600, 1, 0.5, 0.5, 0.5, 0.0, 0.0)
        rng = np.random.default_rng(0)
        self._updates: list[dict[str, Array]] = []
        self._different = max(1, min(count, MOST_BYTES // self.schema.nbytes))
        for number in range(self._different):
            update = {spec.name: self._model[spec.name] for spec in self.schema.specs}
            for spec in self.schema.specs:
                if spec.trainable:
                    update[spec.name] = update[spec.name] + rng.standard_normal(spec.shape, np.float32)
            packed = pack(update, self.schema, asdict(report), _ENCODING)
            self._raw_bytes = packed.raw_bytes
            store_update(folder, 1, f"update-{number}", packed.blob)
            if resident:
                self._updates.append(update)
        self._flat = [
            np.concatenate([update[name].ravel() for name in update], dtype=np.float32) for update in self._updates
        ]
        self._terms = UpdateRequirements(self.schema, frozenset(), _BASE)

    def fold(self, count: int, *, spooled: bool) -> None:
        """Aggregate `count` updates as in a round, from the spool or from memory."""
        devices = [f"device-{number:05d}" for number in range(count)]
        read = self._read_spooled if spooled else self._read
        plan = TrainPlan("adam", 0.01, 20)
        aggregate(RoundUpdates(dict.fromkeys(devices, 600), read), RoundBase(self.schema, self._model, plan), Limits())

    def one_pass(self, count: int, dtype: str) -> None:
        """Add up all values of `count` updates, unweighted, each update as one flat array."""
        total = np.zeros(self._flat[0].size, dtype)
        for number in range(count):
            np.add(total, self._flat[number % self._different], out=total)

    def _read(self, device: str) -> dict[str, Array]:
        return self._updates[self._number(device)]

    def _read_spooled(self, device: str) -> dict[str, Array]:
        blob = load_update(self._folder, 1, f"update-{self._number(device)}")
        return decode_and_validate_update(blob, self._terms, encoding=_ENCODING, raw_bytes=self._raw_bytes)[1]

    def _number(self, device: str) -> int:
        return int(device.rpartition("-")[2]) % self._different


def main() -> None:
    """Print the memory that folding adds to this process, in bytes."""
    task, count, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory(prefix="fedpatch-aggregation-") as folder:
        updates = SpooledUpdates(task, count, Path(folder), resident=kind == "pass")
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = memory_bytes("VmRSS")
        if kind == "pass":
            updates.one_pass(count, "float64")
        else:
            updates.fold(count, spooled=True)
        typer.echo(max(0, memory_bytes("VmHWM") - before))


if __name__ == "__main__":
    main()
