"""Tasks and strategies of other packages and of files, by name.

A plugin is named by an entry point of its group, or as module:attribute. No name from the network is ever imported.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedpatch.shared.app.plugins import disable_ort_telemetry, load_entry_points
from fedpatch.shared.app.signals import uninterrupted
from fedpatch.shared.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_WHERE_IT_LIES = "start the command in the folder that the file lies in, or install the module"
# Packages of version 0.1, which tasks imported from.
_FORMER_PACKAGES = ("coordinator", "device_agent", "shared", "simulator")
_REFERENCE = re.compile(r"(?P<module>[\w.]+):(?P<attribute>[\w.]+)")


@dataclass(frozen=True)
class BrokenPlugin:
    """An installed plugin that cannot be used, and the reason."""

    name: str
    problem: str


@dataclass(frozen=True)
class PluginKind(Generic[T]):
    """A kind of plugin that users add by a package or a file of their own.

    Args:
        noun: Name of the kind in messages, such as "task".
        group: Group of entry points.
        is_one: Returns whether an object is of this kind.
        wanted: Words for such an object, such as "a fedpatch.Task".
        name_of: Returns the name of an object of this kind.
        attribute: Usual name of the attribute in a module, such as "TASK".
        own: The objects that come with fedpatch and are no entry points, by name.
        of_classes: Whether the objects are classes, so that a file is searched for one without loading it.

    Example:
        >>> TASKS = PluginKind("task", "fedpatch.tasks", callable, "a function", lambda one: one.__name__, "TASK")
        >>> TASKS.find("statistics:mean").__name__
        'mean'
    """

    noun: str
    group: str
    is_one: Callable[[Any], bool]
    wanted: str
    name_of: Callable[[T], str]
    attribute: str
    own: Mapping[str, T] = field(default_factory=dict)
    of_classes: bool = False

    def check_name(self, ref: str) -> None:
        """Raise UsageError where `ref` is neither an installed name nor of the form module:attribute.

        Imports nothing: only `find` tries to load the module.
        """
        if ":" in ref:
            self._parse(ref)
        elif ref not in self.own:
            self._candidates(ref)

    def module_of(self, ref: str) -> str:
        """Return the name of the module that `find` would import. Imports nothing; UsageError as `check_name`."""
        if ":" in ref:
            return self._parse(ref)["module"]
        return "" if ref in self.own else next(iter(self._candidates(ref).values())).module

    def find(self, ref: str) -> T:
        """Return the installed object named `ref`, or the object that `ref` names as `module:attribute`.

        The search for a module begins in the current directory. Raises UsageError, with the nearest name or with the reason
        why the import failed.
        """
        if ":" in ref:
            match = self._parse(ref)
            with _current_directory_importable():
                return self._load(f"{self.noun} {ref!r}", match["module"], match["attribute"], _WHERE_IT_LIES)
        return self.own[ref] if ref in self.own else self._load_installed(ref, self._candidates(ref))

    def names(self) -> list[str]:
        """Return the names of the installed objects, sorted. Imports nothing."""
        return sorted({*self.own, *load_entry_points(self.group)})

    def installed(self) -> list[T | BrokenPlugin]:
        """Return every object of this kind, sorted by name. An object that cannot be loaded is a BrokenPlugin in the list."""
        found: dict[str, T | BrokenPlugin] = dict(self.own)
        for name, candidates in load_entry_points(self.group).items():
            try:
                found[name] = self._load_installed(name, candidates)
            except UsageError as error:
                found[name] = BrokenPlugin(name, str(error))
        return [found[name] for name in sorted(found)]

    def _parse(self, ref: str) -> re.Match[str]:
        match = _REFERENCE.fullmatch(ref)
        if match is None:
            example = f"my_{self.noun}:{self.attribute}"
            raise UsageError(f"{self.noun} {ref!r} is neither a name nor module:attribute, such as {example}")
        stem = match["module"].removesuffix(".py")
        if stem != match["module"] and Path(match["module"]).is_file():
            raise UsageError(f"{self.noun} {ref!r}: name the module without .py: {stem}:{match['attribute']}")
        return match

    def _candidates(self, ref: str) -> Mapping[str, EntryPoint]:
        installed = load_entry_points(self.group)
        if ref not in installed:
            if not installed and not self.own:
                raise UsageError(
                    f"unknown {self.noun} {ref!r}: none is installed here; install fedpatch, or name module:attribute"
                )
            error = unknown_name(self.noun, ref, [*self.own, *installed])
            raise UsageError(f"{error}; {self.how_to_name_a_module(ref)}")
        return installed[ref]

    def how_to_name_a_module(self, ref: str) -> str:
        """Return the remedy for a name that is not installed: the form module:attribute, with the file that is meant."""
        stem = Path(ref).name.removesuffix(".py")
        found = [name for name in (stem, f"{stem}_{self.noun}") if name.isidentifier() and Path(f"{name}.py").is_file()]
        attribute = (self._classes_in(Path(f"{found[0]}.py")) or self.attribute) if found else self.attribute
        mine = f"the {self.noun} {attribute} in {found[0]}.py" if found else f"a {self.noun} of your own"
        example = f"{found[0]}:{attribute}" if found else f"such as my_{self.noun}:{attribute}"
        return f"{mine} is named module:attribute, {example}"

    def _classes_in(self, path: Path) -> str:
        """Return the name of the last class of a file where the objects of this kind are classes; "" without one."""
        if not self.of_classes:
            return ""
        try:
            nodes = ast.parse(path.read_bytes()).body
        except (OSError, SyntaxError, ValueError):
            return ""
        return next((node.name for node in reversed(nodes) if isinstance(node, ast.ClassDef) and node.bases), "")

    def _load_installed(self, name: str, candidates: Mapping[str, EntryPoint]) -> T:
        if name in self.own or len(candidates) > 1:
            places = " and ".join(sorted(candidates))
            where = f"as {places} and with fedpatch" if name in self.own else f"as {places}"
            raise UsageError(
                f"{self.noun} {name!r} is installed more than once, {where}; "
                "uninstall one of them, or name module:attribute"
            )
        point = next(iter(candidates.values()))
        source = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
        described = f"{self.noun} {name!r} (entry point {point.value}{source})"
        match = _REFERENCE.fullmatch(point.value)
        if match is None:
            raise UsageError(f"{described}: an entry point must be module:attribute")
        found = self._load(described, match["module"], match["attribute"], "install its package again")
        if self.name_of(found) != name:
            raise UsageError(
                f"{described}: the {self.noun} there is named {self.name_of(found)!r}; give both the same name"
            )
        return found

    def _load(self, described: str, module_name: str, attribute: str, remedy: str) -> T:
        try:
            with uninterrupted():  # in the middle of torch's import, an exception aborts the process
                disable_ort_telemetry()
                found: Any = import_module(module_name)
        except Exception as error:  # the module is the user's: any error becomes one sentence
            problem = f"{type(error).__name__}: {error}{self._remedy(error, module_name, remedy)}"
            raise UsageError(f"{described}: module {module_name!r} cannot be imported: {problem}") from error
        for part in attribute.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                others = [name for name, value in vars(sys.modules[module_name]).items() if self.is_one(value)]
                hint = f" (there: {', '.join(sorted(others))})" if others else ""
                raise UsageError(f"{described}: module {module_name!r} has no attribute {attribute!r}{hint}") from None
        if not self.is_one(found):
            raise UsageError(f"{described}: {attribute!r} is of type {type(found).__name__}, not {self.wanted}")
        return found  # type: ignore[no-any-return]

    def _remedy(self, error: Exception, module_name: str, remedy: str) -> str:
        """Return the remedy for a missing module: `remedy` for the user's own, else to install the imported package."""
        if not isinstance(error, ImportError) or not error.name:
            return ""
        if error.name.partition(".")[0] in _FORMER_PACKAGES:
            return "; import from fedpatch instead, such as: from fedpatch import DeviceData, Task"
        if not isinstance(error, ModuleNotFoundError):
            return ""
        if f"{module_name}.".startswith(f"{error.name}."):
            return f"; {remedy}"
        package = error.name.partition(".")[0]
        return (
            "" if package == module_name.partition(".")[0] else f"; install {package!r}, which the {self.noun} imports"
        )


@contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Put the current directory first on `sys.path` for one import, so that its files shadow no later import."""
    current = os.getcwd()
    sys.path.insert(0, current)
    try:
        yield
    finally:
        with suppress(ValueError):  # the module may have tidied sys.path itself
            sys.path.remove(current)
