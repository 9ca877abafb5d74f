"""The frozen values of a task's model: never trained, the same on each device, part of no message and no checkpoint.

With them a model may be far larger than its traffic: LoRA (Hu et al. 2022) trains small matrices beside a frozen base, FedPer
(Arivazhagan et al. 2019) a head behind a pretrained trunk. Coordinator and devices have the values from the task, which names
them (`Task.frozen`): `build_model` makes them, or a file with a checksum has them (`Task.frozen_file`). The digest of the
model's schema covers them, so that a device with other values declines a request.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.downloads import DataFile, fetch
from fedpatch.shared.tasks.task import data_root
from fedpatch.shared.tensors.patch_policy import require_match
from fedpatch.shared.tensors.schema import NOTHING_FROZEN, Frozen, listing

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task

_MARK = "_fedpatch_frozen"


def new_model(task: Task) -> nn.Module:
    """Build the model of a task, with its frozen values.

    Returns:
        The model; `frozen_in` describes its frozen values.

    Raises:
        UsageError: `Task.frozen` does not fit the model.
        DataError: The file of frozen values is missing, damaged, or that of another model.

    Example:
        >>> from fedpatch.shared.tasks.task import find_task
        >>> frozen_in(new_model(find_task("digits"))).names
        ()
    """
    return freeze(task.build_model(), task)


def freeze(module: nn.Module, task: Task) -> nn.Module:
    """Copy the values of the task's file into `module`, a new model of `task`, record its frozen values, and return it.

    Args:
        module: A model, as the task's `build_model` returns it; it is changed.

    Raises:
        UsageError: `Task.frozen` does not fit the model.
        DataError: The file of frozen values is missing, damaged, or that of another model.
    """
    if not task.frozen:
        return module
    names = frozen_names(module, task)
    state = module.state_dict(keep_vars=True)
    values = {name: state[name] for name in sorted(names)}
    if task.frozen_file is not None:
        _copy_file(task.frozen_file, values, task.name)
    vars(module)[_MARK] = Frozen(tuple(values), _digest(values), sum(value.nbytes for value in values.values()))
    return module


def frozen_in(module: nn.Module) -> Frozen:
    """Return the frozen values of a model that `new_model` or `freeze` made; for another model, none."""
    found: Frozen = vars(module).get(_MARK, NOTHING_FROZEN)
    return found


def frozen_names(module: nn.Module, task: Task) -> frozenset[str]:
    """Return the names of the values that a task declares frozen.

    Args:
        module: A model, as the task's `build_model` returns it.

    Raises:
        UsageError: A pattern of the task matches nothing or a trained parameter, nothing is frozen, or nothing is left to
            train.
    """
    state = {
        name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)
    }
    trained = {id(value) for value in module.parameters() if value.requires_grad}
    if task.frozen is True:
        names = {name for name, value in state.items() if isinstance(value, nn.Parameter) and id(value) not in trained}
        if not names:
            raise _wrong(
                task, "is True, but each parameter is trained; call requires_grad_(False) on those of the base"
            )
    else:
        globs = () if isinstance(task.frozen, bool) else task.frozen
        for glob in globs:
            require_match(glob, state, f"frozen of task {task.name!r}")
        names = {name for name in state if any(fnmatchcase(name, glob) for glob in globs)}
    if moving := [name for name in names if id(state[name]) in trained]:
        remedy = "call requires_grad_(False) on it in build_model, or leave it out of frozen"
        raise _wrong(task, f"has {listing(moving, 3)}, which is trained; {remedy}")
    if not trained:
        raise _wrong(task, "leaves nothing to train; let at least one parameter have requires_grad")
    _require_apart(module, state, names, task)
    return frozenset(names)


def require_unchanged(module: nn.Module, task: Task) -> None:
    """Raise UsageError where frozen values of `module`, which `freeze` returned, have changed in a training step."""
    state, known = module.state_dict(keep_vars=True), frozen_in(module)
    if known.names and _digest({name: state[name] for name in known.names}) != known.digest:
        remedy = "let no forward pass write to them, or leave out of frozen the buffers that it writes to"
        raise UsageError(
            f"task {task.name!r}: a training step changes frozen values ({listing(known.names, 3)}); {remedy}"
        )


def _require_apart(module: nn.Module, state: Mapping[str, torch.Tensor], names: set[str], task: Task) -> None:
    """Raise UsageError for a frozen value that has another name, or that training would change."""
    held = {id(state[name]) for name in names}
    if tied := [name for name, value in state.items() if name not in names and id(value) in held]:
        raise _wrong(task, f"lacks {listing(tied, 3)}, another name of a frozen tensor; name all of them")
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    updated = [
        name
        for prefix, part in module.named_modules()
        if isinstance(part, _NormBase) and part.training
        for name in (f"{prefix}.{one}".removeprefix(".") for one, _ in part.named_buffers())
        if name in names
    ]
    for part, mode in modes:
        part.training = mode
    if updated:
        remedy = "keep the layer in evaluation mode (override train() of the model), or leave it out of frozen"
        raise _wrong(task, f"has {listing(updated, 3)}, which its layer updates in training; {remedy}")


def _copy_file(file: DataFile, values: Mapping[str, torch.Tensor], task: str) -> None:
    path = fetch(file, data_root())
    try:
        with np.load(path, allow_pickle=False) as found:
            if missing := values.keys() - set(found.files):
                held = listing(found.files, 3)
                raise DataError(
                    f"{path} lacks the frozen values {listing(missing, 3)} of task {task!r} (it has {held})"
                )
            with torch.no_grad():
                for name, value in values.items():
                    value.copy_(_fitting(torch.from_numpy(found[name]), value, f"{path} has {name!r}"))
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is no file of numpy.savez ({error}); write it with numpy.savez(path, **values)"
        ) from error


def _fitting(found: torch.Tensor, value: torch.Tensor, where: str) -> torch.Tensor:
    if (found.shape, found.dtype) != (value.shape, value.dtype):
        kinds = [f"{str(one.dtype).removeprefix('torch.')} of shape {tuple(one.shape)}" for one in (found, value)]
        raise DataError(f"{where} as {kinds[0]}, and the model as {kinds[1]}; name the file of this model")
    return found


def _digest(values: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of values as `values_digest` has it, for any dtype."""
    digest = hashlib.sha256()
    for name, value in values.items():
        header = json.dumps([name, str(value.dtype).removeprefix("torch."), list(value.shape)], separators=(",", ":"))
        digest.update(f"{header}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _wrong(task: Task, words: str) -> UsageError:
    return UsageError(f"frozen of task {task.name!r} {words}")
