"""Commands that prepare the files each page assumes, and actions of the reader between the page's commands."""

from __future__ import annotations

# Pages that another test follows word for word.
FOLLOWED_ALONE = {
    "docs/tutorials/first-hour.md": "tests/docs/test_first_hour.py",
    "docs/tutorials/own-readings.md": "tests/docs/test_own_readings.py",
    "docs/tutorials/own-task.md": "tests/docs/test_tutorial.py",
}
# Pages whose commands run until they are stopped, or need a package that the development tools leave out. These tests run the
# same programs; the options on these pages are checked as on every page.
PLAYED_ELSEWHERE = {
    "docs/how-to/console.md": "tests/coordinator/console/test_listen_terms.py",
    "docs/how-to/home-assistant.md": "tests/device_agent/bus",
    "docs/how-to/postgresql.md": "tests/system/test_postgresql.py",
    "docs/how-to/standby.md": "tests/system/test_standby.py",
    "docs/how-to/trackers.md": "tests/shared/trackers",
}

# Placeholders on the pages for the reader's own values, and the values here.
LEFT_TO_THE_READER = (
    (r"\bFEDPATCH_DATA=\.\.\.", 'FEDPATCH_DATA="$READER_DATA"'),
    (r"\b(fedpatch-agent run) \.\.\.", r"\1 --broker mqtts://broker.local --data shard:0/10"),
    (r"^(fedpatch run .*client\.key) \.\.\.$", r"\1"),
    (r"--round 12\b", "--round 1"),
    (r"\bdrain pi-03\b", "drain pi-7"),
    (r"--vault-password-file FILE\b", "--vault-password-file $READER_BIN/vault-word"),
    (r"--to 11\b", "--to 1"),
    (r"--serve 127.0.0.1:9464\b", "--serve 127.0.0.1:9465"),  # the waiting run of KITCHEN has the usual port
    (r"\bin HUB pi-", "in hub.local pi-"),
    (r"--host pi-1\b", "--host pi-7"),
    (r"\bAPPLICATION_USER\b", "nobody"),
    (r"--from CONTROL_HOST\b", "--from localhost"),
)

# A broker with TLS, called broker.local, whose certificate all programs here trust.
HOUSE = """
cat > /etc/mosquitto/mosquitto.conf <<END
allow_anonymous true
listener 8883 127.0.0.1
certfile $READER_HOME/house/broker/broker.crt
keyfile $READER_HOME/house/broker/broker.key
user root
END
systemctl restart mosquitto
"""

# A device has taken part in two runs, of one round and of two. With whole values each round leaves a personal model.
FLEET = f"""
python3 -c 'import numpy as np
image = np.zeros((1, 64), np.float32)
np.save("today.npy", image)
[np.savetxt(name, image, delimiter=",") for name in ("morning.csv", "evening.csv")]'
cp $READER_ROOT/docs/examples/two_moons_task.py .
printf 'broker = "mqtts://broker.local"\\ntask = "digits"\\n' > fedpatch.toml
(cat fedpatch.toml; printf 'data = "shard:0/2"\\nstate_dir = "fedpatch-agent-state"\\n') > agent.toml
git clone ... project
fedpatch ca init --ca-dir house --fleet house --broker-name broker.local --broker-name localhost
{HOUSE}
fedpatch-agent run --broker mqtts://broker.local --data shard:0/2 --device-id pi-7 --state-dir pi-7
export FEDPATCH_METRICS=none FEDPATCH_ENCODING=fp32+zstd
fedpatch run --broker mqtts://broker.local --state-dir fedpatch-state
READER_ROUNDS=2 fedpatch run --broker mqtts://broker.local --state-dir fedpatch-state --seed 1
fedpatch runs --json --state-dir fedpatch-state | grep -o '2[0-9]*-[0-9]*-[0-9a-f]*' | sort -u > runs
"""

# A folder for the page, with a copy of these files.
EVERYWHERE = """
set -o pipefail
rm -rf page tasks && mkdir page
cp -a fedpatch-state *.npy *.csv *.toml two_moons_task.py page/
cp -a pi-7 page/fedpatch-agent-state
rm -rf /opt/fedpatch /var/lib/fedpatch* /var/cache/fedpatch* /etc/fedpatch
mkdir -p /opt/fedpatch/current /var/lib/fedpatch /etc/fedpatch
ln -s $READER_BIN /opt/fedpatch/current/bin
cp -a fedpatch-state /var/lib/fedpatch/coordinator
cp -a pi-7 /var/lib/fedpatch/agent
cp -a pi-7 /var/lib/fedpatch-agent
cp agent.toml /etc/fedpatch/agent.toml
fedpatch unit > /etc/systemd/system/fedpatch-coordinator.service
fedpatch-agent unit > /etc/systemd/system/fedpatch-agent.service
cd page
"""

PROJECT = "cd $READER_HOME/project\n"
PAGE = "cd $READER_HOME/page\n"
USER = "id fedpatch > /dev/null 2>&1 || useradd --system fedpatch\n"
DEVICE = "fedpatch-agent run --broker mqtts://broker.local --data shard:0/2 --device-id pi-9 --state-dir pi-9\n"
# A device with the service: an option of its unit names the state directory, and its settings file does not.
SERVICE = r"""
id fedpatch &> /dev/null || useradd --system fedpatch
ln -s $READER_BIN /opt/fedpatch/bin
sed -i /state_dir/d /etc/fedpatch/agent.toml
sed -i 's|"file": ""|"file": "/etc/fedpatch/agent.toml"|' /var/lib/fedpatch-agent/status.json
"""
# A run of another fleet that waits for its devices, and may be watched.
KITCHEN = "READER_RUNS=on fedpatch run --broker mqtts://broker.local --fleet kitchen --state-dir kitchen\n"
END_AGENT = r"""
agent=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' fedpatch-agent-state/status.json)
while kill $agent 2> /dev/null; do sleep 0.1; done
"""
INSTALLED = """
fedpatch broker acl --ca-dir fedpatch-state/ca > fedpatch.acl
install -d /etc/mosquitto/fedpatch
cp fedpatch-state/ca/{ca.crt,ca.crl,broker/broker.crt,broker/broker.key} fedpatch.acl /etc/mosquitto/fedpatch/
(echo user root; cat $READER_ROOT/broker_config/mosquitto.conf) > /etc/mosquitto/mosquitto.conf
systemctl restart mosquitto
"""

# The text that a person would type in an editor.
VAULT = """
export EDITOR="sh -c 'echo vault_sensor_token: word > \"\\$0\"'"
"""

BACKUP = """
tar -cf ca-kitchen-....tar.vault -C $READER_HOME/house .
ansible-vault encrypt ca-kitchen-....tar.vault
"""

BEFORE = {
    "README.md": PROJECT,
    "CONTRIBUTING.md": PROJECT,
    "benchmarks/README.md": PROJECT,
    "studies/README.md": PROJECT,
    "broker_config/README.md": PROJECT,
    "docs/how-to/bring-your-task.md": f"""{HOUSE}{USER}
export FEDPATCH_BROKER=mqtts://broker.local
fedpatch-agent run --broker mqtts://broker.local --task two_moons_task:TASK --data sensor:3 --state-dir moons
""",
    "docs/how-to/own-strategy.md": r"""
awk '/^```python/ {inside = !seen++; next} /^```/ {inside = 0} inside' $READER_ROOT/docs/how-to/own-strategy.md > half_step.py
""",
    "docs/how-to/brokers.md": f"""{HOUSE.replace("allow_anonymous true", "password_file /etc/mosquitto/passwd")}
export READER_RUNS=later
""".replace("cat >", "touch /etc/mosquitto/passwd; cat >"),
    "docs/reference/cli.md": f"""{HOUSE}{DEVICE}
export FEDPATCH_ENCODING=fp32+zstd READER_CONNECTED=enough
fedpatch ca init --fleet kitchen --broker-name broker.local
cp $READER_HOME/house/ca.crt ca.pem
""",
    "docs/how-to/doctor.md": HOUSE,
    "docs/explanation/faults.md": PROJECT,
    "docs/how-to/fleet.md": f"{USER}git clone ... fedpatch && cd fedpatch\n"
    "cp -r ansible/inventories/example ansible/inventories/mine\n",
    "docs/reference/metrics.md": f"""{HOUSE}
export READER_RUNS=on READER_CONNECTED=enough
mkdir -p /var/lib/prometheus/node-exporter
""",
    "docs/how-to/personal-model.md": USER,
    "docs/explanation/results.md": PROJECT,
    "docs/explanation/scale.md": PROJECT,
    "docs/explanation/when-devices-lie.md": PROJECT,
    "docs/tutorials/ten-pis.md": "git clone ... fedpatch && cd fedpatch\n",
    "docs/how-to/service.md": "userdel fedpatch 2> /dev/null; groupdel fedpatch 2> /dev/null\n",
    "docs/how-to/your-device.md": f"""{HOUSE}{SERVICE}
mkdir -p /media/stick
(umask 077; echo word > passphrase)
echo 'broker = "mqtts://broker.local"' > /etc/fedpatch/bus.toml
""",
    "docs/how-to/watch.md": f"""{HOUSE}{KITCHEN}
cp $READER_HOME/house/ca.crt ca.pem
export FEDPATCH_STATE_DIR=kitchen
""",
}
BETWEEN = {
    ("broker_config/README.md", "fedpatch broker acl"): f"{PAGE}fedpatch ca init --fleet kitchen "
    "--broker-name broker.local --broker-name localhost\nfedpatch device add pi-1 --broker mqtts://broker.local "
    "--out pi-1.bundle\n",
    ("broker_config/README.md", "sudo install -d"): "cp -r fedpatch-state/ca/. carried && cd carried\n"
    "cp ../fedpatch.acl $READER_ROOT/broker_config/{mosquitto,mosquitto-limits}.conf $READER_ROOT/broker_config/*.sh .\n",
    ("broker_config/README.md", "fedpatch doctor"): PAGE,
    ("docs/how-to/brokers.md", "sudo systemctl reload"): "mosquitto_passwd /etc/mosquitto/passwd pi-1\n",
    ("docs/how-to/brokers.md", "fedpatch-agent run"): "(umask 077; echo word > pi-1.password)\n",
    ("docs/how-to/brokers.md", "fedpatch broker acl"): "fedpatch ca init --fleet kitchen --broker-name broker.local\n",
    (
        "docs/reference/cli.md",
        "fedpatch resume",
    ): "export READER_ROUNDS=2\nfedpatch devices drain pi-7 --reason away > /dev/null\n",
    ("docs/reference/cli.md", "fedpatch watch --broker"): KITCHEN,
    ("docs/reference/cli.md", "fedpatch ca init"): "rm -r fedpatch-state/ca\n",
    ("docs/reference/cli.md", "fedpatch device approve"): "fedpatch-agent enrol --from localhost --word WORD "
    "--config asked.toml --state-dir asked\n",
    ("docs/reference/cli.md", "fedpatch-agent backup"): "(umask 077; echo word > passphrase)\n"
    "echo 'broker = \"mqtts://broker.local\"' > bus.toml\n",
    ("docs/reference/cli.md", "fedpatch-agent restore"): f"{END_AGENT}rm -r fedpatch-agent-state\n",
    (
        "docs/reference/cli.md",
        "fedpatch-agent patches",
    ): "rm -rf fedpatch-agent-state; cp -a ../pi-7 fedpatch-agent-state\n",
    ("docs/how-to/fleet.md", ".venv/bin/ansible-vault create"): VAULT,
    ("docs/how-to/fleet.md", "export FEDPATCH_CA_DIR"): "fedpatch ca init --fleet kitchen "
    "--ca-dir ~/.local/share/fedpatch/kitchen/ca\n",
    ("docs/how-to/fleet.md", "../.venv/bin/ansible-vault decrypt"): BACKUP,
    ("docs/how-to/security.md", "fedpatch-agent doctor"): INSTALLED,
    ("docs/how-to/security.md", "fedpatch run"): "fedpatch-agent run --config /etc/fedpatch/agent.toml\n",
    ("docs/how-to/service.md", "sudo rm -r"): "mkdir -p /var/cache/fedpatch-agent\n",
    ("docs/how-to/your-device.md", "fedpatch-agent restore"): "rm -r /var/lib/fedpatch-agent\n",
    ("docs/tutorials/ten-pis.md", ".venv/bin/pip wheel"): "(cd && fedpatch-agent new-task room)\n",
    (
        "docs/how-to/watch.md",
        "fedpatch watch --broker mqtts://broker.local --fleet kitchen --username",
    ): "export FEDPATCH_PASSWORD=word\n",
    ("docs/how-to/watch.md", "fedpatch watch --once"): "unset FEDPATCH_PASSWORD\n",
}
AFTERWARDS = {
    "docs/how-to/brokers.md": """
for _ in $(seq 6000); do [ -e run.code ] && break; sleep 0.05; done
cat run.log
(exit $(cat run.code))
"""
}
