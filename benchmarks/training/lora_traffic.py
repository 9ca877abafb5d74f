"""Traffic of a round with LoRA beside a frozen base: `python -m benchmarks.training.lora_traffic`.

Real agents and a real coordinator at a real mosquitto; a client that subscribes to all topics counts the messages.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.device.idle_agent import status_of, wait_until
from benchmarks.network.shipped_broker import shipped_broker
from benchmarks.support.documents import Document, Out, Toy, deliver, machine_line, table
from benchmarks.support.programs import running
from benchmarks.support.report import begun
from benchmarks.training.lora_task import TASK
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.diagnostics.probe import Probe
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.torch_model import schema_of

REFERENCE = "benchmarks.training.lora_task:TASK"
POLICIES = ("none", "names:*lora_B*")  # `none` first: after the other, a device's floor would keep B private
ENCODING = "delta-int8"
_QUIET_S = 2.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app,
    "lora_traffic",
    example="python -m benchmarks.training.lora_traffic --out results/benchmarks/lora-traffic.json",
)
def lora_traffic(
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Agents, all in each round.")] = 2,
    rounds: Annotated[int, typer.Option(min=2, metavar="N", help="Rounds of a run.")] = 10,
    toy: Toy = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Count the bytes of a round, per device, with all LoRA matrices shared and with the matrices B private."""
    shares = 20 if toy else devices
    if toy:
        devices, rounds = 1, 2
    document = begun("training.lora_traffic", rounds)
    frozen = schema_of(model := new_model(TASK)).frozen
    values = sum(value.nbytes for value in model.state_dict().values())
    document |= {"devices": devices, "model_bytes": values, "frozen_bytes": frozen.nbytes, "encoding": ENCODING}
    with interruptible(), tempfile.TemporaryDirectory(prefix="fedpatch-lora-") as folder:
        document["runs"] = _measure(Path(folder), devices, shares, rounds, values)
    deliver(document, _lines, out, as_json)


def _measure(folder: Path, devices: int, shares: int, rounds: int, model_bytes: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        url = stack.enter_context(shipped_broker(folder)).url
        agents = []
        for number in range(devices):
            name = f"device-{number}"
            options = ["--device-id", name, "--task", REFERENCE, "--data", f"shard:{number}/{shares}"]
            options += ["--broker", url, "--private", "none", "--state-dir", str(folder / name)]
            line = [sys.executable, "-m", "fedpatch.device_agent", "run", "--admission", "always", *options]
            log = folder / f"{name}.log"
            agents.append((stack.enter_context(running(log, line)), log, folder / name))
        for agent, log, state in agents:
            wait_until(agent, log, partial(_is_ready, state), "is ready")
        return [_run(url, folder, policy, devices, rounds, model_bytes) for policy in POLICIES]


def _is_ready(state: Path) -> object:
    return status_of(state).get("tasks")


def _run(url: str, folder: Path, policy: str, devices: int, rounds: int, model_bytes: int) -> dict[str, Any]:
    """Return the bytes of a round, per device: chunks of models and updates after the first round, and other messages."""
    options = [
        "--broker",
        url,
        "--task",
        REFERENCE,
        "--devices",
        str(devices),
        "--rounds",
        str(rounds),
        "--quorum",
        "1",
    ]
    options += ["--strategy", "fedavg", "--private", policy, "--encoding", ENCODING, "--wait-s", "300", "--json"]
    line = [sys.executable, "-m", "fedpatch", "run", *options, "--metrics", "none", "--state-dir", str(folder / "run")]
    with Probe(RunSettings(broker=url), "listener") as probe:
        probe.subscribe("#")
        probe.listen(_QUIET_S)
        probe.received.clear()  # drops retained messages
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        probe.listen(_QUIET_S)
        messages = sum(len(one.topic) + len(one.payload) for one in probe.received if "/blob/" not in one.topic)
    if done.returncode:
        raise FedpatchError(f"the run failed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    trained = [one for one in result["rounds"] if one["outcome"] == "aggregated"]
    first, later = trained[0], trained[1:]
    down, up = (statistics.mean(one[way] for one in later) / devices for way in ("bytes_down", "bytes_up"))
    beside = messages / rounds / devices
    return {
        "private": policy,
        "first_download": first["bytes_down"] / devices,
        "download": down,
        "upload": up,
        "messages": beside,
        "round": down + up + beside,
        "share_of_model": (down + up + beside) / model_bytes,
        "user_accuracy": [one["user_accuracy"] for one in trained],
    }


def _lines(document: Document) -> Iterator[str]:
    yield machine_line(document)
    yield f"model {size(document['model_bytes'])}, of it frozen {size(document['frozen_bytes'])}; {document['encoding']}"
    rows = [
        (
            f"`{one['private']}`",
            *(size(one[what]) for what in ("first_download", "download", "upload", "messages", "round")),
            f"{one['share_of_model']:.2%}",
        )
        for one in document["runs"]
    ]
    heads = ("private", "first download", "download", "upload", "other messages", "round of a device", "of the model")
    yield from table(heads, rows)
    every, half = (one["round"] for one in document["runs"])
    yield f"the second to the first: {half / every:.3f}"


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.training.lora_traffic")
