"""Findings of `doctor` at brokers in many states, good and bad; it leaves nothing there and disturbs no client."""

from __future__ import annotations

import time

import pytest

from fedpatch.shared.diagnostics.broker_behaviour import SLOW_ROUND_TRIP_MS, _check_profile, check_broker
from fedpatch.shared.diagnostics.broker_rights import AclParty
from fedpatch.shared.diagnostics.checks import Checkup, Finding
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import CoordinatorState, Envelope
from fedpatch.shared.wire.topics import mosquitto_acl
from tests.broker.relay import Relay
from tests.support.brokers import Mosquitto, client
from tests.support.checkups import (
    COORDINATOR,
    DEVICE,
    FLEET,
    PASSWORDS,
    SIDES,
    ask,
    guarded,
    logged_in,
    settings_for,
    verdicts,
)

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("side", SIDES)
def test_all_is_well_with_an_open_broker(mosquitto, side):
    found = ask(settings_for(side, mosquitto.url), side)
    made = ("broker_port", "broker_login", "rights_write", "rights_read", "retained", "session", "chunk", "round_trip")
    made += ("drops",) * (side == "coordinator")
    assert {name: verdict for name, verdict in verdicts(found).items() if verdict != "ok"} == {}
    assert set(found) == set(made)
    assert "came back" in found["chunk"].detail


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("form", ["listed", "pattern"])
def test_nothing_fails_under_the_generated_rules(side, form):
    """If the rules prevent one side from checking a right alone, `doctor` reports it as skipped and does not guess."""
    with guarded(mosquitto_acl(FLEET, devices=[DEVICE] if form == "listed" else None)) as broker:
        found = ask(logged_in(side, broker.url), side)
    assert {"warn", "fail"}.isdisjoint(verdicts(found).values())
    assert found["rights_write"].verdict == "ok"
    skipped = found["rights_read"].detail.split(",")[0]
    assert found["rights_read"].verdict == "skip" and skipped.startswith(
        "only the other side may write fedpatch/1/home/"
    )


def rules_of(side: str, access: str) -> list[str]:
    """Lines of the generated rules that allow `access`."""
    text = mosquitto_acl(FLEET, devices=[DEVICE])
    own = text.split(f"user {DEVICE}\n")[1 if side == "device" else 0]
    return [line for line in own.splitlines() if line.startswith("topic ") and access in line.split()[1]]


@pytest.mark.parametrize(
    ("side", "rule"), [(side, rule) for side in SIDES for rule in rules_of(side, "write")], ids=lambda text: text[-30:]
)
def test_a_missing_rule_for_writing_is_found(side, rule):
    """MQTT 5 reports the refusal: the finding names the user and the topic, and the remedy is the missing line."""
    with guarded(mosquitto_acl(FLEET, devices=[DEVICE]).replace(f"{rule}\n", "")) as broker:
        found = ask(logged_in(side, broker.url), side)["rights_write"]
    assert found.verdict == "fail"
    assert rule.split()[2] in found.detail
    assert f"`{rule}`" in found.remedy and "fedpatch broker acl --fleet home" in found.remedy


@pytest.mark.medium
@pytest.mark.parametrize("rule", ["dev/+/up", "dev/+/blob/+/+"])
def test_a_missing_rule_for_reading_is_found_by_what_does_not_come(rule):
    """The subscription is granted, but no message arrives; `doctor` detects this if the coordinator may also write there."""
    line = f"topic read fedpatch/1/{FLEET}/{rule}"
    with guarded(mosquitto_acl(FLEET).replace(f"{line}\n", "")) as broker:
        found = ask(logged_in("coordinator", broker.url), "coordinator", delivery_s=3.0)["rights_read"]
    assert found.verdict == "fail"
    assert line.split()[2] in found.detail
    assert f"`{line}`" in found.remedy


@pytest.mark.medium
@pytest.mark.parametrize("side", SIDES)
def test_half_a_rule_is_found(side):
    """The same side writes and reads presence: with a rule for writing only, no message arrives either."""
    with guarded(mosquitto_acl(FLEET, devices=[DEVICE]).replace("readwrite", "write")) as broker:
        found = ask(logged_in(side, broker.url), side, delivery_s=3.0)
    assert found["rights_write"].verdict == "ok"
    assert found["rights_read"].verdict == "fail"
    assert "`topic readwrite fedpatch/1/home/" in found["rights_read"].remedy


def test_unverifiable_rule_is_named():
    """By pattern the coordinator can read its own state as a device, which proves nothing about other devices' states."""
    line = f"topic read fedpatch/1/{FLEET}/dev/+/state"
    with guarded(mosquitto_acl(FLEET).replace(f"{line}\n", "")) as broker:
        found = ask(logged_in("coordinator", broker.url), "coordinator")["rights_read"]
    assert found.verdict == "skip" and line.split()[2] in found.detail


def test_user_name_unlike_the_device_id_is_reported():
    with guarded(mosquitto_acl(FLEET)) as broker:
        found = ask(logged_in("device", broker.url), "device", device="pi-7")["rights_write"]
    assert found.verdict == "fail"
    assert "log in as the user 'pi-7'" in found.remedy


def test_a_retained_message_of_the_other_side_proves_what_the_doctor_cannot_try():
    """A device that may not read its own topics still sees that the broker retained the coordinator's presence."""
    with guarded(mosquitto_acl(FLEET, devices=[DEVICE])) as broker:
        login = {"username": COORDINATOR, "password": PASSWORDS[COORDINATOR]}
        with client(broker.url, "there", **login) as there:
            state = encode(Envelope(CoordinatorState(online=True, boot="x")))
            there.link.publish(topics.coordinator_state(FLEET), state, retain=True)
            while not there.link.idle:
                time.sleep(0.01)
            found = ask(logged_in("device", broker.url), "device")
    assert found["retained"].verdict == "ok"
    assert topics.coordinator_state(FLEET) not in found["rights_read"].detail


@pytest.mark.parametrize(
    ("side", "login", "remedy"),
    [
        ("device", {}, "FEDPATCH_AGENT_PASSWORD"),
        ("coordinator", {}, "FEDPATCH_PASSWORD"),
        ("device", {"username": DEVICE, "password": "wrong"}, "mosquitto_passwd"),
    ],
)
def test_a_broker_that_lets_us_not_in(side, login, remedy):
    """Without a user, or with a wrong password: the remedy names the side's variable, or mosquitto_passwd."""
    with guarded(mosquitto_acl(FLEET)) as broker:
        found = ask(settings_for(side, broker.url, **login), side)
    assert verdicts(found) == {"broker_port": "ok", "broker_login": "fail"}
    assert remedy in found["broker_login"].remedy


@pytest.mark.parametrize("side", SIDES)
def test_a_broker_without_retained_messages(side):
    """The broker reports it in MQTT 5; the verdict is a warning, since fedpatch works without retained messages."""
    with Mosquitto("retain_available false") as broker:
        found = ask(settings_for(side, broker.url), side)["retained"]
    assert found.verdict == "warn"
    assert "retain_available true" in found.remedy


@pytest.mark.parametrize(
    ("limit", "verdict", "words"),
    [
        ("max_packet_size 5000", "fail", "max_packet_size"),
        ("max_packet_size 50000", "ok", ""),
        ("message_size_limit 50000", "fail", "--chunk-kib"),
        ("message_size_limit 1500", "fail", "ping -M do -s 1400 127.0.0.1"),
    ],
)
def test_packet_limits(limit, verdict, words):
    """Announced limits make chunks smaller, down to a least size; a limit that is not announced causes a lost chunk."""
    with Mosquitto(limit) as broker:
        found = ask(settings_for("coordinator", broker.url), "coordinator")["chunk"]
    assert found.verdict == verdict, found
    assert words in found.remedy
    assert verdict == "fail" or "instead of 98 kB" in found.detail


@pytest.mark.medium
def test_path_that_loses_full_packets_on_the_way_back_is_named(mosquitto: Mosquitto):
    """The broker acknowledges what it gets: only the echo shows the path, and smaller chunks would not help."""
    with Relay(mosquitto.port, most_back_bytes=1400) as relay:
        found = ask(settings_for("device", relay.url), "device")["chunk"]
    assert found.verdict == "fail"
    assert "path MTU" in found.detail and "ping -M do -s 1400" in found.remedy
    assert "--chunk-kib" not in found.remedy


def test_a_broker_that_waits_before_small_packets():
    """Nagle's algorithm costs 40 ms in every exchange; the remedy is the line for mosquitto's configuration."""
    with Mosquitto() as broker:
        config = broker.directory / "mosquitto.conf"
        config.write_text(config.read_text().replace("set_tcp_nodelay true", "set_tcp_nodelay false"))
        broker.restart()
        found = ask(settings_for("device", broker.url), "device", slow_ms=SLOW_ROUND_TRIP_MS)["round_trip"]
    assert found.verdict == "warn"
    assert "set_tcp_nodelay true" in found.remedy


def test_a_broker_of_the_older_protocol_that_keeps_no_sessions(amqtt):
    """The built-in broker: checks that 3.1.1 does not allow are skipped, and a message that is not kept is a warning."""
    found = ask(settings_for("device", amqtt.url), "device")
    assert "MQTT 3.1.1" in found["broker_login"].detail
    assert found["rights_write"].verdict == "skip"
    assert found["session"].verdict == "warn" and "persistent_client_expiration" in found["session"].remedy
    assert {name for name, verdict in verdicts(found).items() if verdict == "fail"} == set()


def test_nothing_is_left_behind_and_nobody_is_disturbed(mosquitto):
    with client(mosquitto.url, "auditor", "#", "$SYS/broker/clients/total") as auditor:
        auditor.settle()
        for side in SIDES:
            ask(settings_for(side, mosquitto.url), side)
        auditor.settle()
        came = [event for event in auditor.seen if isinstance(event, Received) and event.topic.startswith("fedpatch/")]
    heeded = [event for event in came if topics.parse_topic(FLEET, event.topic) and event.payload]
    assert came and heeded == []
    with client(mosquitto.url, "later", "fedpatch/#") as later:
        later.settle()
        assert [topic for topic in later.topics if topic.startswith("fedpatch/")] == []
    mosquitto.stop()
    assert b"doctor" not in (mosquitto.directory / "mosquitto.db").read_bytes()


@pytest.mark.medium
def test_a_broker_that_freezes_meanwhile(mosquitto):
    def freeze(finding: Finding) -> None:
        if finding.name == "broker_login":
            mosquitto.freeze()

    checkup = Checkup(show=freeze, say=lambda text: None)
    side = AclParty("device", FLEET, DEVICE, "one", None)
    assert check_broker(settings_for("device", mosquitto.url), side, 100_000, checkup) is None
    mosquitto.thaw()
    found = {one.name: one for one in checkup.findings}
    assert found["broker"].verdict == "fail"
    assert "does not answer" in found["broker"].detail and "log" in found["broker"].remedy


def test_a_client_id_that_the_broker_does_not_take():
    with Mosquitto("clientid_prefixes sensor-") as broker:
        found = ask(settings_for("device", broker.url), "device")["broker_login"]
    assert found.verdict == "fail"
    assert f"fedpatch.{FLEET}.device.{DEVICE}" in found.remedy


def test_hosted_broker_is_checked_against_its_profile(mosquitto):
    """The finding states the profile's limits; a missing profile, or a URL without TLS, is a warning with its remedy."""
    found = ask(settings_for("device", mosquitto.url, broker_profile="azure"), "device")
    assert found["broker_profile"].verdict == "warn"
    assert "TLS only" in found["broker_profile"].detail
    assert "chunks will be that small instead of" in found["chunk"].detail


@pytest.mark.parametrize(
    ("profile", "verdict", "words"),
    [("none", "warn", "broker_profile = aws"), ("aws", "ok", ""), ("azure", "warn", "aws")],
)
def test_broker_of_amazon_without_its_profile_is_named(profile: str, verdict: str, words: str):
    settings = settings_for("device", "mqtts://x-ats.iot.eu-west-1.amazonaws.com:8883", broker_profile=profile)
    checkup = Checkup(show=lambda finding: None, say=lambda text: None)
    _check_profile(settings, parse_broker_url(settings.broker), checkup)
    (finding,) = checkup.findings
    assert finding.verdict == verdict
    assert words in finding.remedy
