"""[sig-auth] ServiceAccounts: the tests of test/e2e/auth/service_accounts.go that run no pods.

Source: docs/protocol/e2e-tests.md#teste2eauth.
"""

from __future__ import annotations

from tests.conformance.conftest import unique
from tests.support.typedclient import STRATEGIC, Client, poll

KIND = "serviceaccounts"
ROOT = "kube-root-ca.crt"


def test_no_secret_based_service_account_token_should_be_auto_generated(client: Client, space: str) -> None:
    account = client.get(KIND, space, "default")
    assert not account.get("secrets")
    assert client.list("secrets", space)["items"] == []


def test_should_run_through_the_lifecycle_of_a_service_account(client: Client, space: str) -> None:
    name, label = "testserviceaccount", "test-serviceaccount-static"
    made = client.create(KIND, space, {"metadata": {"name": name, "labels": {label: "true"}}})
    assert client.get(KIND, space, name)["metadata"]["uid"] == made["metadata"]["uid"]
    with client.watch(KIND, space, labelSelector=f"{label}=true", timeoutSeconds="180") as watching:
        watching.until(lambda event: event.type == "ADDED")
        patch = {"metadata": {}, "automountServiceAccountToken": False}
        client.patch(KIND, space, name, patch, STRATEGIC)
        watching.until(lambda event: event.type == "MODIFIED")
        found = [
            item["automountServiceAccountToken"]
            for item in client.list(KIND, labelSelector=f"{label}=true")["items"]
            if (item["metadata"]["name"], item["metadata"]["namespace"]) == (name, space)
        ]
        assert found == [False]
        client.delete_collection(KIND, space)
        watching.until(lambda event: event.type == "DELETED")


def test_should_guarantee_kube_root_ca_crt_exist_in_any_namespace(client: Client, space: str) -> None:
    path = f"/api/v1/namespaces/{space}/configmaps/{ROOT}"
    assert client.get("configmaps", space, ROOT)["data"]["ca.crt"]
    client.delete("configmaps", space, ROOT, gracePeriodSeconds=0)
    poll(lambda: client.refusal("GET", path) == 0, "made again", 30)
    client.update("configmaps", space, {"metadata": {"name": ROOT}, "data": {"ca.crt": ""}})
    poll(lambda: bool(client.get("configmaps", space, ROOT)["data"].get("ca.crt")), "put right", 30)


def test_should_update_a_service_account(client: Client, space: str) -> None:
    name = unique("e2e-sa")
    made = client.create(KIND, space, {"metadata": {"name": name}, "automountServiceAccountToken": False})
    assert made["automountServiceAccountToken"] is False
    updated = client.retry_update(KIND, space, name, lambda obj: obj.update(automountServiceAccountToken=True))
    assert updated["automountServiceAccountToken"] is True


def test_should_create_a_service_account_token_and_ensure_a_successful_token_review(client: Client, space: str) -> None:
    name = unique("e2e-sa")
    client.create(KIND, space, {"metadata": {"name": name}})
    empty = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}, "status": {}}
    issued = client.call("POST", f"/api/v1/namespaces/{space}/{KIND}/{name}/token", empty)
    token = issued["status"]["token"]
    assert token
    review = {"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": token}}
    reviewed = client.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert reviewed["status"]["authenticated"] is True
    assert not reviewed["status"].get("error")
