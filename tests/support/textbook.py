"""FedProx, FedRep, FedBABU, Ditto, pFedMe and SCAFFOLD as in their papers, as references for the system.

Like tests.support.oracle it imports nothing of fedpatch. Everything is plain SGD on dictionaries of values; the letters are
those of the papers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.oracle import Client, ClientData, Values, batches, load, mean, only, stream_seed, without

Batch = tuple[np.ndarray, np.ndarray]
ClientUpdate = Callable[[nn.Module, Values, Client, list[Batch]], Values]
"""Trains a client's values, global and private, on its next batches; the values that the client keeps are in it."""


def federate(
    model: nn.Module,
    data: Mapping[str, ClientData],
    rounds: Sequence[Sequence[str]],
    update: ClientUpdate,
    *,
    private: Sequence[str] = (),
    passes: int = 1,
    batch_size: int,
    seed: int,
) -> tuple[Values, dict[str, Client]]:
    """FedAvg with `update`; a client trains `passes` times on its examples in a round. Returns the model and the clients."""
    initial = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    w = without(initial, private)
    clients = {k: Client(k, one, only(initial, private), {}) for k, one in data.items()}
    for selected in rounds:
        sent = []
        for k in selected:
            client, (x, y, *_) = clients[k], data[k]
            steps = max(1, round(len(x) / batch_size)) * passes
            chosen = batches(len(x), batch_size, client.batches_done, steps, stream_seed(seed, k))
            w_k = update(model, {**w, **client.p}, client, [(x[b], y[b]) for b in chosen])
            client.batches_done += steps
            client.p = only(w_k, private)
            sent.append((len(x), w_k))
        w = {name: mean([(n, w_k[name]) for n, w_k in sent]) for name in w}
    return w, clients


def fedprox(learning_rate: float, mu: float, private: Sequence[str] = ()) -> ClientUpdate:
    """Li et al. 2020, Algorithm 2: w_k is about the minimum of F_k(w) + mu / 2 * |w - w^t|^2, over values that travel."""

    def update(model: nn.Module, w_t: Values, client: Client, data: list[Batch]) -> Values:
        w = w_t
        for batch in data:
            g, w = gradient(model, w, batch)
            pull = {name: 0.0 if name in private else mu * (w[name] - w_t[name]) for name in g}
            w = w | {name: w[name] - learning_rate * (g[name] + pull[name]) for name in g}
        return w

    return update


def fedrep(learning_rate: float, head: Sequence[str], head_share: float) -> ClientUpdate:
    """Collins et al. 2021, Algorithm 1: steps of the head with the representation fixed, then of the representation.

    `head_share` is the share of a round's steps that train the head; 0 is FedBABU (Oh et al. 2022), whose head never learns.
    """

    def update(model: nn.Module, w: Values, client: Client, data: list[Batch]) -> Values:
        for number, batch in enumerate(data):
            heads_turn = number < round(head_share * len(data))
            g, w = gradient(model, w, batch)
            w = w | {name: w[name] - learning_rate * g[name] for name in g if (name in head) == heads_turn}
        return w

    return update


def fine_tune(learning_rate: float, part: Sequence[str]) -> ClientUpdate:
    """Oh et al. 2022, section 4.2: after the rounds, SGD on `part` of the global model; the head for FedBABU."""

    def update(model: nn.Module, w: Values, client: Client, data: list[Batch]) -> Values:
        for batch in data:
            g, w = gradient(model, w, batch)
            w = w | {name: w[name] - learning_rate * g[name] for name in part}
        return w

    return update


def ditto(learning_rate: float, strength: float) -> ClientUpdate:
    """Li et al. 2021, Algorithm 1: FedAvg, and beside it v_k <- v_k - eta * (grad F_k(v_k) + lambda * (v_k - w^t)).

    v_k is `client.w["v"]`; in the first round of a client it is w^t.
    """

    def update(model: nn.Module, w_t: Values, client: Client, data: list[Batch]) -> Values:
        w, v = w_t, client.w.get("v", w_t)
        for batch in data:
            g, w = gradient(model, w, batch)
            w = w | {name: w[name] - learning_rate * g[name] for name in g}
            g, v = gradient(model, v, batch)
            v = v | {name: v[name] - learning_rate * (g[name] + strength * (v[name] - w_t[name])) for name in g}
        client.w["v"] = v
        return w

    return update


def pfedme(eta: float, strength: float) -> ClientUpdate:
    """T. Dinh et al. 2020, Algorithm 1 with K = 1: a step of theta on F(theta) + lambda / 2 * |theta - w|^2, then one of w."""

    def update(model: nn.Module, w_t: Values, client: Client, data: list[Batch]) -> Values:
        w, theta = dict(w_t), w_t
        for batch in data:
            g, theta = gradient(model, theta, batch)
            theta = theta | {name: theta[name] - eta * (g[name] + strength * (theta[name] - w[name])) for name in g}
            w |= {name: w[name] - eta * strength * (w[name] - theta[name]) for name in g}
        client.w["v"] = theta
        return theta | {name: w[name] for name in g}

    return update


def scaffold(
    model: nn.Module,
    data: Mapping[str, ClientData],
    rounds: Sequence[Sequence[str]],
    *,
    eta_l: float,
    eta_g: float = 1.0,
    passes: int = 1,
    batch_size: int,
    seed: int,
) -> tuple[Values, Values, dict[str, Values]]:
    """Karimireddy et al. 2020, Algorithm 1, option II: the model x, c, and c_i of each client.

    Statistics of batch norm, which the paper does not have, are averaged.
    """
    x = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    c = {name: np.zeros_like(value.detach().numpy()) for name, value in model.named_parameters()}
    c_i = {i: {name: value.copy() for name, value in c.items()} for i in data}
    done = dict.fromkeys(data, 0)
    for selected in rounds:
        y, delta_c = {}, {}
        for i in selected:
            inputs, targets, *_ = data[i]
            k = max(1, round(len(inputs) / batch_size)) * passes
            y_i = x
            for b in batches(len(inputs), batch_size, done[i], k, stream_seed(seed, i)):
                g, y_i = gradient(model, y_i, (inputs[b], targets[b]))
                y_i = y_i | {name: y_i[name] - eta_l * (g[name] - c_i[i][name] + c[name]) for name in g}
            done[i] += k
            c_plus = {name: c_i[i][name] - c[name] + (x[name] - y_i[name]) / (k * eta_l) for name in c}
            y[i], delta_c[i] = y_i, {name: c_plus[name] - c_i[i][name] for name in c}
            c_i[i] = c_plus
        s, n = len(selected), len(data)
        x_next = {name: mean([(1, y[i][name]) for i in selected]) for name in x}
        x = x_next | {name: x[name] + eta_g / s * sum(y[i][name] - x[name] for i in selected) for name in c}
        c = {name: c[name] + s / n * (1 / s) * sum(delta_c[i][name] for i in selected) for name in c}
    return x, c, c_i


def gradient(model: nn.Module, w: Values, batch: Batch) -> tuple[Values, Values]:
    """The gradient of the loss at w, and w with the statistics after the forward pass."""
    load(model, w)
    model.train()
    model.zero_grad()
    F.cross_entropy(model(torch.tensor(batch[0])), torch.tensor(batch[1])).backward()
    grads: dict[str, Any] = {name: value.grad for name, value in model.named_parameters()}
    after = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
    return {name: grad.numpy().copy() for name, grad in grads.items()}, after
