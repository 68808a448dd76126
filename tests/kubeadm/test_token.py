"""`kubeadm token create|list|delete` on the wire.

Source: docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands.
"""

from __future__ import annotations

import base64
import secrets
from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock, rfc3339
from tests.kubeadm.peers import GROUP, create_or_update, encoded
from tests.support.liveserver import LiveServer
from tests.support.typedclient import Client, RefusedError

SYSTEM = "kube-system"
TYPE = "bootstrap.kubernetes.io/token"


def token_secret(token_id: str, description: str = "") -> Obj:
    more = {"description": description} if description else {}
    return {
        "metadata": {"name": f"bootstrap-token-{token_id}", "namespace": SYSTEM},
        "type": TYPE,
        "data": encoded(
            token_id=token_id,
            token_secret=secrets.token_hex(8),
            expiration=rfc3339(SystemClock().now() + timedelta(hours=24)),
            usage_bootstrap_signing="true",
            usage_bootstrap_authentication="true",
            auth_extra_groups=GROUP,
            **more,
        ),
    }


@pytest.fixture
def token_id() -> str:
    return secrets.token_hex(3)


def test_create_looks_for_the_id_first_and_then_makes_the_secret(admin: Client, token_id: str) -> None:
    wanted = token_secret(token_id)
    name = wanted["metadata"]["name"]
    with pytest.raises(RefusedError) as refused:
        admin.get("secrets", SYSTEM, name)
    status = refused.value.status
    assert (refused.value.code, status["reason"]) == (404, "NotFound")
    assert status["message"] == f'secrets "{name}" not found'
    made = create_or_update(admin, "secrets", wanted)
    assert (made["type"], made["data"]) == (TYPE, wanted["data"])
    assert admin.get("secrets", SYSTEM, name)["metadata"]["uid"] == made["metadata"]["uid"]


def test_create_replaces_a_secret_that_another_made_meanwhile(admin: Client, token_id: str) -> None:
    first = create_or_update(admin, "secrets", token_secret(token_id))
    second = create_or_update(admin, "secrets", token_secret(token_id, "again"))
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert base64.b64decode(second["data"]["description"]) == b"again"


def test_list_finds_tokens_by_their_type_and_nothing_else(admin: Client, token_id: str) -> None:
    create_or_update(admin, "secrets", token_secret(token_id))
    other = {"metadata": {"name": f"no-token-{token_id}", "namespace": SYSTEM}, "data": {}}
    admin.create("secrets", SYSTEM, other)
    listed = admin.list("secrets", SYSTEM, fieldSelector=f"type={TYPE}")
    assert f"bootstrap-token-{token_id}" in [item["metadata"]["name"] for item in listed["items"]]
    assert {item["type"] for item in listed["items"]} == {TYPE}


def test_delete_needs_only_the_id_and_a_second_time_there_is_nothing(admin: Client, token_id: str) -> None:
    create_or_update(admin, "secrets", token_secret(token_id))
    admin.delete("secrets", SYSTEM, f"bootstrap-token-{token_id}")
    with pytest.raises(RefusedError) as refused:
        admin.delete("secrets", SYSTEM, f"bootstrap-token-{token_id}")
    assert refused.value.code == 404


def test_print_join_command_finds_the_address_and_ca_in_the_administrator_s_kubeconfig(
    live_server: LiveServer,
) -> None:
    text = live_server.kubeconfig.read_text()
    assert f"server: https://{live_server.endpoint}" in text
    assert base64.b64encode(live_server.ca_pem).decode() in text
