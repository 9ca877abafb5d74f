"""Whatever the bytes are, a decoder reads them or raises the documented error, in memory bounded by what is there."""

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

# Bytes that are long on purpose are long to print, too.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

DECODERS = (*WIRE_DECODERS, *FILE_DECODERS)
NAME = attrgetter("name")
# A hundred bytes may cost a mebibyte; each further one as much as an empty container and its place in another.
FLOOR_BYTES = 2**20
BYTES_PER_BYTE = 160
# Lines of Python that a decoder may run, in the same way.
FLOOR_LINES = 4000
LINES_PER_BYTE = 40


def peak_bytes(decoder: Decoder, data: bytes) -> int:
    """What Python and numpy held at most, beyond what they held before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        attempt(decoder, data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def lines_run(decoder: Decoder, data: bytes) -> int:
    """How many lines of Python are run, of any module; what C does between two of them is not seen."""
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
    """Foreign, damaged, misshapen and bottomless bytes are read or refused in the documented words, never anything else."""

    @tries(60)
    @given(hostile(decoder))
    def law(data):
        attempt(decoder, data)

    law()


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS, ids=NAME)
def test_the_classic_attacks_are_refused_too(decoder):
    """Every cut, and the extremes of every notation all over what is valid: chance alone would rarely put them there."""
    for data in sweep(decoder):
        attempt(decoder, data)


@pytest.mark.parametrize("decoder", [one for one in DECODERS if one.frugal], ids=NAME)
def test_memory_follows_what_is_there_and_not_what_is_stated(decoder):
    """No length, count or depth that a few bytes state makes a decoder take more than its share of memory."""
    for seed in decoder.seeds:
        attempt(decoder, seed)

    def is_bounded(data):
        most = FLOOR_BYTES + BYTES_PER_BYTE * len(data)
        # What the first error of its kind imports, and another thread's work, are not the data's: they do not come twice.
        assert peak_bytes(decoder, data) <= most or peak_bytes(decoder, data) <= most

    for data in decoder.found:
        is_bounded(data)
    tries(12)(given(hostile(decoder))(is_bounded))()


@pytest.mark.parametrize("decoder", WIRE_DECODERS, ids=NAME)
def test_work_follows_what_is_there(decoder):
    """What comes from the network is read in so many steps per byte, however it is nested, repeated or cut."""
    for data in (*decoder.seeds, *islice(sweep(decoder), 0, None, 9)):
        assert lines_run(decoder, data) <= FLOOR_LINES + LINES_PER_BYTE * len(data)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_decoder_reads_its_valid_examples(decoder):
    """The examples that damage begins with are such as the decoder takes: else only its first line would be tried."""
    for seed in decoder.seeds:
        assert attempt(decoder, seed) is None
