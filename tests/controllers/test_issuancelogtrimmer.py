"""The controller that trims the issuance log: which records go, what it says first, and for what it waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.lineagerecord import MIN_RETENTION, PLURAL
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import GRACE, Action, Delete, RecordIssuance, Requeue
from mooring.controllers.certificates import cleaner
from mooring.controllers.certificates.cleaner import DAY, IssuanceLogTrimmer
from mooring.trust.issuancelog import START, Checkpoint, new_record, record_name
from tests.support.plans import NOW, enqueued, moment, plan, thing, views, with_metadata

OLD, OLDER = moment(-MIN_RETENTION), moment(-MIN_RETENTION - DAY)
"""Ends of certificates whose records may go."""


def of(end: str) -> Obj:
    return {"time": moment(-5 * MIN_RETENTION), "event": "Issued", "notAfter": end}


def trimmed(to: Checkpoint, end: str = OLD) -> Obj:
    return {"time": moment(-MIN_RETENTION), "event": "Trimmed", "checkpoint": str(to), "notAfter": end}


def log_of(*ends: str) -> tuple[list[Obj], list[Checkpoint]]:
    """Return one stored record for each end of a certificate, and the checkpoints of all."""
    records, heads = list[Obj](), [START]
    for end in ends:
        append(records, heads, of(end))
    return records, heads


def append(records: list[Obj], heads: list[Checkpoint], entry: Obj) -> None:
    record, head = new_record(heads[-1], [entry], None)
    records.append(with_metadata(record, uid=f"uid-of-{head.sequence}", resourceVersion="7"))
    heads.append(head)


def planned(
    records: Sequence[Obj], trimmer: IssuanceLogTrimmer | None = None, after: timedelta = timedelta()
) -> list[Action]:
    return plan(trimmer or IssuanceLogTrimmer(MIN_RETENTION), ("", ""), views(lineagerecords=records), NOW + after)


def deleted(actions: Sequence[Action]) -> list[int]:
    """Return the numbers of the records that are deleted."""
    return [int(action.name) for action in actions if isinstance(action, Delete)]


@pytest.mark.parametrize(
    ("ends", "upto"),
    [
        pytest.param([OLD], 1, id="a log of one record"),
        pytest.param([OLDER, OLD, OLDER], 3, id="whose last end is that of the record between"),
        pytest.param([OLD, OLD, moment(-MIN_RETENTION + 2 * DAY), OLD], 2, id="up to the first that is younger"),
        pytest.param([OLD, "soon", OLD], 1, id="or whose end is not known"),
    ],
)
def test_the_chain_says_first_that_the_oldest_records_go(ends: list[str], upto: int) -> None:
    records, heads = log_of(*ends)
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert planned(records, trimmer) == [Requeue(NOW + GRACE)], "the clock must say so for a day"
    assert planned(records, trimmer, GRACE / 2) == [Requeue(NOW + GRACE)]
    (recorded, again) = planned(records, trimmer, GRACE)
    assert recorded == RecordIssuance(
        {
            "time": rfc3339(NOW + GRACE),
            "event": "Trimmed",
            "checkpoint": str(heads[upto]),
            "notAfter": OLD,
        }
    )
    assert again == Requeue(NOW + GRACE)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([moment(-MIN_RETENTION + DAY), OLD], id="the oldest is younger"),
        pytest.param(["soon", OLD], id="its end is not known"),
        pytest.param(["9999-12-31T23:59:59Z", OLD], id="its certificate never ends"),
        pytest.param([], id="no record"),
    ],
)
def test_nothing_goes_and_the_log_is_looked_at_in_a_day(ends: list[str]) -> None:
    records, trimmer = log_of(*ends)[0], IssuanceLogTrimmer(MIN_RETENTION)
    assert planned(records, trimmer) == [Requeue(NOW + DAY)]
    assert planned(records, trimmer, DAY / 2) == [Requeue(NOW + DAY / 2 + DAY)], "this is not the day of the clock"


def test_records_are_deleted_from_the_oldest_on_once_the_chain_says_so() -> None:
    records, heads = log_of(OLD, OLD, OLD)
    append(records, heads, trimmed(heads[2]))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert planned(records, trimmer) == [Requeue(NOW + GRACE)], (
        "whoever wrote the entry, the clock must say so for a day"
    )
    actions = planned(records, trimmer, GRACE)
    assert deleted(actions) == [1, 2]
    assert actions[1] == Requeue(NOW + GRACE + DAY), (
        "what follows a deletion at once would be applied beside it, and what is due at once would repeat it without a pause"
    )
    assert actions[-1] == Requeue(NOW + GRACE)
    assert deleted(planned(records[1:], trimmer, GRACE)) == [2], "a trim that was killed half-way goes on"


def test_a_record_that_a_finalizer_holds_stops_the_trim() -> None:
    records, heads = log_of(OLD, OLD)
    append(records, heads, trimmed(heads[2]))
    records[0] = with_metadata(records[0], deletionTimestamp=OLD, finalizers=["example.com/hold"])
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records, trimmer)
    assert planned(records, trimmer, GRACE) == [Requeue(NOW + GRACE + DAY)]


def test_a_record_without_a_certificate_goes_where_an_entry_says_so() -> None:
    records, heads = log_of(OLD)
    append(records, heads, trimmed(heads[1]))
    append(records, heads, trimmed(heads[2]))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records[1:], trimmer)
    assert deleted(planned(records[1:], trimmer, GRACE)) == [2]


def test_a_record_without_a_certificate_goes_with_those_after_it_and_not_for_itself() -> None:
    records, heads = log_of(OLD)
    append(records, heads, trimmed(heads[1]))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    for after in (0 * DAY, GRACE, 2 * GRACE):
        assert planned(records[1:], trimmer, after) == [Requeue(NOW + after + DAY)]
    append(records, heads, of(OLD))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records[1:], trimmer)
    recorded = planned(records[1:], trimmer, GRACE)[0]
    assert isinstance(recorded, RecordIssuance)
    assert recorded.entry["checkpoint"] == str(heads[3])


def test_what_an_entry_allows_and_the_retention_does_not_stays() -> None:
    records, heads = log_of(moment(timedelta()), OLD)
    append(records, heads, trimmed(heads[2]))
    assert planned(records) == [Requeue(NOW + DAY)]


def test_a_long_log_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner, "MAX_DELETES", 2)
    records, heads = log_of(OLD, OLD, OLD)
    append(records, heads, trimmed(heads[3]))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records, trimmer)
    assert deleted(planned(records, trimmer, GRACE)) == [1, 2]
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records[:3], trimmer)
    recorded = planned(records[:3], trimmer, GRACE)[0]
    assert isinstance(recorded, RecordIssuance)
    assert recorded.entry["checkpoint"] == str(heads[2])


def test_a_clock_that_goes_back_keeps_the_records() -> None:
    records, _ = log_of(OLD)
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert planned(records, trimmer) == [Requeue(NOW + GRACE)]
    assert planned(records, trimmer, -DAY) == [Requeue(NOW)]
    assert planned(records, trimmer, GRACE) == [Requeue(NOW + 2 * GRACE)]


def test_what_a_clock_makes_due_that_is_set_waits_for_a_day_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    records, heads = log_of(OLD, OLD, moment(300 * DAY))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert planned(records, trimmer) == [Requeue(NOW + GRACE)]
    recorded = planned(records, trimmer, 400 * DAY)[0]
    assert isinstance(recorded, RecordIssuance)
    assert recorded.entry["checkpoint"] == str(heads[2])
    append(records, heads, recorded.entry)
    assert deleted(planned(records, trimmer, 400 * DAY)) == [1, 2]
    assert planned(records[2:], trimmer, 400 * DAY) == [Requeue(NOW + 400 * DAY + GRACE)]
    assert planned(records[2:], trimmer, 2 * DAY) == [Requeue(NOW + 2 * DAY + GRACE)], "the clock is right again"
    assert planned(records[2:], trimmer, 3 * DAY) == [Requeue(NOW + 3 * DAY + DAY)]
    monkeypatch.setattr(cleaner, "MAX_A_DAY", 1)
    some = IssuanceLogTrimmer(MIN_RETENTION)
    planned(records, some)
    assert deleted(planned(records, some, GRACE)) == [1]
    assert planned(records[1:], some, GRACE) == [Requeue(NOW + 2 * GRACE)], "others wait for the next day"


def test_nothing_is_trimmed_while_tombstones_wait_to_be_settled() -> None:
    records, _ = log_of(OLD)
    config_map = thing(tombstones.NAME, tombstones.NAMESPACE, data={"node.n1": "{}"})
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert trimmer.keys(tombstones.CONFIG_MAPS, config_map, False, views()) == ()
    for after in (0 * DAY, 2 * GRACE):
        waits = plan(trimmer, ("", ""), views(lineagerecords=records, configmaps=[config_map]), NOW + after)
        assert waits == [Requeue(NOW + after + DAY)]
    assert planned(records, trimmer, 2 * GRACE) == [Requeue(NOW + 3 * GRACE)], "the wait begins when that is settled"


def test_every_log_has_a_record_that_plans() -> None:
    records, heads = log_of(OLD, OLD)
    append(records, heads, trimmed(heads[1]))
    trimmer = IssuanceLogTrimmer(MIN_RETENTION)
    assert enqueued(trimmer, views(lineagerecords=records[:1])) == [("", "")], "the first"
    assert enqueued(trimmer, views(lineagerecords=records[1:2])) == []
    assert enqueued(trimmer, views(lineagerecords=records[2:])) == [("", "")], "one that says what was trimmed"
    assert trimmer.keys(PLURAL, records[0], True, views()) == ()
    assert records[0]["metadata"]["name"] == record_name(1)


def test_a_server_that_keeps_all_reads_none() -> None:
    assert IssuanceLogTrimmer().watches == ()
    assert planned(log_of(OLD)[0], IssuanceLogTrimmer()) == [Requeue(NOW + DAY)]
