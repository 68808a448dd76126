"""The denylist: which certificates an entry revokes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.mooring.certificaterevocation import PLURAL, entry_name
from mooring.api.view import FixedView
from mooring.authn.revocations import READS, revoked
from mooring.authn.verdict import Rejected
from mooring.clock import rfc3339
from mooring.identity import NODES
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
KEY, CA_KEY = generate_key(), generate_key()
CA = self_signed_ca(CA_KEY, "kubernetes", NOW - timedelta(days=1), 1)
KEY_ID, CA_ID = (f"sha256:{public_key_fingerprint(key)}" for key in (KEY, CA_KEY))


def peer(
    name: str = "system:node:n1", group: str = NODES, issued: datetime = NOW, *, of_the_cluster: bool = True
) -> VerifiedPeer:
    """A certificate that a signer with BACKDATE issued at `issued`."""
    der = CA.sign(profiles.client(KEY.public_key(), issued, name, (group,)), issued, 0x1F).der
    own = [CA.certificate] if of_the_cluster else []
    return ClientTrust([CA.certificate], own).verify((der,), NOW + timedelta(hours=1))


def entry(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": entry_name(spec)}, "spec": {"reason": "keyCompromise", **spec}}


def reason(found: VerifiedPeer, *entries: dict[str, Any]) -> str | None:
    rejected = revoked(found, {PLURAL: FixedView(entries)}, NOW)
    return rejected.reason if rejected else None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"serialNumber": "1f"}, "certificate-revoked", id="its serial number"),
        pytest.param({"serialNumber": "1f", "issuer": CA_ID}, "certificate-revoked", id="of its issuer"),
        pytest.param({"serialNumber": "1f", "issuer": KEY_ID}, None, id="of another issuer"),
        pytest.param({"serialNumber": "1e"}, None, id="another serial number"),
        pytest.param({"publicKey": KEY_ID}, "certificate-key-revoked", id="its key"),
        pytest.param({"publicKey": CA_ID}, None, id="another key"),
        pytest.param({"nodeName": "n1", "issuedBefore": rfc3339(NOW + SECOND)}, "certificate-node-revoked", id="node"),
        pytest.param({"nodeName": "n2", "issuedBefore": rfc3339(NOW + SECOND)}, None, id="another node"),
        pytest.param({"nodeName": "n1", "issuedBefore": rfc3339(NOW)}, None, id="certificates before this one"),
        pytest.param({"nodeName": "n1"}, "certificate-node-revoked", id="a stored entry without a moment"),
    ],
)
def test_an_entry(spec: dict[str, Any], expected: str | None) -> None:
    assert reason(peer(), entry(**spec)) == expected


@pytest.mark.parametrize(("created", "expected"), [(NOW, "certificate-node-revoked"), (NOW - SECOND, None)])
def test_an_entry_of_another_api_server_revokes_up_to_its_creation(created: datetime, expected: str | None) -> None:
    stored = entry(nodeName="n1")
    stored["metadata"]["creationTimestamp"] = rfc3339(created)
    assert reason(peer(), stored) == expected


def test_nothing_is_revoked_by_an_empty_denylist() -> None:
    assert reason(peer()) is None


NODE = entry(nodeName="n1", issuedBefore=rfc3339(NOW))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(peer(issued=NOW - SECOND), "certificate-node-revoked", id="issued a second before"),
        pytest.param(peer(issued=NOW), None, id="issued at the moment, although it begins five minutes before"),
        pytest.param(
            peer(issued=NOW, of_the_cluster=False), "certificate-node-revoked", id="by another signer that begins early"
        ),
        pytest.param(peer(issued=NOW + profiles.BACKDATE, of_the_cluster=False), None, id="which five minutes end"),
        pytest.param(peer("n1", issued=NOW - SECOND), None, id="of a user with the name of the node"),
        pytest.param(peer(group="x", issued=NOW - SECOND), "certificate-node-revoked", id="outside the group of nodes"),
    ],
)
def test_certificates_of_a_node(found: VerifiedPeer, expected: str | None) -> None:
    assert reason(found, NODE) == expected


@pytest.mark.parametrize(
    ("name", "expected", "is_undecided"),
    [
        pytest.param("serial-1f", "certificate-revoked", False, id="the name says which certificate"),
        pytest.param(f"serial-1f-{CA_ID[7:]}", "certificate-revoked", False, id="of its issuer"),
        pytest.param(f"key-{KEY_ID[7:]}", "certificate-key-revoked", False, id="the name says which key"),
        pytest.param("node-n1", "object-unreadable", True, id="up to which moment cannot be known"),
        pytest.param("serial-1e", None, False, id="another serial number"),
        pytest.param("node-n2", None, False, id="another node"),
    ],
)
def test_an_entry_that_cannot_be_read_revokes_what_its_name_says(
    name: str, expected: str | None, is_undecided: bool
) -> None:
    rejected = revoked(peer(), {PLURAL: FixedView(unreadable={("", name): "damaged"})}, NOW)
    assert (rejected and rejected.reason) == expected
    assert bool(rejected and rejected.is_undecided) is is_undecided


def test_a_readable_entry_counts_before_one_that_cannot_be_read() -> None:
    views = {PLURAL: FixedView([entry(publicKey=KEY_ID)], unreadable={("", "node-n1"): "damaged"})}
    rejected = revoked(peer(), views, NOW)
    assert rejected is not None
    assert not rejected.is_undecided


def test_the_detail_names_the_entry_and_why() -> None:
    found = entry(serialNumber="1f", message="laptop stolen")
    assert revoked(peer(), {PLURAL: FixedView([found])}, NOW) == Rejected(
        "certificate-revoked", "certificaterevocations/serial-1f, keyCompromise: laptop stolen"
    )


def test_a_user_is_not_judged_as_a_node() -> None:
    assert reason(peer("jane"), entry(nodeName="jane")) is None


def test_the_denylist_depends_on_no_other_object() -> None:
    unreadable = FixedView(unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"})
    rejected = revoked(
        peer("jane"), {PLURAL: FixedView([entry(serialNumber="1f")]), tombstones.CONFIG_MAPS: unreadable}, NOW
    )
    assert rejected is not None
    assert rejected.reason == "certificate-revoked"
    assert READS == (PLURAL,)


def test_an_intermediate_that_is_revoked_takes_what_is_below_it() -> None:
    """By its serial number, of any issuer and of its own, and by its key; the CAs of the cluster are replaced and not revoked."""
    middle = ThrowawayCA("middle", NOW)
    certified = CA.sign(profiles.certificate_authority(middle.key.public_key(), NOW, "middle"), NOW, 0x2E)
    pair = middle.client("jane")
    chain = (pair.der, certified.der)
    found = ClientTrust([CA.certificate], [CA.certificate]).verify(chain, NOW + timedelta(hours=1))
    middle_id = f"sha256:{public_key_fingerprint(middle.key)}"
    assert reason(found, entry(serialNumber="2e")) == "certificate-revoked"
    assert reason(found, entry(serialNumber="2e", issuer=CA_ID)) == "certificate-revoked"
    assert reason(found, entry(publicKey=middle_id)) == "certificate-key-revoked"
    assert reason(found, entry(publicKey=CA_ID), entry(serialNumber="1")) is None


def test_a_ca_of_the_operator_that_is_revoked_takes_what_is_below_it() -> None:
    assert reason(peer(of_the_cluster=False), entry(publicKey=CA_ID)) == "certificate-key-revoked"


@pytest.mark.parametrize(
    ("known", "created", "expected"),
    [
        pytest.param(["1f"], NOW - timedelta(hours=2), "certificate-node-revoked", id="a certificate that was known"),
        pytest.param(["1e"], NOW - timedelta(hours=2), None, id="another certificate"),
        pytest.param(["1f"], NOW, None, id="an entry of today about certificates of before"),
        pytest.param(["1f"], None, None, id="an entry that does not say when it was made"),
    ],
)
def test_a_clock_that_was_behind_at_the_revocation(
    known: list[str], created: datetime | None, expected: str | None
) -> None:
    made = entry(nodeName="n1", issuedBefore=rfc3339(NOW - timedelta(hours=2)), knownSerialNumbers=known)
    if created is not None:
        made["metadata"]["creationTimestamp"] = rfc3339(created)
    assert reason(peer(), made) == expected
