"""Certificates that a rollover of the CA asks a member to renew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.clusterfiles import is_superseded
from mooring.trust.discovery.pins import pin_of
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.kubeconfig.model import Cluster
from tests.support.testca import ThrowawayCA

OLD, NEW = ThrowawayCA("kubernetes"), ThrowawayCA("kubernetes@1")
BOTH = NEW.certificate_pem + OLD.certificate_pem
PUBLISHED = TrustedCluster(Cluster("", "https://a", BOTH), None, (), "member", client_ca_pem=BOTH)


def member(ca: ThrowawayCA) -> Pair:
    made = ca.node("n1")
    return Pair((made.certificate,), made.key)


@pytest.mark.parametrize(
    ("ca", "superseded", "renewed"),
    [
        pytest.param(OLD, {OLD}, True, id="of the old CA"),
        pytest.param(NEW, {OLD}, False, id="of the new CA"),
        pytest.param(NEW, {NEW}, True, id="of the new CA, after an abort"),
        pytest.param(OLD, set(), False, id="no rollover"),
        pytest.param(ThrowawayCA("other"), {OLD}, False, id="of a signer with a CA of its own"),
    ],
)
def test_the_ca_of_the_certificate_decides(ca: ThrowawayCA, superseded: set[ThrowawayCA], renewed: bool) -> None:
    pins = frozenset(str(pin_of(one.certificate)) for one in superseded)
    assert is_superseded(member(ca), replace(PUBLISHED, superseded=pins)) is renewed
