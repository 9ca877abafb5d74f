"""Settings of a relay: both connections, problems under the relay's option names, and the terms of the site's coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.relay.settings import RelaySettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from fedpatch.shared.mqtt.broker_profile import PROFILES, UNLIMITED

GIVEN = {"up": "mqtts://hub.example", "up_fleet": "world", "device_id": "site-7", "fleet": "site-7"}


def loaded(**flags: object) -> RelaySettings:
    return load(RelaySettings, file=None, environ={}, flags={**GIVEN, **flags})


def test_both_connections_have_their_own_broker_fleet_and_password():
    settings = loaded(up_username="hub-user", up_password_file="up.txt", down_username="site-user", chunk_kib=64)
    up, down = settings.upwards, settings.downwards
    assert (up.broker, up.fleet, up.username) == ("mqtts://hub.example", "world", "hub-user")
    assert up.password_file == Path("up.txt")
    assert (down.broker, down.fleet, down.username) == ("mqtt://127.0.0.1:1883", "site-7", "site-user")
    assert down.chunk_kib == 64
    assert settings.site_dir != settings.device_dir


def test_connection_to_the_hub_alone_keeps_the_limits_of_its_hosted_broker():
    settings = loaded(up_broker_profile="azure")
    assert settings.upwards.profile == PROFILES["azure"]
    assert settings.downwards.profile == UNLIMITED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"up": "mqtt://hub.example"}, "--up: .*another machine.*--up-insecure"),
        ({"down": "mqtt://broker.example"}, "--down: .*another machine.*--down-insecure"),
        ({"down_key_file": "k.pem"}, "--down-key-file: set without a certificate"),
        ({"up": "mqtt://127.0.0.1", "down": "mqtt://127.0.0.1", "fleet": "world"}, "give the site a fleet of its own"),
        ({"device_id": "Site 7"}, "--device-id"),
        ({"up_broker_profile": "gcp"}, "--up-broker-profile"),
        ({"models_url": "https://site.example/"}, "--models-url: set without models_store"),
        ({"models_store": "file:///srv/m", "models_url": "http://site.example/"}, "allow it with down_insecure"),
        ({"task": "no-such-task"}, "--task"),
        ({"norm_bound": "often"}, "--norm-bound"),
        ({"max_num_examples": "many"}, "--max-num-examples"),
        ({"chunk_kib": 8, "max_model_mib": 2048}, "--chunk-kib: 8 is too small .*make it at least 32"),
        ({"min_cohort": 100, "max_devices": 10}, "--max-devices: 10 is less than min_cohort = 100"),
    ],
)
def test_problem_names_the_setting_and_the_remedy(changes, words):
    with pytest.raises(ConfigError, match=words):
        loaded(**changes)


def test_each_problem_of_the_site_is_named_once_and_by_a_setting_of_the_relay():
    with pytest.raises(ConfigError) as found:
        loaded(norm_bound="often", down="mqtt://broker.example", chunk_kib=8, max_model_mib=2048)
    settings = [one.partition(":")[0] for one in found.value.problems]
    assert sorted(settings) == ["--chunk-kib", "--down", "--norm-bound"]


def test_variables_and_file_set_the_same_settings(tmp_path):
    file = tmp_path / "relay.toml"
    file.write_text('up = "mqtts://hub.example"\ndevice_id = "site-7"\nfleet = "site-7"\nquorum = 0.5\n')
    settings = load(RelaySettings, file=file, environ={"FEDPATCH_RELAY_MIN_COHORT": "3"}, flags={})
    assert (settings.quorum, settings.min_cohort) == (0.5, 3)


def test_up_and_device_id_are_required():
    with pytest.raises(ConfigError, match=r"up: not set[\s\S]*device_id: not set"):
        load(RelaySettings, file=None, environ={}, flags={})
