"""The subscriptions of a link, sent on each new connection."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt.outbox import SubscriptionChange, Subscriptions


def wishes(subscriptions: Subscriptions) -> list[SubscriptionChange]:
    """All pending subscriptions for the broker."""
    found = []
    while wish := subscriptions.next():
        found.append(wish)
    return found


def test_changes_are_sent_in_their_order():
    """Removing and adding a filter again are two steps; otherwise retained messages would not be delivered again."""
    subscriptions = Subscriptions()
    for _ in range(2):
        subscriptions.add(("a",))
        subscriptions.remove(("a",))
    assert wishes(subscriptions) == [SubscriptionChange(True, ("a",)), SubscriptionChange(False, ("a",))] * 2


def test_new_connection_subscribes_to_all_current_filters():
    subscriptions = Subscriptions()
    subscriptions.add(("a", "b"))
    wishes(subscriptions)
    subscriptions.add(("c",))
    subscriptions.connected()
    assert wishes(subscriptions) == [SubscriptionChange(True, ("a", "b", "c"))]


def test_new_connection_unsubscribes_from_filters_removed_meanwhile():
    """The broker may have kept the session, and the subscription with it."""
    subscriptions = Subscriptions()
    subscriptions.add(("a", "b", "c"))
    wishes(subscriptions)
    subscriptions.remove(("a", "b"))
    subscriptions.add(("b",))
    subscriptions.connected()
    assert wishes(subscriptions) == [SubscriptionChange(False, ("a",)), SubscriptionChange(True, ("c", "b"))]


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "b/a", False),
        ("#", "a/b", True),
        ("+", "a", True),
    ],
)
def test_topic_is_wanted_if_a_filter_matches(pattern, topic, expected):
    subscriptions = Subscriptions()
    subscriptions.add((pattern,))
    assert subscriptions.want(topic) is expected


@pytest.mark.parametrize("pattern", ["", "a+/b", "a/#/b", "a/b#"])
def test_malformed_filter_raises_value_error(pattern):
    subscriptions = Subscriptions()
    with pytest.raises(ValueError, match="not a topic filter"):
        subscriptions.add((pattern,))
    assert subscriptions.filters == ()
