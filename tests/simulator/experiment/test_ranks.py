"""Ranks of torchrun give the bits of one process, end together, and resume from a saved round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.testbed.hosts import Hosts, why_not
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.spec.compute import rank_count, rank_number, worker_count
from tests.support.listing import children
from tests.support.paths import ROOT
from tests.system.commands import wait_for

STUDY = ("--task", "digits", "--clients", "18", "--participation", "0.9", "--rounds", "3", "--strategy", "fedavg-adam")


def ranks_command(count: int, *options: str) -> list[str]:
    """Command of `fedpatch simulate` with `count` ranks on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, "-m", "fedpatch", "simulate", *options]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command; return the finished process."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def curve_of(printed: str) -> list[dict[str, Any]]:
    """Points of a printed outcome, without their seconds."""
    points: list[dict[str, Any]] = json.loads(printed)["points"]
    return [{name: value for name, value in point.items() if name != "seconds"} for point in points]


@pytest.mark.medium
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("--encoding", "delta-int8"), id="private affine, encoded"),
        pytest.param(("--norm-bound", "auto:0.8", "--private", "none"), id="updates in files", marks=pytest.mark.slow),
    ],
)
def test_simulation_over_three_ranks_has_the_bits_of_one_process(fedpatch, more):
    ranked = run(ranks_command(3, *STUDY, *more, "--json"))
    alone = fedpatch("simulate", *STUDY, *more, "--workers", "1", "--json")
    assert (ranked.returncode, alone.code) == (0, 0), ranked.stderr
    assert curve_of(ranked.stdout) == curve_of(alone.out)


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_simulation_over_four_hosts_has_the_bits_of_one_process(fedpatch, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    names = [f"rank-{number}" for number in range(4)]
    with Hosts(names, rate_bit_s=1e9) as hosts, ExitStack() as stack:
        started = []
        for name in names:
            mine = f"--local-addr={hosts.address(name)}"
            # All hosts have the hostname of this machine, so torchrun cannot determine which host is the first.
            first = f"--rdzv-endpoint={hosts.address(names[0])}:29500", f"--rdzv-conf=is_host={int(name == names[0])}"
            group = ("--nnodes=4", "--nproc-per-node=1", "--rdzv-backend=c10d", *first, mine)
            command = [sys.executable, "-m", "torch.distributed.run", *group, "-m", "fedpatch", "simulate"]
            with hosts.inside(name):
                process = subprocess.Popen(
                    [*command, *STUDY, "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            started.append(stack.enter_context(process))
        printed = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * len(names), printed
    alone = fedpatch("simulate", *STUDY, "--workers", "1", "--json")
    assert [curve_of(out) for out, _ in printed if out] == [curve_of(alone.out)]


@pytest.mark.slow
def test_lost_rank_ends_the_others_with_a_hint_and_the_command_continues_after_the_saved_round(tmp_path):
    endless = [*STUDY[:6], "--rounds", "100000", "--out", str(tmp_path / "out")]
    state = tmp_path / "out" / ".unfinished" / "state.npz"
    with subprocess.Popen(ranks_command(2, *endless), cwd=ROOT, stderr=subprocess.PIPE, text=True) as first:
        wait_for(lambda: first.poll() is None, state.exists, lambda: "no state was saved", 120)
        os.kill(children(first.pid)[-1], signal.SIGKILL)
        printed = first.communicate(timeout=120)[1]
    assert first.returncode == 1
    assert printed.count("another rank of the simulation is lost") == 1
    assert "--out" in printed
    with subprocess.Popen(ranks_command(2, *endless), cwd=ROOT, stderr=subprocess.PIPE, text=True) as second:
        assert second.stderr is not None
        line = next(one for one in second.stderr if "goes on after round" in one)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=120)
    assert int(line.split()[-1]) >= 1


@pytest.mark.slow
def test_training_that_diverges_in_ranks_ends_with_the_message_of_one_process():
    done = run(ranks_command(2, *STUDY, "--learning-rate", "1e30", "--strategy", "fedavg"))
    assert done.returncode == 1
    assert "smaller learning rate" in done.stderr


def test_subcommand_in_ranks_is_refused(fedpatch, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "not in ranks of torchrun" in fedpatch("simulate", "compare").err


def test_rank_without_workers_option_has_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert (rank_count(), rank_number(), worker_count(None), worker_count(1)) == (4, 3, 1, 1)


def test_rank_with_several_workers_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="--nproc-per-node"):
        worker_count(2)


def test_world_size_that_is_no_number_is_refused_with_the_name_of_the_variable(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(UsageError, match="WORLD_SIZE"):
        rank_count()
