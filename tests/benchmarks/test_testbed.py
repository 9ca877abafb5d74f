"""benchmarks.testbed.run at toy size: real agents on hosts of their own, a table beside the paper's, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.testbed import run
from benchmarks.testbed.cells import PAPER, Cell, cells_of, cpus_of, device_names, find_cells
from benchmarks.testbed.hosts import ROOT, Hosts, take_down, why_not
from benchmarks.testbed.table import PARTS, markdown, records_in, shares
from fedpatch.shared.app.command import run_app
from fedpatch.shared.errors import UsageError
from tests.support.programs import Program

PATIENCE_S = 150.0
ROUND = {"round_s": 10.0, "down_s": 1.0, "client_s": 7.5, "up_s": 1.0, "server_s": 0.5}
ROUND |= {"user_accuracy": 0.5, "bytes_down": 2_000_000, "bytes_up": 1_000_000}


@pytest.fixture
def lab() -> None:
    """Skip the test if this machine allows no hosts."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.mark.lab
@pytest.mark.system
@pytest.mark.timeout(900)
def test_cells_are_played_once_and_kept(lab, monkeypatch, capsys, tmp_path):
    """Ten agents over shaped links, with whole values and with differences, and ten devices that learn alone; two seeds."""
    program = Program(lambda: run_app(run.app, "testbed"), monkeypatch, capsys)
    cells, out = "digits-fl,digits-independent", tmp_path / "testbed.jsonl"
    ended = program("--toy", "--seeds", "2", "--cells", cells, "--out", out, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert sorted(found) == ["digits-fl-off", "digits-fl-on", "digits-independent"]
    for name, documents in found.items():
        assert [records_in(out).get((name, seed)) for seed in (0, 1)] == documents
        for seed, document in enumerate(documents):
            assert document["seed"] == seed
            assert document["data"].endswith(f"seed={seed}")
            assert len(document["rounds"]) == 2
            assert sum(shares(document).values()) == pytest.approx(100.0)
            assert document["machine"]["cpu"] and document["machine"]["commit"]
    for name in ("digits-fl-off", "digits-fl-on"):
        rounds = [one for document in found[name] for one in document["rounds"]]
        assert all(one["reported"] == 10 and one["outcome"] == "aggregated" for one in rounds)
        first, second = (document["rounds"][-1]["user_accuracy"] for document in found[name])
        assert first != second  # other data, and another initial model
    off, on = (found[f"digits-fl-{one}"][0]["rounds"][-1]["bytes_up"] for one in ("off", "on"))
    assert on < off / 2  # no less: the model has few values, and the report adds bytes
    assert _left_behind() == []
    again = program("--toy", "--seeds", "2", "--cells", cells, "--out", out, "--markdown")
    assert again.code == 0, again.err
    assert "..." not in again.err
    assert "| FL(FedAvg) | fp32+zstd |" in again.out


@pytest.mark.lab
@pytest.mark.timeout(300)
def test_hosts_exchange_packets_and_share_a_processor(lab):
    """A process runs on its host, in a namespace without a route to others and with a quota; afterwards it has ended."""
    with Hosts(["server", "pi"], rate_bit_s=1e6) as hosts:
        with hosts.inside("pi"):
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            pinged = subprocess.run(
                [sys.executable, "-c", "import socket; socket.create_connection(('10.98.0.1', 9))"],
                capture_output=True,
                text=True,
                check=False,
            )
            shown = subprocess.run(["ip", "-br", "addr"], capture_output=True, text=True, check=True).stdout
        assert "ConnectionRefusedError" in pinged.stderr
        assert "10.98.0.2" in shown
        hosts.put("pi", sleeper.pid)
        hosts.limit("pi", 0.1)
        hosts.limit("pi", None)
        assert f"fedpatch-bed-{os.getpid()}-pi" in Path(f"/proc/{sleeper.pid}/cgroup").read_text()
    assert sleeper.wait(PATIENCE_S) == -9
    assert _left_behind() == []


@pytest.mark.lab
@pytest.mark.timeout(300)
def test_a_testbed_that_is_killed_leaves_nothing_behind(lab):
    """A process that notices the end of the testbed removes its hosts and their processes."""
    text = (
        "import time, subprocess, sys\n"
        "from benchmarks.testbed.hosts import Hosts\n"
        "with Hosts(['server', 'pi'], rate_bit_s=1e6) as hosts:\n"
        "    with hosts.inside('pi'):\n"
        "        child = subprocess.Popen(['sleep', '1000'])\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with process.stdout as stdout:
            child = int(stdout.readline())
        assert _left_behind(process.pid)
        process.kill()
        process.wait()
        give_up_at = time.monotonic() + PATIENCE_S
        while _left_behind(process.pid) or Path(f"/proc/{child}/cmdline").exists():
            assert time.monotonic() < give_up_at, _left_behind(process.pid)
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
        take_down(f"fedpatch-bed-{process.pid}")


def test_names_choose_cells():
    """A cell is chosen by its whole name, several by a common prefix; the error of an unknown name lists the known names."""
    datasets = ("mnist", "cifar10")
    assert len(cells_of(datasets)) == 10
    assert [cell.name for cell in find_cells("mnist-fl", datasets)] == ["mnist-fl-off", "mnist-fl-on"]
    assert find_cells("", datasets) == cells_of(datasets)
    assert [cell.name for cell in find_cells("cifar10-independent", datasets)] == ["cifar10-independent"]
    with pytest.raises(UsageError, match=r"no cell is called 'mnist-f'; there are mnist-fl-off"):
        find_cells("mnist-f", datasets)


def test_devices_are_five_of_each_kind():
    """The older generation is slower."""
    names = device_names()
    assert len(names) == len(set(names)) == 10
    assert [cpus_of(name) for name in names] == [cpus_of("pi-2b-1")] * 5 + [cpus_of("pi-3b-1")] * 5
    assert cpus_of("pi-2b-1") < cpus_of("pi-3b-1")


def test_the_paper_s_rows_add_up():
    """The shares of Table 4 add up to 100, apart from rounding."""
    assert all(99 <= row.down + row.client + row.up + row.server <= 101 for row in PAPER.values())


def test_the_table_stands_beside_the_paper_s():
    """The table has seconds, shares, bytes, the paper's row, and user accuracy by round."""
    found = {Cell("mnist", "mtfl", "off"): [{"rounds": [ROUND, ROUND]}]}
    lines = list(markdown(found))
    row = next(line for line in lines if line.startswith("| MTFL"))
    assert "| 10.00 | 10.0 | 75.0 | 10.0 | 5.0 | 3.0 | 38 | 11 / 76 / 12 / 1 |" in row
    assert "| MTFL(FedAvg-Adam), fp32+zstd | 0.500 | 0.500 |" in lines
    assert len(PARTS) == len(shares(found[Cell("mnist", "mtfl", "off")][0]))


def test_the_table_of_several_seeds_has_means_and_ranges():
    """A figure is the mean of the seeds' figures, with the least and the largest in brackets."""
    slower = ROUND | {"round_s": 20.0, "client_s": 17.5, "user_accuracy": 0.75}
    found = {Cell("mnist", "mtfl", "off"): [{"rounds": [ROUND, ROUND]}, {"rounds": [slower, slower]}]}
    lines = list(markdown(found))
    row = next(line for line in lines if line.startswith("| MTFL"))
    assert "| 15.00 (10.00-20.00) | 7.5 (5.0-10.0) | 81.2 (75.0-87.5) |" in row
    assert "| MTFL(FedAvg-Adam), fp32+zstd | 0.625 | 0.625 |" in lines


def _left_behind(pid: int | None = None) -> list[str]:
    prefix = f"fedpatch-bed-{pid or os.getpid()}-"
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    groups = [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names]  # groups may vanish meanwhile
    return [name for name in [*listed.split(), *groups] if name.startswith(prefix)]
