"""The size of chunks is found before a run begins, also if the broker does not announce its limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.chunk_size import find_chunk_bytes
from fedpatch.coordinator.runtime.run_preparation import _check_retained
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.wire.chunk_sizes import DEFAULT_CHUNK_KIB, MIN_CHUNK_BYTES
from tests.broker.relay import Relay
from tests.support.brokers import Mosquitto

pytestmark = pytest.mark.broker

LIMIT_BYTES = 30_000
CONFIGURED_BYTES = DEFAULT_CHUNK_KIB * 1024


def found(url: str) -> int:
    """Return the data bytes per chunk for the default `chunk_kib`."""
    return find_chunk_bytes(RunSettings(broker=url, fleet="home", state_dir=Path("nowhere")), boot="b007")


@pytest.mark.medium
@pytest.mark.parametrize("old", [False, True], ids=["mqtt-5", "mqtt-3.1.1"])
@pytest.mark.parametrize("option", ["message_size_limit", "max_packet_size"])
def test_limit_below_chunk_kib_gives_chunks_that_pass(option: str, old: bool, caplog: pytest.LogCaptureFixture):
    """Chunks use at least half of the limit, and a warning names the size unless the broker announced the limit."""
    with Mosquitto(f"{option} {LIMIT_BYTES}") as broker, Relay(broker.port, old=old) as relay:
        assert LIMIT_BYTES // 2 - MIN_CHUNK_BYTES < found(relay.url) < LIMIT_BYTES
    stated = option == "max_packet_size" and not old
    assert stated or "raise its limit (mosquitto: message_size_limit)" in caplog.text


@pytest.mark.parametrize("old", [False, True], ids=["mqtt-5", "mqtt-3.1.1"])
def test_no_limit_gives_chunk_kib(old: bool):
    with Mosquitto() as broker, Relay(broker.port, old=old) as relay:
        assert found(relay.url) == CONFIGURED_BYTES


@pytest.mark.parametrize("option", ["message_size_limit", "max_packet_size"])
def test_limit_below_the_smallest_chunk_names_the_broker_setting(option: str):
    with Mosquitto(f"{option} 5000") as broker, pytest.raises(BrokerError, match=option):
        found(broker.url)


def test_broker_without_read_rights_is_tried_by_its_answer_alone():
    """With the generated rules the coordinator cannot read chunks; an MQTT 5 broker still answers whether it accepts them."""
    rules = "user coordinator\ntopic write fedpatch/1/home/#\n"
    with Mosquitto(f"message_size_limit {LIMIT_BYTES}", passwords={"coordinator": "secret"}, acl=rules) as broker:
        settings = RunSettings(
            broker=broker.url, fleet="home", state_dir=Path("nowhere"), username="coordinator", password="secret"
        )
        assert find_chunk_bytes(settings, boot="b007") < LIMIT_BYTES


def test_broker_that_refuses_the_topic_is_named_as_the_cause_and_not_its_size_limit():
    """Access rules that forbid the topic of chunks give no result about the size."""
    rules = "user coordinator\ntopic write elsewhere/#\n"
    with Mosquitto(passwords={"coordinator": "secret"}, acl=rules) as broker:
        settings = RunSettings(
            broker=broker.url, fleet="home", state_dir=Path("nowhere"), username="coordinator", password="secret"
        )
        with pytest.raises(BrokerError, match="the right to write there"):
            find_chunk_bytes(settings, boot="b007")


@pytest.mark.medium
def test_slow_link_keeps_the_configured_size():
    """At 24 kB/s a chunk takes eleven seconds; a missing answer before that is not taken as a refusal."""
    with Mosquitto() as broker, Relay(broker.port, bytes_per_s=24_000) as relay:
        assert found(relay.url) == CONFIGURED_BYTES


@pytest.mark.parametrize(("profile", "below"), [("aws", 128_000), ("azure", 64_000)])
def test_profile_cuts_chunks_to_the_size_that_a_hosted_broker_retains(profile: str, below: int):
    with Mosquitto() as broker:
        settings = RunSettings(broker=broker.url, fleet="home", state_dir=Path("nowhere"), broker_profile=profile)
        assert below // 2 < find_chunk_bytes(settings, boot="b007") < below


def test_model_of_more_chunks_than_the_hosted_broker_retains_is_refused():
    settings = RunSettings(broker_profile="azure", chunk_kib=8, fleet="home")
    _check_retained(settings, 10_000 * 8 * 1024)
    with pytest.raises(UsageError, match="Azure Event Grid retains 10000"):
        _check_retained(settings, 10_000 * 8 * 1024 + 1)
