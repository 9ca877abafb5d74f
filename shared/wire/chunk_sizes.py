"""The size of chunks: the configured one, or less where the broker limits packets; below 8 KiB the broker is refused."""

from __future__ import annotations

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES

# Topic, fixed header and MQTT 5 properties of a PUBLISH. It is generous, because a broker closes the connection at a packet
# beyond its limit, and would do so again at each attempt to send it.
_PACKET_OVERHEAD_BYTES = 512
MIN_CHUNK_BYTES = 8 * 1024
DEFAULT_CHUNK_KIB = 256
"""Larger chunks cost less processor time; a link of 70 kbit/s still sends one within the keepalive of 30 s."""


def chunk_bytes_within(configured_bytes: int, max_packet_bytes: int | None) -> int:
    """Return the data bytes of a chunk that pass the broker's packet limit, at most `configured_bytes`.

    `max_packet_bytes` is None where the broker states no limit. Raises BrokerError below MIN_CHUNK_BYTES (8 KiB).
    """
    if max_packet_bytes is None:
        return configured_bytes
    data_bytes = max_packet_bytes - CHUNK_OVERHEAD_BYTES - _PACKET_OVERHEAD_BYTES
    if data_bytes < MIN_CHUNK_BYTES:
        raise BrokerError(
            f"the broker accepts packets of at most {max_packet_bytes} bytes, too few for chunks of {MIN_CHUNK_BYTES}; "
            "raise its packet limit (mosquitto: max_packet_size)"
        )
    return min(configured_bytes, data_bytes)
