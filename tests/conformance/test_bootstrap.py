"""[sig-cluster-lifecycle] [Feature:BootstrapTokens]: test/e2e/lifecycle/bootstrap.

Source: docs/protocol/e2e-tests.md#teste2elifecyclebootstrap.

Upstream's tokens have ids of six hexadecimal digits and only the signing usage; those of the signer tests have an invalid token
secret, and the kubeconfig is overwritten with text that is no kubeconfig.
"""

from __future__ import annotations

import base64
import secrets
from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock, rfc3339
from tests.support.typedclient import Client, poll

SYSTEM = "kube-system"


def token_secret(token_id: str, token: str, expiration: str = "") -> Obj:
    data = {"token-id": token_id, "token-secret": token, "usage-bootstrap-signing": "true"}
    if expiration:
        data["expiration"] = expiration
    return {
        "metadata": {"namespace": SYSTEM, "name": f"bootstrap-token-{token_id}"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def signature(client: Client, token_id: str) -> str | None:
    value: str | None = client.get("configmaps", "kube-public", "cluster-info")["data"].get(
        f"jws-kubeconfig-{token_id}"
    )
    return value


@pytest.fixture
def signed(client: Client, space: str) -> str:
    """Create a token as upstream does and wait for its signature. Return its id."""
    token_id = secrets.token_hex(3)
    client.create("secrets", SYSTEM, token_secret(token_id, "tokenSecret"))
    poll(lambda: signature(client, token_id) is not None, "signed", 120)
    return token_id


def test_should_sign_the_new_added_bootstrap_tokens(client: Client, signed: str) -> None:
    client.delete("secrets", SYSTEM, f"bootstrap-token-{signed}")


def test_should_resign_the_bootstrap_tokens_when_the_cluster_info_config_map_updated(
    client: Client, signed: str
) -> None:
    info = client.get("configmaps", "kube-public", "cluster-info")
    original, before = info["data"]["kubeconfig"], info["data"][f"jws-kubeconfig-{signed}"]
    # the signer may still be writing, for a token that an earlier test deleted
    changed = {"kubeconfig": secrets.token_hex(20)}
    client.retry_update("configmaps", "kube-public", "cluster-info", lambda info: info["data"].update(changed))
    try:
        poll(lambda: signature(client, signed) not in (None, before), "signed again", 120)
    finally:
        changed = {"kubeconfig": original}
        client.retry_update("configmaps", "kube-public", "cluster-info", lambda info: info["data"].update(changed))
    client.delete("secrets", SYSTEM, f"bootstrap-token-{signed}")


def test_should_delete_the_signed_bootstrap_tokens_from_cluster_info_when_bootstrap_token_is_deleted(
    client: Client, signed: str
) -> None:
    client.delete("secrets", SYSTEM, f"bootstrap-token-{signed}")
    poll(lambda: signature(client, signed) is None, "signature removed", 120)


def from_now(delta: timedelta) -> str:
    return rfc3339(SystemClock().now() + delta)


def exists(client: Client, name: str) -> bool:
    return client.refusal("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/{name}") != 404


def test_should_delete_the_token_secret_when_the_secret_expired(client: Client, space: str) -> None:
    secret = token_secret(secrets.token_hex(3), secrets.token_hex(8), from_now(-timedelta(hours=1)))
    client.create("secrets", SYSTEM, secret)
    poll(lambda: not exists(client, secret["metadata"]["name"]), "deleted")


def test_should_not_delete_the_token_secret_when_the_secret_is_not_expired(client: Client, space: str) -> None:
    name = "bootstrap-token-{}".format
    good, bad = secrets.token_hex(3), secrets.token_hex(3)
    client.create("secrets", SYSTEM, token_secret(good, secrets.token_hex(8), from_now(timedelta(hours=1))))
    client.create("secrets", SYSTEM, token_secret(bad, secrets.token_hex(8), from_now(-timedelta(hours=1))))
    poll(lambda: not exists(client, name(bad)), "the expired one is deleted")
    assert exists(client, name(good))
    client.delete("secrets", SYSTEM, name(good))
