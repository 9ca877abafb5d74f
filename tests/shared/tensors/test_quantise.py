"""Numbers in few bits: the error of decoded numbers, and that random rounding is unbiased."""

from __future__ import annotations

from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpatch.shared.tensors.encodings import from_bf16, greatest, to_bf16
from fedpatch.shared.tensors.integer_codes import TOP, from_codes, to_codes
from fedpatch.shared.tensors.levels import _OCTAVE, LEVELS_PER_OCTAVE, from_levels, to_levels

MOST = greatest(np.float32)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
ANY = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(-MOST, MOST, width=32))
POSITIVE = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(0, MOST, width=32))
BLOCKS = st.sampled_from([0, 1, 7, 16])
STEP = 2 ** (1 / LEVELS_PER_OCTAVE) - 1


class Spread:
    """A generator whose draws are all `place`. Evenly spread places represent all possible draws (`mean_of`)."""

    def __init__(self, place: float) -> None:
        self.place = place

    def random(self, shape, dtype):
        """Return an array of `place`."""
        return np.full(shape, self.place, dtype)


def drawn(place: float) -> Any:
    """A generator whose every draw is `place`."""
    return Spread(place)


def mean_of(decoded, count: int = 256):
    """Return the mean of `decoded(rng)` over `count` evenly spread draws; the k-th draw is (k + 1/2) / count."""
    return np.mean([decoded(drawn((k + 0.5) / count)).astype(np.float64) for k in range(count)], axis=0)


# --- bf16 -----------------------------------------------------------------------------------------


@given(ANY)
def test_bf16_is_the_nearest(values):
    found = from_bf16(memoryview(to_bf16(values)))
    assert np.all(np.abs(found.astype(np.float64) - values) <= np.maximum(np.abs(values) * 2.0**-8, 2.0**-134))
    assert from_bf16(memoryview(to_bf16(found))).tobytes() == found.tobytes()


def test_bf16_rounds_to_even_in_planes():
    """A value halfway is rounded to the even neighbour; all upper bytes come first, then all lower ones."""
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF800000], np.uint32)
    assert to_bf16(words.view(np.float32)).hex(" ") == "3f 3f 3f bf 80 82 81 80"


# --- codes ----------------------------------------------------------------------------------------


@given(ANY, BLOCKS, st.integers(0, 2**64 - 1))
def test_a_code_is_less_than_a_step_off(values, block, seed):
    scales, codes = to_codes(values, block, np.random.default_rng(seed))
    found = from_codes(scales, codes, block, np.dtype(np.float32)).astype(np.float64)
    per_value = np.repeat(scales, block or max(1, values.size))[: values.size].astype(np.float64)
    assert codes.size == values.size
    assert np.abs(codes.astype(int)).max(initial=0) <= TOP
    assert np.all(np.abs(found - values) <= per_value * (1 + 1e-6))
    assert np.isfinite(found).all()


COARSE = st.sampled_from([0.0, 0.2, 2.0])


@given(ANY, BLOCKS, COARSE)
def test_rounding_at_random_is_unbiased(values, block, coarse):
    """Over all draws, the mean of the decoded values is the value, as exactly as the 256 draws of a step show."""
    scales, _ = to_codes(values, block, np.random.default_rng(0), coarse)
    per_value = np.repeat(scales, block or max(1, values.size))[: values.size].astype(np.float64)
    mean = mean_of(lambda rng: from_codes(*to_codes(values, block, rng, coarse), block, np.dtype(np.float32)))
    assert np.all(np.abs(mean - values) <= per_value / 128)


@given(ANY, BLOCKS)
def test_zero_stays_zero(values, block):
    scales, codes = to_codes(values, block, drawn(0.999))
    found = from_codes(scales, codes, block, np.dtype(np.float32))
    assert np.all(found[values == 0] == 0)
    assert np.all(found * np.sign(values) >= 0)


def test_a_coarse_scale_is_a_share_of_the_root_mean_square():
    """Each block has its own scale, also a shorter last block; if a value needs a larger scale, that scale is used."""
    values = np.array([3, 4, 0, 0, 1, 1, 100], np.float32)
    scales, _ = to_codes(values, 4, np.random.default_rng(0), 2.0)
    assert scales == pytest.approx([5.0, 2 * np.sqrt(10_002 / 3)])
    assert to_codes(values, 4, np.random.default_rng(0), 1e-3)[0] == pytest.approx([4 / 127, 100 / 127])


def test_any_scales_are_decoded_without_a_warning():
    """A sender of false scales gets its values refused later; it writes nothing into the log."""
    scales = np.array([np.inf, np.finfo(np.float32).max], np.float32)
    with np.errstate(all="raise"):
        found = from_codes(scales, np.array([0, 127], np.int8), 1, np.dtype(np.float32))
    assert np.isnan(found[0]) and np.isinf(found[1])


def test_a_block_has_a_scale_of_its_own():
    values = np.ones(48, np.float32)
    values[0] = 1e6
    scales, codes = to_codes(values, 16, np.random.default_rng(0))
    found = from_codes(scales, codes, 16, np.dtype(np.float32))
    assert scales.shape == (3,)
    assert np.allclose(found[16:], 1, rtol=1e-6)


@pytest.mark.parametrize("place", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_greatest_value_has_the_greatest_code_whatever_is_drawn(place):
    _, codes = to_codes(np.array([-127, 127], np.float32), 0, drawn(place))
    assert codes[1] == TOP
    assert codes[0] in (-TOP, -TOP + 1)


@given(values=ANY, block=BLOCKS, coarse=st.sampled_from([0.0, 0.2]))
def test_rounding_towards_zero_increases_no_magnitude(values, block, coarse):
    """First moments are rounded towards zero, by less than one step."""
    scales, codes = to_codes(values, block, None, coarse)
    decoded = from_codes(scales, codes, block, np.dtype(np.float32)).astype(np.float64)
    exact = values.astype(np.float64)
    assert (decoded * exact >= 0).all()
    assert (np.abs(decoded) <= np.abs(exact) * (1 + 2e-6) + LEAST).all()
    steps = np.repeat(scales.astype(np.float64), block or max(values.size, 1))[: values.size]
    assert (np.abs(exact - decoded) <= steps * (1 + 1e-5) + LEAST).all()


# --- levels ---------------------------------------------------------------------------------------


def test_level_grid_literals_are_the_nearest_float64():
    """Each literal is the float64 nearest to its power of two, by decimal arithmetic."""
    getcontext().prec = 60
    exact = [Decimal(2) ** (Decimal(place) / LEVELS_PER_OCTAVE) for place in range(LEVELS_PER_OCTAVE + 1)]
    assert _OCTAVE.tolist() == [float(value) for value in exact]


@given(POSITIVE, st.data(), st.integers(0, 2**64 - 1))
@example(np.array([0, LEAST, 1e-40, 1.1754944e-38, MOST], np.float32), None, 1)
def test_a_level_is_less_than_a_step_off(values, data, seed):
    """A value less than 31 octaves below the greatest is decoded within a ninth; only zero is decoded as zero."""
    base = values[::-1].copy() if data is None else data.draw(hnp.arrays(np.float32, values.shape))
    top, codes = to_levels(values, base, np.random.default_rng(seed))
    found = from_levels(top, codes, base, np.dtype(np.float32)).astype(np.float64)
    assert np.all((found == 0) == (values == 0))
    within = values.astype(np.float64) > values.max(initial=0) * 2.0**-31
    off = np.abs(found - values)[within]
    assert np.all(off <= np.maximum(values[within] * (STEP + 1e-6), LEAST))
    assert np.all(found[~within] <= values.max(initial=0) * 2.0**-30)


@given(POSITIVE)
def test_levels_are_unbiased(values):
    values = values[values > values.max(initial=0) * 2.0**-31]
    values = values[values > 1e-37]  # below, neighbouring levels are the same float32
    base = np.zeros_like(values)
    mean = mean_of(lambda rng: from_levels(*to_levels(values, base, rng), base, np.dtype(np.float32)))
    assert np.all(np.abs(mean - values) <= values.astype(np.float64) * STEP / 100)


@given(POSITIVE, st.integers(0, 99))
def test_a_value_on_the_grid_stays_there(values, seed):
    zeros = np.zeros_like(values)
    once = from_levels(*to_levels(values, zeros, np.random.default_rng(seed)), zeros, np.dtype(np.float32))
    once = np.where(once < 1e-37, 0, once)
    top, codes = to_levels(once, once, np.random.default_rng(seed + 1))
    assert not codes.any()
    assert from_levels(top, codes, once, np.dtype(np.float32)).tobytes() == once.tobytes()


def test_levels_beyond_the_codes_have_the_first_and_the_last_code():
    """This holds for levels of values and of the base."""
    values, base = np.array([2, 1, 2.0**-40, 0], np.float32), np.array([4, 0, 0, 2.0**-40], np.float32)
    top, codes = to_levels(values, base, drawn(0.5))
    assert (top, codes.tolist()) == (LEVELS_PER_OCTAVE, [255 - 255, 255 - LEVELS_PER_OCTAVE, 1, 256 - 1])


@pytest.mark.parametrize("top", [-32768, 32767])
def test_from_levels_accepts_any_top(top):
    found = from_levels(top, np.arange(256, dtype=np.uint8), np.zeros(256, np.float32), np.dtype(np.float32))
    assert found[0] == 0
    assert not np.isnan(found).any()
