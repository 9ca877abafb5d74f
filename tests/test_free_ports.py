"""Ports for tests: none is given to two that are played at the same time."""

from __future__ import annotations

import socket

from tests.support.brokers import HOST, free_port, own_ports


def test_processes_that_play_tests_beside_each_other_share_no_port():
    """However many there are, each has hundreds; a worker that takes the place of one that died has those of another."""
    for workers in (1, 2, 4, 16):
        parts = [own_ports(f"gw{number}", workers) for number in range(workers)]
        assert len(set().union(*parts)) == sum(map(len, parts)) == 22_000
        assert set(own_ports(f"gw{workers}", workers)) == set(parts[0]) == set(own_ports("", workers))


def test_no_port_is_given_twice_though_nobody_listens_there_yet():
    """Nor one on which somebody listens."""
    ports = [free_port() for _ in range(300)]
    assert len(set(ports)) == 300
    for port in ports[:3]:
        with socket.socket() as probe:
            probe.bind((HOST, port))
