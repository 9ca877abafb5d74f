"""Every benchmark at toy size: every measurement runs and reports its result.

A command is any module below benchmarks/ that ends in `run_app`. A command without `--toy` fails here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import benchmarks
from benchmarks.training import simulation
from fedpatch.shared.app.command import run_app
from tests.support.programs import Program

FOLDER = Path(benchmarks.__file__).parent
COMMANDS = sorted(
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if "    run_app(" in path.read_text("utf-8")
)
OWN_TESTS = {
    "network.load": "test_load.py",
    "network.load_virtual": "test_load.py",
    "testbed.run": "test_testbed.py",
}
"""Benchmarks whose toy size has a test file of its own: some need more than a broker."""
NEED_PEERS = {"peers.appfl_fedbuff", "peers.pfllib_methods"}
"""Benchmarks that run only in an environment with these peers."""
MB = 1e6

Toy = Callable[[str], dict[str, Any]]

pytestmark = [
    pytest.mark.broker,
    pytest.mark.system,
    pytest.mark.timeout(600),
]

_documents: dict[str, dict[str, Any]] = {}
"""Output of each benchmark; each runs once."""


@pytest.fixture
def toy(monkeypatch, capsys, tmp_path) -> Toy:
    """Run a benchmark at toy size; its output is the same JSON on stdout and in the file."""

    def run(name: str) -> dict[str, Any]:
        if name not in _documents:
            out = tmp_path / "new" / "document.json"
            module = import_module(f"benchmarks.{name}")
            options = options_of(module.app, name)
            assert {"--toy", "--json", "--out"} <= options, f"benchmarks.{name} has no toy size, or prints no result"
            # The peers' environments take minutes, and may be installed.
            peers = ["--peers-python", tmp_path / "none"] if "--peers-python" in options else []
            words = ["run"] if module.app.registered_callback else []
            program = Program(lambda: run_app(module.app, name), monkeypatch, capsys)
            ended = program(*words, "--toy", "--json", "--out", out, *peers)
            assert ended.code == 0, ended.err
            _documents[name] = json.loads(ended.out)
            assert json.loads(out.read_text("utf-8")) == _documents[name]
        return _documents[name]

    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin") is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    return run


def options_of(app: typer.Typer, name: str) -> set[str]:
    """Options of the benchmark's command."""
    found = typer.main.get_command(app)
    commands = getattr(found, "commands", {"": found})
    chosen = commands.get("run") or commands.get(name.rpartition(".")[2]) or next(iter(commands.values()))
    return {option for one in chosen.params for option in one.opts}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in OWN_TESTS.keys() | NEED_PEERS])
def test_benchmark_runs_at_toy_size(toy, name):
    assert toy(name)


@pytest.mark.parametrize("name", OWN_TESTS)
def test_benchmark_with_its_own_test_is_run_at_toy_size_there(name):
    words = Path(__file__).with_name(OWN_TESTS[name]).read_text("utf-8")
    assert '"--toy"' in words
    assert name in words
    assert "--toy" in options_of(import_module(f"benchmarks.{name}").app, name)


def test_all_benchmarks_are_found():
    """The search finds these known commands."""
    device = {"device.device", "device.footprint"}
    network = {"network.coordination", "network.metrics_cost"}
    training = {"training.prediction", "training.simulation"}
    assert {"coordinator.aggregation", *device, *network, *training} <= set(COMMANDS)


def test_simulators_train_the_same_model(toy):
    """Round by round, the losses of the plain loop and of fedpatch with one process and two agree."""
    document = toy("training.simulation")
    (work,) = document["works"]
    contests = {one["name"]: one for one in work["contests"]}
    for name in ("fedpatch", "fedpatch-2", "fedpatch-ua", "plain", "plain-2"):
        assert contests[name]["train_losses"] == pytest.approx(contests["fedpatch"]["train_losses"], abs=2e-3), name
    assert {"products", "products-2-threads", "products-used", "plain-2-threads"} < contests.keys()
    assert contests["fedpatch"]["ratio_to_fedpatch"]["wall"] == {"median": 1.0, "min": 1.0, "max": 1.0}
    assert [one["clients"] for one in document["growth"]] == [clients for clients, _ in simulation.TOY_SIZES]
    assert set(document["not_measured"].values()) == {"make bench-peers"}


def test_the_agent_trains_as_a_bare_loop_does(toy):
    """The losses of the agent's trainer and of the bare loop agree."""
    for one in toy("device.device")["training"]:
        own, bare = (contest["train_losses"] for contest in one["contests"])
        assert own == pytest.approx(bare, abs=2e-3), one["strategy"]


def test_rounds_without_training_are_whole(toy):
    """The coordinator got an update of each device, with slightly more bytes than the bare exchange."""
    (one,) = toy("network.coordination")["measured"]
    contests = {contest["name"]: contest for contest in one["contests"]}
    assert {"fedpatch-fp32", "bare"} <= contests.keys()
    assert 1.0 < contests["fedpatch-fp32"]["bytes_up"] / (one["devices"] * one["model_bytes"]) < 1.2


def test_an_agent_is_small_and_quiet(toy):
    """Idle: below 60 MB. After the rounds only the agent remains, and writes nothing. Digits come with scikit-learn."""
    document = toy("device.footprint")
    states = document["states"]
    there = [("training" in one) for one in states]
    # On a slow machine the training process may have ended before the end of the run is noticed.
    assert (there[0], there[1], there[-1]) == (True, True, False)
    assert all(20 * MB < one["agent"]["rss_bytes"] < 60 * MB for one in states)
    assert all(100 * MB < one["training"]["rss_bytes"] < 500 * MB for one in states if "training" in one)
    assert document["quiet"]["bytes_written"] == 0


def test_a_round_with_lora_takes_a_fiftieth_of_the_model_and_half_of_that_with_private_b(toy):
    every, half = toy("training.lora_traffic")["runs"]
    assert every["share_of_model"] <= 0.02
    assert half["download"] + half["upload"] == pytest.approx((every["download"] + every["upload"]) / 2, rel=0.05)


def test_metrics_have_series_for_devices(toy):
    """There is a ratio, and there are more series than devices."""
    document = toy("network.metrics_cost")
    assert document["ratio"] > 0
    assert document["series"] > document["devices"] == 5
