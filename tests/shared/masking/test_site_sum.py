"""Sums of sites: any partition of devices into sites gives the same total, and a hub refuses invalid sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.shared.masking.device_vector import make_vector
from fedpatch.shared.masking.group_context import write_grid
from fedpatch.shared.masking.group_sum import GroupSum, mean_step, read_report, read_sum, sum_of_groups
from fedpatch.shared.masking.site_sum import LARGEST_SUM, most_devices, read_site_sum, write_site_sum
from fedpatch.shared.masking.vector_layout import VectorLayout
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.tensors.packing import Packed, decompress
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.support.examples import examples
from tests.support.masked_group import terms_of

SCHEMA = Schema(
    (TensorSpec("fc.weight", (5, 7), "float32", "weight"), TensorSpec("bn.running_mean", (5,), "float32", "stats"))
)
BASE = "ab" * 32


def layout_of(bits: int = 8, schema: Schema = SCHEMA) -> VectorLayout:
    grid = write_grid((0.5, 0.25)[: len(schema.specs)])
    return VectorLayout(schema, terms_of(12, bits=bits, grid=grid, weight_cap=100))


def vectors_of(layout: VectorLayout, count: int):
    for number in range(count):
        rng = np.random.default_rng(number)
        step = {spec.name: rng.normal(0, 0.1, spec.shape).astype("f4") for spec in SCHEMA.specs}
        report = UpdateReport(BASE, 50 + 9 * number, 3, 1.25, number / 12, 0.75, 1.0, 2.0)
        yield make_vector(layout, step=step, report=report, metric=MetricTerms(), seed=number)


def summed(layout: VectorLayout, vectors) -> GroupSum:
    """The unmasked sum of one group."""
    return read_sum(layout, np.sum(list(vectors), axis=0, dtype=layout.dtype), len(vectors))


def travelled(layout: VectorLayout, total: GroupSum) -> GroupSum:
    """The sum as a hub reads it."""
    packed = write_site_sum(layout, total, BASE)
    return read_site_sum(layout, packed.blob, raw_bytes=packed.raw_bytes, base=BASE)


def assert_same(found: GroupSum, expected: GroupSum) -> None:
    assert (found.devices, found.figures) == (expected.devices, expected.figures)
    assert found.codes.tolist() == expected.codes.tolist()


@examples(60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.sampled_from([8, 16]), st.data())
def test_any_partition_into_sites_gives_the_bits_of_one_group(site_of, bits, data):
    """Some sites are groups of the hub itself, whose sums do not travel."""
    layout = layout_of(bits)
    vectors = list(vectors_of(layout, len(site_of)))
    sites = [[one for one, site in zip(vectors, site_of, strict=True) if site == number] for number in set(site_of)]
    sums = [summed(layout, site) for site in sites]
    at_hub = data.draw(st.integers(0, len(sums)))
    found = sum_of_groups([*sums[:at_hub], *(travelled(layout, one) for one in sums[at_hub:])])
    flat = summed(layout, vectors)
    assert_same(found, flat)
    assert read_report(layout, found) == read_report(layout, flat)
    for name, step in mean_step(layout, flat).items():
        assert mean_step(layout, found)[name].tobytes() == step.tobytes()


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("share", [0.0, 0.001, 1.0])
def test_largest_values_of_so_many_devices_travel_whole(bits, share):
    layout = layout_of(bits)
    devices = max(1, int(share * min(most_devices(layout.top), 10**6)))
    codes = np.full(layout.num_values, devices * layout.top)
    codes[::2] *= -1
    figures = tuple(devices * (2**width - 1) for _, width in layout.figures)
    assert_same(travelled(layout, GroupSum(devices, codes, figures)), GroupSum(devices, codes, figures))


def test_sum_beyond_32_bits_is_no_update():
    layout = VectorLayout(SCHEMA, replace(layout_of(16).terms, group_max=2))
    devices = most_devices(layout.top) + 1
    assert devices * layout.top > LARGEST_SUM
    total = GroupSum(devices, np.zeros(layout.num_values, np.int64), (0,) * len(layout.figures))
    with pytest.raises(UsageError, match="does not fit 32 bits"):
        write_site_sum(layout, total, BASE)


def packed_sum() -> tuple[VectorLayout, Packed]:
    layout = layout_of()
    return layout, write_site_sum(layout, summed(layout, list(vectors_of(layout, 3))), BASE)


def refused(layout: VectorLayout, blob: bytes, raw_bytes: int, base: str = BASE) -> str:
    with pytest.raises(UpdateRefused) as found:
        read_site_sum(layout, blob, raw_bytes=raw_bytes, base=base)
    return found.value.reason


def test_sum_of_another_model_is_refused_with_the_first_digits_of_both():
    layout, packed = packed_sum()
    with pytest.raises(UpdateRefused, match=f" {'ab' * 6}, this round's is {'cd' * 6}$") as found:
        read_site_sum(layout, packed.blob, raw_bytes=packed.raw_bytes, base="cd" * 32)
    assert found.value.reason == RefuseReason.WRONG_BASE


def test_sum_of_a_layout_without_values_travels():
    layout = VectorLayout(Schema(()), terms_of(12, grid=b""))
    total = GroupSum(3, np.zeros(0, np.int64), tuple(range(len(layout.figures))))
    assert_same(travelled(layout, total), total)


def test_sum_of_mostly_small_values_takes_fewer_bytes_than_at_the_default_level_of_zstd():
    schema = Schema((TensorSpec("w", (200, 100), "float32", "weight"),))
    layout = VectorLayout(schema, terms_of(12))
    codes = np.random.default_rng(0).normal(0, 0.6, layout.num_values).astype(np.int64)
    packed = write_site_sum(layout, GroupSum(3, codes, (0,) * len(layout.figures)), BASE)
    assert len(packed.blob) < len(zstandard.compress(decompress(packed.blob, packed.raw_bytes)))


@given(st.data())
def test_damaged_sum_is_refused_or_read_and_raises_nothing_else(data):
    layout, packed = packed_sum()
    blob, place = bytearray(packed.blob), data.draw(st.integers(0, len(packed.blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    cut = bytes(blob[: data.draw(st.integers(0, len(blob)))])
    for one in (bytes(blob), cut):
        try:
            read_site_sum(layout, one, raw_bytes=packed.raw_bytes, base=BASE)
        except UpdateRefused:
            continue


@pytest.mark.parametrize("raw_bytes", [0, 10, 2**30])
def test_sum_of_an_impossible_size_is_refused_before_it_is_decompressed(raw_bytes):
    layout, packed = packed_sum()
    assert refused(layout, packed.blob, raw_bytes) == RefuseReason.DAMAGED


def test_sum_of_another_layout_is_refused():
    _, packed = packed_sum()
    assert refused(layout_of(schema=Schema(SCHEMA.specs[:1])), packed.blob, packed.raw_bytes) == RefuseReason.DAMAGED
