"""The key of service account tokens is changed while two servers on one SQLite serve: no live token is refused.

What docs/authentication/service-accounts.md says an operator does is done here, step by step; while each step takes hold, every
token that was ever issued is shown to both servers again and again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient, connect
from mooring.client.files import write_atomic
from mooring.client.kubeconfigfiles import load
from mooring.errors import UnauthorizedError
from mooring.pki.jwt.compact import decode_unverified
from mooring.pki.keys import generate_key, private_key_pem, public_key_pem
from mooring.secret import Secret
from mooring.trust.kubeconfig.model import Selected, User
from tests.support.liveserver import LiveServer, start_server

pytestmark = pytest.mark.client

SECONDS = 60.0
NAME = "system:serviceaccount:default:default"
REVIEW = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, LiveServer]]:
    """Two processes, one data directory, one database."""
    root = tmp_path_factory.mktemp("rotation") / "data"
    first = start_server(root)
    second = start_server(root)
    yield first, second
    assert [server.stop() for server in (first, second)] == [0, 0]


class Operator:
    """The administrator of both, who keeps every token that was issued."""

    def __init__(self, servers: tuple[LiveServer, LiveServer]) -> None:
        admin = load(str(servers[0].kubeconfig))
        self.at = [replace(admin, cluster=replace(admin.cluster, server=server.url)) for server in servers]
        self.admins = [connect(selected) for selected in self.at]
        self.tokens: list[str] = []

    async def issue(self) -> list[str]:
        """One token of each server: the ids of the keys that signed them."""
        request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"audiences": []}}
        made = [
            (await admin.create("serviceaccounts", request, "default", name="default", subresource="token"))["status"]
            for admin in self.admins
        ]
        found = [one["token"] for one in made]
        self.tokens += found
        return [decode_unverified(token)[0]["kid"] for token in found]

    async def published(self) -> list[list[str]]:
        """The key ids of each server's key set."""
        return [
            [key["kid"] for key in json.loads(await admin.read("/openid/v1/jwks"))["keys"]] for admin in self.admins
        ]

    async def refused(self) -> set[str]:
        """The tokens that some server refuses."""
        return {token for token in self.tokens for selected in self.at if not await _is_robot(selected, token)}


async def _is_robot(selected: Selected, token: str) -> bool:
    async with connect(replace(selected, user=User("robot", token=Secret(token)))) as client:
        try:
            review = await client.create("selfsubjectreviews", REVIEW)
        except UnauthorizedError:
            return False
        assert review["status"]["userInfo"]["username"] == NAME
        return True


async def _account(admin: ClusterClient) -> None:
    """Wait for the account that the controllers make in every namespace."""
    deadline = time.monotonic() + SECONDS
    while not (await admin.list("serviceaccounts", "default")).items:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_no_live_token_is_refused_while_the_key_is_changed(servers: tuple[LiveServer, LiveServer]) -> None:
    pki = Path(servers[0].data_dir) / "pki"
    old_public, new = (pki / "sa.pub").read_bytes(), generate_key()

    async def rotate() -> None:
        operator = Operator(servers)
        await _account(operator.admins[0])
        [old, _] = await operator.issue()

        # 1. Every server verifies with the new key, too.
        write_atomic(pki / "sa.pub", old_public + public_key_pem(new))
        deadline = time.monotonic() + SECONDS
        while min(map(len, await operator.published())) < 2:
            assert await operator.refused() == set()
            assert time.monotonic() < deadline
        [first, second] = await operator.published()
        assert first == second
        assert first[0] == old

        # 2. Every server signs with it. For a moment one does and the other does not yet.
        write_atomic(pki / "sa.key", private_key_pem(new))
        while old in await operator.issue():
            assert await operator.refused() == set()
            assert time.monotonic() < deadline
        assert await operator.refused() == set()
        assert {decode_unverified(token)[0]["kid"] for token in operator.tokens} == {*first}

        # 3. When the last token of the old key has ended, the old key goes. Here they have not ended: they are refused.
        write_atomic(pki / "sa.pub", public_key_pem(new))
        while max(map(len, await operator.published())) > 1:
            assert time.monotonic() < deadline
        assert await operator.refused() == {
            token for token in operator.tokens if decode_unverified(token)[0]["kid"] == old
        }
        for admin in operator.admins:
            await admin.close()

    asyncio.run(rotate())
    assert "are refused from now on" in servers[0].log
