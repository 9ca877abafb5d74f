"""Conversion between a torch module and named tensors.

A tensor of a batch norm is recognised by the type of its module, never by name: "bn1" proves nothing, and is a prefix of
"bn10". Every tensor inside a batch norm counts as its own, which covers subclasses with other names and parametrized ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.tasks.frozen_values import frozen_in, frozen_names
from fedpatch.shared.tensors.arrays import Array, Role, Schema, Tensors, TensorSpec, listing
from fedpatch.shared.tensors.patch_policy import HEAD, NORMS, PatchPolicy, check_private, names_policy, parse_policy

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task

_NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def schema_of(module: nn.Module) -> Schema:
    """Schema of everything that `module` keeps in its state, without optimizer moments.

    A parameter that is not trained (requires_grad is False) has the role buffer, unless the task declares it frozen
    (shared.tasks.frozen_values): then it is no tensor of the schema, whose digest covers its value. Raises UsageError
    where the model holds a value that cannot travel, or a name with ':'.
    """
    roles = _roles(module)
    try:
        specs = tuple(_spec(name, tensor, roles[name]) for name, tensor in _state(module).items())
        return Schema(specs, frozen_in(module))
    except SchemaMismatch as error:
        raise UsageError(f"the task's model cannot be federated: {error}") from error


def private_names(model: nn.Module, policy: str) -> frozenset[str]:
    """Names of the tensors of `model` that stay on a device under a patch policy.

    Args:
        model: The model, as a task's `build_model` returns it.
        policy: none, stats, affine, all, norms or names:<glob,...>.

    Returns:
        The names, as in `model.state_dict()`; moments of the optimizer are not among them.

    Raises:
        UsageError: The policy is none of these, or matches nothing in the model.

    Example:
        >>> from torch import nn
        >>> from fedpatch import private_names
        >>> sorted(private_names(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), "affine"))
        ['1.bias', '1.weight']
    """
    return resolve_private(policy, model).private_names(schema_of(model))


def resolve_private(text: str, model: nn.Module, head: Collection[str] = ()) -> PatchPolicy:
    """Return the policy to request from a device; `norms` and `head` become names.

    `norms` keeps the trainable values of every normalisation layer: FedBN (Li et al. 2021) without batch norm's
    statistics. `head` keeps the layers that the task names: FedPer (Arivazhagan et al. 2019).

    Args:
        text: A policy as `check_private` takes it.
        model: The model, as a task's `build_model` returns it.
        head: Patterns for the names of the head's tensors (`Task.head`).

    Raises:
        UsageError: The text is no policy, the model has no normalisation layer that is trained, or the task names no head.
    """
    kind = check_private(text)
    if kind == HEAD:
        if not head:
            raise UsageError('the task names no head; add head=("fc2.*",) to it, or use --private names:GLOB,...')
        return PatchPolicy("names", tuple(head))
    if kind != NORMS:
        return parse_policy(kind)
    schema = schema_of(model)
    prefixes = tuple(_prefixes(model, _is_norm))
    norms = {spec.name for spec in schema.specs if spec.trainable and spec.name.startswith(prefixes)}
    if not norms:
        raise UsageError("patch policy norms: the model has no normalisation layer that is trained; use names:GLOB,...")
    return names_policy(norms, schema.names)


def to_tensors(module: nn.Module) -> dict[str, Array]:
    """Copies of all values that are not frozen; later training does not change them."""
    return _copies(_state(module))


def load_tensors(module: nn.Module, tensors: Tensors) -> None:
    """Copy all values into `module`, in place; frozen values stay.

    Raises SchemaMismatch, with nothing changed, unless names, shapes and dtypes are exactly those of the module.
    """
    schema_of(module).check(tensors)
    with torch.no_grad():
        for name, target in _state(module).items():
            # A copy, because torch does not accept read-only and oddly strided arrays.
            target.copy_(torch.from_numpy(np.array(tensors[name], order="C")))


def initial_tensors(task: Task, seed: int) -> dict[str, Array]:
    """Values of a new model of `task` that are not frozen.

    They are the same for the same seed, and torch's own random state stays as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = task.build_model()
    frozen = frozen_names(module, task) if task.frozen else ()
    return _copies({name: value for name, value in _state(module).items() if name not in frozen})


def floating_dtype(task: Task) -> str:
    """Dtype of the first floating parameter of a new model of `task`, "float32" where it has none."""
    with torch.random.fork_rng(devices=[]):
        values = task.build_model().parameters()
    return next((str(one.dtype).removeprefix("torch.") for one in values if one.is_floating_point()), "float32")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Use evaluation mode: normalisation uses running statistics. Afterwards every part has its former mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def require_whole_ties(module: nn.Module, private_names: Collection[str]) -> None:
    """Raise UsageError if a tensor is private under one of its names and public under another.

    Tied weights have several names: a value that is private under one name would leave the device under another.
    """
    names_at: dict[int, list[str]] = {}
    for name, tensor in _state(module).items():
        if tensor.numel():
            names_at.setdefault(tensor.data_ptr(), []).append(name)
    for names in names_at.values():
        private = [name for name in names if name in private_names]
        if private and len(private) < len(names):
            raise UsageError(
                f"{listing(names)} are one and the same tensor, but the patch policy keeps only {listing(private)} "
                "private; name all of them or none"
            )


def _copies(state: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: np.array(tensor.detach().cpu().numpy(), order="C") for name, tensor in state.items()}


def _state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, the live ones; a tensor with two names appears under both.

    Frozen values are left out.
    """
    state: dict[str, torch.Tensor] = {}
    frozen = set(frozen_in(module).names)
    for name, value in module.state_dict(keep_vars=True).items():
        if name in frozen:
            continue
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"the task's model keeps {name!r}, which is no tensor and cannot travel; make it a buffer")
        state[name] = value
    return state


def _roles(module: nn.Module) -> dict[str, Role]:
    """Role by name; found by identity, so that a tensor with several names has one role."""
    parameters = {id(value) for value in module.parameters() if value.requires_grad}
    prefixes = tuple(_prefixes(module, lambda part: isinstance(part, _BatchNorm)))
    state = _state(module)
    in_batch_norm = {id(value) for name, value in state.items() if name.startswith(prefixes)}

    def role(value: torch.Tensor) -> Role:
        if id(value) in parameters:
            return "affine" if id(value) in in_batch_norm else "weight"
        frozen = isinstance(value, nn.Parameter)
        return "stats" if id(value) in in_batch_norm and not frozen else "buffer"

    return {name: role(value) for name, value in state.items()}


def _prefixes(module: nn.Module, wanted: Callable[[nn.Module], bool]) -> Iterator[str]:
    for name, part in module.named_modules():
        if wanted(part):
            yield f"{name}." if name else ""


def _is_norm(part: nn.Module) -> bool:
    """Return whether a layer normalises, by type; libraries of transformers have own RMS norms, named `...RMSNorm`."""
    return isinstance(part, _NORMS) or type(part).__name__.endswith(("LayerNorm", "RMSNorm"))


def _spec(name: str, tensor: torch.Tensor, role: Role) -> TensorSpec:
    if is_lazy(tensor):
        raise SchemaMismatch(f"{name}: its shape is not known yet; send one batch through the model in build_model")
    return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), role)
