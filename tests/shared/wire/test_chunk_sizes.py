"""The size of chunks within a broker's packet limit."""

from __future__ import annotations

import pytest

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.wire.chunk_sizes import MIN_CHUNK_BYTES, chunk_bytes_within
from fedpatch.shared.wire.chunks import (
    CHUNK_OVERHEAD_BYTES,
)


class TestSizes:
    def test_follow_the_brokers_limit(self):
        """A chunk with its overhead is within the broker's limit; without a limit it has the configured size."""
        assert chunk_bytes_within(100_000, None) == 100_000
        assert chunk_bytes_within(100_000, 2_000_000) == 100_000
        small = chunk_bytes_within(100_000, 20_000)
        assert MIN_CHUNK_BYTES <= small < 20_000 - CHUNK_OVERHEAD_BYTES

    def test_have_a_lower_end(self):
        """A broker with a very small limit cannot be used, and the error names the setting to raise."""
        assert chunk_bytes_within(100_000, MIN_CHUNK_BYTES + CHUNK_OVERHEAD_BYTES + 512) == MIN_CHUNK_BYTES
        with pytest.raises(BrokerError, match="max_packet_size"):
            chunk_bytes_within(100_000, MIN_CHUNK_BYTES + CHUNK_OVERHEAD_BYTES + 511)
