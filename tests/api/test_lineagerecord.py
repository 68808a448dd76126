"""LineageRecord: validation and print columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import lineagerecord
from mooring.api.mooring.lineagerecord import MAX_ENTRIES, MAX_TEXT, TrimmedLog, end_of
from mooring.api.view import FixedView, NamespacedName
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.pki.keys import generate_key
from mooring.trust.issuancelog import START, Checkpoint, IssuanceLogKey, new_record
from tests.support.changes import NOW, created

RECORDS = BY_PLURAL["lineagerecords"]
ENTRY: Obj = {
    "time": "2026-01-01T00:00:00Z",
    "event": "Issued",
    "subject": "system:node:n1",
    "token": "abcdef",
    "notAfter": "2026-01-02T00:00:00Z",
}


def record(*entries: Obj) -> Obj:
    return new_record(START, entries or (ENTRY,), IssuanceLogKey(generate_key()))[0]


def errors(obj: Obj) -> list[str]:
    return created(RECORDS, obj)[1]


def test_a_record_as_the_server_writes_it_is_valid() -> None:
    assert errors(record()) == []


def changed(obj: Obj, **spec: Any) -> Obj:
    return {**obj, "spec": {**obj["spec"], **spec}}


@pytest.mark.parametrize(
    ("obj", "error"),
    [
        pytest.param(changed(record(), hash="sha256:" + "0" * 64), "spec.hash: Invalid value", id="another hash"),
        pytest.param(changed(record(), hash="x"), "spec.hash: Invalid value", id="no hash"),
        pytest.param(changed(record(), previous="x"), "spec.previous: Invalid value", id="no previous hash"),
        pytest.param(
            changed(record(), signature="A" * (MAX_TEXT + 1)), "spec.signature: Too long", id="a long signature"
        ),
        pytest.param(changed(record(), entries=[]), "spec.entries: Required value", id="no entry"),
        pytest.param(record(*[ENTRY] * (MAX_ENTRIES + 1)), "must have at most 64 items", id="too many entries"),
        pytest.param(
            record({**ENTRY, "event": "Trimmed", "checkpoint": "x@1"}),
            "spec.entries[0].checkpoint: Invalid value",
            id="a trim up to no record",
        ),
        pytest.param(record({"event": "Issued"}), "spec.entries[0].time: Required value", id="no time"),
        pytest.param(record({**ENTRY, "notAfter": ""}), "spec.entries[0].notAfter: Required value", id="no end"),
        pytest.param(
            record({**ENTRY, "notAfter": "soon"}), "spec.entries[0].notAfter: Invalid", id="an end that is no time"
        ),
        pytest.param(record({**ENTRY, "time": "now"}), "spec.entries[0].time: Invalid", id="a time that is none"),
        pytest.param(record({**ENTRY, "event": "Foo"}), "must be one of Issued, Trimmed", id="another event"),
        pytest.param(record({**ENTRY, "subject": "a\nb"}), "must have printable characters only", id="two lines"),
        pytest.param(
            record({**ENTRY, "subject": "a" * (MAX_TEXT + 1)}), "spec.entries[0].subject: Too long", id="a long text"
        ),
        pytest.param(changed(record(), entries=[{**ENTRY, "node": ""}]), "must be left out", id="an empty text"),
        pytest.param(
            {**record(), "metadata": {"name": "1"}}, "must be a sequence number of 16 digits", id="another name"
        ),
    ],
)
def test_a_record_is_invalid_with(obj: Obj, error: str) -> None:
    assert any(error in one for one in errors(obj)), errors(obj)


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        pytest.param(["2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"], "2026-01-03T00:00:00Z", id="the last one"),
        pytest.param(["2026-01-01T00:00:00Z", "soon"], None, id="one that is no time"),
        pytest.param(["2026-01-01T00:00:00Z", ""], None, id="one that is missing"),
    ],
)
def test_the_end_of_a_record(ends: list[str], end: str | None) -> None:
    found = end_of(record(*({**ENTRY, "notAfter": text} for text in ends)))
    assert found == (parse_rfc3339(end) if end else None)
    assert end_of({"spec": {}}) is None


FIRST, HEAD = new_record(START, [ENTRY], None)
SECOND, _ = new_record(HEAD, [{"time": ENTRY["time"], "event": "Trimmed", "checkpoint": str(HEAD)}], None)


@pytest.mark.parametrize(
    ("records", "checkpoint", "is_lost"),
    [
        pytest.param([FIRST], HEAD, False, id="the record is there"),
        pytest.param([FIRST], Checkpoint(1, "sha256:" + "f" * 64), True, id="another one is in its place"),
        pytest.param([], HEAD, True, id="it is missing"),
        pytest.param([SECOND], HEAD, False, id="it was trimmed"),
        pytest.param([SECOND], Checkpoint(3, HEAD.hash), True, id="it is missing, and others were trimmed"),
    ],
)
def test_a_record_is_lost(records: list[Obj], checkpoint: Checkpoint, is_lost: bool) -> None:
    assert lineagerecord.is_lost(FixedView(records), checkpoint) is is_lost


def test_the_checkpoint_of_a_trim_is_kept_up_to_date() -> None:
    trimmed = TrimmedLog()
    assert trimmed.checkpoint(FixedView([FIRST])) == START
    seen = FixedView([FIRST, SECOND])
    assert trimmed.checkpoint(seen) == HEAD
    assert trimmed.checkpoint(seen) == HEAD, "nothing changed"
    assert trimmed.checkpoint(FixedView([FIRST])) == START, "another store"


class _GrowingView(FixedView):
    """View whose first record is deleted in its second revision."""

    def changed(self, since: int) -> Iterable[NamespacedName]:
        return [("", FIRST["metadata"]["name"])]

    def delete_first(self) -> None:
        del self._objects["", FIRST["metadata"]["name"]]
        self._revision += 1


def test_a_deletion_changes_no_checkpoint() -> None:
    trimmed, view = TrimmedLog(), _GrowingView([FIRST, SECOND])
    assert trimmed.checkpoint(view) == HEAD
    view.delete_first()
    assert trimmed.checkpoint(view) == HEAD


def test_print_columns() -> None:
    obj = created(RECORDS, record(ENTRY, {**ENTRY, "token": "fedcba"}))[0]
    cells = {column.name: column.cell(obj, NOW) for column in RECORDS.resource.columns}
    assert cells["Name"] == "0000000000000001"
    assert (cells["Entries"], cells["Subjects"], cells["Tokens"]) == ("2", "system:node:n1", "abcdef,fedcba")
    assert cells["Serials"] == "<none>"
    assert cells["Hash"] == obj["spec"]["hash"]
