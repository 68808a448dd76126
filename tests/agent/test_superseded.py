"""Certificates that a rollover of the CA asks a member to renew."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.agent import clusterfiles
from mooring.agent.clusterfiles import is_superseded
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.clock import SystemClock
from mooring.trust.discovery.pins import pin_of
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.kubeconfig import Cluster
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


def test_a_ca_of_clients_that_did_not_sign_for_the_member_is_taken_over_once_it_does(tmp_path: Path) -> None:
    """As at a cluster of kubeadm, whose cluster-info names no CAs of clients: else the old CA would stay in ca.crt."""
    state, clock = NodeState(tmp_path), SystemClock()

    def write(ca_pem: bytes, pair: Pair) -> bytes:
        cluster = Cluster("a", "https://a", ca_pem)
        found = TrustedCluster(cluster, None, (), "member", client_ca_pem=ca_pem, published=(cluster,))
        asyncio.run(clusterfiles.write(state, pair, (cluster,), found, clock))
        return state.read_ca()

    assert write(BOTH, member(OLD)) == BOTH
    assert write(NEW.certificate_pem, member(OLD)) == BOTH
    assert write(NEW.certificate_pem, member(NEW)) == NEW.certificate_pem
