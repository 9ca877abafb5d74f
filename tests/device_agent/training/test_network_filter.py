"""The training process has no network: the filter by its instructions, and real processes whose tasks open connections."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.job.training_messages import Ready, SetupFailed, TrainFailed, WorkerSetup
from fedpatch.device_agent.runtime.training_launch import TrainingProcess
from fedpatch.device_agent.training import training_process
from fedpatch.device_agent.training.network_filter import ARCHITECTURES, REFUSED, architecture_name, program
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.downloads import DataFile, fetch
from tests.device_agent.device_rounds import ADAM, Scene
from tests.device_agent.networked_tasks import KINDS, NETWORKED
from tests.device_agent.watched_training_process import Watched

ALLOWED, REFUSES = 0x7FFF0000, 0x00050000 | errno.EACCES
TASK = "tests.device_agent.networked_tasks:NETWORKED"
REPOSITORY = Path(__file__).parents[3]


def verdict(name: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The value that the filter of an architecture returns for a system call, by the rules of classic BPF."""
    code = program(ARCHITECTURES[name])
    words = [*arguments, *[0] * 6][:6]
    data = struct.pack("<II8x6Q", number & 0xFFFFFFFF, ARCHITECTURES[name].audit if audit is None else audit, *words)
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x06:
                return int(value)


each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@each_architecture
@given(st.integers(0, 0xFFFFFFFF) | st.integers(0, 600))
def test_filter_refuses_exactly_the_calls_of_its_table_and_the_numbers_beyond(name, number):
    one = ARCHITECTURES[name]
    refuses = number in one.refused.values() or number == one.socketpair or number >= 0x40000000
    assert verdict(name, number) == (REFUSES if refuses else ALLOWED)


@each_architecture
@pytest.mark.parametrize("flags", [0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK])
def test_filter_allows_connected_pairs_only(name, flags):
    allowed = {(family, kind) for family in range(50) for kind in range(16)} & {
        (socket.AF_UNIX, 1),
        (socket.AF_UNIX, 5),
    }
    number = ARCHITECTURES[name].socketpair
    for family in range(50):
        for kind in range(16):
            wanted = ALLOWED if (family, kind) in allowed else REFUSES
            assert verdict(name, number, family, kind | flags) == wanted, (family, kind)


@each_architecture
def test_filter_refuses_every_call_of_another_architecture(name):
    for other in {one.audit for one in ARCHITECTURES.values()} - {ARCHITECTURES[name].audit} | {0x40000003}:
        assert verdict(name, 0, audit=other) == REFUSES


@each_architecture
def test_table_has_the_numbers_of_libseccomp(name):
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    one = ARCHITECTURES[name]
    for call, number in {**one.refused, "socketpair": one.socketpair, "seccomp": one.seccomp}.items():
        known = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(one.audit), call.encode())
        assert known == number, call


@pytest.mark.parametrize(
    ("machine", "pointer_bytes", "name"),
    [
        ("x86_64", 8, "x86_64"),
        ("x86_64", 4, ""),
        ("aarch64", 8, "aarch64"),
        ("aarch64", 4, "arm"),
        ("armv7l", 4, "arm"),
        ("armv6l", 4, "arm"),
        ("riscv64", 8, ""),
    ],
)
def test_architecture_is_that_of_the_python_and_not_of_the_kernel(machine, pointer_bytes, name):
    assert architecture_name(machine, pointer_bytes) == name


_PROBE = """
import asyncio, ctypes, json, multiprocessing, pwd, sqlite3, sys, threading
from fedpatch.device_agent.training.network_filter import close_network
from tests.device_agent.networked_tasks import KINDS

libc = ctypes.CDLL(None, use_errno=True)
may_go = threading.Event()
found = {}

def called(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return 0 if done >= 0 else ctypes.get_errno()

def work():  # a thread from before the filter
    may_go.wait()
    for kind, opens in KINDS.items():
        try:
            opens()
            found[kind] = ""
        except OSError as error:
            found[kind] = str(error)
    from fedpatch.device_agent.training.network_filter import ARCHITECTURES, architecture_name
    import platform, struct
    one = ARCHITECTURES[architecture_name(platform.machine(), struct.calcsize("P"))]
    found["calls"] = {name: called(number, 0, 0, 0, 0, 0, 0) for name, number in one.refused.items()}
    found["x32"] = called(0x40000000 | one.refused["socket"], 2, 1, 0)

thread = threading.Thread(target=work)
thread.start()
problem = close_network()
may_go.set()
thread.join()
found["problem"] = problem
asyncio.run(asyncio.sleep(0))
sqlite3.connect(":memory:").execute("select 1")
pwd.getpwuid(0)
with multiprocessing.get_context("fork").Pool(1) as pool:
    found["pool"] = pool.map(abs, [-1])
print(json.dumps(found))
"""


@pytest.mark.medium
def test_no_thread_program_or_library_of_a_filtered_process_opens_a_connection(installed):
    environment = {**os.environ, "TOY_INHERITED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env=environment,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problem"] == ""
    assert set(found["calls"].values()) == {errno.EACCES} and found["x32"] == errno.EACCES
    refused = {kind: found[kind] for kind in KINDS if kind != "inherited"}
    assert all("Errno 13" in words for words in refused.values()), refused
    in_words = {kind for kind, words in refused.items() if REFUSED in words}
    assert in_words == {"tcp", "udp", "unix", "netlink", "name", "thread"}  # the others are refused by the kernel alone
    assert found["pool"] == [1]


def _with_inherited(sock: socket.socket):
    def launch() -> TrainingProcess:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedpatch.device_agent.training.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[sock.fileno()],
        )
        return cast(TrainingProcess, process)

    return launch


@pytest.fixture
def start(installed, tmp_path):
    """Start a training process of a task that opens connections; return its Watched."""
    started: list[Watched] = []

    def begin(data: str, **launch) -> Watched:
        started.append(watched := Watched(tmp_path, TASK, data, **launch))
        watched.trainer.start()
        return watched

    yield begin
    for watched in started:
        watched.trainer.stop()


@pytest.mark.medium
def test_connection_in_load_data_fails_the_setup_with_the_rule_and_the_remedy(start):
    failed = start("load_data,tcp").next()
    assert isinstance(failed, SetupFailed), failed
    assert REFUSED in failed.detail


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tcp", "inherited")])
def test_every_kind_of_connection_fails_the_setup(start, kind):
    failed = start(f"load_data,{kind}").next()
    assert isinstance(failed, SetupFailed), failed
    assert "Errno 13" in failed.detail


@pytest.mark.slow
def test_connection_at_the_import_of_a_task_fails_the_setup(start, monkeypatch):
    monkeypatch.setenv("TOY_OPENS_AT_IMPORT", "1")
    failed = start("load_data,none").next()
    assert isinstance(failed, SetupFailed), failed
    assert REFUSED in failed.detail


@pytest.mark.slow
@pytest.mark.parametrize("place", ["loss", "metric"])
def test_connection_in_the_middle_of_a_round_fails_the_setup_or_the_round(start, tmp_path, place):
    watched = start(f"{place},unix")
    answer = watched.next()
    if isinstance(answer, Ready):
        watched.trainer.train(Scene(tmp_path, NETWORKED, ADAM, "none").command())
        answer = watched.outcome()
    assert isinstance(answer, SetupFailed | TrainFailed), answer
    assert REFUSED in answer.detail


@pytest.mark.slow
def test_descriptors_of_the_parent_are_closed_before_the_task_is_imported(start, monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("TOY_INHERITED", str(theirs.fileno()))
    failed = start("load_data,inherited", launch=_with_inherited(theirs)).next()
    assert isinstance(failed, SetupFailed), failed
    assert "Bad file descriptor" in failed.detail
    theirs.close()
    assert ours.recv(1) == b""  # no other process holds the other end
    ours.close()


def setup(directory: Path, **more: object) -> WorkerSetup:
    return replace(WorkerSetup("digits", "shard:0/10", str(directory), str(directory / "p"), "ann"), **more)  # type: ignore[arg-type]


def test_owner_who_requires_masks_trains_on_no_kernel_that_leaves_the_network_open(tmp_path, monkeypatch):
    monkeypatch.setattr(
        training_process, "close_network", lambda: "the kernel refuses a seccomp filter (Invalid argument)"
    )
    assert training_process._close_network(setup(tmp_path)) == "the kernel refuses a seccomp filter (Invalid argument)"
    with pytest.raises(UsageError, match=r'secure = "required".*Invalid argument.*CONFIG_SECCOMP_FILTER.*allowed'):
        training_process._close_network(setup(tmp_path, require_filter=True))


def test_files_of_a_bundled_task_are_fetched_before_the_network_is_closed(tmp_path, monkeypatch):
    order: list[str] = []

    def close() -> str:
        order.append("closed")
        return ""

    monkeypatch.setattr(training_process, "close_network", close)
    monkeypatch.setattr("fedpatch.shared.tasks.downloads.fetch", lambda file, _root: order.append(file.name))
    training_process._close_network(setup(tmp_path, task_ref="mnist", data="shard:0/10"))
    assert len(order) == 5 and order[-1] == "closed"
    order.clear()
    training_process._close_network(setup(tmp_path, task_ref="mnist", data="files:own"))
    training_process._close_network(setup(tmp_path, task_ref=TASK, data="any"))
    assert order == ["closed", "closed"]


def test_download_of_an_own_task_without_network_names_the_command_that_downloads(tmp_path, monkeypatch):
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(errno.EACCES, REFUSED)

    monkeypatch.setattr("fedpatch.shared.tasks.downloads.socket.socket", refuse)
    with pytest.raises(DataError, match=r"no network.*check-task.*bring it here by other means"):
        fetch(DataFile("toys", "blocks.bin", "00", ("http://127.0.0.1:9/blocks.bin",)), tmp_path)


@pytest.mark.medium
def test_memory_of_the_agent_is_hidden_from_other_processes_of_its_user():
    code = (
        "import ctypes; from fedpatch.device_agent.runtime.own_memory import hide_memory; hide_memory(); "
        "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
