"""The key of service account tokens is changed while two workers serve: no live token is refused.

What docs/authentication/service-accounts.md says an operator does is done here, step by step; while each step takes hold, every
token that was ever issued is shown to both workers again and again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mooring.client.cluster import ClusterClient
from mooring.client.files import write_atomic
from mooring.pki.jwt.token import decode_unverified
from mooring.pki.keys import generate_key, private_key_pem, public_key_pem
from tests.support.liveserver import LiveServer, start_server
from tests.support.polling import eventually
from tests.support.workers import WORKERS, clients_of_workers

SECONDS = 60.0
NAME = "system:serviceaccount:default:default"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Two processes, one data directory, one database."""
    server = start_server(tmp_path_factory.mktemp("rotation") / "data", "--workers", str(WORKERS))
    yield server
    assert server.stop() == 0


class Operator:
    """The administrator, with a connection to each worker, who keeps every token that was issued."""

    def __init__(self, admins: Sequence[ClusterClient]) -> None:
        self.admins = admins
        self.tokens: list[str] = []

    async def issue(self) -> list[str]:
        """One token of each worker: the ids of the keys that signed them."""
        request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"audiences": []}}
        made = [
            (await admin.create("serviceaccounts", request, "default", name="default", subresource="token"))["status"]
            for admin in self.admins
        ]
        found = [one["token"] for one in made]
        self.tokens += found
        return [decode_unverified(token)[0]["kid"] for token in found]

    async def published(self) -> list[list[str]]:
        """The key ids of each worker's key set."""
        return [
            [key["kid"] for key in json.loads(await admin.read("/openid/v1/jwks"))["keys"]] for admin in self.admins
        ]

    async def refused(self) -> set[str]:
        """The tokens that some worker refuses."""
        return {token for token in self.tokens for admin in self.admins if not await _is_robot(admin, token)}


async def _is_robot(admin: ClusterClient, token: str) -> bool:
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": token}}
    status = (await admin.create("tokenreviews", review))["status"]
    if not status.get("authenticated"):
        return False
    assert status["user"]["username"] == NAME
    return True


async def _account(admin: ClusterClient) -> None:
    """Wait for the account that the controllers make in every namespace."""
    deadline = time.monotonic() + SECONDS
    while not (await admin.list("serviceaccounts", "default")).items:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_no_live_token_is_refused_while_the_key_is_changed(server: LiveServer) -> None:
    pki = Path(server.data_dir) / "pki"
    old_public, new = (pki / "sa.pub").read_bytes(), generate_key()

    async def rotate() -> None:
        async with clients_of_workers(server) as admins:
            await change_the_key(Operator(admins))

    async def change_the_key(operator: Operator) -> None:
        await _account(operator.admins[0])
        [old, _] = await operator.issue()

        # 1. Every worker verifies with the new key, too.
        write_atomic(pki / "sa.pub", old_public + public_key_pem(new))
        deadline = time.monotonic() + SECONDS
        while min(map(len, await operator.published())) < 2:
            assert await operator.refused() == set()
            assert time.monotonic() < deadline
        [first, second] = await operator.published()
        assert first == second
        assert first[0] == old

        # 2. Every worker signs with it. For a moment one does and the other does not yet.
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

    asyncio.run(rotate())
    eventually(lambda: "are refused from now on" in server.log)
