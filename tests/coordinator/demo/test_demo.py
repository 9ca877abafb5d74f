"""A whole fleet on this machine: start, supervision and end of its devices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedpatch import cli
from fedpatch.coordinator.demo.demo import MARK, fresh_devices, open_directory, run_demo
from fedpatch.coordinator.demo.devices import DemoDevice, device_names, start_device, stop_devices, wait_until_ready
from fedpatch.coordinator.demo.settings import DemoSettings
from fedpatch.coordinator.observability.live_view import PlainView
from fedpatch.shared.errors import BrokerError, FedpatchError, UsageError
from tests.support.brokers import free_port
from tests.support.programs import Program

_SLEEP = "import time; time.sleep(600)"
_STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {_SLEEP}"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Callable[..., DemoDevice]]:
    """A function that makes a device whose process runs a given program instead of an agent."""
    made: list[DemoDevice] = []

    def make(program: str, *, ready: bool = False) -> DemoDevice:
        name = f"device-{len(made):02}"
        state_dir, log = tmp_path / name, tmp_path / f"{name}.log"
        state_dir.mkdir()
        if ready:
            (state_dir / "status.json").write_text(json.dumps({"connected": True, "tasks": [{"task": "digits"}]}))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        made.append(DemoDevice(name, process, state_dir, log))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
        assert one.process.stdin is not None
        one.process.stdin.close()


def test_device_names_sort_in_order():
    assert device_names(3) == ["device-00", "device-01", "device-02"]
    assert device_names(101) == sorted(device_names(101))


def test_demo_devices_ignore_conditions_of_the_machine(tmp_path):
    device = start_device("device-00", ["--data", "shard:0/2", "--print-config"], tmp_path)
    assert device.process.wait(120.0) == 0
    stop_devices([device])
    assert 'admission = "always"  # --admission' in device.log.read_text().splitlines()


def test_wait_ends_when_every_device_is_ready(device):
    counts: list[int] = []
    late = device(_SLEEP)

    def on_count(there: int) -> None:
        counts.append(there)
        (late.state_dir / "status.json").write_text(json.dumps({"connected": True, "tasks": [{"task": "digits"}]}))

    wait_until_ready([device(_SLEEP, ready=True), late], 60.0, on_count)
    assert counts == [1]


@pytest.mark.parametrize(("code", "error"), [(1, FedpatchError), (2, UsageError), (3, BrokerError)])
def test_wait_ends_with_the_error_of_a_device_that_ended(device, code, error):
    words = "\\n".join(["WARNING it is cold", "fedpatch-agent: no pictures", "fedpatch-agent: no labels", "bye"])
    broken = device(f"print('''{words}'''); raise SystemExit({code})")
    with pytest.raises(FedpatchError) as caught:
        wait_until_ready([device(_SLEEP), broken], 60.0, lambda there: None)
    assert type(caught.value) is error
    assert str(caught.value) == f"{broken.name} ended: no pictures\nno labels (its log: {broken.log})"


def test_device_killed_by_a_signal_has_an_error_with_the_signal(device):
    killed = device(_SLEEP)
    killed.process.kill()
    killed.process.wait()
    assert "signal 9; is there enough memory?" in str(killed.why_ended())


def test_wait_ends_after_its_time_limit(device):
    with pytest.raises(FedpatchError, match=r"device-01 is not ready after 0 s; .*device-01\.log.* --wait-s"):
        wait_until_ready([device(_SLEEP, ready=True), device(_SLEEP)], 0.0, lambda there: None)


def test_stop_kills_devices_that_ignore_sigterm(device, monkeypatch):
    ended, usual, deaf = device("pass"), device(_SLEEP), device(_STUBBORN)
    ended.process.wait()
    while not deaf.log.read_text():
        time.sleep(0.01)
    monkeypatch.setattr("fedpatch.coordinator.demo.devices.STOP_TIMEOUT_S", 60.0)
    stop_devices([ended, usual])
    monkeypatch.setattr("fedpatch.coordinator.demo.devices.STOP_TIMEOUT_S", 0.2)
    stop_devices([ended, deaf])
    assert [one.process.poll() for one in (ended, usual, deaf)] == [0, -15, -9]


def test_new_demo_removes_devices_and_keeps_runs(tmp_path):
    with open_directory(tmp_path / "demo") as out:
        (out / "coordinator").mkdir()
        (out / "devices" / "device-00").mkdir(parents=True)
    with open_directory(tmp_path / "demo") as out, fresh_devices(out) as forget_the_former:
        assert (out / "coordinator").exists()
        assert list((out / "devices").iterdir()) == []
        forget_the_former()
    assert sorted(os.listdir(out)) == [MARK, "coordinator", "devices"]
    assert list((out / "devices").iterdir()) == []


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("terms", "error"),
    [({"broker": "mqtt://127.0.0.1:1"}, "no broker at 127.0.0.1:1"), ({"private": "names:zzz*", "devices": 1}, "zzz")],
)
def test_demo_that_cannot_start_restores_the_devices_before(tmp_path, terms, error, killed):
    with open_directory(tmp_path / "demo") as out:
        model = out / (".devices-before" if killed else "devices") / "device-00" / "models" / "model.onnx"
        model.parent.mkdir(parents=True)
        model.write_bytes(b"ours")
        if killed:
            (out / "devices" / "device-01").mkdir(parents=True)
    with pytest.raises(FedpatchError, match=error):
        run_demo(DemoSettings(out=tmp_path / "demo", **terms), PlainView(sys.stderr))
    assert [path.read_bytes() for path in out.glob("**/*.onnx")] == [b"ours"]
    assert sorted(os.listdir(out)) == [MARK, "devices"]
    assert os.listdir(out / "devices") == ["device-00"]


def test_directory_with_other_files_is_refused(tmp_path):
    (tmp_path / "devices").mkdir()
    with pytest.raises(UsageError, match="holds files that no demo made"), open_directory(tmp_path):
        pass
    assert os.listdir(tmp_path) == ["devices"]


def test_second_demo_in_a_directory_is_refused(tmp_path):
    with open_directory(tmp_path) as out:
        (out / "devices" / "device-00").mkdir(parents=True)
        with pytest.raises(UsageError, match="a demo is running"), open_directory(tmp_path):
            pass
        assert (out / "devices" / "device-00").exists()
    with open_directory(tmp_path):
        assert (tmp_path / MARK).exists()


def test_out_that_is_a_file_is_a_usage_error(tmp_path):
    (tmp_path / "notes").write_text("")
    with pytest.raises(UsageError, match="is not a directory"), open_directory(tmp_path / "notes"):
        pass


def test_demo_without_its_broker_ends_before_devices_start(tmp_path):
    settings = DemoSettings(out=tmp_path / "demo", broker=f"mqtt://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerError, match=r"no broker at 127.*start it, or leave --broker out"):
        run_demo(settings, PlainView(sys.stderr))
    assert os.listdir(tmp_path / "demo" / "devices") == []


def test_task_without_demo_data_has_no_demo(tmp_path):
    settings = DemoSettings(out=tmp_path / "demo", task="tests.device_agent.toy_tasks:TOY")
    with pytest.raises(UsageError, match="task 'toy' does not say how to share its data out in a demo"):
        run_demo(settings, PlainView(sys.stderr))
    assert not (tmp_path / "demo").exists()


def demo(out: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a demo to its end."""
    command = [sys.executable, "-m", "fedpatch", "demo", "--out", str(out), "--json", *argv]
    return subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False, timeout=250)


def left_of(out: Path) -> list[str]:
    """Wait up to 100 s for the processes that name `out` to end; return the command lines of the others."""
    give_up_at = time.monotonic() + 100.0
    while (found := _processes_of(out)) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    return found


def _processes_of(out: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{out}/" in command:
            found.append(command)
    return found


@pytest.mark.system
@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_during_the_stop_does_not_lose_the_result(tmp_path, monkeypatch, capsys, number):
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")

    def stop(devices: list[DemoDevice]) -> None:
        os.kill(os.getpid(), number)
        stop_devices(devices)

    monkeypatch.setattr("fedpatch.coordinator.demo.demo.stop_devices", stop)
    out = tmp_path / "demo"
    ended = Program(cli.main, monkeypatch, capsys)("demo", "--devices", 1, "--rounds", 1, "--out", out, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["stopped_because"] == "max_rounds"
    assert left_of(out) == []


@pytest.mark.system
@pytest.mark.medium
def test_device_without_data_ends_the_demo_with_its_error(tmp_path):
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    (tmp_path / "hungry.py").write_text(
        "from dataclasses import replace\n"
        "from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS\n"
        "TASK = replace(DIGITS, name='hungry', demo_data='shard:{index}/1')\n"
    )
    result = demo(tmp_path / "demo", "--devices", "2", "--task", "hungry:TASK")
    assert (result.returncode, result.stdout) == (2, "")
    assert "device-01 ended: " in result.stderr and "shard" in result.stderr
    assert "device-01.log" in result.stderr
    assert left_of(tmp_path / "demo") == []


@pytest.mark.system
@pytest.mark.medium
def test_demo_with_a_console_shows_the_run_and_stays_until_ctrl_c(tmp_path):
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")
    out = tmp_path / "demo"
    words = ["demo", "--console", "--devices", "1", "--rounds", "1", "--target-ua", "none", "--out", str(out)]
    command = [sys.executable, "-m", "fedpatch", *words, "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if line.startswith("the console stays"):
                break
        url = lines[0].removeprefix("console: ")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}api/runs/last") as answer:
            shown = json.load(answer)
        process.send_signal(signal.SIGINT)
        summary = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert shown["run"]["id"] == summary["run"] and [one["n"] for one in shown["rounds"]] == [1]
    assert f"report: {(out / 'report.html').as_uri()}" in lines and (out / "report.html").stat().st_size > 10_000
    assert left_of(out) == []


def test_console_of_a_run_is_for_this_machine(tmp_path, monkeypatch, capsys):
    ended = Program(cli.main, monkeypatch, capsys)("run", "--console", "0.0.0.0:0", "--state-dir", tmp_path / "state")
    assert ended.code == 2 and "--tls-cert and --token-file" in ended.err
    assert not (tmp_path / "state").exists()
