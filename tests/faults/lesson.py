"""The models of a fleet after each round, by the oracle of Algorithm 1, if not every device that trains is counted.

A device keeps its trained patch even if its update was too late or its round failed, since the patch is its own. So a round
has the devices that trained, and among them the devices whose updates make the new model.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import nn

from fedpatch.shared.tensors.arrays import Array
from tests.faults.scene import PRIVATE, STRATEGY, data_spec
from tests.faults.slow_task import TASK, build_model
from tests.support import oracle
from tests.system.oracle_task import device_data

_SEED = 0


def _seeded() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return build_model()


# Made once, before threads play several runs at a time: they all share torch's one stream of random numbers.
_NET = _seeded()


class Lesson:
    """FedAvg-Adam; `omega` is the global model."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._net = copy.deepcopy(_NET)
        initial = {name: tensor.detach().numpy().copy() for name, tensor in self._net.state_dict().items()}
        private = oracle.private_names(self._net, PRIVATE)
        zeros = {name: oracle.zero_moments(initial[name]) for name, _ in self._net.named_parameters()}
        self.omega, patch = oracle.without(initial, private), oracle.only(initial, private)
        self._v, w = oracle.without(zeros, private), oracle.only(zeros, private)
        self._clients = {
            device: oracle.Client(device, oracle.arrays_of(device_data(data_spec(device))), patch, w)
            for device in devices
        }

    def round(self, trained: Collection[str], reported: Collection[str]) -> None:
        """Compute one round; without reporters the model stays unchanged."""
        uploads = []
        for device in sorted(trained):
            client = self._clients[device]
            rate = TASK.learning_rates[STRATEGY]
            m, v, _ = oracle.client_round(self._net, self.omega, self._v, client, rate, TASK.batch_size, 1, _SEED)
            if device in reported:
                uploads.append((len(client.data[0]), m, v))
        if uploads:
            self.omega = {name: oracle.mean([(n, m[name]) for n, m, _ in uploads]) for name in self.omega}
            self._v = {
                name: {kind: oracle.mean([(n, v[name][kind]) for n, _, v in uploads]) for kind in kinds}
                for name, kinds in self._v.items()
            }

    def model(self) -> dict[str, Array]:
        """Return the global model with its moments, under the names in checkpoints."""
        return {**self.omega, **oracle.flat(self._v)}

    def patch(self, device: str) -> tuple[int, dict[str, Array]]:
        """Return the number of batches that a device has seen, and its patch with its moments."""
        client = self._clients[device]
        return client.batches_done, {**client.p, **oracle.flat(client.w)}
