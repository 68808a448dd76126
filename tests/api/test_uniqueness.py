"""Two machines with one identity: what the uses of certificates and the boots of a Node say.

Source: docs/names-and-membership.md#one-machine-for-each-name.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from mooring.api.mooring import uniqueness
from mooring.api.mooring.nodeidentity import KIND, MAX_BOOT_ID, MAX_BOOTS, MAX_USES
from mooring.api.mooring.uniqueness import (
    OLDER_STATE,
    RESOLVED,
    TWO_BOOTS,
    TWO_CERTIFICATES,
    CertificateUse,
    condition_of,
    finding,
    is_duplicate,
    keys_below,
    newer_uses,
    with_boot,
    with_condition,
    with_use,
)
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339

NOW = datetime(2026, 1, 1, tzinfo=UTC)
END = rfc3339(NOW + timedelta(days=1))


def digest(name: str) -> str:
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def identity(*names: str, parents: dict[str, str] | None = None, not_after: str = END) -> Obj:
    """Return an identity with a key for each certificate; `A'` is another certificate of the key of `A`."""
    keys = [
        {
            "publicKey": digest(name.rstrip("'")),
            "serialNumber": name.encode().hex(),
            "notAfter": not_after,
            **({"parent": digest((parents or {})[name])} if name in (parents or {}) else {}),
        }
        for name in dict.fromkeys(names)
    ]
    return {"metadata": {"name": "n1"}, "spec": {"keys": keys}}


def use_of(name: str, at: datetime, address: str = "192.0.2.1") -> CertificateUse:
    return CertificateUse(digest(name), digest(name.rstrip("'")), name.encode().hex(), address, at)


def lived(steps: str) -> tuple[Obj, datetime]:
    """Return an identity after uses a minute apart: `C<P` is the certificate C, which was requested with P."""
    pairs = [step.partition("<") for step in steps.split()]
    names = [name for name, _, _ in pairs]
    obj, now = identity(*names, parents={name: parent for name, _, parent in pairs if parent}), NOW
    for name in names:
        use = use_of(name, now, f"192.0.2.{1 + len(name)}")
        newer = newer_uses(obj, use)
        obj = with_use(obj, use, newer[-1][0]["certificate"] if newer else "") or obj
        assert [error for error in KIND.validate(obj) if error.field != "spec.keys"] == []
        now += timedelta(minutes=1)
    return obj, now


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param("P", "", id="one certificate"),
        pytest.param("P P C<P C C D<C D", "", id="a machine that renews"),
        pytest.param("P D<P D", "", id="a renewal whose reply was lost: its child is never used"),
        pytest.param("A B C D", "", id="an agent by k3s's way, which gets another certificate at each start"),
        pytest.param("A A' A A'", "", id="two certificates of one key"),
        pytest.param("P C<P P", OLDER_STATE, id="a snapshot that goes back to the parent"),
        pytest.param("P C<P P D<P D E<D", OLDER_STATE, id="one that goes on from there"),
        pytest.param("P C<P D<C P", OLDER_STATE, id="one that goes back by two certificates"),
        pytest.param("P C<P D<C P E<P P F<P F", OLDER_STATE, id="a snapshot that goes back twice"),
        pytest.param("A B A", OLDER_STATE, id="one from before a new start by k3s's way"),
        pytest.param("P C<P P C", TWO_CERTIFICATES, id="a copy that did not renew yet"),
        pytest.param("P C<P P D<P C", TWO_CERTIFICATES, id="a copy that renews, too"),
        pytest.param("P C<P P D<C", TWO_CERTIFICATES, id="the other one renews again before it is seen again"),
        pytest.param("P C<P D<P C D", TWO_CERTIFICATES, id="two children of one parent take turns"),
        pytest.param("P C<P D<P C E<D", TWO_CERTIFICATES, id="a child of the newer one"),
        pytest.param("P C<P D<P C E<C E", OLDER_STATE, id="the newer of two children is never used again"),
        pytest.param("A B A B", TWO_CERTIFICATES, id="copies of an agent by k3s's way"),
        pytest.param("A B C A B C", TWO_CERTIFICATES, id="three copies"),
        pytest.param("C<P P", OLDER_STATE, id="a parent that is seen after its child"),
        pytest.param("C<P P C", TWO_CERTIFICATES, id="a parent that is seen after its child, and both go on"),
        pytest.param("C P C P", TWO_CERTIFICATES, id="copies from before the server kept parents"),
        pytest.param("P C<P P D<P P D", TWO_CERTIFICATES, id="a copy of a machine that went back"),
        pytest.param("P C<P D<P E<P C P D", TWO_CERTIFICATES, id="a parent and three children"),
    ],
)
def test_the_uses_of_certificates_tell_a_second_machine_from_one_that_goes_back(steps: str, reason: str) -> None:
    obj, now = lived(steps)
    found = finding(obj, now)
    assert (found.reason if found else "") == reason
    assert is_duplicate(with_condition(obj, now)) is (reason == TWO_CERTIFICATES)
    assert uniqueness.is_suspect(obj) is bool(reason)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        pytest.param("P C<P P C", TWO_CERTIFICATES, id="two machines"),
        pytest.param("P C<P D<C C P", OLDER_STATE, id="a machine that goes back by one snapshot, and by another"),
        pytest.param("P C<P P", OLDER_STATE, id="a machine that goes back"),
    ],
)
def test_servers_without_a_common_clock_come_to_the_same_result_with_few_writes(steps: str, reason: str) -> None:
    pairs = [step.partition("<") for step in steps.split()]
    names, writes = [name for name, _, _ in pairs], 0
    obj = identity(*names, parents={name: parent for name, _, parent in pairs if parent})
    for turn, name in enumerate([*names, *([names[-1], names[-2]] * 20 if reason == TWO_CERTIFICATES else [])]):
        use = use_of(name, NOW - timedelta(hours=turn % 3))
        newer = newer_uses(obj, use)
        changed = with_use(obj, use, newer[-1][0]["certificate"] if newer else "")
        writes += changed is not None
        obj = changed or obj
    found = finding(obj, NOW + timedelta(minutes=5))
    assert (found.reason if found else "") == reason
    assert writes <= len(names)


def test_a_finding_names_both_keys_addresses_and_times_and_what_to_do() -> None:
    obj, now = lived("P CC<P P CC")
    text = condition_of(with_condition(obj, now) or {})["message"]
    for part in (
        digest("P"),
        digest("CC"),
        "192.0.2.2",
        "192.0.2.3",
        rfc3339(NOW),
        rfc3339(NOW + timedelta(minutes=2)),
    ):
        assert part in text
    assert "mooring node split n1 --keep KEY" in text
    assert "mooring node revoke n1" in text


def test_a_machine_that_goes_back_is_told_as_that_after_a_minute() -> None:
    obj, now = lived("P C<P P")
    assert with_condition(obj, now - timedelta(seconds=30)) is None, "a second machine would be seen soon"
    assert uniqueness.is_suspect(obj)
    condition = condition_of(with_condition(obj, now) or {})
    assert (condition["status"], condition["reason"]) == ("False", OLDER_STATE)
    assert "went back to an older state" in condition["message"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({}, TWO_CERTIFICATES, id="both can authenticate"),
        pytest.param({"keys": []}, "", id="the name has no owner any more"),
        pytest.param({"keys": identity("P")["spec"]["keys"]}, "", id="an administrator kept one"),
    ],
)
def test_a_finding_ends_with_one_of_its_sides(change: Obj, reason: str) -> None:
    obj, now = lived("P C<P P C")
    known = with_condition(obj, now) or {}
    changed = {**known, "spec": {**known["spec"], **change}}
    found = finding(changed, now)
    assert (found.reason if found else "") == reason
    judged = with_condition(changed, now)
    if reason:
        assert judged is None, "the first words stay"
    else:
        assert condition_of(judged or {})["reason"] == RESOLVED
        assert not is_duplicate(judged)
        assert with_condition(judged or {}, now) is None


@pytest.mark.parametrize(
    ("not_after", "expired"),
    [
        pytest.param(rfc3339(NOW), True, id="in the past"),
        pytest.param(END, False, id="in the future"),
        pytest.param("soon", False, id="no time"),
    ],
)
def test_the_caller_decides_whether_an_expired_certificate_is_evidence(not_after: str, expired: bool) -> None:
    obj, now = lived("P C<P P C")
    obj["spec"]["keys"] = identity("P", "C", not_after=not_after)["spec"]["keys"]
    assert finding(obj, now) is not None
    found = finding(obj, now, lambda use: not uniqueness.has_expired(obj, use, now))
    assert (found is None) is expired


def test_a_finding_after_an_older_state_keeps_other_conditions_and_has_a_new_transition() -> None:
    obj, now = lived("P C<P P")
    before = with_condition(obj, now) or {}
    before["status"]["conditions"].insert(0, {"type": "Other", "status": "True"})
    again = with_use(before, use_of("C", now)) or {}
    after = with_condition(again, now + timedelta(minutes=1)) or {}
    assert [one["type"] for one in after["status"]["conditions"]] == ["Other", "DuplicateIdentity"]
    assert condition_of(after)["lastTransitionTime"] == rfc3339(now + timedelta(minutes=1))
    # From one reason of False to another nothing has become true or false.
    kept = with_condition({**before, "spec": {"keys": []}}, now + timedelta(minutes=1)) or {}
    assert condition_of(kept)["lastTransitionTime"] == rfc3339(now)


def test_a_use_that_says_nothing_new_changes_nothing() -> None:
    obj, now = lived("P C<P P C")
    for name in ("P", "C"):
        use = use_of(name, now)
        assert with_use(obj, use, behind=newer_uses(obj, use)[-1][0]["certificate"] if name == "P" else "") is None
    assert with_use(obj, use_of("X", now)) is None, "the identity does not list its key"
    assert is_duplicate(None) is False


def test_a_use_of_an_entry_without_a_serial_number_finds_its_parent_by_the_key() -> None:
    obj = identity("C", parents={"C": "P"})
    del obj["spec"]["keys"][0]["serialNumber"]
    used = with_use(obj, CertificateUse(digest("C"), digest("C"), "1", "", NOW)) or {}
    assert used["status"]["certificates"] == [
        {"certificate": digest("C"), "publicKey": digest("C"), "parent": digest("P"), "firstUsed": rfc3339(NOW)}
    ]


def test_a_circle_of_parents_ends() -> None:
    obj, _ = lived("A<B B<A C")
    assert newer_uses(obj, use_of("A", NOW))
    assert newer_uses(obj, use_of("C", NOW)) == []


def test_the_number_of_uses_is_bounded_and_those_that_returned_stay() -> None:
    names = [f"C{number}" for number in range(MAX_USES + 4)]
    obj, _ = lived(" ".join(["P", "Q", "P", *names]))
    kept = [one["publicKey"] for one in obj["status"]["certificates"]]
    assert len(kept) == MAX_USES
    assert kept[0] == digest("P")
    assert kept[-1] == digest(names[-1])
    full = identity(*(f"R{number}" for number in range(MAX_USES + 1)))
    returned = {"returnedAt": rfc3339(NOW), "returnedAfter": digest("gone")}
    full["status"] = {
        "certificates": [
            {"certificate": digest(f"R{n}"), "publicKey": digest(f"R{n}"), "firstUsed": rfc3339(NOW), **returned}
            for n in range(MAX_USES)
        ]
    }
    trimmed = with_use(full, use_of(f"R{MAX_USES}", NOW)) or {}
    assert len(trimmed["status"]["certificates"]) == MAX_USES, "where all have returned, the newest goes"


def booted(reports: str, minutes: int = 1) -> tuple[Obj, datetime]:
    """Return an identity after reports of boots."""
    obj, now = identity("P"), NOW
    for boot in reports.split():
        obj = with_boot(obj, boot, now) or obj
        assert KIND.validate(obj) == []
        now += timedelta(minutes=minutes)
    return obj, now - timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        pytest.param("A A A", "", id="one boot"),
        pytest.param("A B B C", "", id="a machine that starts again"),
        pytest.param("A B A A", OLDER_STATE, id="a snapshot in memory"),
        pytest.param("A B A C C", OLDER_STATE, id="one that starts again afterwards"),
        pytest.param("A B A B", TWO_BOOTS, id="two machines"),
        pytest.param("A B C A B C", TWO_BOOTS, id="three machines"),
    ],
)
def test_the_boots_of_a_node_tell_a_second_machine_from_one_that_goes_back(reports: str, reason: str) -> None:
    obj, now = booted(reports)
    found = finding(obj, now)
    assert (found.reason if found else "") == reason
    if found is not None:
        text = uniqueness.described(found, "n1")
        assert found.newer.id in text
        assert ("went back" in text) is (reason == OLDER_STATE)


def test_boots_from_before_the_name_changed_hands_are_no_evidence() -> None:
    obj, now = booted("A B A B")
    obj["spec"]["changedAt"] = rfc3339(now)
    found = finding(obj, now)
    assert (found.reason if found else "") == OLDER_STATE, "the last one returned at that moment"
    obj["spec"]["changedAt"] = rfc3339(now + timedelta(seconds=1))
    assert finding(obj, now) is None
    for later in range(2, 5):
        obj = with_boot(obj, "B", now + timedelta(minutes=later)) or obj
    assert [one["id"] for one in obj["status"]["boots"]] == ["B"]
    assert "returnedAt" not in obj["status"]["boots"][0], "the machine that joined again has the boot that it had"


def test_a_condition_says_when_a_machine_uses_the_identity_again() -> None:
    obj, now = lived("P C<P P C")
    obj = with_condition(obj, now) or obj
    rejected = with_condition(obj, now + timedelta(days=1), lambda key: False) or obj
    assert "accepts no certificate" in condition_of(rejected)["message"]
    again = with_condition(rejected, now + timedelta(days=1), lambda key: key["publicKey"] == digest("C")) or {}
    assert condition_of(again)["message"] == "one machine uses the identity"
    assert with_condition(again, now + timedelta(days=1), lambda key: key["publicKey"] == digest("C")) is None


def test_a_boot_that_returned_is_told_with_the_one_from_which_it_took_over() -> None:
    found = finding(*booted("A B A C"))
    assert found is not None
    assert (found.older.id, found.newer.id) == ("A", "B")


def test_two_machines_that_both_end_are_told_with_the_way_back() -> None:
    obj, now = lived("P C<P P C")
    text = condition_of(with_condition(obj, now, ends_both=True) or {})["message"]
    assert "The certificates of both were revoked" in text
    assert "mooring token create --node-name n1" in text
    assert "split" not in text


def test_two_machines_that_take_turns_for_a_day_cause_two_writes_an_hour() -> None:
    obj, now, writes = identity("P"), NOW, 0
    for step in range(24 * 60 * 6):
        changed = with_boot(obj, "AB"[step % 2], now)
        writes += changed is not None
        obj = changed or obj
        now += timedelta(seconds=10)
    assert writes <= 2 * 24 + 2
    assert (found := finding(obj, now)) is not None
    assert found.reason == TWO_BOOTS
    assert finding(obj, now + timedelta(hours=3)) is None, "one that reports no more is no second machine"


@pytest.mark.parametrize(
    ("info", "boot"),
    [
        pytest.param({"bootID": "b", "machineID": "m", "systemUUID": "s"}, "b", id="the boot id"),
        pytest.param({"bootID": "", "machineID": "m", "systemUUID": "s"}, "m", id="a container without one"),
        pytest.param({"systemUUID": "s"}, "s", id="the UUID of the board alone"),
        pytest.param({}, "", id="nothing"),
        pytest.param(None, "", id="no report"),
        pytest.param({"bootID": "b" * 100}, "b" * MAX_BOOT_ID, id="a text without end"),
    ],
)
def test_what_tells_a_boot(info: Obj | None, boot: str) -> None:
    assert uniqueness.boot_of({"status": {"nodeInfo": info}} if info is not None else {}) == boot


def test_boots_are_bounded_and_none_is_no_boot() -> None:
    obj, _ = booted(" ".join(map(str, range(MAX_BOOTS + 3))))
    assert [one["id"] for one in obj["status"]["boots"]] == [str(n) for n in range(3, MAX_BOOTS + 3)]
    assert with_boot(obj, "", NOW) is None


@pytest.mark.parametrize(
    ("kept", "below"),
    [
        pytest.param("P", "PCDE", id="the first one"),
        pytest.param("C", "CE", id="one side"),
        pytest.param("D", "D", id="the other side"),
        pytest.param("E", "E", id="the newest one"),
    ],
)
def test_the_keys_of_a_machine_are_those_of_its_renewals(kept: str, below: str) -> None:
    obj, _ = lived("P C<P D<P E<C")
    obj["spec"]["keys"].reverse()
    assert keys_below(obj, digest(kept), {}) == {digest(name) for name in below}
    # Without uses, the issuance log tells which key a certificate has.
    del obj["status"]
    assert keys_below(obj, digest(kept), {}) == {digest(kept)}
    assert keys_below(obj, digest(kept), {digest(name): digest(name) for name in "PCDE"}) == {
        digest(one) for one in below
    }


def test_a_newer_certificate_that_the_record_has_lost_since_is_no_news() -> None:
    obj, now = lived("P C<P P")
    lost = use_of("P", now)
    assert with_use(obj, lost, behind=digest("D")) is None
    first, _ = lived("P")
    assert with_use(first, use_of("P", now), behind=digest("D")) is None


def test_an_entry_without_its_fields_is_no_evidence() -> None:
    obj, now = lived("P C<P P C")
    del obj["status"]["certificates"][0]["certificate"]
    assert finding(obj, now) is None
    assert with_use(obj, use_of("C", now)) is None
