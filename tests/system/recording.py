"""All bytes that pass a broker, recorded by a client without our code, and a search in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
import zstandard

from fedpatch.shared.tensors.arrays import Array
from tests.support.brokers import HOST

PATIENCE_S = 100.0
WINDOW_BYTES = 8
"""Two adjacent float32 values: they do not repeat by chance."""

_CHUNK_TOPIC = re.compile(r"(?P<blob>.*/blob/[0-9a-f]+)/(?P<index>\d+)")
_CHUNK_HEADER_BYTES = 52
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Recorder:
    """mosquitto_sub on all topics of the broker at `port`, within the `with`; afterwards `messages` has the record.

    `options` are further options of mosquitto_sub and mosquitto_pub, such as certificates.
    """

    def __init__(self, port: int, directory: Path, options: Sequence[object] = ()) -> None:
        for program in ("mosquitto_sub", "mosquitto_pub"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed (apt install mosquitto-clients)")
        self.messages: list[tuple[str, bytes]] = []
        self._place = ["-h", HOST, "-p", str(port), *map(str, options)]
        self._output = directory / "recorded"

    def __enter__(self) -> Recorder:
        command = ["mosquitto_sub", *self._place, "-i", "recorder-in", "-q", "1", "-t", "#", "-F", "%t %x"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output)
        self._pass_mark("begin")
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, _error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        try:
            if error_type is None:
                self._pass_mark("end")
        finally:
            self._process.terminate()
            self._process.wait()
        for line in self._output.read_text().splitlines():
            topic, _, payload = line.partition(" ")
            self.messages.append((topic, bytes.fromhex(payload)))

    def _pass_mark(self, mark: str) -> None:
        """Return once a message of our own was recorded: then all earlier messages were recorded too."""
        publish = ["mosquitto_pub", *self._place, "-i", "recorder-out", "-q", "1", "-t", f"recorder/{mark}", "-n"]
        give_up_at = time.monotonic() + PATIENCE_S
        while f"recorder/{mark} ".encode() not in self._output.read_bytes():
            assert time.monotonic() < give_up_at, f"mosquitto_sub does not record: {mark}"
            subprocess.run(publish, check=True)
            time.sleep(0.05)


class Haystack:
    """Topics, payloads, and the blobs made of chunks; compressed blobs also decompressed."""

    def __init__(self, messages: Iterable[tuple[str, bytes]]) -> None:
        messages = list(messages)
        self._parts = [part for topic, payload in messages for part in (topic.encode(), payload)]
        self._parts += _blobs(messages)
        self._windows = {
            part[start : start + WINDOW_BYTES] for part in self._parts for start in range(len(part) - WINDOW_BYTES + 1)
        }

    def names_of(self, tensors: Iterable[str]) -> set[str]:
        """Return the names that occur in it."""
        return {name for name in tensors if any(name.encode() in part for part in self._parts)}

    def values_of(self, tensors: Mapping[str, Array]) -> set[str]:
        """Return the names of the tensors of which two distinct adjacent values occur in it."""
        return {name for name, array in tensors.items() if not self._windows.isdisjoint(distinct_windows(array))}


def distinct_windows(array: Array) -> set[bytes]:
    """Return the bytes of every two adjacent float32 values, without common ones such as zeros and ones."""
    if array.dtype != np.float32:
        return set()
    data = array.astype("<f4").tobytes()
    windows = {data[start : start + WINDOW_BYTES] for start in range(0, len(data) - WINDOW_BYTES + 1, 4)}
    return {window for window in windows if len(set(window)) >= WINDOW_BYTES - 3}


def _blobs(messages: list[tuple[str, bytes]]) -> Iterator[bytes]:
    chunks: dict[str, dict[int, bytes]] = {}
    for topic, payload in messages:
        if payload and (match := _CHUNK_TOPIC.fullmatch(topic)):
            chunks.setdefault(match["blob"], {})[int(match["index"])] = payload[_CHUNK_HEADER_BYTES:]
    for parts in chunks.values():
        assert sorted(parts) == list(range(len(parts))), "a chunk was not recorded"
        blob = b"".join(parts[index] for index in sorted(parts))
        yield blob
        if blob.startswith(_ZSTD_MAGIC):
            yield zstandard.ZstdDecompressor().decompress(blob)
