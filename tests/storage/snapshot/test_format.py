"""Format of a snapshot: what is written is read back, and every damage is found."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.storage.contract import Entry
from mooring.storage.snapshot import (
    LEVEL,
    MAGIC,
    MAX_FRAME,
    MAX_HEADER,
    MAX_REVISION,
    Header,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotError,
    Summary,
)

ENTRIES = (
    Entry("/mooring/a", b"", 2, 2),
    Entry("/registry/a", b"one", 7, 3),
    Entry("/registry/b", bytes(range(256)), 9, 9),
    Entry("/registry/é", b"x" * 3000, 8, 8),
)
HEADER = Header(9, "2026-01-02T03:04:05Z")
FORMS = (True, False)


def written(header: Header = HEADER, *frames: tuple[Entry, ...]) -> bytes:
    encoder = SnapshotEncoder(header)
    return encoder.begin() + b"".join(map(encoder.frame, frames)) + encoder.end()[0]


def whole(compressed: bool) -> bytes:
    return written(Header(9, HEADER.time, compressed), ENTRIES[:2], ENTRIES[2:])


def read(data: bytes, step: int = 1 << 20) -> tuple[list[Entry], Summary]:
    decoder = SnapshotDecoder()
    entries = [entry for start in range(0, len(data), step) for entry in decoder.feed(data[start : start + step])]
    return entries, decoder.finish()


@pytest.mark.parametrize("step", [1, 7, 1 << 20], ids=lambda step: f"in pieces of {step}")
@pytest.mark.parametrize("compressed", FORMS, ids=["compressed", "plain"])
def test_a_snapshot_is_read_as_it_was_written(compressed: bool, step: int) -> None:
    data = whole(compressed)
    entries, summary = read(data, step)
    assert tuple(entries) == ENTRIES
    assert summary == Summary(Header(9, HEADER.time, compressed), 4, f"sha256:{data[-32:].hex()}")


def test_a_snapshot_of_nothing_is_whole() -> None:
    assert read(written()) == ([], Summary(HEADER, 0, f"sha256:{written()[-32:].hex()}"))


def test_the_digest_is_that_of_every_byte_before_it() -> None:
    data = whole(True)
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.binary(max_size=50), max_size=20),
    st.booleans(),
)
def test_any_entries_are_kept(values: dict[str, bytes], compressed: bool) -> None:
    entries = tuple(Entry(key, values[key], 5, 4) for key in sorted(values))
    frames = (entries,) if entries else ()
    assert tuple(read(written(Header(5, "", compressed), *frames))[0]) == entries


@pytest.mark.parametrize("compressed", FORMS, ids=["compressed", "plain"])
def test_a_flipped_bit_in_any_byte_is_found(compressed: bool) -> None:
    data = whole(compressed)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        with pytest.raises(SnapshotError):
            read(bytes(changed))


def test_a_file_that_is_cut_anywhere_is_found() -> None:
    data = whole(True)
    for length in range(len(data)):
        with pytest.raises(SnapshotError, match="cut off"):
            read(data[:length])


def test_entries_before_the_damage_are_returned_and_none_of_its_frame() -> None:
    data = bytearray(whole(False))
    data[data.index(b"x" * 100)] ^= 1
    decoder = SnapshotDecoder()
    found: list[Entry] = []

    def feed() -> None:
        for byte in data:
            found.extend(decoder.feed(bytes([byte])))

    with pytest.raises(SnapshotError, match="damaged after byte"):
        feed()
    assert tuple(found) == ENTRIES[:2]


def frames(data: bytes) -> Iterator[bytes]:
    """Yield the prelude, each frame, and the end."""
    (length,) = struct.unpack_from(">I", data, len(MAGIC) + 2)
    position = len(MAGIC) + 6 + length + 32
    yield data[:position]
    while stored := struct.unpack_from(">I", data, position)[0]:
        yield data[position : position + 8 + stored + 32]
        position += 8 + stored + 32
    yield data[position:]


REARRANGED: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a missing frame": lambda parts: [parts[0], parts[2], parts[3]],
    "a missing last frame": lambda parts: [parts[0], parts[1], parts[3]],
    "a repeated frame": lambda parts: [parts[0], parts[1], *parts[1:]],
    "frames in another order": lambda parts: [parts[0], parts[2], parts[1], parts[3]],
    "a byte after the end": lambda parts: [*parts, b"\0"],
    "two snapshots": lambda parts: parts * 2,
}


@pytest.mark.parametrize("rearrange", REARRANGED.values(), ids=REARRANGED)
def test_frames_that_were_moved_are_found(rearrange: Callable[[list[bytes]], list[bytes]]) -> None:
    with pytest.raises(SnapshotError):
        read(b"".join(rearrange(list(frames(whole(True))))))


class Forger:
    """Seals any content with right digests, as someone who can write the file can."""

    def __init__(self) -> None:
        self.data = b""

    def seal(self, content: bytes) -> Forger:
        self.data += content
        self.data += hashlib.sha256(self.data).digest()
        return self

    def prelude(self, header: object, version: int = 1, length: int | None = None) -> Forger:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return self.seal(struct.pack(">16sHI", MAGIC, version, len(text) if length is None else length) + text)

    def frame(self, plain: bytes, *, stored: bytes | None = None, length: int | None = None) -> Forger:
        stored = zlib.compress(plain, LEVEL) if stored is None else stored
        return self.seal(struct.pack(">II", len(stored), len(plain) if length is None else length) + stored)

    def end(self, entries: int, plain_length: int = 0) -> Forger:
        return self.seal(struct.pack(">IIQ", 0, plain_length, entries))


def forged() -> Forger:
    return Forger().prelude({"revision": 9, "time": "", "compression": "zlib"})


def record(key: bytes, value: bytes = b"", revision: int = 3, created: int = 3, key_length: int | None = None) -> bytes:
    length = len(key) if key_length is None else key_length
    return struct.pack(">IQQI", length, revision, created, len(value)) + key + value


def test_the_forger_is_able() -> None:
    assert read(forged().frame(record(b"/a")).end(1).data)[0] == [Entry("/a", b"", 3, 3)]


def plain_form(forger: Callable[[], Forger] = Forger) -> Forger:
    return forger().prelude({"revision": 9, "time": "", "compression": "none"})


FORGED: dict[str, Callable[[], Forger]] = {
    "another version": lambda: Forger().prelude({}, version=0),
    "a header that is too long": lambda: Forger().prelude({}, length=MAX_HEADER + 1),
    "a header that is no JSON": lambda: Forger().prelude(b"{"),
    "a header that nests too deeply": lambda: Forger().prelude(b"[" * 3000),
    "a header that is no object": lambda: Forger().prelude(b"[]"),
    "a header without a revision": lambda: Forger().prelude({"time": "", "compression": "zlib"}),
    "a revision that is no number": lambda: Forger().prelude({"revision": True, "time": "", "compression": "zlib"}),
    "a revision that is too large": lambda: Forger().prelude(
        {"revision": MAX_REVISION + 1, "time": "", "compression": "zlib"}
    ),
    "a revision of 0": lambda: Forger().prelude({"revision": 0, "time": "", "compression": "zlib"}),
    "a time that is no text": lambda: Forger().prelude({"revision": 9, "time": 1, "compression": "zlib"}),
    "an unknown compression": lambda: Forger().prelude({"revision": 9, "time": "", "compression": "lzma"}),
    "a frame that expands beyond its length": lambda: forged().frame(b"x" * 10_000, length=10),
    "a frame that expands to less": lambda: forged().frame(record(b"/a"), length=4000),
    "a frame that is too large": lambda: forged().frame(b"", length=MAX_FRAME + 1),
    "a frame that is not compressed": lambda: forged().frame(b"", stored=b"plain", length=5),
    "a frame with bytes after its end": lambda: forged().frame(b"", stored=zlib.compress(b"") + b"x", length=0),
    "a plain frame of another length": lambda: plain_form().frame(b"", stored=record(b"/a"), length=1),
    "a record that is cut": lambda: forged().frame(record(b"/a")[:10]),
    "a key that is longer than its frame": lambda: forged().frame(record(b"/a", key_length=1000)),
    "a key that is no text": lambda: forged().frame(record(b"\xff")),
    "an empty key": lambda: forged().frame(record(b"")),
    "a key that is there twice": lambda: forged().frame(record(b"/a") * 2),
    "keys in another order": lambda: forged().frame(record(b"/b")).frame(record(b"/a")),
    "a revision beyond that of the snapshot": lambda: forged().frame(record(b"/a", revision=10)),
    "a creation after the last write": lambda: forged().frame(record(b"/a", revision=3, created=4)),
    "a creation at revision 0": lambda: forged().frame(record(b"/a", created=0)),
    "an end with another number of entries": lambda: forged().frame(record(b"/a")).end(2),
    "an end with a length": lambda: forged().end(0, plain_length=1),
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_is_no_snapshot_is_refused_even_with_right_digests(forge: Callable[[], Forger]) -> None:
    with pytest.raises(SnapshotError, match="damaged after byte"):
        SnapshotDecoder().feed(forge().data)


def test_another_file_and_a_newer_format_are_told_in_words() -> None:
    with pytest.raises(SnapshotError, match="no snapshot of Mooring"):
        SnapshotDecoder().feed(b"SQLite format 3\0")
    with pytest.raises(SnapshotError, match="newer Mooring \\(format 2\\)"):
        SnapshotDecoder().feed(Forger().prelude({}, version=2).data)
    with pytest.raises(SnapshotError, match="cut off"):
        SnapshotDecoder().finish()
