"""A fleet with two brokers behind haproxy, its state in PostgreSQL and an object store, and a site behind a relay.

The tests are the life of one fleet, in this order: each finds what those before it left.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import bases
from tests.hosts.looking import await_rounds, reached, runs_of, until
from tests.hosts.machines import Machines
from tests.hosts.scaled_out import (
    DEVICE,
    EDGE,
    GATE,
    HUB,
    KINDS,
    NODES,
    SITE,
    STANDBY,
    STORE_SECRET,
    ScaledOut,
    prepared,
)
from tests.hosts.wheelhouses import BROKEN_RELAY, with_version

pytestmark = [pytest.mark.hosts, pytest.mark.slow, pytest.mark.timeout(2400)]

CLUSTER_PORT, DATABASE_PORT, MODELS_PORT, BROKER_PORT = 5210, 5432, 8443, 8883


@pytest.fixture(scope="module")
def fleet() -> Iterator[ScaledOut]:
    """Seven hosts, of which the hub's playbook sets up six, and that of the site the last."""
    bases.require_tools(*KINDS.values())
    with Machines(KINDS) as machines:
        made = prepared(machines)
        made.plays = [made.hub.play("scale_out.yml", "--diff"), made.site.play("relay.yml", "--diff")]
        yield made


def test_round_of_a_device_and_a_site_is_aggregated(fleet: ScaledOut):
    """The device reports over one broker node or the other, the relay the mean of its site."""
    until(lambda: await_rounds(fleet.machines, HUB)[-1]["reported"] == 2, "device and relay report")
    last = await_rounds(fleet.machines, HUB)[-1]
    assert (last["outcome"], set(last["user_accuracies"])) == ("aggregated", {DEVICE, SITE})
    sites = fleet.machines.ssh(
        GATE, "/opt/fedpatch/current/bin/fedpatch show last --json --state-dir /var/lib/fedpatch/relay/site"
    )
    assert json.loads(sites)["rounds"][-1]["reported"] == 1


def test_brokers_form_one_cluster_behind_haproxy(fleet: ScaledOut):
    names = {f"ejabberd@{fleet.machines.address(node)}" for node in NODES}
    for node in NODES:
        assert set(_cluster(fleet, node)) == names


def _cluster(fleet: ScaledOut, node: str) -> list[str]:
    """Names of the nodes that a node knows; none while it begins."""
    return fleet.machines.ssh(node, "ejabberdctl list_cluster", check=False).replace("'", "").split()


def test_state_is_in_the_database_and_blobs_are_in_the_store(fleet: ScaledOut):
    run = runs_of(fleet.machines, HUB)[0]["id"]
    query = "runuser -u postgres -- psql -At fedpatch -c 'SELECT id FROM runs'"
    assert fleet.machines.ssh(EDGE, f"cd / && {query}").split() == [run]
    stored = fleet.machines.ssh(
        EDGE, f"echo 'fs.tree /buckets/fleet/world/{run}' | /usr/local/bin/weed shell 2>/dev/null"
    )
    assert "checkpoint" in stored, stored
    # The other coordinator may lead: then this one has no folder of the run.
    find = f"find /var/lib/fedpatch/coordinator -path '*/runs/{run}/*' -type f -size +64k"
    assert [fleet.machines.ssh(host, find).strip() for host in (HUB, STANDBY)] == ["", ""]


def test_second_plays_change_nothing(fleet: ScaledOut):
    for control, book in ((fleet.hub, "scale_out.yml"), (fleet.site, "relay.yml")):
        again = control.play(book)
        assert set(again.changed.values()) == {0}, again.out[-6000:]


def test_passwords_are_in_files_of_their_owner_alone(fleet: ScaledOut):
    """Those of the database, the brokers and the store are in no output, no journal, no log and no command line."""
    kept = fleet.hub.folder / "database-password"
    assert kept.stat().st_mode & 0o777 == 0o600
    of_coordinator = fleet.machines.ssh(HUB, "cat /etc/fedpatch/coordinator/password").strip()
    secrets = [kept.read_text().strip(), of_coordinator, STORE_SECRET]
    for host in KINDS:
        seen = fleet.machines.ssh(
            host, "journalctl --no-pager; ps -e -o args; cat /var/log/postgresql/* 2>/dev/null; true"
        )
        assert not [one for one in secrets if one in seen]
    assert not [one for one in secrets for play in fleet.plays if one in play.out]
    words = shlex.quote("|".join(secrets))
    found = fleet.machines.ssh(HUB, f"grep -rlE {words} /etc /var/lib/fedpatch /tmp /home").split()
    modes = dict(line.split() for line in fleet.machines.ssh(HUB, f"stat -c '%n %a' {' '.join(found)}").splitlines())
    names = {"coordinator/password", "coordinator/pgpass", "coordinator.env"}
    assert modes == {f"/etc/fedpatch/{name}": "600" for name in names}


def test_each_port_is_open_to_those_alone_who_need_it(fleet: ScaledOut):
    """Devices reach haproxy and the models, the coordinator the database, the nodes each other."""
    ports = (BROKER_PORT, CLUSTER_PORT, DATABASE_PORT)
    assert reached(fleet.machines, DEVICE, EDGE, (BROKER_PORT, DATABASE_PORT)) == [BROKER_PORT]
    assert reached(fleet.machines, HUB, EDGE, (BROKER_PORT, DATABASE_PORT)) == [BROKER_PORT, DATABASE_PORT]
    assert reached(fleet.machines, DEVICE, NODES[0], ports[:2]) == []
    assert reached(fleet.machines, NODES[1], NODES[0], ports[:2]) == [CLUSTER_PORT]
    assert reached(fleet.machines, DEVICE, HUB, (MODELS_PORT,)) == [MODELS_PORT]


def test_model_is_served_in_ranges_with_a_certificate_that_devices_trust(fleet: ScaledOut):
    fleet.machines.ssh(HUB, "printf 0123456789 | runuser -u fedpatch -- tee /srv/fedpatch/models/model")
    url = f"https://{fleet.machines.address(HUB)}:{MODELS_PORT}/model"
    program = f"""
import ssl, urllib.request
trust = ssl.create_default_context(cafile="/var/lib/fedpatch/agent/identity/ca.crt")
request = urllib.request.Request("{url}", headers={{"Range": "bytes=2-4"}})
answer = urllib.request.urlopen(request, context=trust)
print(answer.status, answer.read().decode())
"""
    assert fleet.machines.ssh(DEVICE, f"python3 -c {shlex.quote(program)}").split() == ["206", "234"]


def test_device_fetches_models_from_the_web_server_beside_the_leader(fleet: ScaledOut):
    fetched = f"grep {fleet.machines.address(DEVICE)} /var/log/nginx/access.log | grep -c ' 206 '"
    until(lambda: int(fleet.machines.ssh(_leader(fleet), fetched, check=False) or 0) > 1, "ranges are fetched")


def test_rounds_go_on_when_a_broker_node_dies_and_when_it_is_back(fleet: ScaledOut):
    run = runs_of(fleet.machines, HUB)[0]["id"]
    for node in NODES:
        fleet.machines.ssh(node, "systemctl kill --signal=KILL ejabberd && systemctl stop ejabberd")
        until(lambda: await_rounds(fleet.machines, HUB)[-1]["reported"] == 2, f"rounds without {node}")
        fleet.machines.ssh(node, "systemctl start ejabberd")
        until(lambda: len(_cluster(fleet, node)) == len(NODES), "both are there")  # noqa: B023
    assert runs_of(fleet.machines, HUB)[0]["id"] == run


def test_second_coordinator_takes_over_when_the_leader_is_killed(fleet: ScaledOut):
    """The run goes on under its id, and the former leader waits when it is back."""
    run = runs_of(fleet.machines, HUB)[0]["id"]
    leader, other = _leader(fleet), {HUB: STANDBY, STANDBY: HUB}
    fleet.machines.ssh(
        leader, "systemctl kill --signal=KILL fedpatch-coordinator && systemctl stop fedpatch-coordinator"
    )
    until(lambda: await_rounds(fleet.machines, other[leader])[-1]["reported"] == 2, "the other one leads")
    assert runs_of(fleet.machines, other[leader])[0]["id"] == run
    fleet.machines.ssh(leader, "systemctl start fedpatch-coordinator")
    await_rounds(fleet.machines, HUB)
    assert _leader(fleet) == other[leader]


def _leader(fleet: ScaledOut) -> str:
    """The host whose metrics name it as the leader."""
    program = "import urllib.request as web; print(web.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    found = [
        host
        for host in (HUB, STANDBY)
        if re.search(r"^fedpatch_leader(\{.*\})? 1", fleet.machines.ssh(host, f'python3 -c "{program}"'), re.M)
    ]
    assert len(found) == 1, found
    return found[0]


def test_relay_that_is_not_well_goes_back_with_the_agent_of_its_host(fleet: ScaledOut, tmp_path: Path):
    broken = with_version(Path(fleet.site.settings["fleet_wheelhouse"]), "0.1.1", tmp_path / "broken", BROKEN_RELAY)
    played = fleet.site.play("upgrade.yml", check=False, fleet_wheelhouse=str(broken))
    assert played.code != 0
    assert f"{GATE} was not healthy with 0.1.1 and has returned to 0.1.0" in " ".join(played.out.split())
    assert _relay(fleet)["version"] == "0.1.0"
    until(lambda: await_rounds(fleet.machines, HUB)[-1]["reported"] == 2, "the relay reports")


def test_relay_is_upgraded_and_restarted_with_its_site_and_reports_again(fleet: ScaledOut, tmp_path: Path):
    sound = with_version(Path(fleet.site.settings["fleet_wheelhouse"]), "0.2.0", tmp_path / "sound")
    fleet.site.settings["fleet_wheelhouse"] = str(sound)
    fleet.site.play("upgrade.yml")
    relay = _relay(fleet)
    assert (relay["running"], relay["version"]) == (True, "0.2.0")
    assert fleet.machines.ssh(GATE, "systemctl is-active fedpatch-coordinator", check=False).strip() == "inactive"
    until(lambda: await_rounds(fleet.machines, HUB)[-1]["reported"] == 2, "the relay reports")
    assert set(fleet.site.play("upgrade.yml").changed.values()) == {0}


def _relay(fleet: ScaledOut) -> dict[str, Any]:
    """Status of the site's relay."""
    answer = fleet.machines.ssh(
        GATE, "/opt/fedpatch/current/bin/fedpatch-relay status --json --state-dir /var/lib/fedpatch/relay"
    )
    return dict(json.loads(answer))


def test_revoked_password_is_refused_by_the_brokers(fleet: ScaledOut):
    """retire.yml gives both nodes the password file without the device."""
    fleet.hub.play("retire.yml", retired=DEVICE)
    for node in NODES:
        assert f"{DEVICE}:" not in fleet.machines.ssh(node, "cat /etc/ejabberd/fedpatch/passwords")
