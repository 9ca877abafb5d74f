"""`fedpatch-agent predict`, `evaluate`, `models` and `rollback`: the personal model on this device, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpatch.device_agent.cli.acting_as import acting_as_owner_of
from fedpatch.device_agent.cli.state_dir import in_place, settings_file, state_options
from fedpatch.device_agent.models.store import HELD_WORDS, MODELS_DIRECTORY, ModelStore, ModelVersion
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.app.command import AsJson, command, say
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.app.formatting import printable, size
from fedpatch.shared.config.load import Source, cli_options
from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.model_metadata import SOURCES

if TYPE_CHECKING:
    from fedpatch.device_agent.models.personal import PersonalModel
    from fedpatch.shared.tasks.examples import Examples
    from fedpatch.shared.tasks.model_metadata import ModelMetadata
    from fedpatch.shared.tensors.arrays import Array

TaskName = Annotated[
    str, typer.Option("--task", metavar="NAME", help="Task of the model, needed if there are several.")
]
ModelPath = Annotated[
    Path | None,
    typer.Option("--model", metavar="PATH", help="Directory of another version, as `models` lists it."),
]


def add_models(app: typer.Typer) -> None:
    """Give `app` the commands."""
    for add in (_add_predict, _add_evaluate, _add_models, _add_rollback):
        add(app)


def _add_predict(app: typer.Typer) -> None:
    @command(app, "predict", example="fedpatch-agent predict today.npy --state-dir /var/lib/fedpatch-agent")
    @state_options
    def predict(
        files: Annotated[
            list[Path],
            typer.Argument(
                metavar="FILE...",
                help="Files or folders of readings (of a task with readings), .npy (one or more examples), .csv (one per "
                "row) or images (with Pillow).",
            ),
        ],
        *,
        state_dir: Path,
        task: TaskName = "",
        model: ModelPath = None,
        prepared: Annotated[
            bool, typer.Option("--prepared", help="The inputs are prepared: skip the task's prepare.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Run the personal model of this device on raw inputs, without torch and without the agent.

        It applies the task's windows and prepare, and prints the class of each example, or the raw outputs, and the time of
        each window. A warning names damaged lines, inputs unlike the training data, and answers on which this device
        never trained or that it could not judge.
        """
        personal = _opened(state_dir, task, model)
        predictions: list[tuple[Path, Array, list[dict[str, Any]]]] = []
        warnings: list[str] = []
        for file in files:
            found, places, differs = _predict(personal, file, prepared)
            predictions.append((file, found, _rows(personal, file, found, places)))
            warnings += differs
        say(*(f"warning: {words}" for words in warnings))
        if as_json:
            every = [one for _, _, rows in predictions for one in rows]
            typer.echo(json.dumps({**_origin(personal), "predictions": every, "warnings": warnings}))
            return
        for file, outputs, rows in predictions:
            for one in rows:
                values = " ".join(f"{value:.6g}" for value in outputs[one["row"]].ravel())
                when = f" time {one['time']}" if "time" in one else ""
                typer.echo(f"{printable(str(file))}[{one['row']}]{when}: {one.get('class', values)}")


def _predict(personal: PersonalModel, file: Path, prepared: bool) -> tuple[Array, Examples | None, list[str]]:
    """Return the outputs for the inputs in a file, the examples if they are readings, and warnings."""
    from fedpatch.device_agent.models.inputs import is_of_readings, read_inputs
    from fedpatch.shared.tasks.reading.readings_table import notes_unlogged

    known, shape, dtype = personal.metadata, personal.metadata.input_shape, personal.metadata.input_dtype
    if known.prepare is not None and not prepared:
        shape, dtype = known.prepare.raw_shape, "float32"
    examples = None
    if is_of_readings(file, known.readings) and not prepared:
        with notes_unlogged():
            examples = personal.examples(file)
    inputs = read_inputs(file, shape, dtype, known.readings) if examples is None else examples.x
    try:
        ready = personal.prepare(inputs, prepared=prepared)
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    outputs = personal.run(ready)
    differs = [f"{file}: {words}" for words in (*personal.differences(ready), *personal.doubts(outputs))]
    return outputs, examples, [*(examples.notes if examples else ()), *differs]


def _add_evaluate(app: typer.Typer) -> None:
    @command(app, "evaluate", example="fedpatch-agent evaluate --config agent.toml")
    @cli_options(AgentSettings, find_file=settings_file)
    def evaluate(
        settings: AgentSettings,
        source: Source[AgentSettings],
        model: ModelPath = None,
        as_json: AsJson = False,
    ) -> None:
        """Measure the personal model on this device's test data; print its user accuracy when it was made too."""
        from fedpatch.device_agent.models.evaluate import evaluate_model
        from fedpatch.shared.tasks.task import data_root, find_task

        task = find_task(settings.task)
        personal = _opened(in_place(settings, source).state_dir, task.name, model)
        measured, count = evaluate_model(personal, task, settings.data, settings.data_root or data_root())
        then = personal.metadata.user_accuracy
        name = personal.metadata.metric
        if as_json:
            known = {"metric": name, "user_accuracy": _finite(measured), "test_examples": count}
            typer.echo(json.dumps({**_origin(personal), **known, "user_accuracy_when_made": then}))
            return
        earlier = "" if then is None else f" ({then:.4g} when it was made)"
        typer.echo(f"{task.name}: {name} {measured:.4g} on {count} test examples{earlier}")
        typer.echo(f"model of round {personal.metadata.round} of run {personal.metadata.run}: {personal.path}")


def _add_models(app: typer.Typer) -> None:
    @command(app, "models", example="fedpatch-agent models --json")
    @state_options
    def models(*, state_dir: Path, as_json: AsJson = False) -> None:
        """List the personal models, the newest first, and why the last round gave none.

        The first figure is user accuracy on test data; the second, on validation data, chose the model.
        """
        if as_json:
            typer.echo(json.dumps(models_plain(state_dir)))
            return
        for line in models_in_words(state_dir) or [f"no personal models yet in {state_dir.expanduser()}"]:
            typer.echo(line)


def _add_rollback(app: typer.Typer) -> None:
    @command(app, "rollback", example="fedpatch-agent rollback --to 11 --state-dir /var/lib/fedpatch-agent")
    @state_options
    def rollback(
        *,
        state_dir: Path,
        to: Annotated[int | None, typer.Option("--to", min=0, metavar="ROUND", help="Round of the model.")] = None,
        release: Annotated[
            bool, typer.Option("--release", help="Let the next round's model replace the one that you chose.")
        ] = False,
        task: TaskName = "",
        as_json: AsJson = False,
    ) -> None:
        """Return to the previous personal model, or to the model of a round, until `rollback --release`."""
        from fedpatch.device_agent.models.personal import only_task

        store = _store(state_dir)
        name = task or only_task(store, state_dir)
        if release:
            if to is not None:
                raise UsageError("--to and --release exclude each other; give one of them")
            with acting_as_owner_of(state_dir):
                held = store.release(name)
            words = "the next round's model may replace the present one" if held else "no model was held"
            typer.echo(json.dumps({"task": name, "released": held}) if as_json else f"{name}: {words}")
            return
        with acting_as_owner_of(state_dir):
            version = store.roll_back(name, to)
        if as_json:
            typer.echo(json.dumps(_plain(name, version)))
        else:
            typer.echo(_in_words(name, version))


def models_in_words(state_dir: Path) -> list[str]:
    """Return a line for each model, and one if a round's model did not become the present one, even if it was the first."""
    store = _store(state_dir)
    lines = []
    for task in store.tasks(noted=True):
        versions = store.versions(task)
        lines += [_in_words(task, one) for one in versions]
        has_one = store.current(task) is not None
        is_lost = not has_one and any(one.metadata for one in versions)
        if is_lost:
            lines.append(
                f"no model of {task} is the present one: its link is lost; `fedpatch-agent rollback` makes it anew"
            )
        if store.held(task):
            lines.append(f"the present model of {task} stays: {HELD_WORDS}")
        if not is_lost and (kept := store.kept(task)):
            what = f"round {kept.round} of run {kept.run} gave"
            found = f"{what} no other model of {task}" if has_one else f"no personal model of {task} yet: {what} none"
            lines.append(f"{found}: {kept.why}")
    return lines


def models_plain(state_dir: Path) -> list[dict[str, Any]]:
    """Return the models for JSON, the newest of each task first."""
    store = _store(state_dir)
    return [_plain(task, one) for task in store.tasks() for one in store.versions(task)]


def _in_words(task: str, version: ModelVersion) -> str:
    mark = "present model" if version.current else "model"
    known = version.metadata
    if known is None:
        return f"{mark} of {task}: {version.problem}"
    measured = _measured(known)
    made = f"of round {known.round} of run {known.run}, made {known.created}"
    source = f"{SOURCES.get(known.source, known.source)} ({known.reason}), " if known.reason else ""
    return f"{mark} of {task}{measured}: {source}{made}, {size(known.size_bytes)}, {version.path}"


def _measured(known: ModelMetadata) -> str:
    """Return the figure to report, on test data, and the figure by which the model was chosen."""
    if known.user_accuracy is None:
        return ""
    chosen = "not chosen: no validation data"
    if known.validation_examples:
        value = "no number" if known.validation_accuracy is None else f"{known.validation_accuracy:.4g}"
        chosen = f"chosen by {value} on {known.validation_examples} validation examples"
    return f", {known.metric} {known.user_accuracy:.4g} on {known.test_examples} test examples ({chosen})"


def _plain(task: str, version: ModelVersion) -> dict[str, Any]:
    import msgspec

    known = msgspec.to_builtins(version.metadata) if version.metadata else {"task": task, "problem": version.problem}
    return {"path": str(version.path), "current": version.current, **known}


def _store(state_dir: Path) -> ModelStore:
    """Return the models in a state directory. UsageError if there is no such directory."""
    directory = state_dir.expanduser()
    with refusals_of(directory):
        if not directory.is_dir():
            raise UsageError(f"no agent has run in {directory}; say where its state is with --state-dir")
    return ModelStore(directory / MODELS_DIRECTORY)


def _opened(state_dir: Path, task: str, model: Path | None) -> PersonalModel:
    from fedpatch.device_agent.models.personal import PersonalModel

    if model is None:
        return PersonalModel.open(state_dir, task)
    opened = PersonalModel(model.parent if model.is_file() else model)
    if task and opened.metadata.task != task:
        raise UsageError(f"{model}: is a model of task {opened.metadata.task!r}, not of {task!r}")
    return opened


def _origin(personal: PersonalModel) -> dict[str, Any]:
    known = personal.metadata
    return {"model": str(personal.path), "task": known.task, "run": known.run, "round": known.round}


def _rows(personal: PersonalModel, file: Path, outputs: Array, places: Examples | None) -> list[dict[str, Any]]:
    names = personal.metadata.class_names
    rows = []
    for row, found in enumerate(outputs):
        place = {}
        if places is not None:
            place = {"place": places.place(row)} | ({"time": places.time_text(row)} if places.times is not None else {})
        chosen = {"class": names[int(found.argmax())], "class_index": int(found.argmax())} if names else {}
        values = [_finite(float(value)) for value in found.ravel()]
        rows.append({"file": str(file), "row": row, **place, **chosen, "outputs": values})
    return rows


def _finite(value: float) -> float | None:
    """Return the value; None if it is not finite, since JSON has no such numbers."""
    return value if math.isfinite(value) else None
