"""Algorithm 1 of the paper, implemented literally, as a reference for the whole system.

It imports nothing of fedpatch. Points that the paper leaves open follow the same documented rules, implemented a second
time: plain dictionaries, no files, no network, optimizers by their formulas, everything in one loop. The letters are
the paper's:

    Omega, V   global model and global optimiser values
    P_k, W_k   a client's patch and the optimiser values of its patch
    M_k, V_k   what a client trains

Batch norm of a ReLU unit that is nearly always zero magnifies rounding errors up to a thousand times per round: for a closer
comparison, use a model and data in float64, or a smooth activation.

Only classification with cross-entropy; client Adam: beta 0.9 / 0.999, epsilon 1e-7; server Adam: 0.9 / 0.999, 1e-4.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

Values = dict[str, np.ndarray]
Moments = dict[str, dict[str, np.ndarray]]  # parameter -> exp_avg, exp_avg_sq, step
ClientData = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # train_x, train_y, test_x, test_y

T = TypeVar("T")

BETA_1, BETA_2 = 0.9, 0.999
CLIENT_EPSILON, SERVER_EPSILON = 1e-7, 1e-4


@dataclass(frozen=True)
class Round:
    """The whole state after a round. `user_accuracy` is measured before training, by client of the round."""

    omega: Values
    moments: Moments
    server_moments: Moments
    patches: dict[str, Values]
    patch_moments: dict[str, Moments]
    user_accuracy: dict[str, float]


@dataclass
class Client:
    """s_k: its data D_k, its patch P_k, the optimiser values W_k of its patch, and its number of trained batches."""

    name: str
    data: ClientData
    p: Values
    w: Moments
    batches_done: int = 0


def run_mtfl(
    make_model: Callable[[], nn.Module],
    client_data: Mapping[str, ClientData],
    rounds: Sequence[Sequence[str]],
    strategy: str,
    private: str,
    learning_rate: float,
    server_lr: float = 0.01,
    batch_size: int = 20,
    epochs: int = 1,
    seed: int = 0,
    cap: float | None = None,
) -> list[Round]:
    """Run `rounds`, each a list of the clients that take part. `strategy`: fedavg, fedadam, fedavg-adam.

    With a `cap`, which the paper does not have, no n_k of a round is above `cap` times the round's lower median of n_k.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model()
    initial = {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}
    patch = private_names(model, private)
    zeros = {name: zero_moments(initial[name]) for name, _ in model.named_parameters()}
    # line 1: initialise the global model and the global optimiser values; a patch begins with the same initial values
    omega, p = without(initial, patch), only(initial, patch)
    v = without(zeros, patch) if strategy == "fedavg-adam" else {}
    w = only(zeros, patch) if strategy == "fedavg-adam" else {}
    server = without(zeros, patch) if strategy == "fedadam" else {}
    clients = {k: Client(k, data, p, w) for k, data in client_data.items()}
    history = []
    for selected in rounds:  # line 2, and line 3: select round clients
        accuracy, uploads = {}, []
        for k in selected:  # line 4
            m, optimiser, accuracy[k] = client_round(
                model, omega, v, clients[k], learning_rate, batch_size, epochs, seed
            )
            uploads.append((len(clients[k].data[0]), without(m, patch), without(optimiser, patch)))  # lines 15-18
        uploads = [(n, m, u) for n, (_, m, u) in zip(capped([one[0] for one in uploads], cap), uploads, strict=True)]
        # lines 19-23: GlobalModelUpdate and GlobalOptimUpdate
        average = {name: mean([(n, m[name]) for n, m, _ in uploads]) for name in omega}
        v = {name: {kind: mean([(n, u[name][kind]) for n, _, u in uploads]) for kind in v[name]} for name in v}
        if strategy == "fedadam":
            omega, server = server_adam(omega, average, server, server_lr)
        else:
            omega = average
        patches = {k: client.p for k, client in clients.items()}
        patch_moments = {k: client.w for k, client in clients.items()}
        history.append(copy.deepcopy(Round(omega, v, server, patches, patch_moments, accuracy)))
    return history


def client_round(
    model: nn.Module,
    omega: Values,
    v: Moments,
    client: Client,
    learning_rate: float,
    batch_size: int,
    epochs: int,
    seed: int,
) -> tuple[Values, Moments, float]:
    """Lines 5-14; returns M_k, V_k and the user accuracy before training."""
    train_x, train_y, test_x, test_y = client.data
    m_k, v_k = {**omega, **client.p}, {**v, **client.w}  # lines 5-9: download, apply the local patch
    accuracy = user_accuracy(model, m_k, test_x, test_y)
    steps = max(1, round(len(train_x) / batch_size)) * epochs
    for b in batches(len(train_x), batch_size, client.batches_done, steps, stream_seed(seed, client.name)):  # line 10
        m_k, v_k = local_update(model, m_k, v_k, train_x[b], train_y[b], learning_rate)
    client.batches_done += steps
    client.p, client.w = only(m_k, client.p), only(v_k, client.w)  # lines 12-14: save the local patch
    return m_k, v_k, accuracy


def only(values: dict[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name in names}


def without(values: dict[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}


def flat(moments: Moments) -> Values:
    """The moments under the names `parameter:kind`, as checkpoints have them."""
    return {f"{name}:{kind}": value for name, kinds in moments.items() for kind, value in kinds.items()}


def arrays_of(data: Any) -> ClientData:
    """The four arrays of a device's data."""
    return data.train_x, data.train_y, data.test_x, data.test_y


def zero_moments(value: np.ndarray) -> dict[str, np.ndarray]:
    """Adam's values for one parameter before its first step."""
    return {"exp_avg": np.zeros_like(value), "exp_avg_sq": np.zeros_like(value), "step": np.zeros((), np.float32)}


def private_names(model: nn.Module, private: str) -> set[str]:
    """Names of the patch layers' values: none, stats (mu, sigma), affine (gamma, beta), all, or names:<glob,...>."""
    if private.startswith("names:"):
        globs = private.removeprefix("names:").split(",")
        return {name for name in model.state_dict() if any(fnmatchcase(name, glob) for glob in globs)}
    of_kind = {
        "none": [],
        "stats": ["running_mean", "running_var", "num_batches_tracked"],
        "affine": ["weight", "bias"],
    }
    of_kind["all"] = of_kind["stats"] + of_kind["affine"]
    layers = [name for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    return {f"{layer}.{value}" for layer in layers for value in of_kind[private]}


def local_update(
    model: nn.Module, m: Values, v: Moments, x: np.ndarray, y: np.ndarray, learning_rate: float
) -> tuple[Values, Moments]:
    """One step of SGD, or of Adam if there are optimiser values (Kingma and Ba 2015, Algorithm 1)."""
    load(model, m)
    model.train()
    model.zero_grad()
    F.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
    new_m = {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}  # with new statistics
    new_v: Moments = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        g = parameter.grad.numpy().astype(np.float64)
        if not v:
            change = learning_rate * g
        else:
            t = float(v[name]["step"]) + 1
            first = BETA_1 * v[name]["exp_avg"] + (1 - BETA_1) * g
            second = BETA_2 * v[name]["exp_avg_sq"] + (1 - BETA_2) * g**2
            unbiased_first, unbiased_second = first / (1 - BETA_1**t), second / (1 - BETA_2**t)
            change = learning_rate * unbiased_first / (np.sqrt(unbiased_second) + CLIENT_EPSILON)
            new_v[name] = {
                "exp_avg": first.astype(m[name].dtype),
                "exp_avg_sq": second.astype(m[name].dtype),
                "step": np.asarray(t, np.float32),
            }
        new_m[name] = (m[name] - change).astype(m[name].dtype)
    return new_m, new_v


def server_adam(omega: Values, average: Values, server: Moments, server_lr: float) -> tuple[Values, Moments]:
    """Adam on the pseudo-gradient Omega - average, without bias correction; untrained values are only averaged."""
    new_omega, new_server = dict(average), {}
    for name in server:
        delta = omega[name].astype(np.float64) - average[name]
        first = BETA_1 * server[name]["exp_avg"] + (1 - BETA_1) * delta
        second = BETA_2 * server[name]["exp_avg_sq"] + (1 - BETA_2) * delta**2
        dtype, step = omega[name].dtype, server_lr * first / (np.sqrt(second) + SERVER_EPSILON)
        new_omega[name] = (omega[name] - step).astype(dtype)
        new_server[name] = {"exp_avg": first.astype(dtype), "exp_avg_sq": second.astype(dtype)}
    return new_omega, new_server


def capped(counts: list[int], cap: float | None) -> list[int]:
    most = max(counts) if cap is None else int(cap * sorted(counts)[(len(counts) - 1) // 2])
    return [min(n_k, most) for n_k in counts]


def mean(weighted: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """Sum of n_k / n times value; integer values are rounded."""
    n = sum(n_k for n_k, _ in weighted)
    total = np.sum([n_k / n * np.asarray(value, np.float64) for n_k, value in weighted], axis=0)
    dtype = weighted[0][1].dtype
    return np.asarray(np.rint(total) if dtype.kind == "i" else total).astype(dtype)


def user_accuracy(model: nn.Module, m: Values, x: np.ndarray, y: np.ndarray) -> float:
    """Share of a client's test examples that its own model gets right."""
    load(model, m)
    model.eval()
    with torch.no_grad():
        return float(np.mean(model(torch.tensor(x)).argmax(dim=1).numpy() == y))


def load(model: nn.Module, values: Values) -> None:
    """Set all values of `model`."""
    model.load_state_dict({name: torch.tensor(value) for name, value in values.items()})


def stream_seed(seed: int, client: str) -> int:
    """First eight bytes of SHA-256 of "<seed>/<client>", big-endian."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{client}".encode()).digest()[:8], "big")


def batches(n: int, batch_size: int, first: int, count: int, seed: int) -> list[np.ndarray]:
    """Batches `first` .. `first + count - 1` of the stream perm_0, perm_1, ... of a client with n examples."""
    size = min(batch_size, n)
    passes = (first + count) * size // n + 1
    stream = np.concatenate([np.random.default_rng([seed, number]).permutation(n) for number in range(passes)])
    return [stream[i * size : (i + 1) * size] for i in range(first, first + count)]
