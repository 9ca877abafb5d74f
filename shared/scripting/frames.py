"""Results as data frames of pandas, which is imported at the first frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedpatch.shared.app.plugins import import_optional

if TYPE_CHECKING:
    from pandas import DataFrame

T_co = TypeVar("T_co", covariant=True)


def frame_of(rows: Iterable[Mapping[str, Any]], index: str = "") -> DataFrame:
    """Return a data frame with one row for each mapping.

    Args:
        rows: The rows, all with the same keys.
        index: The column that becomes the index; "" for none. It is left as a column where there are no rows.

    Raises:
        UsageError: pandas is not installed.
    """
    pandas = import_optional("pandas", "a data frame needs pandas", "pip install 'fedpatch[notebook]'")
    frame = pandas.DataFrame(list(rows))
    return frame.set_index(index) if index in frame.columns else frame


class Rows(tuple[T_co, ...]):
    """A tuple of results that can become a data frame.

    Example:
        >>> Rows([1, 2])[-1]
        2
    """

    __slots__ = ()

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row for each result, indexed by its `id`.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of((asdict(one) for one in self if is_dataclass(one) and not isinstance(one, type)), "id")
