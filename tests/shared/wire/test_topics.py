"""The topic table: built topics are read back, foreign topics are refused, the access rules follow the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.messages import MAX_CHUNKS
from fedpatch.shared.wire.topics import BY_KIND, TOPICS, ParsedTopic, parse_topic

NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
DIGESTS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
INDEXES = st.integers(0, MAX_CHUNKS - 1)
DIGEST = "0123456789abcdef" * 4


@given(fleet=NAMES, device=NAMES, digest=DIGESTS, index=INDEXES)
def test_parse_of_any_built_topic_returns_its_parts(fleet, device, digest, index):
    built = {
        topics.coordinator_state(fleet): ParsedTopic("coordinator_state"),
        topics.run_status(fleet): ParsedTopic("run_status"),
        topics.device_state(fleet, device): ParsedTopic("device_state", device),
        topics.down(fleet, device): ParsedTopic("down", device),
        topics.up(fleet, device): ParsedTopic("up", device),
        topics.model_chunk(fleet, digest, index): ParsedTopic("model_chunk", "", digest, index),
        topics.update_chunk(fleet, device, digest, index): ParsedTopic("update_chunk", device, digest[:16], index),
    }
    assert {topic: parse_topic(fleet, topic) for topic in built} == built
    assert {parsed.kind for parsed in built.values()} == set(BY_KIND)


@given(NAMES, NAMES)
def test_topic_of_another_fleet_parses_to_none(fleet, other):
    parsed = parse_topic(fleet, topics.up(other, "pi-1"))
    assert (parsed is not None) == (fleet == other)


@given(st.text())
def test_parse_topic_never_raises(text):
    assert parse_topic("home", text) is None


@pytest.mark.parametrize(
    "topic",
    [
        "fedpatch/2/home/coord",
        "fedpatch/1/home/coord/",
        "fedpatch/1/home/coord\n",
        "fedpatch/1/home/dev/Pi/up",
        "fedpatch/1/home/dev//up",
        f"fedpatch/1/home/blob/{DIGEST[:16]}/0",
        f"fedpatch/1/home/blob/{DIGEST}/01",
        f"fedpatch/1/home/blob/{DIGEST}/65536",
        f"fedpatch/1/home/blob/{DIGEST}/-1",
        f"fedpatch/1/home/dev/pi-1/blob/{DIGEST}/0",
        f"fedpatch/1/home/blob/{DIGEST}/٣",
    ],
)
def test_malformed_topic_parses_to_none(topic):
    assert parse_topic("home", topic) is None


@pytest.mark.parametrize("name", ["", "Pi", "-pi", "a" * 33, "a/b", "a+b", "#", "pi\n", "ä"])
def test_impossible_name_raises_usage_error_with_the_rule(name):
    with pytest.raises(UsageError, match=r"device name .* use 1 to 32 of a-z"):
        topics.up("home", name)
    with pytest.raises(UsageError, match=r"fleet name .* use 1 to 32 of a-z"):
        topics.coordinator_state(name)


@pytest.mark.parametrize(("digest", "index"), [("abc", 0), (DIGEST.upper(), 0), (DIGEST, -1), (DIGEST, MAX_CHUNKS)])
def test_chunk_topic_with_bad_digest_or_index_raises_usage_error(digest, index):
    """A wrong digest or index never becomes a topic."""
    with pytest.raises(UsageError, match=repr(digest) if digest != DIGEST else f"index {index} "):
        topics.model_chunk("home", digest, index)


def test_topics_have_at_most_the_levels_that_every_broker_allows():
    """AWS IoT takes at most seven slashes."""
    assert max(row.pattern.count("/") for row in TOPICS) <= 7


def test_filters_are_those_that_the_table_lets_a_party_read():
    assert topics.coordinator_filters("home") == (
        "fedpatch/1/home/coord",
        "fedpatch/1/home/dev/+/state",
        "fedpatch/1/home/dev/+/up",
        "fedpatch/1/home/dev/+/blob/+/+",
    )
    assert topics.device_filters("home", "pi-1") == (
        "fedpatch/1/home/coord",
        "fedpatch/1/home/dev/pi-1/state",
        "fedpatch/1/home/dev/pi-1/dn",
    )
    assert topics.watcher_filters("home") == ("fedpatch/1/home/coord", "fedpatch/1/home/coord/progress")
    assert topics.model_chunks_filter("home", DIGEST) == f"fedpatch/1/home/blob/{DIGEST}/+"


def test_acl_with_devices_has_rules_for_these_users_alone():
    text = topics.mosquitto_acl("home", devices=["pi-1", "pi-2"])
    assert text.splitlines()[1:14] == [
        "user coordinator",
        "topic readwrite fedpatch/1/home/coord",
        "topic readwrite fedpatch/1/home/coord/progress",
        "topic read fedpatch/1/home/dev/+/state",
        "topic write fedpatch/1/home/dev/+/dn",
        "topic read fedpatch/1/home/dev/+/up",
        "topic write fedpatch/1/home/blob/+/+",
        "topic read fedpatch/1/home/dev/+/blob/+/+",
        "topic read $SYS/broker/publish/messages/dropped",
        "topic read $SYS/broker/clients/connected",
        "topic read $SYS/broker/load/sockets/1min",
        "topic read $SYS/broker/load/connections/1min",
        "",
    ]
    assert "pattern" not in text
    assert "topic readwrite fedpatch/1/home/dev/pi-2/state\n" in text


def test_acl_of_a_watcher_reads_the_status_and_writes_no_topic():
    text = topics.mosquitto_acl("home", devices=["pi-1"], watchers=["ann", "bob"])
    assert text.partition("\nuser ann\n")[2].splitlines() == [
        "topic read fedpatch/1/home/coord",
        "topic read fedpatch/1/home/coord/progress",
        "",
        "user bob",
        "topic read fedpatch/1/home/coord",
        "topic read fedpatch/1/home/coord/progress",
    ]
    assert "progress" not in text.partition("user pi-1")[2].partition("user ann")[0]


@pytest.mark.parametrize("watcher", ["a b", "#", "coordinator", "pi-1"])
def test_acl_watcher_with_another_part_raises_usage_error(watcher):
    with pytest.raises(UsageError, match="watch"):
        topics.mosquitto_acl("home", devices=["pi-1"], watchers=[watcher])


def test_acl_without_devices_has_patterns_over_the_user_name():
    text = topics.mosquitto_acl("home", devices=None)
    assert "pattern read fedpatch/1/home/dev/%u/dn\n" in text
    assert "pattern write fedpatch/1/home/dev/%u/up\n" in text


@pytest.mark.parametrize(("user", "devices"), [("co/ord", None), ("#", None), ("a b", None), ("pi-1", ["pi-1"])])
def test_acl_coordinator_user_that_is_a_device_or_malformed_raises_usage_error(user, devices):
    with pytest.raises(UsageError):
        topics.mosquitto_acl("home", user, devices)


@given(fleet=NAMES, digest=DIGESTS, indices=st.lists(INDEXES, max_size=5))
def test_model_chunks_equals_model_chunk_of_each_index(fleet, digest, indices):
    expected = [topics.model_chunk(fleet, digest, index) for index in indices]
    assert topics.model_chunks(fleet, digest, indices) == expected


def test_model_chunks_index_too_large_raises_usage_error():
    with pytest.raises(UsageError, match=f"0 to {MAX_CHUNKS - 1}"):
        topics.model_chunks("home", DIGEST, [0, MAX_CHUNKS])


def test_watcher_filters_are_presence_and_status_of_the_coordinator():
    assert topics.watcher_filters("home") == (topics.coordinator_state("home"), topics.run_status("home"))


@pytest.mark.parametrize("build", [topics.coordinator_filters, topics.watcher_filters, topics.mosquitto_acl])
@pytest.mark.parametrize("fleet", ["", "Home", "a/b", "+", "#"])
def test_filters_and_acl_bad_fleet_raises_usage_error(build, fleet):
    with pytest.raises(UsageError, match=r"^fleet name"):
        build(fleet)


def test_acl_bad_device_raises_usage_error():
    with pytest.raises(UsageError, match=r"^device name '\+'"):
        topics.mosquitto_acl("home", devices=["+"])


def test_user_of_the_coordinator_may_read_the_status_but_the_coordinator_does_not_subscribe_to_it():
    """`fedpatch console` and `fedpatch watch` beside the coordinator use its login."""
    rules = topics.mosquitto_acl("kitchen", devices=["pi-1"])
    assert "topic readwrite fedpatch/1/kitchen/coord/progress\n" in rules
    assert not any(one.endswith("progress") for one in topics.coordinator_filters("kitchen"))
    assert rules.count("coord/progress") == 1
