"""A decoder reads any bytes or raises its documented error, with memory bounded by the length of the bytes."""

from __future__ import annotations

import sys
import tracemalloc
from itertools import islice
from operator import attrgetter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given

from tests.fuzz.damage import hostile, sweep
from tests.fuzz.decoders import WIRE_DECODERS, Decoder, attempt
from tests.fuzz.effort import tries
from tests.fuzz.file_decoders import FILE_DECODERS

# Some bytes are long on purpose, so their repr is long too.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

DECODERS = (*WIRE_DECODERS, *FILE_DECODERS)
NAME = attrgetter("name")
# Any input may cost a mebibyte, and each of its bytes as much as an empty container and its place in another container.
FLOOR_BYTES = 2**20
BYTES_PER_BYTE = 160
# Lines of Python that a decoder may run, by the same rule.
FLOOR_LINES = 4000
LINES_PER_BYTE = 40


def peak_bytes(decoder: Decoder, data: bytes) -> int:
    """Return the peak memory of Python and numpy beyond their memory before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        attempt(decoder, data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def lines_run(decoder: Decoder, data: bytes) -> int:
    """Return the number of Python lines that are run, of any module; work in C is not counted."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        attempt(decoder, data)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("decoder", DECODERS, ids=NAME)
def test_a_decoder_raises_nothing_but_what_it_documents(decoder):
    """Foreign, damaged, misshapen and deeply nested bytes are read, or refused with the documented errors only."""

    @tries(60)
    @given(hostile(decoder))
    def law(data):
        attempt(decoder, data)

    law()


@pytest.mark.medium
@pytest.mark.parametrize("decoder", DECODERS, ids=NAME)
def test_the_classic_attacks_are_refused_too(decoder):
    """Cuts, and extremes of every notation at many places of the valid bytes: random bytes would rarely have them."""
    for data in sweep(decoder):
        attempt(decoder, data)


@pytest.mark.parametrize("decoder", [one for one in DECODERS if one.frugal], ids=NAME)
def test_memory_follows_what_is_there_and_not_what_is_stated(decoder):
    """No length, count or depth stated in a few bytes makes a decoder exceed its memory bound."""
    for seed in decoder.seeds:
        attempt(decoder, seed)

    def is_bounded(data):
        most = FLOOR_BYTES + BYTES_PER_BYTE * len(data)
        # Imports for the first error of a kind and work of other threads do not depend on the data, and do not occur twice.
        assert peak_bytes(decoder, data) <= most or peak_bytes(decoder, data) <= most

    for data in decoder.found:
        is_bounded(data)
    tries(12)(given(hostile(decoder))(is_bounded))()


@pytest.mark.parametrize("decoder", WIRE_DECODERS, ids=NAME)
def test_work_follows_what_is_there(decoder):
    """Network data are read in a bounded number of steps per byte, however they are nested, repeated or cut."""
    for data in (*decoder.seeds, *islice(sweep(decoder), 0, None, 9)):
        assert lines_run(decoder, data) <= FLOOR_LINES + LINES_PER_BYTE * len(data)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_decoder_reads_its_valid_examples(decoder):
    """The decoder accepts the examples that are damaged later: otherwise only its first line would be tested."""
    for seed in decoder.seeds:
        assert attempt(decoder, seed) is None
