"""The dashboard *Device*: one device over time, beside its fleet."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.boards import OF_COORDINATOR as OF
from dashboards.boards import Section, board, choice, filled
from dashboards.looks import BAD, IDLE, OK, WARNING, Look, Query
from dashboards.panels import lines, listing, number, stack, timeline
from dashboards.states import WORDS, state_number

UID = "fedpatch-device"
_THIS = f'{OF}, device="$device"'


def dashboard() -> Dashboard:
    """Return the dashboard."""
    known = f"label_values(fedpatch_device_online{{{OF}}}, device)"
    built = board(UID, "fedpatch: Device", "One device: what it is doing, how long it takes, how good its model is.")
    built = built.with_variable(choice("device", "Device", known))
    return filled(built, [_now(), _rounds(), _health(), _room()])


def _now() -> Section:
    online = Look(width=4, height=4, words=((1, "online", OK), (0, "offline", IDLE)))
    progress = Look("percentunit", 4, 4, decimals=0)
    trouble = Look(width=4, height=4, decimals=0, steps=((3, WARNING), (6, BAD)))
    gone = f"increase(fedpatch_device_disconnects_total{{{_THIS}}}[1h])"
    state = listing(
        "State",
        "What it is doing now, and why it is not doing more.",
        Query(f"fedpatch_device_state{{{_THIS}}}"),
        Look(width=12, height=4),
        (("state", "State"), ("reason", "Reason")),
        "Now",
    )
    return Section(
        "Now",
        [
            number("Presence", "As the broker has it.", Query(f"fedpatch_device_online{{{_THIS}}}"), online),
            number(
                "Progress",
                "Of its training in the open round.",
                Query(f"fedpatch_device_progress_ratio{{{_THIS}}}"),
                progress,
            ),
            number("Went offline", "Times within the last hour.", Query(gone), trouble),
            state,
            timeline(
                "State over time",
                "One strip; the colours are those of *Fleet*.",
                [Query(state_number(_THIS), "{{device}}")],
                Look(width=24, height=5, words=WORDS),
            ),
        ],
    )


def _rounds() -> Section:
    took = [
        Query(f"fedpatch_device_{part}_seconds{{{_THIS}}}", part) for part in ("round", "download", "train", "upload")
    ]
    took.append(Query(f"quantile(0.5, fedpatch_device_round_seconds{{{OF}}})", "round, median of the devices"))
    good = [Query(f"fedpatch_device_user_accuracy{{{_THIS}}}", "{{moment}} training")]
    good.append(Query(f'fedpatch_user_accuracy{{{OF}, stat="mean", moment="before"}}', "mean of all, before"))
    trouble = [
        Query(f"increase(fedpatch_device_{what}_total{{{_THIS}}}[1h])", what)
        for what in ("declines", "failures", "disconnects")
    ]
    progress = [Query(f"fedpatch_device_progress_ratio{{{_THIS}}}", "trained")]
    return Section(
        "Rounds",
        [
            lines("Time it takes", "In the last round to which it contributed.", took, Look("s", least=0)),
            lines("User accuracy", "In that round, in the task's metric.", good, Look(decimals=3)),
            stack("Declines, failures, disconnections", "In the hour before.", trouble, Look(least=0)),
            lines("Training", "Done part of its training.", progress, Look("percentunit", least=0, most=1)),
        ],
    )


def _health() -> Section:
    yes = Look(width=4, height=4, words=((0, "no", OK), (1, "yes", BAD)))
    power = Look(width=4, height=4, words=((1, "external", OK), (0, "battery", WARNING)))
    link = listing(
        "Link",
        "What leads to the broker.",
        Query(f"fedpatch_device_link{{{_THIS}}}"),
        Look(width=8, height=4),
        (("kind", "Kind"),),
        "Now",
    )
    troubles = (("under_voltage", "under-voltage"), ("throttled", "throttled"))
    strips = [Query(f"fedpatch_device_{name}{{{_THIS}}}", legend) for name, legend in troubles]
    warmth = [Query(f"fedpatch_device_temperature_celsius{{{_THIS}}}", "processor")]
    warmth.append(Query(f"quantile(0.5, fedpatch_device_temperature_celsius{{{OF}}})", "median of the devices"))
    battery = [Query(f"fedpatch_device_battery_ratio{{{_THIS}}}", "charge")]
    return Section(
        "The device itself",
        [
            number("Power", "What feeds it.", Query(f"fedpatch_device_external_power{{{_THIS}}}"), power),
            number(
                "Battery",
                "Charge; none without a battery.",
                Query(f"fedpatch_device_battery_ratio{{{_THIS}}}"),
                Look("percentunit", 4, 4, decimals=0),
            ),
            number("Under-voltage", "Its supply is too weak.", Query(f"fedpatch_device_under_voltage{{{_THIS}}}"), yes),
            number("Throttled", "Its processor is slowed down.", Query(f"fedpatch_device_throttled{{{_THIS}}}"), yes),
            link,
            lines(
                "Temperature",
                "Of its processor; from 80 °C on a Pi is slowed down.",
                warmth,
                Look("celsius"),
            ),
            lines("Battery over time", "Charge.", battery, Look("percentunit", least=0, most=1)),
            timeline(
                "Under-voltage and throttling over time",
                "Red: the supply is too weak, or the processor slowed down.",
                strips,
                Look(width=24, height=5, words=((0, "no", OK), (1, "yes", BAD))),
            ),
        ],
    )


def _room() -> Section:
    load = [Query(f"fedpatch_device_load_per_cpu{{{_THIS}}}", "load")]
    memory = [Query(f"fedpatch_device_free_memory_bytes{{{_THIS}}}", "memory")]
    disk = [Query(f"fedpatch_device_free_disk_bytes{{{_THIS}}}", "disk")]
    size = Look("bytes", width=8, least=0)
    return Section(
        "Room for training",
        [
            lines("Load", "Of a minute, by CPU, the training included.", load, Look(width=8, least=0)),
            lines("Free memory", "That programs could take.", memory, size),
            lines("Free disk", "Where the agent keeps its state.", disk, size),
        ],
    )
