"""The options of the user's own study; defaults are those of the task and the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedpatch.coordinator.aggregation.limit_syntax import parse_aggregate_rule, parse_examples_cap, parse_norm_bound
from fedpatch.coordinator.aggregation.privacy_policy import CENTRAL, DISTRIBUTED, MECHANISMS
from fedpatch.coordinator.aggregation.strategy import refusal_of_rule
from fedpatch.coordinator.cohort.quorum import ROUNDING
from fedpatch.coordinator.find_strategy import STRATEGIES, find_strategy, rate_of, strategy_for
from fedpatch.coordinator.masking.masked_groups import LEAST_GROUP, largest_group
from fedpatch.coordinator.setting_conflicts.differential_privacy import NoiseSettings, privacy_problems
from fedpatch.shared.errors import ConfigError, UsageError, unknown_name
from fedpatch.shared.tasks.bundled.partition import parse_data_spec
from fedpatch.shared.tasks.metric_spec import ACCURACY, MetricTerms
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tensors.patch_policy import SHORTHANDS, check_private
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.masking_messages import MAX_GROUP
from fedpatch.shared.wire.messages import ENCODINGS
from fedpatch.shared.wire.plan_terms import PLAN_TERMS, make_terms, term_problems
from fedpatch.simulator.attacks.poisoned_updates import parse_attack
from fedpatch.simulator.spec.data_template import data_specs
from fedpatch.simulator.spec.plain_values import from_plain
from fedpatch.simulator.spec.published_rates import PER_FEDAVG_RATES, PFEDME_RATES, SCENARIOS
from fedpatch.simulator.spec.study import BASELINES, DEFAULTS, EVERYTHING, MEAN, UNBOUNDED, Study

_LARGEST_SEED = 2**53
SECURE = ("off", "groups")

# A strategy has at most one number besides the clients' learning rate.
_OWN_NUMBER = {"per-fedavg": "adaptation_rate", "pfedme": "proximity"}

# (learning rate, own number) by strategy and task, for each of SCENARIOS.
_PUBLISHED: Mapping[tuple[str, str], tuple[tuple[float, float], ...]] = {
    **{("per-fedavg", task): tuple((beta, alpha) for alpha, beta in rates) for task, rates in PER_FEDAVG_RATES.items()},
    **{("pfedme", task): rates for task, rates in PFEDME_RATES.items()},
}


@dataclass(frozen=True)
class Rates:
    """The rates of a strategy, by their names in Study; None: not given, or not used by the strategy."""

    learning_rate: float | None = None
    server_learning_rate: float | None = None
    adaptation_rate: float | None = None
    proximity: float | None = None


learn_types(Rates)


def make_study(*, task: Task, task_ref: str, strategy: str, **given: Any) -> Study:
    """Check the given terms and fill in the others.

    Missing rates are the task's. If the task has none for Per-FedAvg and pFedMe, they are the rates that the paper's
    authors published for the nearest W and C. Independent learning takes FedAvg's rate.

    Args:
        task_ref: The user's name of `task`.
        strategy: Name of a strategy or of one of BASELINES.
        given: Other terms by the names of `terms()`; `clients` is required. `noisy_fraction` is the share of the clients
            whose training data get noise (paper, Table 3).

    Raises:
        UsageError: A term has a wrong type, or terms do not fit together. Numbers out of range are all in one error.
    """
    plain = {
        name: value.item() if hasattr(value, "item") else value for name, value in given.items()
    }  # numpy's scalars
    known = {"private": "none", **DEFAULTS, **plain}
    rates = from_plain(Rates, {one.name: known.pop(one.name, None) for one in fields(Rates)}, "the simulation")
    noisy_fraction = known.pop("noisy_fraction")
    if known["batch_size"] is None:
        known["batch_size"] = task.batch_size
    metric = task.metric_terms
    known |= {"task": task_ref, "strategy": strategy, "metric": metric.name, "metric_goal": metric.goal}
    study = Study.from_dict(known | {"learning_rate": 0.0})
    check_strategy(strategy)
    study = replace(study, private=_policy(study.private, task))
    check_study(study, task, [*_misplaced(study, rates), *_noise_problems(study.data, noisy_fraction)])
    if study.attack:
        study = replace(study, attack=str(parse_attack(study.attack)))
    numbers = {name: value for name, value in vars(_filled(rates, study, task)).items() if value is not None}
    return replace(study, data=_data(study, task, noisy_fraction), **numbers)


def check_study(study: Study, task: Task, known: Sequence[str] = ()) -> None:
    """Check that the terms of a study fit together.

    Args:
        study: The study; its rates and data are not checked.
        known: Problems that were found before.

    Raises:
        UsageError: Terms do not fit together. Numbers out of range are all in one error.
    """
    parse_norm_bound(study.norm_bound)
    parse_examples_cap(study.max_num_examples)
    rule = parse_aggregate_rule(study.aggregate)
    if study.strategy not in BASELINES and (why := refusal_of_rule(rule, find_strategy(study.strategy))):
        raise UsageError(f"--aggregate {study.aggregate}: {why}")
    if study.encoding not in ENCODINGS:
        raise unknown_name("encoding", study.encoding, ENCODINGS)
    make_terms(study.prox, study.phases, study.personal, study.finish)
    if study.attack:
        parse_attack(study.attack)
    if problems := [
        *_problems(study, task.metric_terms),
        *_mask_problems(study),
        *_term_problems(study),
        *_privacy_problems(study),
        *known,
    ]:
        raise ConfigError(problems)


def _policy(private: str, task: Task) -> str:
    """Return the policy that devices get in their requests; the model is built only if the policy depends on it."""
    policy = check_private(private)
    if policy not in SHORTHANDS:
        return policy

    import torch

    from fedpatch.shared.tasks.torch_model import resolve_private

    with torch.random.fork_rng(devices=[]):
        return str(resolve_private(policy, task.build_model(), task.head))


def require_federated(study: Study) -> None:
    """Raise UsageError if the policy of a study keeps every tensor private."""
    if study.private == EVERYTHING:
        raise UsageError(
            f"--private {EVERYTHING} leaves nothing to federate; use --strategy independent for learning alone"
        )


def terms() -> frozenset[str]:
    """Return the names of all terms of a study that a user can give."""
    return frozenset(one.name for one in fields(Study)) - {"task", "metric", "metric_goal"} | {"noisy_fraction"}


def _mask_problems(study: Study) -> Iterator[str]:
    """Yield the settings that masked groups exclude, each with its option."""
    if study.secure not in SECURE:
        yield f"--secure: {study.secure!r} is none of {', '.join(SECURE)}"
    if not study.masked:
        return
    if study.strategy in BASELINES or find_strategy(study.strategy).moments:
        yield f"--secure groups: {study.strategy} cannot be summed under masks; use --strategy fedavg or fedadam"
    if study.norm_bound != UNBOUNDED:
        yield "--norm-bound: it bounds single updates, and only sums of masked groups are known; use --clip"
    if study.max_num_examples != UNBOUNDED:
        yield "--max-num-examples: it bounds single updates, and only sums of masked groups are known; leave it out"
    if not LEAST_GROUP <= study.group_size <= MAX_GROUP:
        yield f"--group-size: {study.group_size} is not {LEAST_GROUP} to {MAX_GROUP}"
    if study.participants < LEAST_GROUP:
        yield f"--secure groups: a round has {study.participants} clients; a group has at least {LEAST_GROUP}"
    yield from _masked_rule_problems(study)
    if study.clip is not None and not 0 < study.clip < math.inf:
        yield f"--clip: {study.clip} is not a number above 0"


def _term_problems(study: Study) -> Iterator[str]:
    """Yield the terms of the plan that do not fit the study."""
    if not 0 <= study.prox <= 1e6:
        yield f"--prox: {study.prox:g} is not from 0 to 1e6"
    fitting = term_problems(
        prox=study.prox,
        phases=study.phases,
        personal=study.personal,
        finish=study.finish,
        private=study.private,
        epochs=study.epochs,
        steps=study.steps,
    )
    yield from (f"{_option(name)}: {why}" for name, why, _ in fitting)
    yield from _control_problems(study)
    for term in PLAN_TERMS:
        if getattr(study, term) and study.strategy in BASELINES:
            yield f"--{term}: {study.strategy} trains in its own way; choose one of {', '.join(STRATEGIES.names())}"


def _control_problems(study: Study) -> Iterator[str]:
    """Yield the terms with which the server's control variate is no longer the mean of the clients'."""
    if study.strategy in BASELINES or not find_strategy(study.strategy).has_controls:
        return
    for name, fits in (("norm_bound", UNBOUNDED), ("max_num_examples", UNBOUNDED), ("attack", "")):
        if getattr(study, name) != fits:
            yield f"{_option(name)}: {study.strategy} keeps control variates, whose mean it would change; leave it out"


def _masked_rule_problems(study: Study) -> Iterator[str]:
    if study.aggregate.partition(":")[0] not in (MEAN, "centred"):
        yield f"--aggregate: {study.aggregate} looks at single updates, and only sums of masked groups are known; use centred"
    if study.dp == CENTRAL:
        yield "--dp: central clips single updates, and only sums of masked groups are known; use distributed"
    if study.dp == DISTRIBUTED and study.clip is not None:
        yield "--dp distributed: --dp-clip takes the place of --clip; leave --clip out"


def _problems(study: Study, metric: MetricTerms) -> Iterator[str]:
    """Yield the values out of range, each with its option."""
    if study.clients < 1:
        yield f"--clients: {study.clients} is too few; at least 1"
    if not 0 < study.participation <= 1:
        yield f"--participation: {study.participation} is not above 0 and at most 1"
    elif study.clients >= 1 and int(study.clients * study.participation + ROUNDING) < 1:
        least = math.ceil(1e4 / study.clients) / 1e4
        yield f"--participation: {study.participation} of {study.clients} clients selects none; {least} is one"
    if study.target_ua is not None and not metric.allows(study.target_ua):
        yield f"--target-ua: {study.target_ua} is not {metric.range_words}"
    if not 0 <= study.seed <= _LARGEST_SEED:
        yield f"--seed: {study.seed} is not from 0 to {_LARGEST_SEED}"
    for name, least_whole in (("rounds", 1), ("batch_size", 1), ("epochs", 1), ("steps", 0)):
        if (number := getattr(study, name)) < least_whole:
            yield f"{_option(name)}: {number} is too few; at least {least_whole}"
    yield from _attack_problems(study, metric)
    if study.steps > 0 and study.epochs > 1:
        yield f"--steps: {study.steps} steps take the place of --epochs {study.epochs}; leave one of them out"


def _attack_problems(study: Study, metric: MetricTerms) -> Iterator[str]:
    if not 0 <= study.bad < 1:
        yield f"--bad: {study.bad} is not a share from 0 to below 1"
    elif bool(study.attack) != (study.bad > 0):
        yield "--bad: the share of bad clients and --attack need each other; give both or none"
    elif study.attack and study.strategy in BASELINES:
        yield f"--attack: no rule protects {study.strategy}; choose one of {', '.join(STRATEGIES.names())}"
    elif study.attack.startswith("backdoor") and metric.name != ACCURACY:
        yield f"--attack: the success of a backdoor is measured by accuracy, and this task's metric is {metric.name}"


def _misplaced(study: Study, rates: Rates) -> Iterator[str]:
    """Yield options that the strategy does not use, and impossible rates."""
    if study.private != "none" and study.strategy in BASELINES:
        yield (
            f"--private: {study.strategy} keeps no patch private, it personalises in its own way; leave it out, or "
            f"choose one of {', '.join(STRATEGIES.names())}"
        )
    for one in fields(rates):
        value = getattr(rates, one.name)
        if value is None:
            continue
        if one.name not in ("learning_rate", _own_number(study.strategy)):
            owners = {name: strategy for strategy, name in _OWN_NUMBER.items()}
            owner = owners.get(one.name, "a strategy with an optimizer on the server, such as fedadam")
            yield f"{_option(one.name)}: {study.strategy} has no use for it, only {owner}; leave it out"
        elif not 0 < value < math.inf:
            yield f"{_option(one.name)}: {value} is not a number above 0"


def _noise_problems(data: str, noisy_fraction: object) -> Iterator[str]:
    if not isinstance(noisy_fraction, int | float) or not 0 <= noisy_fraction <= 1:
        yield f"--noisy-fraction: {noisy_fraction} is not a fraction from 0 to 1"
    elif noisy_fraction and data:
        yield "--noisy-fraction: it adds to the task's own data spec; with --data, write it there"


def _privacy_problems(study: Study) -> Iterator[str]:
    """Yield terms of differential privacy that do not fit together (coordinator.setting_conflicts.differential_privacy)."""
    if study.dp not in MECHANISMS:
        yield f"--dp: {study.dp!r} is not {' or '.join(MECHANISMS)}"
        return
    for name, least in (("noise_multiplier", 1e-3), ("dp_clip", 1e-6)):
        value = getattr(study, name)
        if value is not None and not least <= value <= 1e6:
            yield f"{_option(name)}: {value:g} is not from {least:g} to 1e6"
    if not 0 < study.delta < 1:
        yield f"--delta: {study.delta:g} is not above 0 and below 1"
        return
    if study.dp != UNBOUNDED and study.strategy in BASELINES:
        yield f"--strategy: {study.strategy} has no federated mean to add noise to; choose fedavg or fedadam with --dp"
        return
    strategy = None if study.strategy in BASELINES else find_strategy(study.strategy)
    settings = NoiseSettings(
        dp=study.dp,
        noise_multiplier=study.noise_multiplier,
        dp_clip=study.dp_clip,
        delta=study.delta,
        max_epsilon=None,
        rounds=study.rounds,
        devices=study.clients,
        target_ua=None,  # a study measures without noise, which is not a release
        moments=strategy.moments if strategy else (),
        aggregate=study.aggregate,
        masked=study.masked,
        largest_group=largest_group(study.group_size, LEAST_GROUP),
    )
    for name, text, *_ in privacy_problems(settings):
        yield f"{_option(name)}: {text}"
    for name in ("norm_bound", "max_num_examples"):
        if study.dp != UNBOUNDED and getattr(study, name) != UNBOUNDED:
            yield f"{_option(name)}: has no effect with --dp {study.dp}, whose clip takes its place; leave it out"


def check_strategy(ref: str) -> None:
    """Raise UsageError unless `ref` is a strategy or a baseline of the simulator; module:attribute is loaded."""
    if ":" in ref:
        find_strategy(ref)
    elif ref not in (known := [*STRATEGIES.names(), *BASELINES]):
        error = unknown_name("strategy", ref, known)
        raise UsageError(f"{error}; {STRATEGIES.how_to_name_a_module(ref)}")


def _own_number(strategy: str) -> str | None:
    """Return the name of the strategy's own number besides the learning rate."""
    if strategy in BASELINES:
        return _OWN_NUMBER.get(strategy)
    return "server_learning_rate" if hasattr(find_strategy(strategy), "server_learning_rate") else None


def _filled(given: Rates, study: Study, task: Task) -> Rates:
    """Return all rates of the strategy."""
    rate, own = _published(study, task)
    if study.strategy in BASELINES:
        like = "fedavg" if study.strategy == "independent" else study.strategy
        rate = task.learning_rates.get(like, rate)
    else:
        rate = rate_of(task.learning_rates, find_strategy(study.strategy))
    found: dict[str, float | None] = {"learning_rate": rate}
    if own_name := _own_number(study.strategy):
        found[own_name] = own
    found |= {name: value for name, value in vars(given).items() if value is not None}
    if missing := [_option(name) for name, value in found.items() if value is None]:
        raise UsageError(
            f"{study.strategy} on task {task.name!r} needs {' and '.join(missing)}: neither the task nor the paper's authors "
            "name a value"
            + ("; give it here, or in the task's learning_rates" if "--learning-rate" in missing else "; give it here")
        )
    return Rates(**found)


def _published(study: Study, task: Task) -> tuple[float | None, float | None]:
    """Return (learning rate, own number) of the strategy; numbers that the paper's authors tuned are of the nearest W and C."""
    if _own_number(study.strategy) == "server_learning_rate":
        return None, getattr(strategy_for(study.strategy, task, None), "server_learning_rate", None)
    if (study.strategy, task.name) not in _PUBLISHED:
        return None, None
    away = [(abs(math.log(study.clients / w)), abs(study.participation - c)) for w, c in SCENARIOS]
    return _PUBLISHED[study.strategy, task.name][away.index(min(away))]


def _data(study: Study, task: Task, noisy_fraction: float) -> str:
    template = study.data or task.simulation_data or task.demo_data
    if not template:
        raise UsageError(
            f"task {task.name!r} does not say how to share its data out; say it with --data, or give the task simulation_data"
        )
    if noisy_fraction:
        template = f"{template},noisy-fraction={noisy_fraction}"
        try:
            parse_data_spec(data_specs(template, study.clients, study.seed, most=1)[0])
        except UsageError as error:
            raise UsageError(
                f"--noisy-fraction: the data specs of task {task.name!r} are not those of the bundled tasks; give it --data "
                "that says what is noisy"
            ) from error
    data_specs(template, study.clients, study.seed, most=1)
    return template


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
