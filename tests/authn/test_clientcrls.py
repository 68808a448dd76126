"""CRLs of other CAs as a check of client certificates: every certificate of the path, missing and old CRLs, what is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView, Views
from mooring.authn.credentials import Credentials
from mooring.authn.recovery import RecoveryAuthenticator
from mooring.authn.requestheader import RequestHeaderAuthenticator
from mooring.authn.requestheadersettings import HeaderNames
from mooring.authn.verdict import Accepted, NotMine, Rejected
from mooring.authn.x509 import READ_PLURALS, ClientCertificateAuthenticator, ClientCrls, with_crls
from mooring.identity import NODES
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.clientcertificate import recorded, recorded_certificate
from mooring.pki.x509.crl import Crl
from mooring.pki.x509.verify import ClientTrust
from tests.support.manualclock import EPOCH
from tests.support.testca import Pair, ThrowawayCA

DAY = timedelta(days=1)
NOW = EPOCH
CA, CLUSTER = ThrowawayCA("other", EPOCH), ThrowawayCA("kubernetes", EPOCH)
BELOW = CA.intermediate("below")
JANE, OWN = CA.client("jane"), CLUSTER.client("jane")
DEEP = CA.custom("jane", issuer=BELOW, not_after=EPOCH + 30 * DAY)
TRUST = ClientTrust([CA.certificate, CLUSTER.certificate], [CLUSTER.certificate])
VIEWS: Views = {plural: FixedView([], 1) for plural in READ_PLURALS}
assert set(READ_PLURALS) <= set(BY_PLURAL)


def key(of: Pair | ThrowawayCA) -> str:
    return key_identities(of.certificate)[0]


def crl(by: Pair | ThrowawayCA, *revoked: Pair, begin: datetime = NOW, days: int = 7) -> Crl:
    numbers = frozenset(one.certificate.serial_number for one in revoked)
    return Crl("CN=other", key(by), begin, begin + days * DAY, numbers)


def crls(*lists: Crl, required: bool = False, revoked_cas: Sequence[str] = ()) -> ClientCrls:
    found = ClientCrls(required=required)
    found.exempt({key(CLUSTER)})
    found.replace({one.issuer_key: one for one in lists}, revoked_cas)
    return found


EMPTY_BELOW = crl(BELOW)
EMPTY = crl(CA)
OLD, LATER = crl(CA, begin=NOW - 8 * DAY), crl(CA, begin=NOW + DAY)


@pytest.mark.parametrize(
    ("found", "chain", "reason"),
    [
        pytest.param(crls(), [JANE], "", id="no CRL"),
        pytest.param(crls(EMPTY), [JANE], "", id="not on it"),
        pytest.param(crls(crl(CA, JANE)), [JANE], "certificate-on-crl", id="on it"),
        pytest.param(crls(crl(BELOW, JANE)), [JANE], "", id="on that of another CA"),
        pytest.param(crls(crl(BELOW, DEEP)), [DEEP, BELOW], "certificate-on-crl", id="on that of the intermediate"),
        pytest.param(crls(crl(CA, BELOW)), [DEEP, BELOW], "certificate-on-crl", id="the intermediate is on it"),
        pytest.param(crls(crl(CA, DEEP)), [DEEP, BELOW], "", id="its number on that of the root"),
        pytest.param(crls(EMPTY, revoked_cas=[key(CA)]), [JANE], "certificate-on-crl", id="a revoked CA of the bundle"),
        pytest.param(crls(crl(CA, JANE, days=-1)), [JANE], "certificate-on-crl", id="on an old one"),
        pytest.param(crls(OLD), [JANE], "", id="an old one"),
        pytest.param(crls(crl(CLUSTER, OWN)), [OWN], "certificate-on-crl", id="on that of the cluster"),
        pytest.param(crls(EMPTY, required=True), [JANE], "", id="required: there"),
        pytest.param(crls(required=True), [JANE], "crl-missing", id="required: none"),
        pytest.param(crls(OLD, required=True), [JANE], "crl-not-current", id="required: past nextUpdate"),
        pytest.param(crls(LATER, required=True), [JANE], "crl-not-current", id="required: not yet"),
        pytest.param(crls(crl(CA, JANE, days=-1), required=True), [JANE], "certificate-on-crl", id="required: on an old one"),
        pytest.param(crls(EMPTY, required=True), [DEEP, BELOW], "crl-missing", id="required: none of the intermediate"),
        pytest.param(crls(EMPTY_BELOW, required=True), [DEEP, BELOW], "crl-missing", id="required: none of the root"),
        pytest.param(crls(EMPTY, EMPTY_BELOW, required=True), [DEEP, BELOW], "", id="required: both"),
        pytest.param(crls(crl(CA, BELOW), required=True), [DEEP, BELOW], "certificate-on-crl", id="required: revoked, and none"),
        pytest.param(crls(required=True), [OWN], "", id="required: the CA of the cluster is exempt"),
    ],
)  # fmt: skip
def test_a_path_and_the_crls(found: ClientCrls, chain: list[Pair], reason: str) -> None:
    peer = TRUST.verify([one.der for one in chain], NOW)
    rejection = found.rejection(peer, {}, NOW)
    assert (rejection.reason if rejection else "") == reason
    assert rejection is None or rejection.is_undecided == reason.startswith("crl-")
    again = recorded_certificate(recorded(peer))
    assert again is not None
    assert found.rejection(again, {}, NOW) == rejection, "a recorded certificate is judged alike"


def test_a_certificate_of_the_bundle_itself_needs_no_crl() -> None:
    trust = ClientTrust([JANE.certificate])
    assert crls(required=True).rejection(trust.verify([JANE.der], NOW), {}, NOW) is None


def test_details_name_the_crl() -> None:
    peer = TRUST.verify([JANE.der], NOW)
    number = f"{JANE.certificate.serial_number:x}"
    revoked = crls(crl(CA, JANE)).rejection(peer, {}, NOW)
    assert revoked is not None
    assert (
        revoked.detail
        == f"serial number {number} is on the CRL of CN=other from 2026-01-02T03:04:05Z to 2026-01-09T03:04:05Z"
    )
    missing, old = (crls(*lists, required=True).rejection(peer, {}, NOW) for lists in ((), (OLD,)))
    assert (missing and missing.detail) == f"no CRL of the CA with the key {key(CA)}"
    assert old is not None
    assert old.detail.endswith("to 2026-01-01T03:04:05Z; it is 2026-01-02T03:04:05Z")


def test_a_new_crl_and_the_time_reach_verdicts_that_are_remembered() -> None:
    found = crls(EMPTY, required=True)
    judge, connection = ClientCertificateAuthenticator(TRUST, checks=with_crls(found)), Credentials((JANE.der,))

    def verdict(now: datetime) -> str:
        given = judge.authenticate(connection, VIEWS, now, ())
        return given.reason if isinstance(given, Rejected) else type(given).__name__

    assert [verdict(NOW), verdict(NOW + 7 * DAY)] == ["Accepted"] * 2
    assert verdict(NOW + 7 * DAY + timedelta(seconds=1)) == "crl-not-current"
    assert verdict(NOW) == "Accepted", "the clock was set back"
    found.replace({key(CA): crl(CA, JANE)})
    assert verdict(NOW) == "certificate-on-crl"
    found.replace({})
    assert verdict(NOW) == "crl-missing"
    found.exempt({key(CA)})
    assert verdict(NOW) == "Accepted"


def test_a_pass_over_watches_is_due_after_a_change_and_after_a_moment_that_decides() -> None:
    found = crls(EMPTY, required=True)
    assert [found.has_passed(NOW + days * DAY) for days in (0, 1, 6, 8, 9)] == [True, False, False, True, False]
    found.replace({})
    assert found.has_passed(NOW)
    lenient = crls(EMPTY)
    assert [lenient.has_passed(NOW + days * DAY) for days in (0, 8)] == [True, False], "the time decides nothing"


def test_a_proxy_on_a_crl_speaks_for_no_user() -> None:
    found = crls(EMPTY)
    names = HeaderNames(username=("x-remote-user",), uid=(), groups=(), extra_prefixes=())
    judge = RequestHeaderAuthenticator(TRUST, names, checks=with_crls(found))
    connection = Credentials((JANE.der,), headers=lambda name: ("root",))
    assert isinstance(judge.authenticate(connection, VIEWS, NOW, ()), Accepted)
    found.replace({key(CA): crl(CA, JANE)})
    verdict = judge.authenticate(connection, VIEWS, NOW, ())
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "certificate-on-crl"


def test_a_node_on_a_crl_does_not_recover() -> None:
    node = CA.client("system:node:n1", NODES, lifetime=timedelta(hours=1))
    connection = Credentials((node.der,), headers=lambda name: ("Mooring-Recovery",))
    found = crls(EMPTY)
    judge = RecoveryAuthenticator(TRUST, with_crls(found))
    assert isinstance(judge.authenticate(connection, VIEWS, NOW, ()), NotMine)
    assert isinstance(judge.authenticate(connection, VIEWS, NOW + DAY, ()), Accepted)
    found.replace({key(CA): crl(CA, node)})
    verdict = judge.authenticate(connection, VIEWS, NOW + DAY, ())
    assert isinstance(verdict, Rejected)
    assert verdict.reason == "certificate-on-crl"
