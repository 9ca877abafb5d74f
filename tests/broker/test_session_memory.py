"""The memory of mosquitto with many sessions over TLS.

python -m pytest -m slow tests/broker/test_session_memory.py      (prints the memory)
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks import raw
from tests.support.brokers import HOST, PATIENCE_S
from tests.support.identities import Certified
from tests.support.secured import SecuredMosquitto, rules

SESSIONS = 1300
_MOST_KIB_EACH = 64.0


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(600)
def test_1300_sessions_with_tls_take_less_than_64_kib_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, most), most))
    fleet = Certified(tmp_path / "ca").make("pi-1")
    options = f"max_connections {SESSIONS}"
    with SecuredMosquitto(fleet, rules("kitchen", ["pi-1"]), options=options) as broker, ExitStack() as stack:
        assert broker._process is not None
        before_kib = resident_kib(broker._process.pid)
        context = ssl.create_default_context(cafile=fleet.ca_file)
        context.load_cert_chain(*fleet.pair("coordinator"))
        for number in range(SESSIONS):
            plain = socket.create_connection((HOST, broker.coordinator_port), PATIENCE_S)
            secured = stack.enter_context(context.wrap_socket(plain, server_hostname=HOST))
            secured.sendall(raw.hello(b"device-%d" % number))
            assert secured.recv(1)
        after_kib = resident_kib(broker._process.pid)
    each_kib = (after_kib - before_kib) / SESSIONS
    with capsys.disabled():
        sys.stdout.write(f"{SESSIONS} sessions: {after_kib / 1024:.1f} MiB resident, {each_kib:.1f} KiB each\n")
    assert each_kib < _MOST_KIB_EACH
