"""Helpers for tests of `doctor`: one side's checks of a broker, and a broker with passwords and rules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.diagnostics import broker_behaviour, broker_rights, probe
from fedpatch.shared.diagnostics.broker_behaviour import check_broker
from fedpatch.shared.diagnostics.broker_rights import AclParty
from fedpatch.shared.diagnostics.checks import Checkup, Finding
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from tests.support.brokers import Mosquitto

FLEET, DEVICE, COORDINATOR = "home", "pi-1", "coordinator"
CHUNK_BYTES = 96 * 1024
PASSWORDS = {DEVICE: "device-word", COORDINATOR: "coordinator-word"}
SIDES = ("coordinator", "device")


def quiet_checkup() -> Checkup:
    return Checkup(show=lambda finding: None, say=lambda text: None)


PATIENCE_S = 60.0


@contextlib.contextmanager
def patient_doctors(
    *, slow_ms: float = 1e3 * PATIENCE_S, delivery_s: float = PATIENCE_S, connect_s: float = PATIENCE_S
) -> Iterator[None]:
    """Raise the time limits of `doctor`, so that a machine that is busy with other tests, or stalls, does not count as slow.

    A round trip of `slow_ms` is slow; messages are awaited for `delivery_s`, connections for `connect_s`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_behaviour, "SLOW_ROUND_TRIP_MS", slow_ms)
        patch.setattr(broker_rights, "_DELIVERY_S", delivery_s)
        patch.setattr(probe, "ANSWER_TIMEOUT_S", PATIENCE_S)
        patch.setattr(probe, "CONNECT_TIMEOUT_S", connect_s)
        yield


def ask(settings: BrokerSettings, side: str, device: str = DEVICE, **patience: float) -> dict[str, Finding]:
    """Return the findings of one side's checks of a broker, by name; `patience` has arguments of `patient_doctors`."""
    checkup = quiet_checkup()
    user = settings.username
    party = (
        AclParty("coordinator", FLEET, "", f"fedpatch.{FLEET}.coordinator", user)
        if side == "coordinator"
        else AclParty("device", FLEET, device, f"fedpatch.{FLEET}.device.{device}", user)
    )
    with patient_doctors(**patience):
        check_broker(settings, party, CHUNK_BYTES, checkup)
    return {one.name: one for one in checkup.findings}


def settings_for(side: str, url: str, **more: Any) -> BrokerSettings:
    """Settings of one side for a broker, without a user."""
    base = RunSettings(broker=url) if side == "coordinator" else AgentSettings(broker=url, data="shard:0/10")
    return replace(base, **more)


def logged_in(side: str, url: str) -> BrokerSettings:
    """Settings of one side, with the user of the generated rules."""
    user = COORDINATOR if side == "coordinator" else DEVICE
    return settings_for(side, url, username=user, password=PASSWORDS[user])


def verdicts(found: dict[str, Finding]) -> dict[str, str]:
    return {name: one.verdict for name, one in found.items()}


@contextlib.contextmanager
def guarded(acl: str, options: str = "") -> Iterator[Mosquitto]:
    """A mosquitto with passwords and these rules."""
    with Mosquitto(options, acl=acl, passwords=PASSWORDS) as broker:
        yield broker
