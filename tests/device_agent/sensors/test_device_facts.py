"""The records of facts."""

from __future__ import annotations

from dataclasses import fields

from fedpatch.device_agent.sensors.device_facts import FACTS, Facts
from tests.device_agent.owners import facts


def test_each_fact_has_a_record():
    assert list(FACTS) == [one.name for one in fields(Facts)]


def test_metrics_are_in_their_own_unit_and_none_where_the_fact_is_unknown():
    found = facts(battery_percent=50.0, free_disk_mib=2.0, free_memory_mib=None, external_power=False)
    values = {metric.name: value for metric, value in found.metrics()}
    assert (values["battery_ratio"], values["free_disk_bytes"]) == (0.5, 2 * 2**20)
    assert (values["free_memory_bytes"], values["external_power"]) == (None, 0.0)
