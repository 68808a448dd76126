"""Controllers that know the denylist: the cleaner of entries, and the issuance check of revoked keys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from mooring.api.mooring.certificaterevocation import KEPT_AFTER_EXPIRY, PLURAL, key_entry
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import GRACE, Action, Delete, Key, Requeue
from mooring.controllers.certificates.cleaner import MAX_DELETES, RevocationCleaner, RevokedRequests
from mooring.controllers.certificates.issuance import PendingIssue
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request, parse_request
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views, with_metadata

TODAY = moment(timedelta())[:10]
LONG_AGO = KEPT_AFTER_EXPIRY + timedelta(days=2)


def entry(expiry: timedelta | None = None, name: str = "serial-1f") -> Obj:
    end = {} if expiry is None else {"expiresAt": moment(expiry)}
    return thing(name, spec={"serialNumber": "1f", **end})


def gone(name: str = "serial-1f") -> Delete:
    return Delete(PLURAL, "", name, f"uid-of-{name}", "7")


def cleaned(
    *entries: Obj, cleaner: RevocationCleaner | None = None, now_stored: Iterable[Obj] | None = None
) -> list[Action]:
    """Pass the entries to the cleaner, and return its actions for every key. `now_stored`: the entries when it plans."""
    cleaner = cleaner or RevocationCleaner()
    keys = dict.fromkeys(enqueued(cleaner, views(certificaterevocations=entries)))
    seen = views(certificaterevocations=entries if now_stored is None else now_stored)
    return [action for key in keys for action in planned_for_a_day(cleaner, key, seen)]


def planned_for_a_day(cleaner: RevocationCleaner, key: Key, seen: Views) -> list[Action]:
    """Return the actions of a plan, or those of a day later when it waits for that."""
    actions = plan(cleaner, key, seen)
    return plan(cleaner, key, seen, NOW + GRACE) if actions == [Requeue(NOW + GRACE)] else actions


def midnight(after: timedelta) -> datetime:
    return (NOW + after).replace(hour=0, minute=0, second=0)


@pytest.mark.parametrize(
    ("obj", "actions"),
    [
        pytest.param(entry(), [], id="an entry without an end stays"),
        pytest.param(entry(48 * HOUR), [Requeue(midnight(48 * HOUR))], id="a live one is planned on its last day"),
        pytest.param(
            entry(-48 * HOUR), [Requeue(midnight(-24 * HOUR) + KEPT_AFTER_EXPIRY)], id="and stays for recovery"
        ),
        pytest.param(entry(-LONG_AGO), [gone()], id="one that ended long ago goes"),
        pytest.param(with_metadata(entry(-LONG_AGO), deletionTimestamp=moment(-HOUR)), [], id="one that goes already"),
        pytest.param(
            thing("key-x", spec={"expiresAt": "9999-12-31T23:59:59Z"}),
            [Requeue(datetime(9999, 12, 31, tzinfo=UTC))],
            id="one that ends with the calendar",
        ),
    ],
)
def test_the_cleaner(obj: Obj, actions: list[Action]) -> None:
    assert cleaned(obj) == actions


def test_an_entry_stays_while_its_certificates_recover_by_rule() -> None:
    late = RevocationCleaner(recovery_age=2 * KEPT_AFTER_EXPIRY)
    (action,) = cleaned(entry(-LONG_AGO), cleaner=late)
    assert isinstance(action, Requeue)


@pytest.mark.parametrize(
    "now_stored", [[], [entry(HOUR)], [entry()]], ids=["deleted meanwhile", "prolonged meanwhile", "for ever now"]
)
def test_only_an_entry_that_is_still_due_goes(now_stored: list[Obj]) -> None:
    assert cleaned(entry(-LONG_AGO), now_stored=now_stored) == []


def test_many_entries_of_a_day_go_in_turns() -> None:
    cleaner = RevocationCleaner()
    entries = [entry(-LONG_AGO, f"serial-{number:x}") for number in range(1, MAX_DELETES + 2)]
    stored = views(certificaterevocations=entries)
    (key,) = set(enqueued(cleaner, stored))
    assert plan(cleaner, key, stored) == [Requeue(NOW + GRACE)]
    first, second, third = (plan(cleaner, key, stored, NOW + GRACE) for _ in range(3))
    assert (len(first), first[-1]) == (MAX_DELETES + 1, Requeue(NOW + GRACE))
    assert (len(second), third) == (1, [Requeue(NOW + 2 * GRACE)])
    assert len({*first, *second}) == len(entries) + 1


def test_a_clock_that_ran_years_ahead_for_some_hours_deletes_no_entry() -> None:
    cleaner, stored, years = RevocationCleaner(), views(certificaterevocations=[entry(48 * HOUR)]), 5 * LONG_AGO
    (key,) = set(enqueued(cleaner, stored))
    assert plan(cleaner, key, stored, NOW + years) == [Requeue(NOW + years + GRACE)]
    assert plan(cleaner, key, stored) == [Requeue(midnight(48 * HOUR))]
    assert plan(cleaner, key, stored, NOW + LONG_AGO + 96 * HOUR)[-1] == Requeue(NOW + LONG_AGO + 96 * HOUR + GRACE)


def test_a_deleted_entry_is_not_planned() -> None:
    assert RevocationCleaner().keys(PLURAL, entry(HOUR), True, views()) == ()
    assert RevocationCleaner().keys(PLURAL, entry(HOUR), False, views()) == (("", TODAY),)


SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
KEY = generate_key()
KEY_ENTRY = key_entry(public_key_fingerprint(KEY))


def node_revoked(before: timedelta | None, node: str = "n1") -> Obj:
    return thing(f"node-{node}", spec={"nodeName": node} | ({} if before is None else {"issuedBefore": moment(before)}))


def stored_elsewhere(created: timedelta) -> Obj:
    """Return the entry of a node as kube-apiserver stores one that was applied without a moment."""
    return with_metadata(node_revoked(None), creationTimestamp=moment(created))


@pytest.mark.parametrize(
    ("common_name", "entries", "reason"),
    [
        pytest.param("system:node:n1", [], None, id="nothing is revoked"),
        pytest.param("system:node:n1", [thing(KEY_ENTRY)], "KeyRevoked", id="its key"),
        pytest.param("jane", [thing(KEY_ENTRY)], "KeyRevoked", id="the key of a user"),
        pytest.param("jane", [node_revoked(HOUR, "jane")], None, id="a node with the name of the user"),
        pytest.param("system:node:n1", [node_revoked(HOUR)], "NodeRevoked", id="its node, after the request"),
        pytest.param("system:node:n1", [node_revoked(None)], "NodeRevoked", id="its node, without a moment"),
        pytest.param(
            "system:node:n1", [stored_elsewhere(HOUR)], "NodeRevoked", id="its node, stored by another server later"
        ),
        pytest.param("system:node:n1", [stored_elsewhere(0 * HOUR)], "NodeRevoked", id="its node, in the same second"),
        pytest.param("system:node:n1", [stored_elsewhere(-HOUR)], None, id="its node, stored by another server before"),
        pytest.param("system:node:n1", [node_revoked(0 * HOUR)], None, id="its node, before the request"),
        pytest.param("system:node:n1", [node_revoked(HOUR, "n2")], None, id="another node"),
    ],
)
def test_no_certificate_takes_a_revocation_back(common_name: str, entries: list[Obj], reason: str | None) -> None:
    request = parse_request(build_request(KEY, common_name, ("system:nodes",)))
    csr = thing(
        "c",
        metadata={"creationTimestamp": moment(0 * HOUR)},
        spec={"signerName": SIGNER},
    )
    pending = PendingIssue(csr=csr, request=request, now=NOW + HOUR, automatic=False)
    hold = RevokedRequests().check(pending, views(certificaterevocations=entries))
    assert (hold and hold.reason) == reason
    assert hold is None or hold.denies
