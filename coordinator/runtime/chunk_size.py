"""Chunk size that the broker takes, found by publishing a chunk before a run begins.

A broker may take smaller messages than it states: `message_size_limit` of mosquitto does not appear in CONNACK. It drops a
larger message: with a reason code in MQTT 5, without any sign in MQTT 3.1.1.
"""

from __future__ import annotations

import hashlib
import logging

from fedpatch.coordinator.runtime.fleet_claim import client_id
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.diagnostics.probe import ANSWER_TIMEOUT_S, Probe
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.wire.chunk_sizes import MIN_CHUNK_BYTES, chunk_bytes_within
from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES
from fedpatch.shared.wire.topics import model_chunk

# A broker that lets the coordinator read this topic echoes within this time; most access rules forbid it.
_ECHO_S = 1.0
# A link to the broker that is slower than this gets smaller chunks.
_SLOWEST_BYTES_PER_S = 8_000

_log = logging.getLogger("fedpatch.coordinator")


def find_chunk_bytes(settings: RunSettings, boot: str) -> int:
    """Find the largest chunk that the broker accepts: halve `chunk_kib` until a chunk passes.

    The check has its own client ids, and publishes to the topic of a blob that does not exist, so that no device receives the
    chunk. Over MQTT 3.1.1 a broker that forbids this topic gives no sign; then the configured size is returned.

    Args:
        settings: The broker, and `chunk_kib` as the largest size to try.
        boot: Nonce of this coordinator's start, which makes the client ids unique.

    Returns:
        Data bytes per chunk, at least MIN_CHUNK_BYTES.

    Raises:
        BrokerError: The broker cannot be reached, refuses the topic of chunks, or takes no chunk of MIN_CHUNK_BYTES.

    Example:
        >>> find_chunk_bytes(RunSettings(broker="mqtt://127.0.0.1"), boot="c0ffee")  # doctest: +SKIP
        262144
    """
    topic = model_chunk(settings.fleet, hashlib.sha256(boot.encode()).hexdigest(), 0)
    wanted = size = settings.chunk_kib * 1024
    while True:
        # A broker may close the connection at a message that is too large, so each size has its own connection. AWS IoT Core
        # refuses a client id that connects twice within a second, so each connection has its own id.
        with Probe(settings, f"{client_id(settings.fleet)}.{boot}.{size}") as probe:
            wanted = chunk_bytes_within(wanted, probe.connected.max_packet_bytes)
            size = min(size, wanted)
            if _passes(probe, topic, size):
                break
        if size <= MIN_CHUNK_BYTES:
            raise BrokerError(
                f"the broker takes no messages of {MIN_CHUNK_BYTES + CHUNK_OVERHEAD_BYTES} bytes; raise its limit "
                "(mosquitto: message_size_limit)"
            )
        size = max(MIN_CHUNK_BYTES, size // 2)
    if size < wanted:
        _log.warning(
            "the broker takes no messages of %d bytes, so chunks have %d bytes instead of %d; to use larger "
            "ones, raise its limit (mosquitto: message_size_limit)",
            min(wanted, 2 * size) + CHUNK_OVERHEAD_BYTES,
            size,
            wanted,
        )
    return size


def _passes(probe: Probe, topic: str, size: int) -> bool:
    """Publish a chunk of `size` data bytes; return whether the broker takes it.

    An empty message is published first. If the broker refuses it too, the size is not the reason: BrokerError is raised.
    """
    if probe.publish(topic) != "taken":
        raise BrokerError(
            f"the broker refuses messages on {topic!r} ({probe.fault or 'not allowed'}); "
            "give the coordinator's user the right to write there (`fedpatch broker acl` prints the rules)"
        )
    echoes = False
    if probe.connected.protocol == "3.1.1":
        echoes = not probe.subscribe(topic) and probe.publish(topic) == "taken"
        echoes = echoes and probe.gets(topic, b"", timeout_s=_ECHO_S) is not None
    payload = bytes(size + CHUNK_OVERHEAD_BYTES)
    timeout_s = ANSWER_TIMEOUT_S + len(payload) / _SLOWEST_BYTES_PER_S
    if probe.publish(topic, payload, timeout_s=timeout_s) != "taken":
        return False
    return not echoes or probe.gets(topic, payload, timeout_s=timeout_s) is not None
