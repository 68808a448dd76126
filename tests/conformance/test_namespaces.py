"""[sig-api-machinery] Namespaces [Serial]: test/e2e/apimachinery/namespace.go.

Source: docs/protocol/e2e-tests.md#teste2eapimachinery.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.schema import Obj
from tests.conformance.conftest import framework_namespace, unique
from tests.support.typedclient import MERGE, STRATEGIC, Client, poll


@pytest.mark.parametrize("left", [10, 0], ids=["90 percent", "ALL of them"])
def test_should_delete_fast_enough_100_namespaces_in_150_seconds(typed: Client, left: int) -> None:
    base = unique("nslifetest")
    names = [f"{base}-{number}" for number in range(100)]
    for name in names:
        typed.create("namespaces", "", {"metadata": {"name": name}})
    for name in names:
        typed.await_object("serviceaccounts", name, "default")
    for name in names:
        typed.delete("namespaces", "", name)

    def remaining() -> int:
        return sum(item["metadata"]["name"].startswith(base) for item in typed.list("namespaces")["items"])

    poll(lambda: remaining() <= left, "namespaces gone", 150, 0.5)


def test_should_patch_a_namespace(client: Client) -> None:
    name = framework_namespace(client, "nspatchtest")
    made = client.get("namespaces", "", name)
    patched = client.patch("namespaces", "", name, {"metadata": {"labels": {"testLabel": "testValue"}}}, STRATEGIC)
    assert int(patched["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert client.get("namespaces", "", name)["metadata"]["labels"]["testLabel"] == "testValue"
    client.delete("namespaces", "", name)


def condition(name: str, message: str) -> Obj:
    """Return a condition as Go marshals it: the zero time is null."""
    return {"type": name, "status": "True", "lastTransitionTime": None, "reason": "E2E", "message": message}


def test_should_apply_changes_to_a_namespace_status(client: Client, dynamic: Client, space: str) -> None:
    assert dynamic.get("namespaces", "", space, "status")["status"]["phase"] == "Active"
    message = "Patched by an e2e test"
    patch = {
        "metadata": {"annotations": {"e2e-patched-ns-status": space}},
        "status": {"conditions": [condition("StatusPatch", message)]},
    }
    patched = client.patch("namespaces", "", space, patch, MERGE, "status")
    assert patched["metadata"]["annotations"]["e2e-patched-ns-status"] == space
    last = patched["status"]["conditions"][-1]
    assert (last["reason"], last["message"]) == ("E2E", message)

    def add(obj: Obj) -> None:
        told = {"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Updated by an e2e test"}
        obj["status"].setdefault("conditions", []).append(told)

    updated = client.retry_update("namespaces", "", space, add, "status")
    last = updated["status"]["conditions"][-1]
    assert (last["type"], last["message"]) == ("StatusUpdate", "Updated by an e2e test")


def test_should_apply_an_update_to_a_namespace(client: Client, space: str) -> None:
    updated = client.retry_update(
        "namespaces", "", space, lambda obj: obj["metadata"]["labels"].update({space: "updated"})
    )
    assert updated["metadata"]["labels"][space] == "updated"


def test_should_apply_a_finalizer_to_a_namespace(client: Client) -> None:
    name = framework_namespace(client, "e2e-ns")
    fake = "e2e.example.com/fakeFinalizer"
    added = client.retry_update("namespaces", "", name, lambda obj: obj["spec"]["finalizers"].append(fake), "finalize")
    assert added["spec"]["finalizers"] == ["kubernetes", fake]
    removed = client.retry_update(
        "namespaces", "", name, lambda obj: obj["spec"]["finalizers"].remove(fake), "finalize"
    )
    assert removed["spec"]["finalizers"] == ["kubernetes"]
    client.delete("namespaces", "", name)
