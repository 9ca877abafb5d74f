"""The dashboard *Fleet*: states of the devices, slow devices, offenders, and the state of the coordinator."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.boards import OF_COORDINATOR as OF
from dashboards.boards import Section, board, filled
from dashboards.looks import BAD, IDLE, OK, WARNING, Look, Query, or_zero
from dashboards.panels import lines, listing, number, ranking, stack, timeline
from dashboards.states import WORDS, state_number

UID = "fedpatch-fleet"
# A click on a device opens its dashboard; Grafana fills in the parts in braces.
_LINK = (
    "/d/fedpatch-device?var-datasource=${datasource}&var-coordinator=${coordinator}&var-device=${__field.labels.device}"
)
_COUNT = Look(decimals=0, least=0)
_THIRD = Look(unit="s", width=8, height=10, least=0, link=_LINK)


def dashboard() -> Dashboard:
    """Return the dashboard."""
    built = board(UID, "fedpatch: Fleet", "The devices of one coordinator: states, conditions, the slowest, offenders.")
    return filled(built, [_now(), _states(), _rankings(), _health(), _coordinator(), _leaders(), _limits()])


def _now() -> Section:
    count = 'fedpatch_devices{{{}, state="{}"}}'
    connected = Look(width=4, height=4, words=((1, "connected", OK), (0, "away", BAD)))
    return Section(
        "Now",
        [
            number("Devices known", "In any state.", Query(f"sum(fedpatch_devices{{{OF}}})")),
            number("Eligible", "Could be invited now.", Query(count.format(OF, "eligible"))),
            number("Wanted", "Must be eligible for a round to begin.", Query(f"fedpatch_devices_wanted{{{OF}}}")),
            number("Unwilling", "Would decline now.", Query(count.format(OF, "unwilling"))),
            number("Offline", "Disconnected or vanished.", Query(count.format(OF, "offline"))),
            number(
                "Broker", "The coordinator's own connection.", Query(f"fedpatch_broker_connected{{{OF}}}"), connected
            ),
        ],
    )


def _states() -> Section:
    reasons = listing(
        "Devices and reasons",
        "What each device is doing now, and why it is not doing more.",
        Query(f"fedpatch_device_state{{{OF}}}"),
        Look(width=8, height=12),
        (("device", "Device"), ("state", "State"), ("reason", "Reason")),
        "Now",
    )
    return Section(
        "States",
        [
            timeline(
                "State of each device",
                "Of all devices, or of the worst of each question where there are more than metrics_max_devices.",
                [Query(state_number(OF), "{{device}}")],
                Look(width=16, height=12, words=WORDS, link=_LINK),
            ),
            reasons,
            stack("Devices by state", "All known devices.", [Query(f"fedpatch_devices{{{OF}}}", "{{state}}")], _COUNT),
            stack(
                "Unwilling, by condition",
                "Devices that would decline now, by what their owner asks for.",
                [Query(or_zero(f"fedpatch_unwilling_devices{{{OF}}} > 0", "condition", OF), "{{condition}}")],
                _COUNT,
            ),
        ],
    )


def _rankings() -> Section:
    slow = "sort_desc(topk(10, fedpatch_device_{}_seconds{{{}}}))"
    trouble = " + ".join(
        f"sum by (device) (increase(fedpatch_device_{what}_total{{{OF}}}[$__range]))"
        for what in ("failures", "declines", "disconnects")
    )
    worst = f'sort(bottomk(10, fedpatch_device_user_accuracy{{{OF}, moment="before"}}))'
    flaps = f"sort_desc(topk(10, increase(fedpatch_device_disconnects_total{{{OF}}}[1h])))"
    steps = Look(width=8, height=10, decimals=0, least=0, steps=((3, WARNING), (6, BAD)), link=_LINK)
    return Section(
        "Slowest and offenders",
        [
            ranking(
                "Slowest in their last round",
                "From invitation to committed update.",
                [Query(slow.format("round", OF), "{{device}}")],
                _THIRD,
            ),
            ranking("Slowest to train", "By their own clock.", [Query(slow.format("train", OF), "{{device}}")], _THIRD),
            ranking(
                "Slowest to download", "By their own clock.", [Query(slow.format("download", OF), "{{device}}")], _THIRD
            ),
            ranking(
                "Offenders",
                "Failures, declines and disconnections in the time shown.",
                [Query(or_zero(f"sort_desc(topk(10, {trouble} > 0))", "device", OF), "{{device}}")],
                steps,
            ),
            ranking(
                "Flapping", "Times a device went offline within the last hour.", [Query(flaps, "{{device}}")], steps
            ),
            ranking(
                "Lowest user accuracy",
                "Before training, in their last round.",
                [Query(worst, "{{device}}")],
                Look(width=8, height=10, decimals=3, link=_LINK),
            ),
        ],
    )


def _health() -> Section:
    hottest = Query(f"sort_desc(topk(10, fedpatch_device_temperature_celsius{{{OF}}}))", "{{device}}")
    least = Query(f"sort(bottomk(10, fedpatch_device_free_disk_bytes{{{OF}}}))", "{{device}}")
    sites = Query(f"sort(bottomk(10, fedpatch_device_site_devices{{{OF}}}))", "{{device}}")
    signs = Query(f'fedpatch_devices_showing{{{OF}, sign!="reporting"}}', "{{sign}}")
    heat = Look("celsius", width=8, height=10, steps=((70, WARNING), (80, BAD)), link=_LINK)
    return Section(
        "The devices themselves",
        [
            lines(
                "Signs of trouble",
                "Devices that say so of themselves, with series of their own or without.",
                [signs],
                Look(width=8, height=10, decimals=0, least=0),
            ),
            ranking("Hottest", "From 80 °C on a Raspberry Pi is slowed down.", [hottest], heat),
            ranking("Least free disk", "Where agents keep their state.", [least], Look("bytes", 8, 10, link=_LINK)),
            ranking(
                "Smallest sites",
                "Devices behind a relay that can take part now.",
                [sites],
                Look(width=8, height=10, decimals=0, least=0, link=_LINK, empty="this fleet has no relay"),
            ),
        ],
    )


def _coordinator() -> Section:
    disk = [Query(f"fedpatch_state_free_bytes{{{OF}}} / fedpatch_state_size_bytes{{{OF}}}", "free")]
    spool = [Query(f"fedpatch_update_spool_bytes{{{OF}}}", "bytes")]
    events = [Query(f"fedpatch_event_queue_depth{{{OF}}}", "events")]
    memory = [Query(f"process_resident_memory_bytes{{{OF}}}", "resident")]
    processor = [Query(f"rate(process_cpu_seconds_total{{{OF}}}[5m])", "cores")]
    gone = [Query(f"increase(fedpatch_disconnects_total{{{OF}}}[1h])", "all devices")]
    share, size, plain = (Look(unit, width=8, least=0) for unit in ("percentunit", "bytes", "short"))
    return Section(
        "Coordinator",
        [
            lines("Disk", "Share of the state directory's disk that is free.", disk, share),
            lines("Updates on the disk", "That wait for aggregation.", spool, size),
            lines("Events that wait", "For the coordinator's loop.", events, plain),
            lines("Memory", "Of the coordinator's process.", memory, size),
            lines("Processor", "Cores that the coordinator keeps busy.", processor, plain),
            lines("Disconnections", "Times any device went offline in the hour before.", gone, plain),
        ],
    )


def _leaders() -> Section:
    # A coordinator that is down has no series any more; its last series has the fleet.
    of_fleet = f"and on (fleet) last_over_time(fedpatch_leader{{{OF}}}[$__range])"
    leads = f"(fedpatch_leader {of_fleet})"
    changes = " - ".join(f"{of}({of}_over_time(fedpatch_leader_epoch[$__range]) {of_fleet})" for of in ("max", "min"))
    strip = Look(width=12, height=4, words=((1, "leads", OK), (0, "waits", IDLE)))
    return Section(
        "Leaders",
        [
            number("Epoch", "Epoch of the leader; 0: no standbys.", Query(f"max(fedpatch_leader_epoch {of_fleet})")),
            number("Changes of leader", "In the time shown: takeovers and restarts.", Query(changes)),
            number("Standbys", "Coordinators of the fleet that wait now.", Query(f"sum(1 - {leads})")),
            timeline("Who leads", "Coordinators of the fleet.", [Query(leads, "{{instance}}")], strip),
        ],
    )


def _limits() -> Section:
    days = Query(f"(fedpatch_certificate_expiry_timestamp_seconds{{{OF}}} - time()) / 86400", "{{certificate}}")
    few = Look(unit="none", width=12, height=4, decimals=0)
    hidden = Query(f"fedpatch_devices_without_series{{{OF}}}")
    return Section(
        "Limits",
        [
            number("Certificate", "Days until the certificates expire that a run depends on.", days, few),
            number("Devices without series", "More than metrics_max_devices: not shown above.", hidden, few),
        ],
    )
