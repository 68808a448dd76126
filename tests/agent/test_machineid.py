"""Identity of a machine: the values that count, their hashes in the record, and the comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mooring.agent import machineid
from mooring.agent.disk import RecordFile
from mooring.agent.machineid import CopiedFilesError, MachineIdentity
from tests.support.machines import FIRST, SECOND, machine

BOARD = "8c2d1f60-5a3b-4e7c-9d10-2b6f4a8e7c31"
OTHER_BOARD = "0a1b2c3d-4e5f-4071-8293-a4b5c6d7e8f9"


@pytest.fixture
def record(tmp_path: Path) -> RecordFile:
    return RecordFile(tmp_path / "var/lib/mooring/agent.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIRST, FIRST),
        (FIRST.upper(), FIRST),
        ("", ""),
        ("uninitialized", ""),
        ("0" * 32, ""),
        (FIRST[:31], ""),
        (f"{FIRST}0", ""),
        ("g" * 32, ""),
    ],
)
def test_a_machine_id_is_32_hexadecimal_digits(text: str, expected: str) -> None:
    assert machineid.usable_machine_id(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Not Settable",
        "Not Present",
        "To Be Filled By O.E.M.",
        "Default string",
        "None",
        BOARD.replace("-", ""),
        *(f"{d * 8}-{d * 4}-{d * 4}-{d * 4}-{d * 12}" for d in "01efF"),
        "00000000-0000-0000-0000-000000000001",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "11111111-2222-3333-4444-555555555555",
        "03000200-0400-0500-0006-000700080009",
        *machineid.SHARED_UUIDS,
        *(one.upper() for one in machineid.SHARED_UUIDS),
    ],
)
def test_a_product_uuid_that_boards_share_does_not_count(text: str) -> None:
    assert machineid.usable_product_uuid(text) == ""


def test_a_product_uuid_counts_in_either_case() -> None:
    assert machineid.usable_product_uuid(BOARD.upper()) == BOARD
    # The last bytes are those of a MAC address.
    assert machineid.usable_product_uuid("00000000-0000-0000-0000-ac1f6b8c2d47") != ""


@pytest.mark.parametrize("first", ["", "uninitialized", None])
def test_the_machine_id_of_dbus_counts_where_there_is_no_other(tmp_path: Path, first: str | None) -> None:
    found = machine(tmp_path, first or "")
    dbus = tmp_path / machineid.MACHINE_ID_FILES[1]
    dbus.parent.mkdir(parents=True)
    dbus.write_text(f"{SECOND}\n")
    assert found.hashes() == {"machineID": machineid.keyed_hash("machineID", SECOND)}


@pytest.mark.parametrize(
    ("is_mounted", "is_there", "expected"),
    [
        pytest.param(True, True, ["productUUID"], id="one for this boot"),
        pytest.param(False, True, ["machineID", "productUUID"], id="one that was written since"),
        pytest.param(True, False, ["machineID", "productUUID"], id="one that another program mounts"),
    ],
)
def test_a_machine_id_of_one_boot_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mounted: bool, is_there: bool, expected: list[str]
) -> None:
    found = machine(tmp_path, FIRST, BOARD)
    if is_there:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / machineid.TRANSIENT_ID_FILE).touch()
    monkeypatch.setattr(Path, "is_mount", lambda path: is_mounted and path.name == "machine-id")
    assert list(found.hashes()) == expected


def test_a_hash_shows_neither_the_value_nor_that_two_values_are_equal(tmp_path: Path) -> None:
    hashes = machine(tmp_path, FIRST, BOARD).hashes()
    assert list(hashes) == ["machineID", "productUUID"]
    assert not any(value in "".join(hashes.values()) for value in (FIRST, BOARD))
    assert machineid.keyed_hash("machineID", FIRST) != machineid.keyed_hash("productUUID", FIRST)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"a" * 5000, b"\0" * 33])
def test_a_file_that_holds_no_value_is_absent(tmp_path: Path, content: bytes) -> None:
    found = machine(tmp_path, FIRST, BOARD)
    for name in (machineid.MACHINE_ID_FILES[0], machineid.PRODUCT_UUID_FILE):
        (tmp_path / name).write_bytes(content)
    assert found.hashes() == {}


@pytest.mark.parametrize("sign", [*machineid.CONTAINER_FILES, machineid.CONTAINER_VARIABLE])
def test_nothing_is_compared_or_recorded_in_a_container(tmp_path: Path, record: RecordFile, sign: str) -> None:
    machineid.remember(record, machine(tmp_path / "host", FIRST, BOARD))
    before = record.path.read_bytes()
    found = machine(tmp_path / "container", SECOND, OTHER_BOARD)
    if sign == machineid.CONTAINER_VARIABLE:
        found = MachineIdentity(found.root, {sign: "lxc"})
    else:
        (found.root / sign).parent.mkdir(parents=True, exist_ok=True)
        (found.root / sign).touch()
    machineid.check(record, found, "worker-1", "")
    machineid.complete(record, found)
    machineid.remember(record, found)
    assert record.path.read_bytes() == before
    machineid.remember(fresh := RecordFile(tmp_path / "fresh.json"), found)
    machineid.complete(fresh, found)
    assert not fresh.path.exists()


@pytest.mark.parametrize(
    ("recorded", "here", "is_copy"),
    [
        ((FIRST, BOARD), (FIRST, BOARD), False),
        ((FIRST, BOARD), (SECOND, BOARD), True),
        ((FIRST, BOARD), (FIRST, OTHER_BOARD), True),
        ((FIRST, BOARD), (SECOND, OTHER_BOARD), True),
        ((FIRST, BOARD), ("", ""), False),
        ((FIRST, BOARD), ("", BOARD), False),
        ((FIRST, BOARD), ("uninitialized", BOARD), False),
        ((FIRST, BOARD), (FIRST, ""), False),
        ((FIRST, BOARD), (FIRST, "Not Settable"), False),
        ((FIRST, ""), (FIRST, BOARD), False),
        (("", BOARD), (SECOND, BOARD), False),
        (("", ""), (SECOND, BOARD), False),
        (("", BOARD), ("", OTHER_BOARD), True),
    ],
)
def test_files_are_copied_where_a_value_on_both_sides_differs(
    tmp_path: Path, record: RecordFile, recorded: tuple[str, str], here: tuple[str, str], is_copy: bool
) -> None:
    machineid.complete(record, machine(tmp_path / "first", *recorded))
    found = machine(tmp_path / "second", *here)
    assert machineid.is_copy(record, found) is is_copy
    if is_copy:
        with pytest.raises(CopiedFilesError, match=r"^these files were copied from worker-1: run this$"):
            machineid.check(record, found, "worker-1", "run this")
        with pytest.raises(CopiedFilesError, match="copied from another machine"):
            machineid.check(record, found, "", "run this")
    else:
        machineid.check(record, found, "worker-1", "run this")
    machineid.remember(record, found)
    assert not machineid.is_copy(record, found)


def test_a_value_that_was_missing_is_added_and_the_others_stay(tmp_path: Path, record: RecordFile) -> None:
    record.write("nodeUID", "u")
    machineid.complete(record, machine(tmp_path, FIRST))
    machineid.complete(record, machine(tmp_path, "", BOARD))
    entries = json.loads(record.path.read_bytes())
    assert entries == {"nodeUID": "u", **machine(tmp_path, FIRST, BOARD).hashes()}


def test_a_value_of_the_other_machine_does_not_stay(tmp_path: Path, record: RecordFile) -> None:
    machineid.remember(record, machine(tmp_path, FIRST, BOARD))
    machineid.remember(record, machine(tmp_path, SECOND))
    assert not machineid.is_copy(record, machine(tmp_path, SECOND, OTHER_BOARD))
