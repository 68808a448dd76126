"""Bytes that have changed in a database: no read returns them, and verification finds them (contract, rule 12)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.controlplane.snapshots import save
from mooring.errors import StorageError
from mooring.storage.contract import (
    CompactedError,
    Entry,
    KeyExistsError,
    RevisionMismatchError,
    UnreadableEntry,
)
from mooring.storage.sqlite import database, verification
from mooring.storage.sqlite.driver import SqliteStorage
from mooring.storage.sqlite.record import checksum, entry_of, is_sound
from mooring.storage.sqlite.verification import verify_file
from tests.support.sqlitefile import run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mooring.db"


@contextmanager
def by_hand(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


async def fill(store: SqliteStorage, chance: random.Random, writes: int = 300) -> dict[str, bytes]:
    """Create, update, delete and compact. Return what is there afterwards."""
    there: dict[str, Entry] = {}
    for number in range(writes):
        key = f"/registry/secrets/default/{chance.randrange(60)}"
        value = chance.randbytes(chance.choice((0, 20, 300, 1200, 9000)))
        if key not in there:
            there[key] = await store.create(key, value)
        elif chance.random() < 0.7:
            there[key] = await store.update(key, value, expected=there[key].revision)
        else:
            await store.delete(key, expected=there.pop(key).revision)
        if number % 90 == 89:
            await store.compact(await store.revision() - 20)
    return {key: entry.value for key, entry in there.items()}


async def everything(store: SqliteStorage) -> dict[str, Entry]:
    return {entry.key: entry for entry in (await store.range("")).entries}


SEEDS = range(int(os.environ.get("MOORING_FLIPS", "8")))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_read_returns_a_changed_byte_and_what_is_missing_is_found_by_verification(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    original: dict[str, bytes] = {}

    async def prepare(store: SqliteStorage) -> None:
        original.update(await fill(store, chance))

    run(path, prepare)
    assert verify_file(path).damage == ()
    whole = path.read_bytes()
    for _ in range(20):
        data = bytearray(whole)
        place = chance.randrange(len(data))
        data[place] ^= 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(1, 256)
        path.write_bytes(data)
        try:
            damage = bool(verify_file(path).damage)
        except StorageError:
            damage = True
        seen: dict[str, Entry | None] = {}

        async def look(
            store: SqliteStorage, seen: dict[str, Entry | None] = seen, place: int = place, damage: bool = damage
        ) -> None:
            seen.update(await everything(store))
            for key in original:
                found = await store.get(key)
                if not isinstance(found, UnreadableEntry) and found != seen.get(key):
                    assert found is None, place
                    assert damage, place
            at = await store.revision()
            for entry in (await store.range("", revision=at, limit=1000)).entries:
                assert entry == seen.get(entry.key) or isinstance(entry, UnreadableEntry), place

        try:
            run(path, look)
        except StorageError:
            assert damage, place
            continue
        readable = {
            key: entry.value
            for key, entry in seen.items()
            if entry is not None and not isinstance(entry, UnreadableEntry)
        }
        assert all(original.get(key) == value for key, value in readable.items()), place
        if readable != original:
            assert damage, place


@pytest.mark.parametrize("seed", range(3))
def test_verification_finds_nothing_in_a_sound_database_while_it_is_written(path: Path, seed: int) -> None:
    async def scenario(store: SqliteStorage) -> None:
        filling = asyncio.create_task(fill(store, random.Random(seed), 400))
        while not filling.done():
            await store.verify()
            await asyncio.sleep(0)
        before = store.counters.verified
        while store.counters.verified < before + await store.revision():
            await store.verify()
        assert store.counters.damaged == 0
        assert store.alarm == ""

    run(path, scenario)
    report = verify_file(path)
    assert (report.damage, report.unverified) == ((), 0)
    assert report.records > 50


CHANGES = {
    "the value": "UPDATE log SET value = x'00' || substr(value, 2) WHERE key = '/registry/b'",
    "the value, which is text now": "UPDATE log SET value = 'text' WHERE key = '/registry/b'",
    "the key of the record": "UPDATE log SET key = '/registry/c' WHERE key = '/registry/b'",
    "the key, which is not UTF-8 now": "UPDATE log SET key = CAST(x'2fff' AS TEXT) WHERE key = '/registry/b'",
    "the creation": "UPDATE log SET created = created - 1 WHERE key = '/registry/b'",
    "the checksum": "UPDATE log SET checksum = checksum + 1 WHERE key = '/registry/b'",
    "the checksum of the key": "UPDATE live SET checksum = checksum + 1 WHERE key = '/registry/b'",
    "the mark of a deletion": "UPDATE live SET deleted = 1 WHERE key = '/registry/b'",
    "the revision of the key": "UPDATE live SET revision = 3 WHERE key = '/registry/b'",
    "a revision that is not there": "UPDATE live SET revision = 99 WHERE key = '/registry/b'",
    "a revision that is text": "UPDATE live SET revision = 'x' WHERE key = '/registry/b'",
    "the record, which is gone": "DELETE FROM log WHERE revision = 4",
}


@pytest.fixture(params=CHANGES)
def damaged(request: pytest.FixtureRequest, path: Path) -> Path:
    """A database with /a, a damaged /b that was written twice, and /z."""

    async def three(store: SqliteStorage) -> None:
        await store.create("/registry/a", b"value of a")
        entry = await store.create("/registry/b", b"first")
        await store.update("/registry/b", b"value of b", expected=entry.revision)
        await store.create("/registry/z", b"value of z")

    run(path, three)
    with by_hand(path) as connection:
        connection.execute(CHANGES[request.param])
    return path


def test_a_damaged_record_is_unreadable_and_its_neighbours_are_not(damaged: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        found = await store.get("/registry/b")
        assert isinstance(found, UnreadableEntry)
        assert (found.key, found.value) == ("/registry/b", b"")
        assert "database" in found.problem
        entries = await everything(store)
        assert list(entries) == ["/registry/a", "/registry/b", "/registry/z"]
        assert entries["/registry/b"] == found
        assert (entries["/registry/a"].value, entries["/registry/z"].value) == (b"value of a", b"value of z")
        assert (await store.range("", limit=1)).remaining == 2
        at = await store.revision()
        await store.create("/later", b"")
        past = {entry.key: entry for entry in (await store.range("", revision=at)).entries}
        assert list(past) == ["/registry/a", "/registry/b", "/registry/z"]
        assert isinstance(past["/registry/b"], UnreadableEntry)

    run(damaged, scenario)


def test_a_damaged_record_counts_as_present_and_can_be_replaced_and_deleted(damaged: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        found = await store.get("/registry/b")
        assert found is not None
        with pytest.raises(KeyExistsError) as exists:
            await store.create("/registry/b", b"new")
        assert exists.value.current == found
        with pytest.raises(RevisionMismatchError) as mismatch:
            await store.update("/registry/b", b"new", expected=12345)
        assert mismatch.value.current == found
        updated = await store.update("/registry/b", b"new", expected=found.revision)
        assert await store.get("/registry/b") == updated
        await store.delete("/registry/b", expected=updated.revision)
        assert await store.get("/registry/b") is None
        await store.create("/registry/b", b"again")

    run(damaged, scenario)


def test_a_damaged_record_can_be_deleted_at_once(damaged: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        found = await store.get("/registry/b")
        assert found is not None
        await store.delete("/registry/b", expected=found.revision)
        assert list(await everything(store)) == ["/registry/a", "/registry/z"]

    run(damaged, scenario)


def test_verification_names_the_damaged_key_and_a_copy_is_refused(
    damaged: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def scenario(store: SqliteStorage) -> None:
        for _ in range(10):
            await store.verify()
        assert store.counters.damaged >= 1
        assert "`mooring store verify` names them" in store.alarm
        with pytest.raises(StorageError, match="a record of the store is damaged, and is not copied"):
            await save(store, tmp_path / "one.snapshot", SystemClock(), compressed=True)

    with caplog.at_level(logging.INFO):
        run(damaged, scenario)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    report = verify_file(damaged)
    assert any(damage.key in ("/registry/b", "/registry/c") or damage.revision == 4 for damage in report.damage), report
    assert not any(damage.key in ("/registry/a", "/registry/z") for damage in report.damage), report


def test_the_alarm_ends_when_the_damaged_record_was_deleted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(store: SqliteStorage) -> None:
        entry = await store.create("/registry/a", b"value")
        with by_hand(path) as connection:
            connection.execute("UPDATE log SET value = x'00'")
        for _ in range(4):
            await store.verify()
        assert store.alarm
        await store.delete("/registry/a", expected=entry.revision)
        await store.create("/registry/b", b"v")
        await store.compact(await store.revision())
        for _ in range(4):
            await store.verify()
        assert store.alarm == ""
        assert store.counters.damaged == 0

    with caplog.at_level(logging.INFO, "mooring.storage"):
        run(path, scenario)
    assert "is whole again" in caplog.text


def test_a_watch_that_would_yield_a_damaged_record_lists_again(path: Path) -> None:
    async def scenario(store: SqliteStorage) -> None:
        for key in ("/registry/a", "/registry/b", "/registry/c"):
            await store.create(key, b"value")
        with by_hand(path) as connection:
            connection.execute("UPDATE log SET value = x'00' WHERE key = '/registry/b'")
        watch = store.watch("/", after=1)
        assert [change.key for change in await anext(watch)] == ["/registry/a"], (
            "what comes before the damage is delivered"
        )
        with pytest.raises(CompactedError) as compacted:
            await anext(watch)
        assert compacted.value.oldest == 3
        changes = await anext(store.watch("/", after=3))
        assert [change.key for change in changes] == ["/registry/c"]

    run(path, scenario)


def test_pages_that_sqlite_cannot_read_are_damage_too(path: Path) -> None:
    async def many(store: SqliteStorage) -> None:
        await asyncio.gather(*(store.create(f"/{n}", b"x" * 3000) for n in range(200)))

    async def look(store: SqliteStorage) -> None:
        for _ in range(10):
            await store.verify()
        assert "could not be read" in store.alarm
        assert store.counters.damaged >= 1

    run(path, many)
    data = path.read_bytes()
    path.write_bytes(data[: 100 * 4096] + b"\xff" * 4096 * 20 + data[120 * 4096 :])
    run(path, look)
    report = verify_file(path)
    assert any("could not be read" in damage.problem for damage in report.damage)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"CREATE TABLE log", b"CREATE TABLE lag"),
        (b"value BLOB", b"velue BLOB"),
        (b"key TEXT NOT NULL", b"key TEXS NOT NULL"),
        (b"CREATE INDEX", b"CREA\xff\x00\x00NDEX"),
    ],
    ids=["the name of a table", "the name of a column", "the type of a column", "no text"],
)
def test_a_changed_description_of_the_tables_is_found_while_the_database_is_open(
    path: Path, before: bytes, after: bytes
) -> None:
    async def close_after_one_write(store: SqliteStorage) -> None:
        await store.create("/registry/a", b"v")

    async def scenario(store: SqliteStorage) -> None:
        for _ in range(6):
            await store.verify()
        assert store.alarm == ""
        whole = path.read_bytes()
        overwrite(path, whole.replace(before, after, 1))
        assert verify_file(path).damage
        for _ in range(6):
            await store.verify()
        assert str(path) in store.alarm
        overwrite(path, whole)
        for _ in range(6):
            await store.verify()
        assert store.alarm == ""

    run(path, close_after_one_write)
    run(path, scenario)


def overwrite(path: Path, data: bytes) -> None:
    """Write into an open file from another process, so that no lock of this one is lost."""
    subprocess.run(["/bin/dd", f"of={path}", "conv=notrunc", "status=none"], input=data, check=True)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE progress SET revision = 1 WHERE name = 'compacted'",
        "UPDATE progress SET revision = 9000000000 WHERE name = 'compacted'",
        "UPDATE progress SET revision = CAST(x'ff' AS TEXT) WHERE name = 'compacted'",
        "UPDATE progress SET name = CAST(x'ff' AS TEXT) WHERE name = 'compacted'",
        "DELETE FROM progress WHERE name = 'swept'",
        "UPDATE progress SET revision = -1 WHERE name = 'swept'",
    ],
    ids=["older", "of the future", "no number", "of another name", "lost", "negative"],
)
def test_a_damaged_record_of_compaction_hides_the_past_until_it_is_made_again(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that says too little was compacted would give lists of the past in which objects are missing."""
    there: dict[str, bytes] = {}

    async def damaged(store: SqliteStorage) -> None:
        there.update(await fill(store, random.Random(4)))
        newest = await store.revision()
        with by_hand(path) as connection:
            connection.execute(damage)
        assert verify_file(path).damage[0].problem == verification.PROGRESS_CHANGED
        while not store.alarm:
            await store.verify()
        with pytest.raises(CompactedError):
            await store.range("/", revision=newest - 1)
        with pytest.raises(CompactedError):
            await anext(store.watch("/", after=newest - 1))
        assert {key: entry.value for key, entry in (await everything(store)).items()} == there

    async def compacted(store: SqliteStorage) -> None:
        assert {key: entry.value for key, entry in (await everything(store)).items()} == there
        assert await store.compacted() == await store.revision()
        await store.compact(await store.revision())
        with by_hand(path) as connection:
            connection.execute(damage)
        await store.create("/registry/secrets/default/next", b"value")
        await store.compact(await store.revision() - 1)
        assert await store.compacted() == await store.revision()

    run(path, damaged)
    assert "record of compaction" not in caplog.text
    run(path, compacted)
    assert "record of compaction in the database has changed" in caplog.text
    assert not verify_file(path).damage


def test_a_schema_that_is_no_text_any_more_is_refused_with_a_remedy(path: Path) -> None:
    async def nothing(store: SqliteStorage) -> None:
        await store.create("/registry/a", b"value")

    run(path, nothing)
    path.write_bytes(path.read_bytes().replace(b"TEXT PRIMARY KEY, revision", b"TEXT PRIMARY KEY\xf5 revision"))
    with pytest.raises(StorageError, match=r"bytes have changed.*restore the last snapshot"):
        run(path, nothing)
    assert "bytes have changed" in verify_file(path).damage[0].problem


def test_keys_that_are_no_text_any_more_are_found(path: Path) -> None:
    async def two(store: SqliteStorage) -> None:
        await store.create("/registry/a", b"value")
        await store.create("/registry/b", b"value")

    run(path, two)
    with by_hand(path) as connection:
        connection.execute("UPDATE live SET key = CAST(key AS BLOB) WHERE key = '/registry/a'")
    assert {damage.key for damage in verify_file(path).damage} >= {"/registry/a"}


# ---- files of schema 1


def of_schema_1(path: Path) -> None:
    with by_hand(path) as connection:
        for statement in database.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id={database.APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")


def write_as_schema_1(path: Path, revision: int, key: str, value: bytes | None, prior: int = 0) -> None:
    """Write as a process of the older schema does, which may go on while a newer one has opened the file."""
    with by_hand(path) as connection:
        row = (revision, key, revision, prior, value)
        connection.execute("INSERT INTO log (revision, key, created, prior, value) VALUES (?, ?, ?, ?, ?)", row)
        statement = "INSERT INTO live (revision, deleted, key) VALUES (?, ?, ?)"
        if prior:
            statement = "UPDATE live SET revision = ?, deleted = ? WHERE key = ?"
        connection.execute(statement, (revision, value is None, key))


def without_checksum(path: Path) -> int:
    with by_hand(path) as connection:
        [(logged, listed)] = connection.execute(
            "SELECT (SELECT count(*) FROM log WHERE checksum IS NULL), (SELECT count(*) FROM live WHERE checksum IS NULL)"
        )
        return int(logged + listed)


def test_records_of_an_older_schema_are_given_checksums(path: Path) -> None:
    of_schema_1(path)
    write_as_schema_1(path, 2, "/registry/a", b"value")
    write_as_schema_1(path, 3, "/gone", b"value")
    write_as_schema_1(path, 4, "/gone", None, prior=3)
    assert verify_file(path).damage == ()
    assert verify_file(path).unverified == 3

    async def look(store: SqliteStorage) -> None:
        assert [entry.value for entry in (await everything(store)).values()] == [b"value"]

    run(path, look)
    assert without_checksum(path) == 0
    assert verify_file(path).unverified == 0
    with by_hand(path) as connection:
        assert connection.execute("SELECT checksum FROM log WHERE revision = 2").fetchone() == (
            checksum(2, b"/registry/a", 2, 0, b"value"),
        )
        connection.execute("UPDATE log SET value = x'00' WHERE revision = 2")

    async def look_again(store: SqliteStorage) -> None:
        assert isinstance(await store.get("/registry/a"), UnreadableEntry)

    run(path, look_again)


def test_what_a_process_of_the_older_schema_goes_on_writing_is_read_and_given_checksums_later(path: Path) -> None:
    of_schema_1(path)
    write_as_schema_1(path, 2, "/registry/a", b"value")

    async def beside(store: SqliteStorage) -> None:
        write_as_schema_1(path, 3, "/registry/a", b"newer", prior=2)
        write_as_schema_1(path, 4, "/registry/b", b"new")
        entries = await everything(store)
        assert {key: entry.value for key, entry in entries.items()} == {"/registry/a": b"newer", "/registry/b": b"new"}
        for _ in range(4):
            await store.verify()
        assert store.counters.damaged == 0

    run(path, beside)
    assert without_checksum(path)
    run(path, lambda store: asyncio.sleep(0))
    assert without_checksum(path) == 0
    assert verify_file(path).damage == ()


def test_a_damaged_record_of_an_older_schema_stops_no_migration(path: Path) -> None:
    of_schema_1(path)
    write_as_schema_1(path, 2, "/registry/a", b"value")
    with by_hand(path) as connection:
        connection.execute("UPDATE log SET created = 'x'")
        connection.execute("UPDATE log SET value = 'text'")

    async def look(store: SqliteStorage) -> None:
        assert isinstance(await store.get("/registry/a"), UnreadableEntry)

    run(path, look)


# ---- the parts


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    with by_hand(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(StorageError, match="is not a database of Mooring"):
        verify_file(path)
    path.write_bytes(b"text" * 1000)
    with pytest.raises(StorageError, match="does not begin as an SQLite database does"):
        verify_file(path)
    path.unlink()
    with pytest.raises(StorageError, match="cannot be opened"):
        verify_file(path)


def test_a_file_of_a_newer_schema_is_refused(path: Path) -> None:
    run(path, lambda store: asyncio.sleep(0))
    with by_hand(path) as connection:
        connection.execute(f"PRAGMA user_version={len(database.MIGRATIONS) + 1}")
    with pytest.raises(StorageError, match="run a newer Mooring"):
        verify_file(path)


def test_every_column_is_in_the_checksum() -> None:
    recorded = checksum(7, b"/key", 5, 3, b"value")
    assert is_sound(7, b"/key", 5, 3, b"value", recorded)
    others: tuple[tuple[object, ...], ...] = (
        (8, b"/key", 5, 3, b"value"),
        (7, b"/ke", 5, 3, b"yvalue"),
        (7, b"/key", 6, 3, b"value"),
        (7, b"/key", 5, 4, b"value"),
        (7, b"/key", 5, 3, b"valuE"),
        (7, b"/key", 5, 3, None),
        (7, "/key", 5, 3, b"value"),
        (1 << 70, b"/key", 5, 3, b"value"),
    )
    for revision, key, created, prior, value in others:
        assert not is_sound(revision, key, created, prior, value, recorded)
    assert checksum(7, b"/key", 5, 3, None) != checksum(7, b"/key", 5, 3, b"")
    deletion = checksum(7, b"/key", 5, 3, None)
    assert entry_of((b"/key", 7, 1, deletion, 7, b"/key", 5, 3, None, deletion)) is None


def test_a_list_of_damage_has_an_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_DAMAGE", 3)

    async def many(store: SqliteStorage) -> None:
        await asyncio.gather(*(store.create(f"/{n}", b"x") for n in range(20)))

    run(path, many)
    with by_hand(path) as connection:
        connection.execute("UPDATE log SET value = x'00'")
    assert len(verify_file(path).damage) == 3
