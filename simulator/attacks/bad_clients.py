"""The bad clients of a study: they train on their own data or on poisoned data, and their updates are changed in the spool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.attacks.backdoor import Backdoor
from fedpatch.simulator.attacks.poisoned_updates import Attack, KnownSteps, parse_attack, poison
from fedpatch.simulator.clients.patches import shared
from fedpatch.simulator.clients.population import Population
from fedpatch.simulator.learners.norm_bounded_learner import SpooledRound
from fedpatch.simulator.spec.study import Study


@dataclass(frozen=True)
class BadClients:
    """The bad clients of a study; a call with a round replaces their trained updates by those of the attack.

    Attributes:
        attack: Their attack.
        clients: Their numbers.
        seed: Seed of the study.
        population: The data that all clients train on. Bad clients do not count in user accuracy.
        backdoor: The backdoor that they train; only with the attack `backdoor`.
    """

    attack: Attack
    clients: frozenset[int]
    seed: int
    population: Population
    backdoor: Backdoor | None = None

    def __call__(self, updates: SpooledRound) -> None:
        """Replace the updates of the bad clients of a round."""
        bad = sorted(self.clients & set(updates.clients))
        if not bad or self.attack.kind == "labels":
            return
        known = KnownSteps(updates.base, updates.trained)
        if self.attack.kind in ("alie", "ipm"):
            for client in sorted(set(updates.clients) - self.clients):
                known.add(updates.read(client))
        boost = len(updates.clients) / len(bad)
        first = updates.read(bad[0])
        for client in bad:
            own = first if self.attack.kind == "copy" else updates.read(client)
            rng = np.random.default_rng([self.seed, updates.number, client])
            updates.write(client, poison(self.attack, own, known, rng, boost=boost))

    def found(self, pulls: Mapping[int, float]) -> float | None:
        """Return the share of the bad clients among the n most reduced clients, where n is the number of bad clients.

        Args:
            pulls: The share of its change that bounds and rule removed, by client; 0 for a client that never was pulled.
        """
        pulled = [client for client, share in pulls.items() if share > 0]
        farthest = sorted(pulled, key=lambda client: (-pulls[client], client))[: len(self.clients)]
        return len(self.clients & set(farthest)) / len(self.clients) if pulled else None


def bad_clients_of(study: Study, population: Population) -> BadClients | None:
    """Return the bad clients of a study, None if it has no attack.

    Raises:
        UsageError: The attack does not fit the data, or no client would be left.
    """
    if not study.attack:
        return None
    attack, clients = parse_attack(study.attack), draw_bad_clients(study.bad, study.clients, study.seed)
    backdoor = Backdoor.of(population) if attack.kind == "backdoor" else None
    if backdoor is not None:
        population = backdoor.poison_training(population, clients)
    elif attack.kind == "labels":
        population = _reverse_labels(population, clients)
    counts = [counts and client not in clients for client, counts in enumerate(population.counts_in_ua)]
    return BadClients(attack, clients, study.seed, replace(population, counts_in_ua=counts), backdoor)


def draw_bad_clients(share: float, clients: int, seed: int) -> frozenset[int]:
    """Return the numbers of the bad clients: a share of all, at least one and not all.

    Args:
        share: Share of the bad clients, 0 to 1.
        clients: Number of all clients.
        seed: Seed of the choice.

    Raises:
        UsageError: There is only one client.
    """
    if clients < 2:
        raise UsageError("--bad: of one client none can be bad; take at least 2 clients")
    count = min(clients - 1, max(1, round(share * clients)))
    return frozenset(np.random.default_rng([seed, clients]).permutation(clients)[:count].tolist())


def _reverse_labels(population: Population, clients: Collection[int]) -> Population:
    y = population.train_y.clone()
    total = y.max() + y.min()
    rows = torch.zeros(len(y), dtype=torch.bool)
    for client in clients:
        rows[population.train_starts[client] : population.train_starts[client + 1]] = True
    y[rows] = (total - y[rows]).to(y.dtype)
    return replace(population, train_y=shared(y))
