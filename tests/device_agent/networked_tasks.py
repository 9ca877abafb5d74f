"""Tasks whose code opens connections, at the place and of the kind that the data spec names: `PLACE,KIND`."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from fedpatch.shared.tasks.task import DeviceData
from tests.device_agent.toy_tasks import TOY, accuracy, random_data


def _in_a_thread() -> None:
    errors: list[OSError] = []

    def work() -> None:
        try:
            socket.socket()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def _by_libc() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.socket(int(socket.AF_INET), int(socket.SOCK_STREAM), 0) < 0:
        raise OSError(ctypes.get_errno(), "socket() of the C library")


def _by_program() -> None:
    program = "import socket; socket.socket()"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.splitlines()[-1])


def _by_inherited() -> None:
    os.fstat(int(os.environ["TOY_INHERITED"]))


KINDS: dict[str, Callable[[], object]] = {
    "tcp": lambda: socket.create_connection(("127.0.0.1", 9)),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "name": lambda: socket.getaddrinfo("localhost", 80),
    "datagram pair": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "thread": _in_a_thread,
    "libc": _by_libc,
    "program": _by_program,
    "inherited": _by_inherited,
}

_opened: list[object] = []
_chosen = {"place": "", "kind": ""}


def _open_at(place: str) -> None:
    if _chosen["place"] == place:
        _opened.append(KINDS[_chosen["kind"]]())


def load_data(spec: str, _root: Path) -> DeviceData:
    """Toy data; the place of the connection is `load_data`, `loss` or `metric`."""
    _chosen["place"], _, _chosen["kind"] = spec.partition(",")
    _open_at("load_data")
    return random_data("ann", 23)


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.requires_grad:  # not at the trial of the setup
        _open_at("loss")
    return F.cross_entropy(outputs, targets)


def _metric(outputs: Tensor, targets: Tensor) -> float:
    _open_at("metric")
    return accuracy(outputs, targets)


if os.environ.get("TOY_OPENS_AT_IMPORT"):
    KINDS["tcp"]()

NETWORKED = replace(TOY, load_data=load_data, loss=_loss, metric=_metric)
