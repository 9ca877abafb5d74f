"""Recognition of models that are plain sequences of the layers in simulator.kernels.layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import nn

from fedpatch.simulator.kernels.layers import BatchNorm, Conv2d, Flatten, Layer, Linear, MaxPool2d, ReLU, Tanh

_LAYERS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: Linear,
    nn.Conv2d: Conv2d,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    nn.ReLU: ReLU,
    nn.Tanh: Tanh,
    nn.MaxPool2d: MaxPool2d,
    nn.Flatten: Flatten,
}


_STATE = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def layers_of(model: nn.Module) -> list[Layer] | None:
    """Return the layers of a plain sequence with one float type; None if a part is not supported, or used in an unusual way."""
    if type(model) is not nn.Sequential or not all(_is_untouched(part) for part in model.modules()):
        return None
    modules = list(_sequence("", model))
    if not modules or not all(_is_usual(module) for _, module in modules):
        return None
    owned = {id(value) for _, module in modules for value in module.state_dict(keep_vars=True).values()}
    if len(owned) != len(model.state_dict()):  # layers share a tensor, or a sequence has its own tensor
        return None
    if len({value.dtype for value in model.state_dict().values() if value.is_floating_point()}) > 1:
        return None
    layers = [_LAYERS[type(module)](name, module) for name, module in modules]
    layers[0].first = True
    for before, layer in pairwise(layers):
        layer.in_place = before.spare_output and isinstance(layer, ReLU)
    return layers


def _sequence(prefix: str, model: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    # named_children() would leave out a module that is used a second time.
    for name, module in zip(model._modules, model, strict=True):
        if type(module) is nn.Sequential:
            yield from _sequence(f"{prefix}{name}.", module)
        else:
            yield f"{prefix}{name}", module


def _is_untouched(module: nn.Module) -> bool:
    """Return whether a module has no hooks and no other `forward` than its class."""
    hooks = [getattr(module, name) for name in _HOOKS]
    hooks += [getattr(value, name) for value in module.parameters() for name in _TENSOR_HOOKS]
    return not any(hooks) and "forward" not in vars(module)


def _is_usual(module: nn.Module) -> bool:
    if (
        type(module) not in _LAYERS
        or any(True for _ in module.children())
        or not _STATE.issuperset(module.state_dict())
    ):
        return False
    if not all(value.requires_grad for value in module.parameters()):
        return False
    match module:
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return bool(module.affine and module.track_running_stats and module.momentum is not None)
        case nn.Conv2d():
            return module.padding_mode == "zeros" and not isinstance(module.padding, str)
        case nn.MaxPool2d():
            return not module.return_indices
        case nn.Flatten():
            return module.start_dim == 1 and module.end_dim == -1
    return True
