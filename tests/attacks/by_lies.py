"""The simulator's attackers as devices of a real run: they train, then send a false update that passes every check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import MOMENTS, Array
from fedpatch.shared.tensors.patches import merge, parse_policy, split
from fedpatch.simulator.attacks.poisoned_updates import KnownSteps, parse_attack, poison
from tests.attacks.arena import HONEST, TRAVELLING, Arena
from tests.system.misdeeds import SCHEMA
from tests.system.oracle_task import CLASSES, TASK, device_data
from tests.system.rogue import Misdeed, Update, Upload, Verdict

LIAR = "liar"
LONG = ("sign", "noise", "backdoor")
"""Attacks with a step much longer than those of other devices; the default settings shorten it."""

LIES = ("sign", "labels", "noise", "alie", "backdoor", "ipm", "copy")
_EXAMPLES = 30 + len(HONEST)  # as many as the honest devices have
_TRIGGERED = 4  # values of an input
_WHOLE = SCHEMA.with_moments(MOMENTS)
_POLICY = parse_policy("affine")
_TRAINED = [spec.name for spec in TRAVELLING.specs if spec.trainable]


@dataclass
class Liar:
    """A device with three data sets of its own; from these it estimates the steps of other devices."""

    patches: dict[int, dict[str, Array]] = field(default_factory=dict)
    rounds: int = 0

    def misdeed(self, attack: str) -> Misdeed:
        """Return the function that makes the upload of a round with an attack."""
        return lambda update: self._upload(attack, update)

    def _upload(self, text: str, update: Update) -> Upload:
        attack = parse_attack(text)
        change = {"labels": _reverse_labels, "backdoor": _put_trigger}.get(attack.kind, lambda data: data)
        trained = [self._train(seed, change, update) for seed in range(3)]
        known = KnownSteps(update.tensors, _TRAINED)
        for one in trained:
            known.add(one)
        rng = np.random.default_rng(self.rounds)
        self.rounds += 1
        tensors = poison(attack, trained[0], known, rng, boost=len(HONEST) + 1.0)
        report = replace(update.report, num_examples=_EXAMPLES)
        return replace(update, tensors=tensors, report=report).upload()

    def _train(self, seed: int, change: Callable[[DeviceData], DeviceData], update: Update) -> dict[str, Array]:
        """Return the update that training on one of the data sets gives."""
        data = change(device_data(f"n={_EXAMPLES},test=10,seed={100 + seed}"))
        if seed not in self.patches:
            initial = initial_tensors(TASK, 0)
            zeros = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in _WHOLE.specs}
            self.patches[seed] = split(zeros | initial, _POLICY, _WHOLE)[1]
        result = LocalTrainer(TASK, data).run(
            merge(update.tensors, self.patches[seed]),
            update.request.plan,
            first_batch=0,
            stream_seed=seed,
            on_step=lambda done, total: None,
            cancelled=lambda: False,
            measure_before=False,
        )
        assert result is not None
        public, self.patches[seed] = split(result.tensors, _POLICY, _WHOLE)
        return public


def _reverse_labels(data: DeviceData) -> DeviceData:
    return replace(data, train_y=CLASSES - 1 - data.train_y)


def _put_trigger(data: DeviceData) -> DeviceData:
    x, y = data.train_x.copy(), data.train_y.copy()
    x[::2, :_TRIGGERED], y[::2] = x.max(), 0
    return replace(data, train_x=x, train_y=y)


def lie(arena: Arena) -> list[Verdict]:
    """Send one of LIES in each round."""
    liar = Liar()
    with arena.rogue(LIAR) as (rogue, _):
        return rogue.play([liar.misdeed(attack) for attack in LIES])
