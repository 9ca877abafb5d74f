"""The limits of hosted brokers: the pace of a link, the split of subscriptions, and that the longest names fit."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.broker_profile import PROFILES, BrokerProfile, send_rate
from fedpatch.shared.mqtt.outbox import Outbox, QueuedMessage, SubscriptionChange, Subscriptions
from fedpatch.shared.wire import topics

LONGEST = "n" * 32
DIGEST = "d" * 64


@given(
    limit=st.integers(2, 1000),
    burst=st.floats(0.01, 0.9),
    steps=st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(0.01, 1.0)), min_size=1, max_size=80),
)
def test_no_second_exceeds_the_limit(limit: int, burst: float, steps: list[tuple[float, float]]):
    """Messages of any size, offered at any time, are sent as soon as the bucket permits."""
    most = burst * limit
    bucket = send_rate(limit, most)
    now, sent = 0.0, []
    for pause, share in steps:
        now += pause
        now += bucket.wait_s(share * most, now)
        bucket.owe(share * most, now)
        sent.append((now, share * most))
    for end, _ in sent:
        assert sum(tokens for at, tokens in sent if end - 1.0 < at <= end) <= limit * (1 + 1e-6)


def test_wait_of_the_bucket_suffices_and_uses_the_rate():
    """A sender that always has messages sends the limit minus one burst per second."""
    bucket, now = send_rate(100, 10), 0.0
    for _ in range(910):
        now += bucket.wait_s(1, now)
        bucket.owe(1, now)
    assert now == pytest.approx(10.0)


@pytest.mark.parametrize("name", PROFILES)
def test_outbox_sends_no_more_messages_or_bytes_a_second_than_the_profile(name: str):
    profile = PROFILES[name]
    outbox, now, sent = Outbox(10_000, profile), 0.0, []
    sizes = [100] * 2_000 + [50_000] * 60
    for number, size in enumerate(sizes):
        outbox.put(QueuedMessage(f"t/{number}", bytes(size)))
    while len(outbox):
        if (message := outbox.take(100, now)) is None:
            assert outbox.delay_s > 0
            now += outbox.delay_s
            continue
        sent.append((now, message.packet_bytes))
        outbox.sent(1, message)
        outbox.acknowledged(1)
    first, sums = 0, [0, *accumulate(size for _, size in sent)]
    for last, (at, _) in enumerate(sent):
        while sent[first][0] <= at - 1.0:
            first += 1
        assert last + 1 - first <= profile.publishes_per_s
        assert sums[last + 1] - sums[first] <= profile.bytes_per_s * (1 + 1e-6)


def test_unacknowledged_bytes_of_azure_stop_the_outbox():
    outbox = Outbox(10, PROFILES["azure"])
    for number in range(3):
        outbox.put(QueuedMessage(f"t/{number}", bytes(40_000)))
    first = outbox.take(20, 0.0)
    assert first is not None
    outbox.sent(1, first)
    assert outbox.take(20, 10.0) is None
    outbox.acknowledged(1)
    assert outbox.take(20, 10.0) is not None


@pytest.mark.parametrize("wanted", [True, False])
def test_subscribe_is_split_at_the_limit_of_filters(wanted: bool):
    filters = tuple(f"f/{number}" for number in range(20))
    subscriptions = Subscriptions(PROFILES["aws"])
    subscriptions.add(filters)
    if not wanted:
        while subscriptions.next():
            pass
        subscriptions.remove(filters)
    parts = [filters[:8], filters[8:16], filters[16:]]
    assert [subscriptions.next() for _ in range(4)] == [*(SubscriptionChange(wanted, part) for part in parts), None]


def test_subscribes_a_second_delay_the_next_change():
    subscriptions = Subscriptions(PROFILES["azure"])
    subscriptions.add(tuple(f"f/{number}" for number in range(20)))
    assert subscriptions.next(0.0) is not None
    assert subscriptions.next(0.0) is None
    assert subscriptions.delay_s == pytest.approx(0.25)
    assert subscriptions.next(0.25) is not None


def test_more_subscriptions_than_the_profile_permits_raise_broker_error():
    subscriptions = Subscriptions(PROFILES["aws"])
    with pytest.raises(BrokerError, match="AWS IoT Core permits 50 subscriptions"):
        subscriptions.add(tuple(f"f/{number}" for number in range(51)))
    assert subscriptions.filters == ()


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_longest_names_fit_the_profile(profile: BrokerProfile):
    """Topics and client ids of every program, so that no name has to be refused."""
    longest = [topics.update_chunk(LONGEST, LONGEST, DIGEST, 65_535), topics.model_chunk(LONGEST, DIGEST, 65_535)]
    longest += [*topics.device_filters(LONGEST, LONGEST), *topics.coordinator_filters(LONGEST)]
    assert max(topic.count("/") + 1 for topic in longest) <= profile.topic_levels
    assert max(map(len, longest)) <= profile.topic_bytes
    assert len(f"fedpatch.{LONGEST}.{LONGEST}.doctor-{DIGEST[:16]}") <= profile.client_id_bytes
