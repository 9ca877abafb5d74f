"""Arrays of numbers from what a data set, a task or an application gives. Nothing else is turned into numbers.

`numpy.asarray(values, float)` drops the mask of a masked array, parses texts such as "1_000", and takes the index of a colour
for a brightness. Here each of these is an error that names the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpatch.shared.tasks.reading.cell_values import RefusedValue, shown

NUMBERS = "fiub"
_GREY, _COLOUR = ("L", "1"), ("RGB",)
_ORIENTATION = 274  # the tag of Exif
_WHITE = 255.0

_PICTURES = {
    "P": "colours are numbers of a palette; convert it to RGB",
    "PA": "colours are numbers of a palette; convert it to RGB",
    "I": "pixels are deeper than 8 bits; scale them to 0 to 255",
    "I;16": "pixels are deeper than 8 bits; scale them to 0 to 255",
    "I;16B": "pixels are deeper than 8 bits; scale them to 0 to 255",
    "I;16L": "pixels are deeper than 8 bits; scale them to 0 to 255",
    "F": "pixels are deeper than 8 bits; scale them to 0 to 255",
    "RGBA": "it has transparency (alpha); put it on a background",
    "LA": "it has transparency (alpha); put it on a background",
    "La": "it has transparency (alpha); put it on a background",
    "RGBa": "it has transparency (alpha); put it on a background",
}


def numbers_of(values: Any) -> NDArray[Any]:
    """Return values as an array of numbers.

    Args:
        values: An array, a list, a number, or a picture of Pillow of mode L, 1 or RGB, whose values are those of `pixels_of`.

    Returns:
        The array, of a floating, integer or boolean dtype.

    Raises:
        RefusedValue: A value is no number, a list is ragged, an array has masked values, or a picture has another mode.
    """
    has_picture = False
    for part in _parts(values):
        if is_picture(part):
            has_picture = True
        elif np.ma.isMaskedArray(part) and np.ma.getmaskarray(part).any():
            raise RefusedValue("is a masked array with masked values; fill them with NaN: values.filled(numpy.nan)")
    if has_picture:
        values = _with_pixels(values)
    try:
        found = np.asarray(values)
    except Exception as error:  # the conversion is code of the value's class
        if "inhomogeneous" in str(error):
            raise RefusedValue("is no array: its rows differ in length; give rows of one length") from error
        raise RefusedValue(f"is no array: {error}; make a NumPy array of it") from error
    if (
        isinstance(values, list | tuple)
        and {bool, np.bool_} & (types := _types_in(values))
        and types - {bool, np.bool_}
    ):
        raise RefusedValue("holds True or False beside other values; convert it in the task")
    if found.dtype.kind == "O":
        found = _of_objects(found)
    if found.dtype.kind not in NUMBERS:
        raise RefusedValue(f"holds {_first(found)} ({_kind(found)}), no numbers; convert it in the task")
    return found


def require_plain_picture(picture: Any) -> None:
    """Check that a picture of Pillow has brightnesses of 8 bits, one page, and stands upright. RefusedValue if not."""
    if picture.mode in _PICTURES:
        raise RefusedValue(f"is a picture of mode {picture.mode}: {_PICTURES[picture.mode]}")
    if picture.mode not in (*_GREY, *_COLOUR):
        raise RefusedValue(f"is a picture of mode {picture.mode}; convert it to L or RGB")
    if "transparency" in picture.info:
        raise RefusedValue("is a picture with transparency; put it on a background")
    try:
        pages, turned = getattr(picture, "n_frames", 1), picture.getexif().get(_ORIENTATION, 1)
        picture.load()
    except Exception as error:  # Pillow decodes a file when it is used
        raise RefusedValue(f"is a picture that cannot be read: {error}; replace it") from error
    if pages != 1 and picture.format != "MPO":  # photos of phones have a preview as a second page
        raise RefusedValue(f"is a picture of {pages} pages or frames; save one of them")
    if turned not in (0, 1):
        raise RefusedValue(f"is a picture that is to be turned (Exif orientation {turned}); save it upright")


def pixels_of(picture: Any) -> NDArray[np.float64]:
    """Return the pixels of a plain picture as fractions, black 0 and white 1, for training and for prediction alike.

    Args:
        picture: A picture of Pillow of mode L, 1 or RGB.

    Returns:
        An array of shape (height, width), or (3, height, width) with colours.

    Raises:
        RefusedValue: As `require_plain_picture` raises.
    """
    require_plain_picture(picture)
    if picture.mode in _COLOUR:
        return np.asarray(picture, np.float64).transpose(2, 0, 1) / _WHITE
    return np.asarray(picture.convert("L"), np.float64) / _WHITE


def is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow."""
    return hasattr(value, "getexif") and hasattr(value, "mode")


def _parts(values: Any) -> Iterator[Any]:
    """Yield a value, and all values in a list of lists, of which `numpy.asarray` would drop masks and palettes."""
    yield values
    if isinstance(values, list | tuple):
        for one in values:
            if not isinstance(one, int | float):
                yield from _parts(one)


def _with_pixels(values: Any) -> Any:
    """Return a value with the pixels of each picture in its place."""
    if is_picture(values):
        return pixels_of(values)
    return [_with_pixels(one) for one in values] if isinstance(values, list | tuple) else values


def _types_in(values: Any) -> set[type]:
    """Return the types of the values in a list of lists."""
    if not isinstance(values, list | tuple):
        return {type(values)}
    found = set(map(type, values))
    nested = [one for one in values if isinstance(one, list | tuple)] if found & {list, tuple} else []
    return (found - {list, tuple}).union(*map(_types_in, nested))


def _of_objects(found: NDArray[Any]) -> NDArray[Any]:
    """Return an array of Python numbers as numbers of one kind; None is NaN."""
    flat = found.ravel().tolist()
    for one in flat:
        if one is not None and not isinstance(one, int | float | np.number | np.bool_):
            raise RefusedValue(f"holds {shown(one)} ({type(one).__name__}), which is no number; convert it in the task")
    truths = sum(isinstance(one, bool | np.bool_) for one in flat)
    if 0 < truths < len(flat):
        raise RefusedValue("holds True or False beside other values; convert it in the task")
    try:
        plain = np.array([np.nan if one is None else one for one in flat])
    except OverflowError:
        plain = np.array([], object)
    if plain.dtype.kind not in NUMBERS:
        raise RefusedValue("holds an integer of more than 64 bits; scale it")
    return plain.reshape(found.shape)


def _first(found: NDArray[Any]) -> str:
    return shown(found.flat[0].item()) if found.size else "nothing"


def _kind(found: NDArray[Any]) -> str:
    words = {"U": "text", "S": "bytes", "M": "a date", "m": "a duration", "c": "a complex number"}
    return words.get(found.dtype.kind, str(found.dtype))
