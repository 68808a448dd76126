"""Unmodified kubectl applies server-side: create, change, share, conflict, force, give up, migrate from client-side apply."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.compat.kubectl import Kubectl


def config_map(name: str, **data: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def managers(obj: dict[str, Any]) -> dict[str, str]:
    """Return manager → operation, read by path because kubectl hides managedFields."""
    return {entry["manager"]: entry["operation"] for entry in obj["metadata"].get("managedFields", [])}


def stored(kubectl: Kubectl, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl.ok("get", "--raw", f"/api/v1/namespaces/{namespace}/configmaps/{name}"))
    return found


@pytest.mark.every_release
@pytest.mark.shows("apply --server-side")
def test_server_side_apply(kubectl: Kubectl, namespace: str) -> None:
    apply = ("-n", namespace, "apply", "--server-side", "-f", "-")
    assert kubectl.ok(*apply, stdin=config_map("ssa", a="1", b="1")) == "configmap/ssa serverside-applied\n"
    first = stored(kubectl, namespace, "ssa")
    assert managers(first) == {"kubectl": "Apply"}
    assert "annotations" not in first["metadata"]
    kubectl.ok(*apply, stdin=config_map("ssa", a="1", b="1"))
    assert stored(kubectl, namespace, "ssa") == first, "applying again changes nothing"

    kubectl.ok(*apply, "--dry-run=server", stdin=config_map("ssa", a="2"))
    assert stored(kubectl, namespace, "ssa") == first
    kubectl.ok(*apply, stdin=config_map("ssa", a="2"))
    assert stored(kubectl, namespace, "ssa")["data"] == {"a": "2"}, "what is applied no more is gone"

    kubectl.ok(*apply, "--field-manager=robot", stdin=config_map("ssa", a="2", c="1"))
    refused = kubectl.fails(*apply, stdin=config_map("ssa", a="3"))
    assert 'Apply failed with 1 conflict: conflict with "robot": .data.a' in refused
    kubectl.ok(*apply, "--force-conflicts", stdin=config_map("ssa", a="3"))
    kubectl.ok("-n", namespace, "patch", "cm", "ssa", "-p", '{"data":{"d":"1"}}')
    last = stored(kubectl, namespace, "ssa")
    assert last["data"] == {"a": "3", "c": "1", "d": "1"}
    assert sorted(managers(last).values()) == ["Apply", "Apply", "Update"]
    assert "managedFields" in kubectl.ok(*apply[:2], "get", "cm", "ssa", "-o", "yaml", "--show-managed-fields")


@pytest.mark.shows("apply --server-side")
def test_unknown_fields_and_other_lists_of_objects(kubectl: Kubectl, namespace: str) -> None:
    apply = ("-n", namespace, "apply", "--server-side", "-f", "-")
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "ssa", "finalizers": ["example.com/one"]},
        "secrets": [{"name": "one"}],
    }
    kubectl.ok(*apply, stdin=json.dumps(account))
    other = account | {"metadata": {"name": "ssa", "finalizers": ["example.com/two"]}, "secrets": [{"name": "two"}]}
    kubectl.ok(*apply, "--field-manager=robot", stdin=json.dumps(other))
    merged = kubectl.json("-n", namespace, "get", "sa", "ssa")
    assert merged["secrets"] == [{"name": "one"}, {"name": "two"}]
    bare = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ssa"}}
    for manager in ("kubectl", "robot"):
        kubectl.ok(*apply, f"--field-manager={manager}", stdin=json.dumps(bare))
    assert "secrets" not in kubectl.json("-n", namespace, "get", "sa", "ssa")
    wrong = json.dumps(bare | {"secret": []})
    assert "secret" in kubectl.fails(*apply, "--validate=false", stdin=wrong)


@pytest.mark.shows("apply --server-side of what apply made")
def test_from_client_side_apply_to_server_side_and_back(kubectl: Kubectl, namespace: str) -> None:
    apply = ("-n", namespace, "apply", "-f", "-")
    kubectl.ok(*apply, stdin=config_map("moved", a="1", b="1"))
    kubectl.ok(*apply, "--server-side", stdin=config_map("moved", a="2"))
    moved = stored(kubectl, namespace, "moved")
    assert moved["data"] == {"a": "2"}, "what only client-side apply had said is gone"
    assert managers(moved)["kubectl"] == "Apply"
    assert "before-first-apply" not in managers(moved)

    kubectl.ok(*apply, stdin=config_map("moved", a="3", c="1"))
    back = stored(kubectl, namespace, "moved")
    assert back["data"] == {"a": "3", "c": "1"}
    assert managers(back)["kubectl-client-side-apply"] == "Update"
    kubectl.ok(*apply, "--server-side", stdin=config_map("moved", c="2"))
    assert stored(kubectl, namespace, "moved")["data"] == {"c": "2"}


@pytest.mark.shows("apply --server-side of what apply made")
def test_what_the_server_put_into_an_object_stays_when_it_moves(kubectl: Kubectl, namespace: str) -> None:
    apply = ("-n", namespace, "apply", "-f", "-")

    def moved(kind: str, spec: dict[str, Any]) -> str:
        return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": "moved"}, "spec": spec})

    ports: list[dict[str, Any]] = [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]
    specs: dict[str, dict[str, Any]] = {
        "Pod": {"containers": [{"name": "c", "image": "i"}]},
        "Service": {"ports": ports},
    }
    for kind, spec in specs.items():
        kubectl.ok(*apply, stdin=moved(kind, spec))
        before = kubectl.json("-n", namespace, "get", kind, "moved")["spec"]
        for _ in range(2):
            kubectl.ok(*apply, "--server-side", stdin=moved(kind, spec))
            assert kubectl.json("-n", namespace, "get", kind, "moved")["spec"] == before
    kubectl.ok(*apply, "--server-side", stdin=moved("Service", {"ports": ports[:1]}))
    left: Any = kubectl.json("-n", namespace, "get", "svc", "moved")
    assert [port["port"] for port in left["spec"]["ports"]] == [80]
