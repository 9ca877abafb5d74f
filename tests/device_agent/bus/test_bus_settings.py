"""Topics of predictions: filters, targets, and lines that are refused."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.bus.service import Bus, topics_of
from fedpatch.device_agent.bus.settings import BusSettings, ServedTopic, served
from fedpatch.device_agent.state.status_file import StatusFile, lock_state_dir
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError, UsageError


@pytest.mark.parametrize(
    ("source", "topic", "takes"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/b", "a", False),
    ],
)
def test_filter_matches_topics_by_the_rules_of_mqtt(source, topic, takes):
    assert served(f"{source} -> out").takes(topic) is takes


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("a/#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/#", "a/b/#", True),
        ("#", "a/#", True),
        ("a/+", "a/b", True),
        ("a/+", "a/#", False),
        ("a/+/#", "a/#", False),
        ("a/b", "a/+", False),
        ("a/b/#", "a/#", False),
        ("a/+/c", "a/b/+", False),
    ],
)
def test_filter_covers_another_if_it_takes_all_its_topics(wide, narrow, covers):
    assert ServedTopic(wide, "out").covers(ServedTopic(narrow, "out")) is covers


@pytest.mark.parametrize(
    "line", ["a", "a ->", "a/#/b -> c", "a+ -> c", "a -> c/#", "a/# -> a/out", "a -> a", "a -> /c"]
)
def test_line_that_is_no_mapping_is_refused(line):
    with pytest.raises(UsageError):
        served(line)


def test_filter_that_another_covers_is_not_subscribed_to():
    lines = ("a/b -> out/1", "a/# -> out/2", "a/+ -> out/3", "b -> out/4", "b -> out/5")
    settings = BusSettings(serve=lines, device_id="pi", switch=False)
    bus = Bus(settings, topics_of(settings), lambda topic, payload, retain: None)
    assert bus.filters == ["a/#", "b"]


def test_wrong_line_of_the_settings_is_named():
    with pytest.raises(ConfigError, match="--serve"):
        load(BusSettings, file=None, environ={}, flags={"serve": "a -> a"})


def test_mappings_that_would_answer_each_other_without_end_are_refused():
    with pytest.raises(ConfigError, match="outputs would be taken for examples"):
        load(BusSettings, file=None, environ={}, flags={"serve": "a/+ -> b/out, b/+ -> a/out"})
    assert len(load(BusSettings, file=None, environ={}, flags={"serve": "a/+ -> out/a, b/+ -> out/b"}).serve) == 2


@pytest.mark.parametrize(
    ("given", "status", "device"),
    [
        ({}, {"device_id": "pi-7", "fleet": "kitchen"}, ("kitchen", "pi-7")),
        ({"device_id": "lamp", "fleet": "attic"}, {"device_id": "pi-7", "fleet": "kitchen"}, ("attic", "lamp")),
        ({"device_id": "lamp"}, {"device_id": "pi-7", "fleet": "kitchen"}, ("kitchen", "lamp")),
        ({"device_id": "lamp"}, None, ("default", "lamp")),
    ],
)
def test_device_has_the_name_of_the_settings_or_else_that_of_the_agent(tmp_path, given, status, device):
    if status is not None:
        lock_state_dir(tmp_path).release()
        StatusFile(tmp_path, status).write({"state": "idle"})
    topics = topics_of(BusSettings(state_dir=tmp_path, **given))
    assert (topics.fleet, topics.device) == device


@pytest.mark.parametrize("started", [False, True])
def test_device_without_a_name_in_settings_and_status_is_unknown(tmp_path, started):
    if started:
        lock_state_dir(tmp_path).release()
    with pytest.raises(UsageError, match=str(tmp_path)):
        topics_of(BusSettings(state_dir=tmp_path, fleet="kitchen"))
