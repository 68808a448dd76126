"""A token for a few machines, with two servers on one store: exactly as many join, through `kill -9`, and a retry costs nothing."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from mooring.agent import certificaterequest
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import SystemClock
from mooring.errors import ForbiddenError, NotFoundError, PeerError, UnauthorizedError
from mooring.pki import pem
from mooring.pki.keys import PrivateKey, generate_key, public_key_fingerprint
from mooring.secret import Secret
from mooring.trust.bootstraptoken.restrictions import Restrictions, join_record, joined_keys, parse_networks
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, new_record, secret_name, to_secret
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.killable import client_of, lease_held_by, seeded, servers_on_one_store

ALLOWED = 5
MACHINES = 12
PATIENCE = 60.0
PAUSE = 0.05
WAIT = 1.0
"""Seconds until a machine tries the other server."""

clock = SystemClock()


def token_user(token: BootstrapToken) -> KubeconfigUser:
    return KubeconfigUser("bootstrap", token=Secret(token.reveal()))


async def joined(clients: list[ClusterClient], name: str, key: PrivateKey) -> bool:
    """Join as `name` through any server that runs. Return False when the request is denied."""
    made = certificaterequest.node_request(key, name)
    for client in clients * 100:
        try:
            obj, _ = await certificaterequest.send_request(client, made, key, clock.now())
            await certificaterequest.send_request(client, made, key, clock.now())  # as after a lost reply
            await certificaterequest.wait(client, obj, WAIT)
            return True
        except certificaterequest.RequestEndedError:
            return False
        except PeerError:
            await asyncio.sleep(PAUSE)
    raise AssertionError(f"{name} got no answer")


async def request_of(client: ClusterClient, name: str, key: PrivateKey) -> Obj:
    return await client.get(certificaterequest.PLURAL, certificaterequest.node_request(key, name).name)


async def keys_of(admin: ClusterClient, token: BootstrapToken) -> tuple[str, ...]:
    return joined_keys(await admin.get("secrets", secret_name(token.id), NAMESPACE))


@pytest.mark.crash
def test_exactly_as_many_machines_join_as_the_token_allows(tmp_path: Path) -> None:
    moments = seeded()
    leader, survivor = servers_on_one_store(tmp_path, 2)

    async def scenario() -> None:
        leader.launch()
        await leader.ready()
        survivor.launch()
        await survivor.ready()
        token = generate_token(moments.randbytes)
        ca_pem = (leader.data_dir / "pki/ca.crt").read_bytes()
        keys = {f"worker-{n}": generate_key() for n in range(MACHINES)}
        user = token_user(token)
        async with (
            survivor.client() as admin,
            client_of(leader, ca_pem, user) as one,
            client_of(survivor, ca_pem, user) as other,
            asyncio.timeout(4 * PATIENCE),
        ):
            restrictions = Restrictions(ALLOWED, parse_networks("127.0.0.0/8"), "worker-*")
            await admin.create("secrets", to_secret(new_record(token, clock.now(), restrictions=restrictions)))
            await lease_held_by(admin, leader.identity)
            joins = [
                asyncio.create_task(joined([one, other] if n % 2 else [other, one], name, key))
                for n, (name, key) in enumerate(keys.items())
            ]
            counted = 1 + moments.randrange(ALLOWED - 1)
            while len(await keys_of(admin, token)) < counted:
                await asyncio.sleep(0.005)
            leader.kill()
            outcomes = dict(zip(keys, await asyncio.gather(*joins), strict=True))
            assert sum(outcomes.values()) == ALLOWED
            recorded = await keys_of(admin, token)
            assert sorted(recorded) == sorted(
                join_record(public_key_fingerprint(keys[name]), f"system:node:{name}")
                for name in keys
                if outcomes[name]
            )

            turned_away = next(name for name in keys if not outcomes[name])
            refused = await request_of(admin, turned_away, keys[turned_away])
            (condition,) = refused["status"]["conditions"]
            assert (condition["type"], condition["reason"]) == ("Denied", "TokenUsedUp")
            assert "mooring token create" in condition["message"]

            # a machine whose request was cleaned away asks again with its key: counted once
            again = next(name for name in keys if outcomes[name])
            made = certificaterequest.node_request(keys[again], again)
            csr = await admin.get(certificaterequest.PLURAL, made.name)
            assert csr["metadata"]["annotations"]["mooring.dev/source-address"] == "127.0.0.1"
            await admin.delete(certificaterequest.PLURAL, made.name)
            assert await joined([other], again, keys[again])
            assert await keys_of(admin, token) == recorded

            request = certificaterequest.node_request(generate_key(), "master-1")
            with pytest.raises(ForbiddenError, match='only for nodes named "worker-'):
                await other.create(certificaterequest.PLURAL, csr_of(request.pem))

            elsewhere = {"metadata": {"annotations": {"mooring.dev/allowed-cidrs": "10.0.0.0/8"}}}
            await admin.patch("secrets", secret_name(token.id), elsewhere, NAMESPACE)
            with pytest.raises(UnauthorizedError):
                await other.get(certificaterequest.PLURAL, made.name)
            await admin.delete("secrets", secret_name(token.id), NAMESPACE)
            with pytest.raises(NotFoundError):
                await keys_of(admin, token)
        assert await survivor.stop() == 0

    try:
        asyncio.run(scenario())
    except BaseException:
        print(leader.log[-2000:], survivor.log[-4000:], sep="\n----\n")  # noqa: T201 - shown with the failure
        raise
    finally:
        leader.kill()
        survivor.kill()


def csr_of(request: bytes) -> Obj:
    assert pem.CERTIFICATE_REQUEST.encode() in request
    return {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"generateName": "node-csr-"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }
