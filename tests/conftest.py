"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import gc
import logging
import os
import random
import shlex
import tempfile
import uuid
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedpatch.coordinator.demo.broker import EmbeddedBroker
from fedpatch.device_agent.runtime import agent as device_agent
from fedpatch.device_agent.runtime import personal_model_schedule
from fedpatch.device_agent.training import model_export
from fedpatch.shared.app.plugins import disable_ort_telemetry
from tests.support.brokers import Mosquitto
from tests.support.examples import QUICK
from tests.support.nginx import Nginx
from tests.support.programs import Program
from tests.support.s3_server import S3Server
from tests.support.same_examples import forget_what_is_loaded
from tests.system.commands import Command

# No test fails because the machine is busy. In CI, where a failure stops other people, the examples are always the same.
# A developer's run draws a few new examples each time. `make check-all` draws 100, FEDPATCH_EXAMPLES=1000 more.
_CI = bool(os.environ.get("CI"))
gc.disable()  # until the tests are collected
settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=_CI,
    max_examples=int(os.environ.get("FEDPATCH_EXAMPLES") or (25 if _CI else 10)),
)
settings.load_profile("house")
Command.preloads = True
HERE = Path(__file__).parent
BESIDE_THE_PRODUCT = (
    *("ansible", "fuzz", "hosts", "monitoring", "test_docstrings.py", "test_wheel.py"),
    *("coordinator/console", "coordinator/report"),
    *("simulator/experiment", "simulator/kernels", "simulator/learners", "studies"),
)
"""Files and folders whose tests are all `medium`: `make test` plays those of rounds, devices and messages."""
FIRST = "test_static_checks.py"
"""The longest file of `make test`."""
REPEATED = ("CI", "FEDPATCH_EXAMPLES", "FEDPATCH_FUZZ_EFFORT", "FAULT_SEEDS", "STANDBY_SEEDS")
"""Settings of a run on which its examples and schedules depend."""
if _CI:
    forget_what_is_loaded()
# Tests and the processes that they start also import onnxruntime directly.
disable_ort_telemetry()


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return two thirds of the cases of each test marked `matrix`; the choice depends on the test's name alone."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("matrix"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [
        one
        for name, found in cases.items()
        for one in random.Random(zlib.crc32(name.encode())).sample(found, len(found) * 2 // 3)
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In quick runs sample the matrices, unless a case is named, and begin with the files that take long.

    With several test processes, a slow file that starts last would run alone at the end.
    """
    beside = tuple(f"{HERE}/{place}" + "/" * (not place.endswith(".py")) for place in BESIDE_THE_PRODUCT)
    for item in items:
        if str(item.path).startswith(beside):
            item.add_marker(pytest.mark.medium)
    if QUICK and not any("[" in argument for argument in config.args):
        left_out = _left_out(items)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        longest: dict[str, int] = {}
        for item in items:
            weight = sum(item.get_closest_marker(one) is not None for one in ("faults", "slow", "system", "medium"))
            weight += 10 * (item.path.name == FIRST)
            longest[str(item.path)] = max(weight, longest.get(str(item.path), 0))
        items.sort(key=lambda item: -longest[str(item.path)])
    # The garbage collector need not visit the tests and modules again, which are there until the end.
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure the command that repeats it, with the settings of this run."""
    report = yield
    if report.failed:
        settings_of_run = "".join(f"{name}={os.environ[name]} " for name in REPEATED if os.environ.get(name))
        report.sections.append(("again", f"{settings_of_run}.venv/bin/python -m pytest {shlex.quote(item.nodeid)}"))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random numbers of a test by its name: the same in each run, but different from those of other tests."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.fixture(scope="session", autouse=True)
def _no_proxy() -> Iterator[None]:
    """No proxy is between tests and their servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "localhost,127.0.0.1,::1,[::1]")
        yield


@pytest.fixture(scope="session", autouse=True)
def _pages_stay_in_memory() -> Iterator[None]:
    """Agents in the process of the tests return no memory to the system after a round, which took a third of their time.

    `test_resource_limits.py` tests the return itself, and agents in processes of their own still return memory.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (device_agent, personal_model_schedule, model_export):
            patch.setattr(module, "give_memory_back", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging setup, which a command that runs in this process has changed."""
    logger = logging.getLogger("fedpatch")
    handlers, propagate, level = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory if the machine has one, for tests with a thousand durable writes and no power cut."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fedpatch-test-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for Unix sockets: their paths have at most 107 bytes, and `tmp_path` is longer on some machines."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def fedpatch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The coordinator's command line, in this process."""
    from fedpatch.cli import main

    return Program(main, monkeypatch, capsys)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """The device agent's command line, in this process."""
    from fedpatch.device_agent.cli.main import main

    return Program(main, monkeypatch, capsys)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server that runs for all tests."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder on the S3 server, for this process and its child processes."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://fleet/{uuid.uuid4().hex}"


@pytest.fixture
def nginx() -> Iterator[Nginx]:
    """A running web server."""
    with Nginx() as server:
        yield server


@pytest.fixture
def mosquitto() -> Iterator[Mosquitto]:
    """A running mosquitto that admits every client."""
    with Mosquitto() as broker:
        yield broker


@pytest.fixture
def amqtt() -> Iterator[EmbeddedBroker]:
    """The built-in broker, running."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    broker = EmbeddedBroker(port=0)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=["mosquitto", "amqtt"])
def broker(request: pytest.FixtureRequest) -> str:
    """URL of a running broker: one case supports MQTT 5, the other 3.1.1 only."""
    url: str = request.getfixturevalue(request.param).url
    return url
