"""Declaration of settings: the fields of a settings class, and the check of their values.

A settings class is a frozen dataclass derived from `Settings`. Each field is made by `setting(...)`, whose rules (help, unit,
range, choices) serve the check, the command-line option and the reference page. shared/config/load.py reads files, the
environment and flags.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import msgspec

from fedpatch.shared.errors import UsageError, unknown_name

NONE_WORD = "none"

_KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    tuple: "texts in quotes between [ and ]",
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Pattern:
    """The form of a text: a regular expression for all of it, and the same in words."""

    regex: str
    words: str


NAME = Pattern("[a-z0-9][a-z0-9_-]{0,31}", "1 to 32 of a-z, 0-9, _ and -, beginning with a letter or digit")
NAME_OR_EMPTY = Pattern(f"({NAME.regex})?", f"empty, or {NAME.words}")
Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME.regex}\Z")]


@dataclass(frozen=True)
class Rules:
    """The arguments of `setting` for a field."""

    help: str
    group: str
    unit: str
    default_means: str
    example: str
    ge: float | None
    gt: float | None
    le: float | None
    choices: tuple[str, ...]
    pattern: Pattern | None
    secret: bool
    none_word: str


@dataclass(frozen=True)
class Setting:
    """One field of a settings class: its name, its type, its default and its rules."""

    name: str
    kind: type
    optional: bool
    required: bool
    default: Any
    rules: Rules

    @property
    def flag(self) -> str:
        """Name of the command-line option, e.g. `--deadline-s`."""
        return "--" + self.name.replace("_", "-")

    @property
    def range(self) -> str:
        """The permitted values in words; "" if any value of the type is permitted."""
        rules = self.rules
        limits = (("at least", rules.ge), ("above", rules.gt), ("at most", rules.le))
        words = [f"{word} {_number(limit)}" for word, limit in limits if limit is not None]
        if rules.choices:
            words.append("one of " + ", ".join(rules.choices))
        if rules.pattern:
            words.append(rules.pattern.words)
        if words and self.kind is tuple:
            words[0] = f"each {words[0]}"
        return ", ".join(words)

    @property
    def default_words(self) -> str:
        """The default in words."""
        if self.required:
            return "required"
        if self.rules.default_means:
            return self.rules.default_means
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if isinstance(self.default, tuple):
            return ", ".join(self.default) or "empty"
        return "not set" if self.default is None else str(self.default)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings. shared.config.load.load checks values; a constructor call does not.

    Attributes:
        env_prefix: Beginning of the names of environment variables.
        common: Names of the settings whose options `--help` shows, with those of most runs; empty: all. `--help-all` shows all.
        former: Settings that only earlier versions had, each with the sentence of the warning that follows its name.
    """

    env_prefix: ClassVar[str] = "FEDPATCH_"
    common: ClassVar[frozenset[str]] = frozenset()
    former: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def fit(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return other defaults for some settings, where the value of another setting requires them.

        They replace defaults only. `check` reports a value that was set and does not fit.

        Args:
            values: The values that were set, and the defaults.
        """
        return {}

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems that the rules of a single field cannot find.

        Each is a tuple: the field to name, the text, and other fields involved. A problem is left out while one of those other
        fields is invalid.
        """
        return []

    def refusals(self, **parsers: Callable[[Any], object]) -> list[tuple[str, ...]]:
        """Return the problems of fields whose text a parser refuses with a UsageError; for `check`. None values pass."""
        problems: list[tuple[str, ...]] = []
        for name, parse in parsers.items():
            try:
                if (given := getattr(self, name)) is not None:
                    parse(given)
            except UsageError as error:
                problems.append((name, str(error)))
        return problems


def setting(  # noqa: PLR0913  (each is a word of a declaration, given by name)
    default: Any = MISSING,
    *,
    help: str,
    group: str = "General",
    unit: str = "",
    default_means: str = "",
    example: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
    pattern: Pattern | None = None,
    secret: bool = False,
    none_word: str = NONE_WORD,
) -> Any:
    """Declare a field of a settings class.

    Args:
        default: The default. Without it the setting is required, and `example` must be a valid value.
        help: Description for the reference and `--help`. For a required setting it must continue the word "say".
        group: Heading of the group of settings.
        ge: Least number.
        gt: Number below all permitted ones.
        le: Greatest number.
        choices: Permitted texts; for a list of texts, permitted elements.
        pattern: Form of a text, or of each element of a list.
        secret: The setting has no option on the command line and is never shown.
        none_word: Word for None in a file, variable or option.
    """
    rules = Rules(help, group, unit, default_means, example, ge, gt, le, tuple(choices), pattern, secret, none_word)
    if default is MISSING and not example:
        raise TypeError("a required setting needs an example")
    return field(default=default, metadata={"rules": rules}, repr=not secret)


def setting_like(cls: type[Settings], name: str, default: Any = MISSING, **changes: Any) -> Any:
    """Declare a field with the rules and the default of a setting of another class.

    Args:
        changes: Other rules, by their names in `setting`.
    """
    one = cls.__dataclass_fields__[name]
    rules = replace(one.metadata["rules"], **changes)
    return field(default=one.default if default is MISSING else default, metadata={"rules": rules}, repr=one.repr)


def settings_of(cls: type[Settings]) -> tuple[Setting, ...]:
    """Return the settings of a class, those of one group together, otherwise in the order of their definition."""
    hints = get_type_hints(cls)
    found = []
    for item in fields(cls):
        kind, optional = _split_optional(hints[item.name])
        kind = tuple if kind == tuple[str, ...] else kind
        if kind not in _KINDS:
            raise TypeError(f"{cls.__name__}.{item.name}: a setting cannot be of type {kind}")
        required = item.default is MISSING
        default = None if required else item.default
        found.append(Setting(item.name, kind, optional, required, default, item.metadata["rules"]))
    groups = list(dict.fromkeys(one.rules.group for one in found))
    return tuple(sorted(found, key=lambda one: groups.index(one.rules.group)))


def from_text(one: Setting, text: str) -> Any:
    """Convert and check the text of an environment variable or an option; ValueError for an invalid one."""
    if _means_none(one, text):
        return None
    try:
        value = _BY_KIND[one.kind](text)
    except ValueError:
        shown = "something else" if one.rules.secret else repr(text)
        raise ValueError(f"expected {_KINDS[one.kind]}, got {shown}") from None
    return _checked(one, value)


def from_value(one: Setting, value: object) -> Any:
    """Check a value of TOML or Python; ValueError for an invalid one."""
    if _means_none(one, value):
        return None
    if one.kind is Path:
        fits = isinstance(value, str | Path)
    elif one.kind in (int, float):
        fits = isinstance(value, int | one.kind) and not isinstance(value, bool)
    elif one.kind is tuple:
        fits = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    else:
        fits = isinstance(value, one.kind)
    if not fits:
        shown = "something else" if one.rules.secret else _describe(value)
        quotes = " in quotes" if one.kind in (str, Path) else ""
        raise ValueError(f"expected {_KINDS[one.kind]}{quotes}, got {shown}")
    return _checked(one, value)


def _means_none(one: Setting, value: object) -> bool:
    # TOML has no null and an environment variable is always a text, so a word means None. Not for a secret: a password
    # equal to this word would silently become no password.
    return one.optional and not one.rules.secret and value == one.rules.none_word


def _checked(one: Setting, value: Any) -> Any:
    """Return `value` in the type of the setting, after a check of its limits."""
    if one.kind in (int, float):
        return _checked_number(one, value)
    if one.kind is bool:
        return value
    if one.kind is tuple:
        return tuple(_checked_text(one.rules, each) for each in value)
    text = _checked_text(one.rules, str(value))
    if one.kind is Path and not text:
        raise ValueError("is empty; expected a path")
    return one.kind(text)


def _checked_text(rules: Rules, text: str) -> str:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("is not text (it holds a zero byte or is not UTF-8)")
    if rules.choices and text not in rules.choices:
        raise ValueError(str(unknown_name("value", text, rules.choices)))
    if rules.pattern and not re.fullmatch(rules.pattern.regex, text):
        raise ValueError(f"{text!r} must be {rules.pattern.words}")
    return text


def _checked_number(one: Setting, value: float) -> Any:
    rules = one.rules
    try:
        number: Any = one.kind(value)
    except OverflowError:
        number = math.inf
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError("is not a finite number")
    if rules.ge is not None and number < rules.ge:
        raise ValueError(f"{_number(number)} is below {_number(rules.ge)}")
    if rules.gt is not None and number <= rules.gt:
        raise ValueError(f"{_number(number)} is not above {_number(rules.gt)}")
    if rules.le is not None and number > rules.le:
        raise ValueError(f"{_number(number)} is above {_number(rules.le)}")
    return number


def _bool_of(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _texts_of(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


_BY_KIND: dict[type, Any] = {str: str, int: int, float: float, bool: _bool_of, Path: str, tuple: _texts_of}


def _split_optional(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not types.NoneType]
        return (kinds[0] if len(kinds) == 1 else hint), True
    return hint, False


def _number(value: float) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return str(value) if abs(value) < 10**30 else f"a number of {value.bit_length()} bits"


def _describe(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {_number(value)}"
        case str():
            return f"the text {value!r}"
        case list():
            return "an array"
        case dict():
            return "a table"
    return "a date or time"
