"""The denylist: which certificates an entry revokes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mooring.api.mooring.certificaterevocation import PLURAL, entry_name
from mooring.api.view import FixedView
from mooring.authn.verdict import Rejected
from mooring.authn.x509.denylist import revoked
from mooring.clock import rfc3339
from mooring.identity import NODES
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.verify import ClientTrust, VerifiedPeer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
KEY, CA_KEY = generate_key(), generate_key()
CA = self_signed_ca(CA_KEY, "kubernetes", NOW - timedelta(days=1), 1)
KEY_ID, CA_ID = (f"sha256:{public_key_fingerprint(key)}" for key in (KEY, CA_KEY))


def peer(
    name: str = "system:node:n1", group: str = NODES, issued: datetime = NOW, *, of_the_cluster: bool = True
) -> VerifiedPeer:
    """A certificate that a signer with BACKDATE issued at `issued`."""
    der = CA.sign(profiles.client(KEY.public_key(), issued, name, (group,)), issued, 0x1F).public_bytes(Encoding.DER)
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


def test_the_detail_names_the_entry_and_why() -> None:
    found = entry(serialNumber="1f", message="laptop stolen")
    assert revoked(peer(), {PLURAL: FixedView([found])}, NOW) == Rejected(
        "certificate-revoked", "certificaterevocations/serial-1f, keyCompromise: laptop stolen"
    )
