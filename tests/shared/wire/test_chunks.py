"""Chunks, manifests and bitmaps of a blob."""

from __future__ import annotations

import hashlib
import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError, WireError
from fedpatch.shared.wire.chunks import (
    CHUNK_OVERHEAD_BYTES,
    Bitmap,
    Chunk,
    check_manifest,
    cut,
    decode_chunk,
    describe,
    encode_chunk,
    fits,
)
from fedpatch.shared.wire.messages import MAX_CHUNKS, Manifest

SCHEMA = "5c" * 32
BLOB = bytes(range(250))
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


def announced(blob: bytes = BLOB, chunk_bytes: int = 100) -> Manifest:
    """The manifest of a blob."""
    return describe(blob, chunk_bytes=chunk_bytes, encoding="fp32", raw_bytes=len(blob), schema=SCHEMA)


@st.composite
def chunks(draw) -> Chunk:
    count = draw(st.integers(1, MAX_CHUNKS))
    return Chunk(draw(DIGESTS), draw(st.integers(0, count - 1)), count, draw(st.binary(max_size=200)))


class TestChunks:
    @given(chunks())
    def test_come_back_as_they_were(self, chunk):
        payload = encode_chunk(chunk)
        assert decode_chunk(payload) == chunk
        assert len(payload) == CHUNK_OVERHEAD_BYTES + len(chunk.data)

    @given(st.binary(max_size=120) | st.binary(max_size=120).map(lambda tail: b"fp\x01\x00" + tail))
    def test_any_other_bytes_are_a_wire_error(self, payload):
        with pytest.raises(WireError):
            decode_chunk(payload)

    def test_shorter_than_their_header_are_refused(self):
        with pytest.raises(WireError, match="3 bytes is shorter than its header"):
            decode_chunk(b"fp\x01")

    @given(chunks(), st.data())
    def test_damage_shows(self, chunk, data):
        payload = bytearray(encode_chunk(chunk))
        place = data.draw(st.integers(44, len(payload) - 1))
        damage = data.draw(st.sampled_from(("cut", "flip", "append")))
        if damage == "cut":
            del payload[place:]
        elif damage == "flip":
            payload[place] ^= data.draw(st.integers(1, 255))
        else:
            payload += b"!"
        with pytest.raises(WireError):
            decode_chunk(bytes(payload))

    def test_of_another_length_than_announced_are_refused(self):
        with pytest.raises(WireError, match="chunk 2 of 3 has 1 bytes, and announces 0"):
            decode_chunk(encode_chunk(Chunk("00" * 32, 2, 3, b"")) + b"x")

    @pytest.mark.parametrize(("index", "count"), [(0, 0), (1, 1), (7, 3), (0, MAX_CHUNKS + 1)])
    def test_impossible_places_are_refused(self, index, count):
        head = struct.pack(">2sBB32sIIII", b"fp", 1, 0, bytes(32), index, count, 1, zlib.crc32(b"x"))
        with pytest.raises(WireError, match="is impossible"):
            decode_chunk(head + b"x")

    def test_last_of_the_most_chunks_is_accepted(self):
        chunk = Chunk("00" * 32, MAX_CHUNKS - 1, MAX_CHUNKS, b"x")
        assert decode_chunk(encode_chunk(chunk)) == chunk

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    def test_other_versions_are_refused(self, place):
        payload = bytearray(encode_chunk(Chunk("00" * 32, 0, 1, b"x")))
        payload[place] ^= 0x40
        with pytest.raises(WireError, match="version"):
            decode_chunk(bytes(payload))

    @given(st.binary(min_size=1, max_size=300), st.integers(1, 120))
    def test_of_a_blob_put_it_together_again(self, blob, chunk_bytes):
        manifest = announced(blob, chunk_bytes)
        check_manifest(manifest, len(blob))
        parts = [cut(blob, manifest, index) for index in range(manifest.chunk_count)]
        assert all(fits(part, manifest) for part in parts)
        assert b"".join(part.data for part in parts) == blob
        assert hashlib.sha256(blob).hexdigest() == manifest.digest

    def test_foreign_chunks_are_rejected(self):
        manifest = announced()
        assert fits(Chunk(manifest.digest, 2, 3, bytes(50)), manifest)
        for wrong in (
            Chunk("00" * 32, 0, 3, bytes(100)),
            Chunk(manifest.digest, 0, 4, bytes(100)),
            Chunk(manifest.digest, 0, 3, bytes(99)),
            Chunk(manifest.digest, 2, 3, bytes(100)),
        ):
            assert not fits(wrong, manifest)


class TestManifest:
    @pytest.mark.parametrize("encoding", ["fp32", "delta-int8"])
    def test_describe_names_encoding_and_sizes(self, encoding):
        manifest = describe(BLOB, chunk_bytes=100, encoding=encoding, raw_bytes=7, schema=SCHEMA)
        assert manifest == Manifest(hashlib.sha256(BLOB).hexdigest(), 250, 100, 3, encoding, 7, SCHEMA)

    def test_have_a_largest_number_of_chunks(self):
        """A blob with too many chunks for a manifest is refused; the error gives both figures."""
        blob = bytes(MAX_CHUNKS * 2 + 1)
        assert announced(blob[1:], 2).chunk_count == MAX_CHUNKS
        with pytest.raises(UsageError, match=f"65537 chunks of 2 bytes, at most {MAX_CHUNKS} "):
            announced(blob, 2)

    def test_contradictory_sizes_are_refused(self):
        """The sizes of a manifest must agree before memory is allocated for it."""
        with pytest.raises(WireError, match="250 bytes in chunks of 100 are not 4 chunks"):
            check_manifest(Manifest("00" * 32, 250, 100, 4, "fp32", 250, SCHEMA), 1000)

    @pytest.mark.parametrize(("size", "raw"), [(251, 1), (1, 251)])
    def test_beyond_the_ceiling_are_refused(self, size, raw):
        manifest = Manifest("00" * 32, size, 1000, 1, "fp32", raw, SCHEMA)
        check_manifest(manifest, 251)
        with pytest.raises(WireError, match="limit is 250"):
            check_manifest(manifest, 250)


class TestBitmap:
    @given(st.integers(1, 200), st.sets(st.integers(0, 250)))
    @example(3, {2, 3})
    def test_comes_back_as_it_was(self, count, indices):
        bitmap = Bitmap(count, indices)
        data = bitmap.to_bytes()
        assert len(data) == (count + 7) // 8
        assert list(bitmap) == list(Bitmap.from_bytes(count, data)) == sorted(i for i in indices if i < count)

    @given(st.integers(1, 200), st.binary(max_size=30))
    def test_any_other_bytes_are_a_wire_error(self, count, data):
        try:
            bitmap = Bitmap.from_bytes(count, data)
        except WireError:
            return
        assert bitmap.to_bytes() == data

    @pytest.mark.parametrize("data", [b"", b"\x01\x00", b"\x08"])
    def test_must_have_the_length_of_the_blob(self, data):
        with pytest.raises(WireError, match="3 chunks"):
            Bitmap.from_bytes(3, data)

    @given(st.sets(st.integers(0, 49)), st.integers(0, 60))
    def test_knows_what_is_missing(self, indices, limit):
        bitmap = Bitmap(50, indices)
        assert bitmap.missing(limit) == [i for i in range(50) if i not in indices][:limit]
        assert bitmap.full == (not bitmap.missing(50))
        assert all(index in bitmap for index in indices)

    def test_bit_order_is_fixed(self):
        """Bit i of the wire form is bit i % 8 of byte i // 8."""
        assert Bitmap(10, (0, 9)).to_bytes() == b"\x01\x02"

    def test_takes_an_index_once(self):
        bitmap = Bitmap(3)
        assert (bitmap.add(1), bitmap.add(1), len(bitmap)) == (True, False, 1)
