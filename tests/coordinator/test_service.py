"""coordinator.service: what becomes of a message, before the engine sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.doorkeeper import Doorkeeper
from coordinator.effects import Count
from coordinator.inbox import Inbox
from coordinator.observing import Unobserved
from coordinator.service import Service
from coordinator.storing import Storing
from shared import topics
from shared.link import Received
from tests.coordinator.engines import asking
from tests.coordinator.links import RecordedLink


def test_what_strangers_say_is_counted_under_no_name():
    """Names that nobody knows can be invented without end; a device of the fleet answers for itself."""
    connection: Any = SimpleNamespace(door=Doorkeeper(10), fleet="demo", link=RecordedLink(), inbox=Inbox())
    performer: Any = SimpleNamespace(observer=Unobserved(), warden=None, storing=Storing(lambda _effect: None))
    nobody: Any = SimpleNamespace(refuses=lambda _device: False)
    service = Service(
        asking("a"),
        performer,
        connection=connection,
        publisher=nobody,
        view=nobody,
        revocations=nobody,
    )
    for device, name in (("a", "a"), ("ghost", "")):
        garbage = Received(topics.up("demo", device), b"\xc1", retained=False)
        assert service._on_received(garbage, 1.0) == [Count(name, "ignored", "not_ours")]
