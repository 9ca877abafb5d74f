"""Looks into SQLite's write-ahead log for writes that SQLite will not read.

SQLite takes the first frame whose checksum is wrong for the end of the log, without a word, as it must after a power
cut in the middle of a write. A damaged frame further up looks the same and costs everything after it. Layout and checksums:
https://www.sqlite.org/fileformat2.html#the_write_ahead_log.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_WORD = 0xFFFFFFFF

_Sum = tuple[int, int]


def unread_writes(path: Path) -> bool:
    """Whether the log at `path` holds writes behind one that is damaged, or is no log; False where it is absent or empty.

    That its end is missing cannot be seen. For a database that nobody has open: a write in progress looks damaged.
    """
    data = path.read_bytes() if path.is_file() else b""
    if len(data) < _HEADER_BYTES:
        return bool(data.strip(b"\0"))
    magic, _, page_bytes, _, *salts = struct.unpack_from(">6I", data)
    order = _MAGIC.get(magic)
    if order is None or _sum(data[:24], (0, 0), order) != struct.unpack_from(">2I", data, 24):
        return len(data) > _HEADER_BYTES
    total = struct.unpack_from(">2I", data, 24)
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    whole = True
    for start in range(_HEADER_BYTES, len(data) - frame_bytes + 1, frame_bytes):
        of_this_log = [*struct.unpack_from(">2I", data, start + 8)]
        if whole:
            total = _sum(data[start : start + 8], total, order)
            total = _sum(data[start + _FRAME_HEADER_BYTES : start + frame_bytes], total, order)
            whole = of_this_log == salts and total == struct.unpack_from(">2I", data, start + 16)
        # What an earlier log left behind has other salts, both of them.
        if not whole and any(one == other for one, other in zip(of_this_log, salts, strict=True)):
            return True
    return False


def _sum(data: bytes, start: _Sum, order: str) -> _Sum:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & _WORD
        two = (two + second + one) & _WORD
    return one, two
