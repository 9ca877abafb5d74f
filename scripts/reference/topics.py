"""The page topics.md: the table of MQTT topics, and the access rules that follow from it."""

from __future__ import annotations

from fedpatch.shared.wire.topics import TOPICS, mosquitto_acl
from scripts.reference.markdown import render, table


def page() -> str:
    """Return the page."""
    rows = [
        (
            f"`{one.pattern}`",
            one.writer,
            ", ".join(one.readers),
            str(one.qos),
            "yes" if one.retain else "no",
            one.purpose,
        )
        for one in TOPICS
    ]
    rules = mosquitto_acl("kitchen", devices=["pi-1"], watchers=["ann"]).splitlines()
    acl = "".join(f"    {line}".rstrip() + "\n" for line in rules)
    header = ("topic", "writer", "readers", "QoS", "retained", "content")
    return render("topics.md", topics=table(header, rows), rules=acl)
