"""Single files of tasks, played to this machine in place of a host: what a real Pi, a full card or an operator brings."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hosts.plays import ANSIBLE, HERE, ROLES, by_ansible, fleet_of, played, refused, stub, tasks_of

KNOWN = {"ansible_architecture": "aarch64", "ansible_python": {"version": {"major": 3, "minor": 11}}}


@pytest.mark.slow
@by_ansible
def test_kernel_line_gets_the_memory_cgroup_once_on_its_partition(tmp_path):
    """One line stays one line. Beside it nothing: FAT, as a Pi has there, has no names with a time of day in them."""
    lines = {
        "set": "root=/dev/a cgroup_enable=memory rootwait",
        "new": "root=/dev/a rootwait\n",
        "bare": "rootwait  \n\n",
    }
    for name, line in lines.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cmdline.txt").write_text(line)
    task = tasks_of(
        "device_agent", "memory.yml", device_agent_kernel_line=f"{tmp_path}/{{{{ inventory_hostname }}}}/cmdline.txt"
    )
    for changed in (2, 0):
        done = played(tmp_path, fleet_of({name: {} for name in lines}), {"hosts": "devices", "tasks": [task]})
        assert done.stdout.count("changed=1") == changed, done.stdout + done.stderr
    read = {name: (tmp_path / name / "cmdline.txt").read_text() for name in lines}
    assert read["set"] == lines["set"]
    assert read["new"] == "root=/dev/a rootwait cgroup_enable=memory"
    assert read["bare"] == "rootwait cgroup_enable=memory"
    assert {len(list((tmp_path / name).iterdir())) for name in lines} == {1}


@pytest.mark.slow
@by_ansible
def test_leftovers_of_an_interrupted_installation_count_as_free_space(tmp_path):
    """Done again, site.yml does not refuse a card that was large enough; one that never was is refused."""
    stub(tmp_path / "bin" / "df", "printf 'Avail\\n1000\\n'")
    for name, size in (("again", 5), ("bare", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"x" * (size << 20))
    hosts = {name: {"fleet_program_dir": str(tmp_path / name)} for name in ("again", "bare", "gone")}
    facts = {"architecture": "aarch64", "userspace_bits": "64", "memtotal_mb": 900, "distribution": "Debian"}
    facts |= {"distribution_version": "12.11", "distribution_major_version": "12"}
    known_facts: dict[str, Any] = {f"ansible_{key}": value for key, value in facts.items()}
    known = {"ansible.builtin.set_fact": {**known_facts, "cacheable": True}}
    play = {
        "hosts": "devices",
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        "tasks": [known, tasks_of("common", "checks.yml")],
    }
    done = played(tmp_path, fleet_of(hosts, common_min_disk_mib="1004"), play)
    refusals = refused(done)
    assert set(refusals) == {"bare", "gone"}, done.stdout + done.stderr
    assert "has 1000 MiB free" in refusals["bare"]


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_libraries_that_could_not_be_installed_leave_nothing_on_the_card(tmp_path):
    """An agent that is at work goes on, and its card has room; the host is refused with the reason above."""
    house, held = tmp_path / "house", tmp_path / "opt" / "libraries"
    house.mkdir()
    manifest = {
        "version": "0.1.0",
        "wheel": "none.whl",
        "libraries": {"aarch64-cp311": {"file": "torn.tar", "digest": "abc"}},
    }
    (house / "wheelhouse.json").write_text(json.dumps(manifest))
    (house / "torn.tar").write_bytes(b"no archive")
    (held / "def").mkdir(parents=True)
    stub(tmp_path / "bin" / "python3", 'for last; do :; done; mkdir -p "$last/bin"; touch "$last/bin/python"')
    known = {"ansible.builtin.set_fact": {**KNOWN, "cacheable": True}}
    play = {
        "hosts": "devices",
        "environment": {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        "tasks": [known, tasks_of("program", "install.yml")],
    }
    inventory = fleet_of({"pi": {}}, fleet_wheelhouse=str(house), fleet_program_dir=str(tmp_path / "opt"))
    done = played(tmp_path, inventory, play)
    assert "Failed to find handler" in done.stdout, done.stdout + done.stderr
    assert "the libraries could not be installed on pi, for the reason above" in refused(done)["pi"]
    assert [path.name for path in held.iterdir()] == ["def"]


def installed_version(folder: Path, python: str, checksum: str) -> tuple[dict[str, Any], Path, Path]:
    """Write a wheelhouse, and an installed version with its libraries, for a Python.

    Args:
        folder: Folder of all files.
        python: Name of the host's Python when the version was installed.
        checksum: Checksum of the wheel that is installed; the wheelhouse has `bbb...`.

    Returns:
        The inventory, the folder of the version and that of the libraries.
    """
    house, opt = folder / "house", folder / "opt"
    version, libraries = opt / "versions" / "0.1.0", opt / "libraries" / "abc"
    manifest: dict[str, Any] = {"version": "0.1.0", "wheel": "one.whl", "sha256": "b" * 64}
    manifest["libraries"] = {"aarch64-cp311": {"file": "none", "digest": "abc"}}
    for place in (house, version / "bin", version / "lib" / python / "site-packages", libraries):
        place.mkdir(parents=True)
    (house / "wheelhouse.json").write_text(json.dumps(manifest))
    (house / "one.whl").write_bytes(b"a wheel")
    (version / "bin" / python).touch()
    (version / "complete").write_text(f"{checksum}\n")
    (libraries / "complete").touch()
    return fleet_of({"pi": {}}, fleet_wheelhouse=str(house), fleet_program_dir=str(opt)), version, libraries


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_rebuilt_version_whose_installation_was_interrupted_is_installed(tmp_path):
    """The wheel is there already; the checksum is still the checksum of the earlier build."""
    inventory, version, libraries = installed_version(tmp_path, "python3.11", "a" * 64)
    (version / "one.whl").write_bytes(b"a wheel")
    stub(libraries / "bin" / "python", f"echo installed >>{tmp_path}/calls")
    known = {"ansible.builtin.set_fact": {**KNOWN, "cacheable": True}}
    play = {"hosts": "devices", "tasks": [known, tasks_of("program", "install.yml")]}
    for _ in range(2):
        done = played(tmp_path, inventory, play)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text() == "installed\n"
    assert (version / "complete").read_text() == "b" * 64 + "\n"


@pytest.mark.slow
@by_ansible
@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives files to root")
def test_version_is_installed_again_for_another_python_of_the_host(tmp_path):
    """After an upgrade of Debian, also if the first attempt is interrupted."""
    inventory, version, libraries = installed_version(tmp_path, "python3.9", "b" * 64)
    stub(
        tmp_path / "bin" / "python3",
        'for last; do :; done; mkdir -p "$last/lib/python3.11/site-packages"; touch "$last/bin/python3.11"',
    )
    known = {"ansible.builtin.set_fact": {**KNOWN, "cacheable": True}}
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    play = {"hosts": "devices", "environment": path, "tasks": [known, tasks_of("program", "install.yml")]}
    done = played(tmp_path, inventory, play, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (version / "complete").exists()
    codes = []
    for ends in ("exit 1", "exit 0", "exit 0"):
        stub(libraries / "bin" / "python", f"echo installed >>{tmp_path}/calls; {ends}")
        codes.append(played(tmp_path, inventory, play).returncode == 0)
    assert codes == [False, True, True]
    assert (tmp_path / "calls").read_text().split() == ["installed"] * 2
    assert (version / "lib/python3.11/site-packages/libraries.pth").exists()


@pytest.mark.slow
@by_ansible
def test_a_time_service_that_others_only_speak_of_is_not_there(tmp_path):
    """A host is given one: systemd lists the other as not found."""
    services = {
        "chrony.service": {"name": "chrony.service", "status": "not-found"},
        "cron": {"name": "cron", "source": "sysv"},
    }
    hosts = {
        "spoken": {"found": services},
        "there": {"found": services | {"ntpsec.service": {"name": "ntpsec.service", "status": "enabled"}}},
    }
    tasks = [
        {"ansible.builtin.set_fact": {"ansible_services": "{{ found }}", "cacheable": True}},
        {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} {{ common_other_clock }}"}},
    ]
    play = {"hosts": "devices", "vars_files": [str(ROLES / "common" / "vars" / "main.yml")], "tasks": tasks}
    done = played(tmp_path, fleet_of(hosts), play)
    messages = sorted(re.findall(r'"msg": "(.*)"', done.stdout))
    assert messages == ["spoken False", "there True"], done.stdout + done.stderr


@pytest.mark.slow
@by_ansible
def test_a_backup_is_not_restored_over_runs_in_a_file_or_a_database(tmp_path):
    """`registry.url` names the database of a coordinator whose registry is in PostgreSQL."""
    (tmp_path / "backup.tar.gz").touch()
    hosts: dict[str, dict[str, Any]] = {}
    for name, file in {"bare": "agent.toml", "file": "registry.sqlite3", "database": "registry.url"}.items():
        (tmp_path / name / "coordinator").mkdir(parents=True)
        (tmp_path / name / "coordinator" / file).touch()
        hosts[name] = {"fleet_state_dir": str(tmp_path / name)}
    inventory = fleet_of(hosts, restore_from=str(tmp_path / "backup.tar.gz"))
    task = tasks_of("coordinator", "restorable.yml")
    done = played(tmp_path, inventory, {"hosts": "devices", "tasks": [task]})
    refusals = refused(done)
    assert set(refusals) == {"file", "database"}, done.stdout + done.stderr
    assert "already has runs in" in refusals["database"]


@pytest.mark.slow
@by_ansible
@pytest.mark.parametrize("again", [False, True])
def test_revoked_device_is_enrolled_again_with_the_option(tmp_path, again):
    """In the words of the page, `-e device_agent_enrol_again=true`."""
    record = [{"name": "pi", "state": "revoked", "reason": "stolen", "serial": "1"}]
    stub(tmp_path / "fedpatch", f"echo '{json.dumps(record)}'")
    variables: dict[str, Any] = {
        "device_agent_settings": {"data": "here"},
        "fleet_control_command": str(tmp_path / "fedpatch"),
    }
    play = {"hosts": "devices", "tasks": [tasks_of("device_agent", "checks.yml")]}
    done = played(
        tmp_path, fleet_of({"pi": {}}, **variables), play, *(["-e", "device_agent_enrol_again=true"] if again else [])
    )
    assert (done.returncode == 0) == again, done.stdout + done.stderr
    assert again or "pi was revoked (stolen)" in refused(done)["pi"]


@pytest.mark.slow
@by_ansible
def test_an_agent_is_waited_for_unless_the_wait_is_0(tmp_path):
    """By default: 0 does not check."""
    task = tasks_of("device_agent", "reached.yml", device_agent_program="/bin/false")
    hosts = {"hasty": {"device_agent_wait_s": "0"}, "patient": {"device_agent_wait_s": "3"}}
    done = played(tmp_path, fleet_of(hosts), {"hosts": "devices", "tasks": [task]})
    refusals = refused(done)
    assert set(refusals) == {"patient"}, done.stdout + done.stderr
    assert "has not loaded its task and reached the broker in 3 s" in refusals["patient"]


@by_ansible
def test_relay_that_has_reached_the_hub_is_well_and_one_that_is_restarted_is_not(tmp_path):
    """By its own status; systemd counts the restarts."""
    status = {"running": True, "connected": True, "tasks": [{"task": "digits"}]}
    stub(tmp_path / "relay", f"echo '{json.dumps(status)}'")
    hosts = {"well": {"restarts": 0}, "unwell": {"restarts": 1}}
    for name, given in hosts.items():
        stub(tmp_path / name / "systemctl", f'[ "$4" = fedpatch-relay.service ] && echo {given["restarts"]}')
    task = tasks_of("relay", "reached.yml", relay_program=str(tmp_path / "relay"), relay_wait_s=3)
    play = {
        "hosts": "devices",
        "environment": {"PATH": f"{tmp_path}/{{{{ inventory_hostname }}}}:/usr/bin:/bin"},
        "tasks": [task],
    }
    done = played(tmp_path, fleet_of(hosts), play)
    refusals = refused(done)
    assert set(refusals) == {"unwell"}, done.stdout + done.stderr
    assert "journalctl -u fedpatch-relay -p warning" in refusals["unwell"]


@by_ansible
def test_ipv6_addresses_stand_in_brackets_where_a_port_follows(tmp_path):
    """In the URL of the broker, of devices and of a coordinator elsewhere, and in what Prometheus reads."""
    files = [
        str(ROLES / role / kind / "main.yml")
        for role in ("fleet", "monitoring", "coordinator")
        for kind in ("defaults", "vars")
        if (ROLES / role / kind).exists()
    ]
    wanted = ["{{ fleet_broker_url }}", "{{ coordinator_all_settings.broker }}", "{{ monitoring_coordinators[0] }}"]
    template = ROLES / "monitoring" / "templates" / "prometheus.yml.j2"
    read = "(lookup('ansible.builtin.template', prometheus) | from_yaml).scrape_configs[1].static_configs"
    wanted.append(f"{{{{ {read} | map(attribute='targets') | flatten | join(' ') }}}}")
    play = {"hosts": "watch", "vars_files": files, "tasks": [{"ansible.builtin.debug": {"msg": one}} for one in wanted]}
    hosts = {"mqtt": "fd00::10", "hub": "fd00::11", "watch": "192.168.1.12", "pi": "pi.local"}
    groups = {"broker": "mqtt", "coordinator": "hub", "monitoring": "watch", "devices": "pi"}
    inventory = {
        "vars": HERE | {"ansible_managed": "", "prometheus": str(template)},
        "children": {group: {"hosts": {host: {"ansible_host": hosts[host]}}} for group, host in groups.items()},
    }
    done = played(tmp_path, inventory, play)
    assert re.findall(r'"msg": "(.*)"', done.stdout) == [
        "mqtts://[fd00::10]:8883",
        "mqtts://[fd00::10]:8884",
        "[fd00::11]:9464",
        "[fd00::11]:9100 [fd00::10]:9100 pi.local:9100 192.168.1.12:9100",
    ], done.stdout + done.stderr


@by_ansible
def test_relay_of_a_site_is_upgraded_in_place_of_its_coordinator_and_with_the_agent_of_its_host(tmp_path):
    files = [str(ROLES / role / kind / "main.yml") for role, kind in (("program", "vars"), ("coordinator", "defaults"))]
    wanted = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} {{ program_services | join(' ') }}"}}
    begun = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} begins {{ coordinator_enabled | bool }}"}}
    bundle = {"relay_bundle": "/site-7.bundle"}
    coordinators: dict[str, Any] = {"hosts": {"hub": {}, "gate": bundle, "all-in-one": bundle}}
    groups: dict[str, Any] = {"coordinator": coordinators, "devices": {"hosts": {"all-in-one": {}, "pi": {}}}}
    done = played(
        tmp_path,
        {"vars": HERE, "children": groups},
        {"hosts": "all", "vars_files": files, "tasks": [wanted, {**begun, "when": "'coordinator' in group_names"}]},
    )
    assert set(re.findall(r'"msg": "(.*)"', done.stdout)) == {
        "hub coordinator",
        "gate relay",
        "all-in-one device_agent relay",
        "pi device_agent",
        "hub begins True",
        "gate begins False",
        "all-in-one begins False",
    }, done.stdout + done.stderr


@by_ansible
def test_port_of_two_groups_admits_both_before_it_is_closed_to_others(tmp_path):
    """A broker's port is that of devices and of coordinators on other hosts."""
    admitted = [
        {"port": 8883, "from": ["10.0.0.1"]},
        {"port": 8883, "from": ["fd00::2"]},
        {"port": 9100, "from": ["10.0.0.3"]},
    ]
    template = ROLES / "firewall" / "templates" / "firewall.nft.j2"
    variables: dict[str, Any] = {"firewall_admitted": admitted, "ansible_managed": ""}
    wanted = {"ansible.builtin.debug": {"msg": f"{{{{ lookup('ansible.builtin.template', '{template}') }}}}"}}
    done = played(tmp_path, fleet_of({"hub": {}}, **variables), {"hosts": "broker", "tasks": [wanted]})
    rules = re.findall(r"(?:ip6? saddr \S+ )?tcp dport \d+ (?:accept|drop)", done.stdout)
    assert rules == [
        "ip saddr 10.0.0.1 tcp dport 8883 accept",
        "ip6 saddr fd00::2 tcp dport 8883 accept",
        "ip saddr 10.0.0.3 tcp dport 9100 accept",
        "tcp dport 8883 drop",
        "tcp dport 9100 drop",
    ], done.stdout + done.stderr


@by_ansible
@pytest.mark.slow
def test_the_brokers_certificate_is_made_anew_for_other_names_alone(tmp_path):
    """An IPv6 address is the same however it is written; days may be text."""
    values = {
        "fleet_ca_dir": str(tmp_path / "ca"),
        "fleet_control_command": str(Path(sysconfig.get_path("scripts"), "fedpatch")),
    }
    inventory = fleet_of({"hub": {"ansible_host": "fd00::0:10"}}, **values)
    changed = []
    for options in (
        [],
        ["-e", "authority_renew_days=10"],
        ["-e", '{"authority_broker_names": ["fd00::10", "hub.local"]}'],
    ):
        done = played(tmp_path, inventory, {"hosts": "broker", "roles": ["authority"]}, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        changed += re.findall(r"changed=(\d+)", done.stdout)
    assert changed == ["1", "0", "1"]


def test_the_files_of_a_first_boot_are_what_cloud_init_reads():
    """A Pi lets in by ssh, off in its system, for the holder of the key only; WiFi is there once its marks are taken away."""
    folder = ANSIBLE / "first_boot"
    text = (folder / "user-data").read_text()
    assert text.startswith("#cloud-config\n")
    values = yaml.safe_load(text)
    assert (values["enable_ssh"], values["ssh_pwauth"]) == (True, False)
    assert values["users"][0]["ssh_authorized_keys"]
    network = (folder / "network-config").read_text()
    assert set(yaml.safe_load(network)["network"]) == {"version", "ethernets"}
    wifi = yaml.safe_load(re.sub(r"(?m)^  # ", "  ", network))["network"]["wifis"]["wlan0"]
    assert len(wifi["regulatory-domain"]) == 2 and wifi["access-points"]
