"""The dashboard *Rounds*: time of each phase, user accuracy, participation and traffic."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.boards import OF_COORDINATOR as OF
from dashboards.boards import Section, board, filled
from dashboards.looks import BAD, IDLE, OK, WARNING, Look, Query, or_zero
from dashboards.panels import lines, listing, number, stack

UID = "fedpatch-rounds"
_SECONDS = Look(unit="s")
_SIZE = Look("bytes", least=0)
_HOURLY = Look(decimals=0, least=0)
_PHASE = "fedpatch_round_phase_seconds"


def dashboard() -> Dashboard:
    """Return the dashboard."""
    built = board(UID, "fedpatch: Rounds", "Rounds of one coordinator: phases, user accuracy, quorum, declines, bytes.")
    return filled(built, [_now(), _time(), _quality(), _participation(), _traffic()])


def _now() -> Section:
    open_ = Look(width=4, height=4, words=((1, "open", OK), (0, "none open", IDLE), (2, "run ended", OK)))
    used = Look("percentunit", 4, 4, decimals=0, steps=((0.8, WARNING), (1.1, BAD)))
    failed = Look(width=4, height=4, steps=((1, WARNING), (2, BAD)))
    age = Look(unit="s", width=4, height=4, empty="no round was aggregated yet")
    elapsed = f"fedpatch_round_elapsed_seconds{{{OF}}} / fedpatch_round_deadline_seconds{{{OF}}}"
    state = f"max(fedpatch_round_open{{{OF}}}) + 2 * max(fedpatch_run_ended{{{OF}}})"
    since = f"time() - (fedpatch_last_round_timestamp_seconds{{{OF}}} > 0)"
    return Section(
        "Now",
        [
            number("Round", "The open round, or the last one.", Query(f"fedpatch_round_number{{{OF}}}")),
            number("Rounds planned", "After this round the run ends.", Query(f"fedpatch_rounds_planned{{{OF}}}")),
            number("Open", "Whether a round is open, or the run has ended.", Query(state), open_),
            number(
                "Deadline used",
                "How much of its time the open round has taken; beyond 100 % it is late.",
                Query(elapsed),
                used,
            ),
            number(
                "Failed in a row",
                "Failed rounds since the last good one.",
                Query(f"fedpatch_rounds_failed_in_a_row{{{OF}}}"),
                failed,
            ),
            number("Last model", "Time since a round was aggregated.", Query(since), age),
        ],
    )


def _time() -> Section:
    stacked = stack(
        "Phases of each round",
        "Seconds of the last round by phase, by the coordinator's clock; a step is a new round.",
        [Query(f"fedpatch_last_round_phase_seconds{{{OF}}}", "{{phase}}")],
        Look(unit="s", width=16, height=10),
    )
    mean = " / ".join(
        f"sum by (side, phase) (increase({_PHASE}_{part}{{{OF}}}[$__range]))" for part in ("sum", "count")
    )
    table = listing(
        "Mean seconds by phase",
        "Over the time shown. Side `device`: of each update that counted, by the device's own clock.",
        Query(mean),
        Look(unit="s", width=8, height=10),
        (("side", "Side"), ("phase", "Phase")),
        "Mean",
    )
    length = [
        Query(f"histogram_quantile({q}, sum by (le) (rate(fedpatch_round_seconds_bucket{{{OF}}}[1h])))", name)
        for q, name in ((0.5, "half take less"), (0.95, "95 % take less"))
    ]
    length.append(Query(f"fedpatch_round_deadline_seconds{{{OF}}}", "deadline"))
    outcomes = [Query(f"sum by (outcome) (increase(fedpatch_rounds_total{{{OF}}}[1h]))", "{{outcome}}")]
    return Section(
        "Time",
        [
            stacked,
            table,
            lines("Length of rounds", "Of the rounds of the hour before.", length, _SECONDS),
            stack("Rounds by outcome", "Rounds that ended in the hour before.", outcomes, _HOURLY),
        ],
    )


def _quality() -> Section:
    ua = f"fedpatch_user_accuracy{{{OF}, "
    over_rounds = [Query(f'{ua}stat="{stat}", moment="before"}}', stat) for stat in ("mean", "p10", "min")]
    moments = [Query(f'{ua}stat="mean", moment="{moment}"}}', f"{moment} training") for moment in ("before", "after")]
    look = Look(decimals=3, empty="no device has reported a user accuracy yet")
    every = "no round with evaluate_every yet"
    alone = "measured every independent_every rounds (10): not yet"
    return Section(
        "User accuracy",
        [
            lines(
                "User accuracy",
                "Of each round's devices, in the task's metric, before they trained. Nine of ten "
                "devices are at least as good as p10; min is the worst.",
                over_rounds,
                look,
            ),
            lines("What training adds", "Mean user accuracy before and after local training.", moments, look),
            lines(
                "All devices",
                "User accuracy of all devices that answered the last evaluate round (evaluate_every), without training.",
                [Query(f'fedpatch_evaluation{{{OF}, stat="{stat}"}}', stat) for stat in ("mean", "p10", "min")],
                Look(decimals=3, empty=every),
            ),
            lines(
                "Gain over learning alone",
                "Of the devices that measured it last (independent_every), in the task's metric: above 0 they gain from taking "
                "part. Nine of ten devices gain at least p10.",
                [
                    Query(f'fedpatch_independent{{{OF}, stat="{stat}"}}', word)
                    for stat, word in (("gain", "mean"), ("gain_median", "median"), ("gain_p10", "p10"))
                ],
                Look(decimals=3, empty=alone),
            ),
            lines(
                "Devices that gain",
                "Shares of these devices whose user accuracy is above and below that of learning alone.",
                [Query(f'fedpatch_independent{{{OF}, stat="{stat}"}}', stat) for stat in ("gaining", "losing")],
                Look(unit="percentunit", empty=alone),
            ),
        ],
    )


def _buffered() -> list[Query]:
    none = f"0 * sum(fedpatch_round_number{{{OF}}})"
    ages = f"sum by (le) (rate(fedpatch_update_staleness_bucket{{{OF}}}[1h]))"
    return [
        Query(f"fedpatch_carried_devices{{{OF}}}", "carried devices"),
        *(
            # Without an update in the hour before it is NaN.
            Query(f"histogram_quantile({q}, {ages}) >= 0 or on () {none}", f"staleness: {word}")
            for q, word in ((0.5, "half are younger"), (0.95, "95 % are younger"))
        ),
        Query(f"increase(fedpatch_carried_work_stale_total{{{OF}}}[1h])", "work ended at its cap"),
    ]


def _participation() -> Section:
    quorum = [
        Query(f'fedpatch_participants{{{OF}, state="reported"}}', "reported"),
        Query(f"fedpatch_quorum_updates{{{OF}}}", "needed"),
    ]
    by_reason = "sum by (reason) (increase({}{{{}}}[1h])) > 0"
    return Section(
        "Participation",
        [
            lines("Quorum", "Updates of the open round, and how many make the quorum.", quorum, _HOURLY),
            stack(
                "Participants",
                "Of the open round, by what they are doing; 0 between rounds. Prometheus misses a round that is shorter than a "
                "scrape.",
                [Query(f"fedpatch_participants{{{OF}}}", "{{state}}")],
                _HOURLY,
            ),
            lines(
                "Buffered rounds", "Carried work, and the staleness of updates (late = carry).", _buffered(), _HOURLY
            ),
            stack(
                "Declines by reason",
                "Invitations declined in the hour before, by reason or owner's condition.",
                [Query(or_zero(by_reason.format("fedpatch_declines_total", OF), "reason", OF), "{{reason}}")],
                _HOURLY,
            ),
            stack(
                "Failures by reason",
                "Devices that gave up after accepting, or stayed away, in the hour before.",
                [Query(or_zero(by_reason.format("fedpatch_failures_total", OF), "reason", OF), "{{reason}}")],
                _HOURLY,
            ),
            stack(
                "Updates by result",
                "In the hour before.",
                [Query(f"sum by (result) (increase(fedpatch_updates_total{{{OF}}}[1h]))", "{{result}}")],
                _HOURLY,
            ),
            stack(
                "Updates not taken, by reason",
                "In the hour before; late and damaged among them.",
                [Query(or_zero(by_reason.format("fedpatch_refusals_total", OF), "reason", OF), "{{reason}}")],
                _HOURLY,
            ),
            lines(
                "Updates pulled towards the others",
                "Share of an update's change that bounds and rule took away in the last round; one device far from all "
                "others lifts max alone.",
                [Query(f"fedpatch_update_pull{{{OF}}}", "{{stat}}")],
                Look(unit="percentunit", least=0, most=1),
            ),
        ],
    )


def _traffic() -> Section:
    total = f"fedpatch_bytes_total{{{OF}, "
    rate = Query(f'sum by (direction, kind) (rate({total}form="wire"}}[5m]))', "{{direction}}: {{kind}}")
    parts = (
        f'sum by (kind) (increase({total}kind=~"model|update", form="{form}"}}[$__range]))' for form in ("wire", "raw")
    )
    share = Query(" / ".join(parts) + " >= 0", "{{kind}}")  # not NaN, where nothing travelled
    mends = [
        Query(f"increase(fedpatch_chunks_repaired_total{{{OF}}}[1h])", "chunks sent once more"),
        Query(f"increase(fedpatch_window_stalls_total{{{OF}}}[1h])", "uploads granted again"),
    ]
    ways = Query(f"sum by (way) (increase(fedpatch_downloaded_bytes_total{{{OF}}}[1h]))", "{{way}}")
    return Section(
        "Traffic",
        [
            stack("Bytes", "As they travelled, over five minutes.", [rate], Look(unit="Bps")),
            lines(
                "Size on the wire",
                "Share of its size as tensors that a model or an update has when it travels.",
                [share],
                Look(unit="percentunit", width=6, least=0, empty="no model travelled in the time shown"),
            ),
            lines("Repairs", "In the hour before.", mends, Look(width=6, decimals=0, least=0)),
            stack(
                "Models by way", "Bytes that devices downloaded in the hour before, as they report them.", [ways], _SIZE
            ),
        ],
    )
