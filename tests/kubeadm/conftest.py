"""Peers of the machines that join: an administrator's kubeadm, a joiner, a kubelet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.kubeadm.peers import Peer, kubelet_identity
from tests.support.liveserver import LiveServer
from tests.support.typedclient import TYPED, Client


@pytest.fixture
def admin(live_server: LiveServer) -> Iterator[Client]:
    """kubeadm on a control plane: the administrator's certificate."""
    client = Client(live_server, TYPED)
    yield client
    client.close()


@pytest.fixture
def joiner(live_server: LiveServer) -> Iterator[Peer]:
    """kubeadm or a kubelet with a bootstrap token, once cluster-info is signed by it."""
    peer = Peer(live_server, "kubeadm", live_server.create_token().reveal())
    yield peer
    peer.close()


@pytest.fixture
def node() -> str:
    """A name for a machine that is new."""
    return f"node-{secrets.token_hex(4)}"


@pytest.fixture
def kubelet(live_server: LiveServer, joiner: Peer, node: str) -> Iterator[Peer]:
    """The kubelet of `node`, with its certificate."""
    peer = Peer(live_server, "kubelet", pem=kubelet_identity(joiner, node))
    yield peer
    peer.close()
