"""Clients of a join: an administrator's kubeadm, a joiner, a kubelet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.kubeadm.peers import Peer, kubelet_identity
from tests.support.liveserver import LiveServer
from tests.support.typedclient import TYPED, Client


@pytest.fixture
def admin(live_server: LiveServer) -> Iterator[Client]:
    """Client of kubeadm on a control plane, with the administrator's certificate."""
    client = Client(live_server, TYPED)
    yield client
    client.close()


@pytest.fixture
def joiner(live_server: LiveServer) -> Iterator[Peer]:
    """Client of kubeadm or a kubelet with a bootstrap token that has signed cluster-info."""
    peer = Peer(live_server, "kubeadm", live_server.create_token().reveal())
    yield peer
    peer.close()


@pytest.fixture
def node() -> str:
    """Name of a new machine."""
    return f"node-{secrets.token_hex(4)}"


@pytest.fixture
def kubelet(live_server: LiveServer, joiner: Peer, node: str) -> Iterator[Peer]:
    """Client of the kubelet of `node`, with its certificate."""
    peer = Peer(live_server, "kubelet", pem=kubelet_identity(joiner, node))
    yield peer
    peer.close()
