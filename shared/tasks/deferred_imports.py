"""Imports torch without the modules that only its compiler, its exporter and abstract tensors need.

`import torch` executes modules of Python that no training on a CPU calls: kernels for tensors without storage, the graph
exporter, probability distributions. They take 22 MB and a third of the processor time of the import of torch 2.13. Here each
of them is an empty module until its first attribute is read, or until torch's compiler is imported. Then it is executed, so
programs see no difference except for the time.

One effect of the import is not an attribute: it registers kernels for tensors without storage (`device="meta"`). Until then an
operation on such a tensor raises NotImplementedError; `load_deferred` registers the kernels.

importlib.util.LazyLoader does not fit: it executes a module at its second import.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

DEFERRED = (
    "torch._meta_registrations",
    "torch.distributed._meta_registrations",
    "torch.distributions",
    "torch.export",
)
"""Modules that can wait, in the order in which torch imports them; a name that a version of torch lacks has no effect."""

_NEEDS_ALL = "torch._dynamo"


class _DeferredModule(ModuleType):
    """A module that has not been executed; it has only the attributes that the import system sets."""

    def __getattr__(self, name: str) -> object:
        _execute(self)
        return getattr(self, name)


class _DeferringLoader(importlib.abc.Loader):
    """Makes a module without executing it; `actual` executes it later."""

    def __init__(self, actual: importlib.abc.Loader) -> None:
        self.actual = actual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.actual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if hasattr(module, "__path__"):
            del module.__path__  # an import of a submodule then reads it by __getattr__, which executes the package
        module.__class__ = _DeferredModule


class _KnownModule(importlib.abc.Loader):
    """Loader of a submodule that the execution of its package has imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has already been executed."""


class _DeferringFinder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if target is None and fullname in sys.modules and fullname.rpartition(".")[0] in self.names:
            return ModuleSpec(fullname, _KnownModule(sys.modules[fullname]))
        if fullname == _NEEDS_ALL:
            load_deferred()
        if fullname not in self.names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def defer_imports(names: Sequence[str] = DEFERRED) -> None:
    """From now on, execute a module of `names` at its first use. Modules that are imported already stay as they are.

    Example:
        >>> defer_imports(["this"])
        >>> import this
        >>> isinstance(this, ModuleType)  # and it has printed nothing
        True
    """
    known = next((one for one in sys.meta_path if isinstance(one, _DeferringFinder)), None)
    if known is None:
        sys.meta_path.insert(0, _DeferringFinder(names))
    else:
        known.names |= frozenset(names)


def load_deferred() -> bool:
    """Execute all deferred modules that were imported; return whether there were any."""
    waiting = [module for module in list(sys.modules.values()) if isinstance(module, _DeferredModule)]
    for module in waiting:
        if isinstance(module, _DeferredModule):  # executing one may execute another
            _execute(module)
    return bool(waiting)


def _execute(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None and isinstance(spec.loader, _DeferringLoader)
    module.__class__ = ModuleType
    module.__loader__ = spec.loader = spec.loader.actual
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    spec.loader.exec_module(module)
