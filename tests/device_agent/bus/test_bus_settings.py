"""Topics of predictions: filters, targets, and lines that are refused."""

from __future__ import annotations

import pytest

from fedpatch.device_agent.bus.settings import BusSettings, served
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
    "line", ["a", "a ->", "a/#/b -> c", "a+ -> c", "a -> c/#", "a/# -> a/out", "a -> a", "a -> /c"]
)
def test_line_that_is_no_mapping_is_refused(line):
    with pytest.raises(UsageError):
        served(line)


def test_wrong_line_of_the_settings_is_named():
    with pytest.raises(ConfigError, match="--serve"):
        load(BusSettings, file=None, environ={}, flags={"serve": "a -> a"})
