"""Rounds and bytes to a user accuracy with masked groups, beside plain updates: `python -m studies.masked_rounds`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.support.documents import Document, Out, Show, Toy, deliver, kept, machine_line, read_document, table
from benchmarks.support.programs import ROOT
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.signals import interruptible
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import find_task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import EXACT, Study
from studies.paper.experiments import Cell, cells_of, study_of
from studies.paper.results import Results

BENCHMARK = "masking.rounds"
PARTICIPATIONS = (1.0, 0.5)
MODEL_ENCODING = "delta-int8"
"""Encoding of models in a masked run, and the default of other runs."""

VARIANTS: dict[str, dict[str, Any]] = {
    "masked": {"secure": "groups", "encoding": MODEL_ENCODING},
    EXACT: {"encoding": EXACT},
    MODEL_ENCODING: {"encoding": MODEL_ENCODING},
}
GOALS = (
    ("rounds, masked over fp32", "masked", "fp32", "rounds_to_target", 1.1),
    (
        "bytes of a client, masked over delta-int8",
        "masked",
        MODEL_ENCODING,
        "bytes_of_a_client",
        1.3,
    ),
)
"""Words, contestant, reference, figure, and the ratio that it should be at most."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(
    app,
    "rounds",
    example="FEDPATCH_DATA=... python -m studies.masked_rounds --out results/benchmarks/masked-rounds.json",
)
def rounds(
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds, from 0.")] = 5,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes to compute with.")] = 1,
    toy: Toy = False,
    show: Show = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Count the rounds and the bytes to UA 0.97 on MNIST (200 clients, FedAvg, private affine), masked and plain.

    Runs that are in the file of --out are not played again. The messages of masking are not in the bytes: they are 4 kB a
    device and round up, and 9 kB down, for groups of 32 (`benchmarks.masking.cost`).
    """
    if show is not None:
        deliver(read_document(show, BENCHMARK), tables, None, as_json)
        return
    document = _begun(out, seeds, toy=toy)
    with interruptible():
        for participation, seed, variant in _cases(seeds, toy=toy):
            if any(_is(run, participation, seed, variant) for run in document["runs"]):
                continue
            known = None if toy or variant != EXACT else _recorded(participation, seed)
            run = known or _played(_study(participation, seed, toy=toy), variant, workers)
            document["runs"].append(run)
            kept(document, out)
            typer.echo(f"C={participation}, seed {seed}, {variant}: {run['rounds_to_target']} rounds", err=True)
    document["ratios"] = ratios(document["runs"])
    deliver(document, tables, out, as_json)


def _begun(out: Path | None, seeds: int, *, toy: bool) -> Document:
    if out is None or not out.exists():
        return begun(BENCHMARK, seeds) | ({"toy": True} if toy else {}) | {"runs": []}
    document = read_document(out, BENCHMARK)
    if document.get("toy", False) != toy:
        raise UsageError(f"{out} has runs {'without' if toy else 'of'} --toy; choose another --out")
    return document


def _cases(seeds: int, *, toy: bool) -> Iterator[tuple[float, int, str]]:
    for seed in range(1 if toy else seeds):
        for participation in PARTICIPATIONS[: 1 if toy else None]:
            yield from ((participation, seed, variant) for variant in VARIANTS)


def _is(run: Document, participation: float, seed: int, variant: str) -> bool:
    return (run["participation"], run["seed"], run["variant"]) == (participation, seed, variant)


def _study(participation: float, seed: int, *, toy: bool) -> Study:
    if toy:
        return make_study(
            task=find_task("digits"),
            task_ref="digits",
            clients=8,
            strategy="fedavg",
            private="affine",
            rounds=3,
            target_ua=0.5,
            seed=seed,
        )
    return study_of(_cell(participation), seed)


def _cell(participation: float) -> Cell:
    name = f"mnist/fedavg/affine/W200/C{participation}"
    return next(cell for cell in cells_of("table2") if cell.short_name == name)


def _recorded(participation: float, seed: int) -> Document | None:
    """Return the run of results/table2.jsonl with whole values; its bytes are not counted."""
    results, cell = Results(ROOT / "results"), _cell(participation)
    result = results.read(cell, seed)
    if result is None:
        return None
    figures = {"rounds_to_target": result.rounds_to_target, "bytes_up_per_update": None, "bytes_of_a_client": None}
    return _named(result.study, EXACT) | figures | {"curve": list(result.curve), "seconds": result.seconds}


def _named(study: Study, variant: str) -> Document:
    named = {"participation": study.participation, "seed": study.seed, "variant": variant}
    return named | {"clients": study.clients}


def _played(study: Study, variant: str, workers: int) -> Document:
    outcome = simulate(replace(study, **VARIANTS[variant]), workers=workers)
    total = outcome.bytes_to_target
    return _named(study, variant) | {
        "rounds_to_target": outcome.rounds_to_target,
        "bytes_up_per_update": outcome.bytes_up_per_update,
        "bytes_of_a_client": None if total is None else total / study.clients,
        "curve": [round(one.user_accuracy, 5) for one in outcome.points],
        "seconds": round(outcome.seconds, 1),
    }


def ratios(runs: Iterable[Document]) -> list[Document]:
    """Return the ratio of each goal by participation and seed, between two runs with the same data and selection."""
    found = {(run["participation"], run["seed"], run["variant"]): run for run in runs}
    pairs = sorted({key[:2] for key in found}, reverse=True)
    rows = []
    for words, one, other, figure, bound in GOALS:
        for participation in dict.fromkeys(pair[0] for pair in pairs):
            values = []
            for seed in sorted(pair[1] for pair in pairs if pair[0] == participation):
                above = found.get((participation, seed, one), {}).get(figure)
                below = found.get((participation, seed, other), {}).get(figure)
                if above and below:
                    values.append(above / below)
            if values:
                row = {"words": words, "participation": participation, "bound": bound, "all": values}
                rows.append(row | {"mean": statistics.fmean(values), "min": min(values), "max": max(values)})
    return rows


def tables(document: Document) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield machine_line(document)
    yield ""
    runs = document["runs"]
    cells = dict.fromkeys((run["participation"], run["variant"]) for run in runs)
    heads = ("C", "updates", "rounds by seed", "mean", "an update", "a client to the target")
    yield from table(heads, (_row(runs, *cell) for cell in sorted(cells, key=lambda one: -one[0])))
    yield ""
    yield from table(
        ("ratio", "C", "mean", "least", "most", "goal"),
        (
            [
                one["words"],
                one["participation"],
                *(f"{one[key]:.2f}" for key in ("mean", "min", "max")),
                f"<= {one['bound']}",
            ]
            for one in ratios(runs)
        ),
    )


def page() -> str:
    """Return the page of the tables of results/."""
    document = read_document(ROOT / "results" / "benchmarks" / "masked-rounds.json", BENCHMARK)
    return "\n".join(["# Benchmark: masked-rounds", "", *tables(document), ""])


def _row(runs: Iterable[Document], participation: float, variant: str) -> list[str]:
    mine = [run for run in runs if (run["participation"], run["variant"]) == (participation, variant)]
    reached = [run["rounds_to_target"] for run in mine]
    known = [one for one in reached if one is not None]
    sizes = [run["bytes_up_per_update"] for run in mine if run["bytes_up_per_update"] is not None]
    paid = [run["bytes_of_a_client"] for run in mine if run["bytes_of_a_client"] is not None]
    return [
        f"{participation}",
        variant,
        ", ".join("-" if one is None else str(one) for one in reached),
        f"{statistics.fmean(known):.1f}" if known else "-",
        size(statistics.fmean(sizes)) if sizes else "-",
        size(statistics.fmean(paid)) if paid else "-",
    ]


if __name__ == "__main__":
    run_app(app, "python -m studies.masked_rounds")
