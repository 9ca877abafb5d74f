"""The access rules of a fleet as ejabberd's mod_mqtt has them, from the same topic table as mosquitto's acl_file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shared.topics import TOPICS, Party, Topic, check_name

_PARTIES: tuple[Party, ...] = ("coordinator", "device", "watcher")
_NOBODY = '"nobody@nowhere.invalid"'

Allowed = dict[str, list[Party]]


def ejabberd_rules(
    fleet: str,
    host: str,
    devices: Sequence[str],
    watchers: Sequence[str] = (),
    *,
    coordinator_user: str = "coordinator",
) -> str:
    """YAML to merge into ejabberd.yml: `acl`, `access_rules` and two options of mod_mqtt; users are those of `host`.

    What no rule allows is forbidden, once there is a rule. A subscription is judged by its filter, so a forbidden one is
    refused aloud. A device's user name must be its device id.
    """
    check_name("fleet", fleet)
    users: dict[Party, Sequence[str]] = {"coordinator": [coordinator_user], "device": devices, "watcher": watchers}
    lines = ["acl:"]
    for party in _PARTIES:
        named = ", ".join(f'"{user}@{host}"' for user in users[party])
        lines += [f"  fedpatch_{party}:", f"    user: [{named or _NOBODY}]"]
    publish: Allowed = {}
    subscribe: Allowed = {}
    for row in TOPICS:
        publish.setdefault(_filter(row, fleet, row.writer), []).append(row.writer)
        for party in row.readers:
            subscribe.setdefault(_filter(row, fleet, party), []).append(party)
    lines.append("access_rules:")
    for parties in sorted({tuple(one) for one in (*publish.values(), *subscribe.values())}):
        lines += [f"  {_rule(parties)}:", *(f"    - allow: fedpatch_{party}" for party in parties)]
    lines += ["modules:", "  mod_mqtt:"]
    for option, allowed in (("access_publish", publish), ("access_subscribe", subscribe)):
        lines += [f"    {option}:", *(f'      "{topic}": {_rule(parties)}' for topic, parties in allowed.items())]
    return "\n".join(lines) + "\n"


def _rule(parties: Sequence[Party]) -> str:
    return "_or_".join(("fedpatch", *parties)) if len(parties) > 1 else f"fedpatch_only_{parties[0]}"


def _filter(row: Topic, fleet: str, party: Party) -> str:
    """`%u` is the user's own name."""
    names = {"fleet": fleet, "device": "%u" if party == "device" else "+"}
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "+"), row.pattern)
