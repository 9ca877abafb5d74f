"""The outbox: order, bounds, and the effect of a lost connection on messages in flight."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import IllegalTransition
from fedpatch.shared.mqtt.outbox import ACK_S, MAX_ATTEMPTS, MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES, Outbox, QueuedMessage


def message(number: int, size: int = 1) -> QueuedMessage:
    """A message whose topic ends in its number."""
    return QueuedMessage(f"t/{number}", bytes(size))


def send_all(outbox: Outbox, window: int = MAX_IN_FLIGHT) -> list[str]:
    """Send all messages that the outbox releases; the packet id is the number in the topic."""
    sent = []
    while one := outbox.take(window):
        outbox.sent(int(one.topic[2:]), one)
        sent.append(one.topic)
    return sent


def test_no_more_than_the_capacity_is_held_until_acknowledged():
    outbox = Outbox(2)
    assert outbox.put(message(0))
    assert outbox.put(message(1))
    send_all(outbox)
    assert not outbox.put(message(2))
    assert outbox.acknowledged(0) is not None
    assert outbox.put(message(2))


@pytest.mark.parametrize("window", [1, 3, 100])
def test_the_window_bounds_what_is_on_its_way(window):
    outbox = Outbox(100)
    for number in range(50):
        outbox.put(message(number))
    assert len(send_all(outbox, window)) == min(window, MAX_IN_FLIGHT)


def test_large_messages_go_few_at_a_time_but_always_one():
    """A ping must get through between chunks, but a chunk larger than the limit is still sent."""
    outbox = Outbox(100)
    for number in range(4):
        outbox.put(message(number, MAX_IN_FLIGHT_BYTES // 2))
    outbox.put(message(4, 2 * MAX_IN_FLIGHT_BYTES))
    assert send_all(outbox) == ["t/0", "t/1"]
    outbox.acknowledged(0)
    assert send_all(outbox) == ["t/2"]
    for number in (1, 2, 3):
        outbox.acknowledged(number)
        send_all(outbox)
    assert len(outbox) == 1
    assert outbox.acknowledged(4) is not None


def test_lost_connection_resends_messages_alone_and_in_order():
    outbox = Outbox(10)
    for number in range(4):
        outbox.put(message(number))
    send_all(outbox, 3)
    assert outbox.connection_lost() == []
    order = []
    for _ in range(4):
        sent = send_all(outbox)
        assert len(sent) == 1
        order += sent
        outbox.acknowledged(int(sent[0][2:]))
    assert order == ["t/0", "t/1", "t/2", "t/3"]


def test_message_that_breaks_every_connection_is_given_up():
    outbox = Outbox(10)
    for number in range(3):
        outbox.put(message(number))
    arrived: list[str] = []
    given_up: list[str] = []
    for _ in range(2 * MAX_ATTEMPTS):
        while sent := send_all(outbox):
            healthy = sent[: sent.index("t/1")] if "t/1" in sent else sent
            for topic in healthy:
                outbox.acknowledged(int(topic[2:]))
            arrived += healthy
            if "t/1" in sent:
                break
        given_up += [one.topic for one in outbox.connection_lost()]
    assert (arrived, given_up, len(outbox)) == (["t/0", "t/2"], ["t/1"], 0)


def test_packet_id_in_use_raises_illegal_transition():
    """Two messages under one id could not be distinguished."""
    outbox = Outbox(10)
    outbox.put(message(0))
    send_all(outbox)
    with pytest.raises(IllegalTransition):
        outbox.sent(0, message(1))
    assert len(outbox) == 1
    assert outbox.acknowledged(99) is None


@given(st.lists(st.sampled_from(["put", "take", "ack", "lose"]), max_size=60))
def test_every_message_is_delivered_in_order(steps):
    """In any case, each message is acknowledged or dropped at most once, and first sent in the order of `put`."""
    outbox = Outbox(8)
    put: list[str] = []
    first_sent: list[str] = []
    flying: deque[int] = deque()
    done: list[str] = []
    keys = iter(range(10_000))
    for step in steps:
        if step == "put":
            one = message(len(put))
            if outbox.put(one):
                put.append(one.topic)
        elif step == "take" and (taken := outbox.take(4)):
            key = next(keys)
            outbox.sent(key, taken)
            flying.append(key)
            if taken.topic not in first_sent:
                first_sent.append(taken.topic)
        elif step == "ack" and flying:
            acknowledged = outbox.acknowledged(flying.popleft())
            assert acknowledged is not None
            done.append(acknowledged.topic)
        elif step == "lose":
            done += [one.topic for one in outbox.connection_lost()]
            flying.clear()
    assert first_sent == put[: len(first_sent)]
    assert len(set(done)) == len(done)
    assert len(done) + len(outbox) == len(put)


class TestAcknowledgements:
    def sent(self, payload: bytes = b"") -> Outbox:
        """Return an outbox with a message that was sent at second 100."""
        outbox = Outbox(10)
        outbox.put(QueuedMessage("t", payload))
        message = outbox.take(20)
        assert message is not None
        outbox.sent(1, message, 100.0)
        return outbox

    def test_message_without_an_acknowledgement_is_overdue_after_the_limit(self):
        outbox = self.sent()
        assert not outbox.is_overdue(100.0 + ACK_S - 1.0)
        assert outbox.is_overdue(100.0 + ACK_S)

    def test_oldest_message_is_overdue_although_later_ones_are_acknowledged(self):
        outbox = self.sent()
        outbox.put(QueuedMessage("t", b""))
        later = outbox.take(20)
        assert later is not None
        outbox.sent(2, later, 150.0)
        outbox.acknowledged(2)
        assert outbox.is_overdue(100.0 + ACK_S)
        outbox.acknowledged(1)
        assert not outbox.is_overdue(1e9)

    def test_bytes_in_flight_on_a_slow_line_have_more_time(self):
        assert not self.sent(bytes(200_000)).is_overdue(100.0 + ACK_S + 99.0)
        assert self.sent(bytes(200_000)).is_overdue(100.0 + ACK_S + 101.0)

    def test_required_answer_is_overdue_without_any_acknowledgement(self):
        outbox = self.sent()
        outbox.require_answer(105.0)
        assert (outbox.is_overdue(104.0), outbox.is_overdue(105.0)) == (False, True)
        outbox.acknowledged(1)
        assert not outbox.is_overdue(1e9)

    def test_message_without_acknowledgement_is_no_answer(self):
        """Paho reports a message with QoS 0 as published once it is sent."""
        outbox = self.sent()
        outbox.require_answer(105.0)
        assert outbox.acknowledged(2) is None
        assert outbox.is_overdue(105.0)

    def test_lost_connection_owes_no_acknowledgement(self):
        outbox = self.sent()
        outbox.require_answer(105.0)
        outbox.connection_lost()
        assert not outbox.is_overdue(1e9)
