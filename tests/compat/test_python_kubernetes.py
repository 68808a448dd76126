"""The official Python client, unmodified: typed calls, watches, and the DynamicClient, which uses discovery."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import NotFoundError

from tests.support.liveserver import LiveServer

SPACE = "python"
k8s: Any = client  # the package's types are partial, and reject a dict for an object
new_client: Any = config.new_client_from_config
Watch: Any = watch.Watch
DynamicClient: Any = dynamic.DynamicClient


@pytest.fixture
def api(server: LiveServer) -> Iterator[Any]:
    with new_client(config_file=str(server.kubeconfig)) as api:
        server.once(create_space)
        yield api


def create_space(server: LiveServer) -> None:
    server.run(lambda client: client.create("namespaces", {"metadata": {"name": SPACE}}))


@pytest.fixture
def core(api: Any) -> Any:
    return k8s.CoreV1Api(api)


def _config_map(name: str, **data: str) -> Any:
    return k8s.V1ConfigMap(metadata=k8s.V1ObjectMeta(name=name, labels={"test": name.partition("-")[0]}), data=data)


@pytest.mark.shows("create -f", "get, every output and selector", "replace")
def test_create_list_and_replace(core: Any) -> None:
    for name in ("list-1", "list-2", "list-3"):
        made = core.create_namespaced_config_map(SPACE, _config_map(name, color="red"))
        assert abs(datetime.now(UTC) - made.metadata.creation_timestamp) < timedelta(hours=1)
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_config_map(SPACE, _config_map("list-1"))
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert 'configmaps \\"list-1\\" already exists' in str(refused.value.body)

    listed = core.list_namespaced_config_map(SPACE, label_selector="test=list", limit=2)
    rest = core.list_namespaced_config_map(SPACE, label_selector="test=list", _continue=listed.metadata._continue)
    assert sorted(item.metadata.name for item in listed.items + rest.items) == ["list-1", "list-2", "list-3"]
    assert SPACE in [item.metadata.name for item in core.list_namespace().items]

    one = core.read_namespaced_config_map("list-1", SPACE)
    one.data = {"color": "blue"}
    assert core.replace_namespaced_config_map("list-1", SPACE, one).data == {"color": "blue"}
    with pytest.raises(ApiException) as stale:
        core.replace_namespaced_config_map("list-1", SPACE, one)
    assert stale.value.status == 409
    with pytest.raises(ApiException) as missing:
        core.read_namespaced_config_map("none", SPACE)
    assert missing.value.status == 404


@pytest.mark.shows("patch, three types")
def test_patch(api: Any, core: Any) -> None:
    """Patch with the client's content types, json-patch for a list and strategic for a dict, and with explicit ones."""
    core.create_namespaced_config_map(SPACE, _config_map("patched", a="1"))
    core.patch_namespaced_config_map("patched", SPACE, [{"op": "add", "path": "/data/c", "value": "3"}])
    for finalizer in ("x.io/one", "x.io/two"):
        core.patch_namespaced_config_map("patched", SPACE, {"metadata": {"finalizers": [finalizer]}})
    merge = {"data": {"b": "2", "a": None}}
    patched = core.patch_namespaced_config_map("patched", SPACE, merge, _content_type="application/merge-patch+json")
    assert patched.data == {"b": "2", "c": "3"}
    assert sorted(patched.metadata.finalizers) == ["x.io/one", "x.io/two"]
    core.patch_namespaced_config_map("patched", SPACE, [{"op": "remove", "path": "/metadata/finalizers"}])


@pytest.mark.shows("get -w", "delete")
def test_watch_and_delete(core: Any) -> None:
    core.create_namespaced_config_map(SPACE, _config_map("seen", a="1"))
    watching = Watch()
    events = watching.stream(
        core.list_namespaced_config_map, SPACE, field_selector="metadata.name=seen", timeout_seconds=60
    )
    seen = next(events)
    assert (seen["type"], seen["object"].data) == ("ADDED", {"a": "1"})
    core.patch_namespaced_config_map("seen", SPACE, {"data": {"a": "2"}})
    seen = next(events)
    assert (seen["type"], seen["object"].data) == ("MODIFIED", {"a": "2"})
    deleted = core.delete_namespaced_config_map(
        "seen", SPACE, body=k8s.V1DeleteOptions(propagation_policy="Background")
    )
    assert (deleted["status"], deleted["details"]["name"]) == ("Success", "seen")
    assert next(events)["type"] == "DELETED"
    watching.stop()
    events.close()
    for name in ("x", "y"):
        core.create_namespaced_secret(SPACE, {"metadata": {"name": name}, "stringData": {"word": "sesame"}})
    assert core.read_namespaced_secret("x", SPACE).data == {"word": "c2VzYW1l"}
    core.delete_collection_namespaced_secret(SPACE)
    assert core.list_namespaced_secret(SPACE).items == []


@pytest.mark.shows("Pods and Services, which are stored; cluster-info")
def test_services_and_pods(api: Any, core: Any) -> None:
    own = core.read_namespaced_service("kubernetes", "default")
    assert (own.spec.cluster_ip, own.spec.ports[0].port) == ("10.96.0.1", 443)
    slices = k8s.DiscoveryV1Api(api).list_namespaced_endpoint_slice("default")
    assert [item.address_type for item in slices.items if item.metadata.name == "kubernetes"] == ["IPv4"]

    ports = [k8s.V1ServicePort(port=80, target_port="web")]
    spec = k8s.V1ServiceSpec(type="NodePort", selector={"app": "web"}, ports=ports)
    made = core.create_namespaced_service(SPACE, k8s.V1Service(metadata=k8s.V1ObjectMeta(name="web"), spec=spec))
    assert made.spec.cluster_ips == [made.spec.cluster_ip]
    assert 30000 <= made.spec.ports[0].node_port <= 32767
    made.spec.type = "ClusterIP"
    changed = core.replace_namespaced_service("web", SPACE, made)
    assert (changed.spec.cluster_ip, changed.spec.ports[0].node_port) == (made.spec.cluster_ip, None)

    containers = [k8s.V1Container(name="c", image="i")]
    pod = k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="p"), spec=k8s.V1PodSpec(containers=containers, node_name="nowhere"))
    core.create_namespaced_service_account(SPACE, k8s.V1ServiceAccount(metadata=k8s.V1ObjectMeta(name="runner")))
    pod.spec.service_account_name = "runner"
    started = core.create_namespaced_pod(SPACE, pod)
    (volume,) = started.spec.volumes
    assert volume.projected.sources[0].service_account_token.expiration_seconds == 3607
    core.delete_namespaced_pod("p", SPACE)
    going = core.read_namespaced_pod("p", SPACE)
    assert going.metadata.deletion_grace_period_seconds == 30
    core.delete_namespaced_pod("p", SPACE, grace_period_seconds=0)
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_pod("p", SPACE)
    assert gone.value.status == 404


@pytest.mark.shows("Pods and Services, which are stored; cluster-info")
def test_a_node_that_reported_nothing_has_its_structs(core: Any) -> None:
    core.create_node(k8s.V1Node(metadata=k8s.V1ObjectMeta(name="silent")))
    try:
        node = core.read_node("silent")
        assert node.status.node_info.kubelet_version == ""
        assert node.status.daemon_endpoints.kubelet_endpoint.port == 0
        assert node.spec.taints is None
    finally:
        core.delete_node("silent")


@pytest.mark.shows("create token", "auth can-i", "create -f of a review")
def test_tokens_and_reviews(api: Any, core: Any) -> None:
    core.create_namespaced_service_account(SPACE, {"metadata": {"name": "robot"}})
    spec = k8s.V1TokenRequestSpec(audiences=[], expiration_seconds=1200)
    made = core.create_namespaced_service_account_token("robot", SPACE, k8s.AuthenticationV1TokenRequest(spec=spec))
    review = k8s.V1TokenReview(spec=k8s.V1TokenReviewSpec(token=made.status.token))
    reviewed = k8s.AuthenticationV1Api(api).create_token_review(review)
    assert reviewed.status.authenticated
    assert reviewed.status.user.username == f"system:serviceaccount:{SPACE}:robot"
    attributes = k8s.V1ResourceAttributes(verb="list", resource="nodes")
    mine = k8s.V1SelfSubjectAccessReview(spec=k8s.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    assert k8s.AuthorizationV1Api(api).create_self_subject_access_review(mine).status.allowed


@pytest.mark.shows("api-resources, api-versions, version")
def test_discovery(api: Any, core: Any) -> None:
    assert k8s.VersionApi(api).get_code().git_version.startswith("v1.37.")
    assert "rbac.authorization.k8s.io" in [group.name for group in k8s.ApisApi(api).get_api_versions().groups]
    assert "secrets" in [item.name for item in core.get_api_resources().resources]


@pytest.mark.shows("DynamicClient")
def test_dynamic_client(api: Any, tmp_path: Path) -> None:
    any_kind = DynamicClient(api, cache_file=str(tmp_path / "discovery.json"))
    config_maps = any_kind.resources.get(api_version="v1", kind="ConfigMap")
    roles = any_kind.resources.get(api_version="rbac.authorization.k8s.io/v1", kind="Role")
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "dynamic", "labels": {"by": "dynamic"}},
        "data": {"a": "1"},
    }
    assert config_maps.create(body=body, namespace=SPACE).metadata.uid
    events = config_maps.watch(namespace=SPACE, field_selector="metadata.name=dynamic", timeout=60)
    assert next(events)["object"].data.a == "1"
    patched = config_maps.patch(
        body={"data": {"a": "2"}}, name="dynamic", namespace=SPACE, content_type="application/merge-patch+json"
    )
    assert patched.data.a == "2"
    assert next(events)["type"] == "MODIFIED"
    events.close()
    chosen = config_maps.get(namespace=SPACE, label_selector="by=dynamic").items
    assert [item.metadata.name for item in chosen] == ["dynamic"]
    assert roles.get(namespace=SPACE).items == []
    config_maps.delete(name="dynamic", namespace=SPACE)
    with pytest.raises(NotFoundError):
        config_maps.get(name="dynamic", namespace=SPACE)


@pytest.mark.shows("apply --server-side")
def test_server_side_apply(api: Any, tmp_path: Path) -> None:
    config_maps = DynamicClient(api, cache_file=str(tmp_path / "discovery.json")).resources.get(
        api_version="v1", kind="ConfigMap"
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "1"}}
    made = config_maps.server_side_apply(body=body, namespace=SPACE, field_manager="one")
    assert made.metadata.managedFields[0].manager == "one"
    changed = body | {"data": {"a": "2"}}
    with pytest.raises(ApiException) as conflict:
        config_maps.server_side_apply(body=changed, namespace=SPACE, field_manager="two")
    assert conflict.value.status == 409
    forced = config_maps.server_side_apply(body=changed, namespace=SPACE, field_manager="two", force_conflicts=True)
    assert forced.data.a == "2"


@pytest.mark.shows("get events of both groups")
def test_events_of_one_group_are_read_from_the_other(api: Any, core: Any) -> None:
    now = datetime.now(UTC)
    event = k8s.EventsV1Event(
        metadata=k8s.V1ObjectMeta(name="told"),
        event_time=now,
        reporting_controller="example.com/python",
        reporting_instance="here",
        action="Testing",
        reason="Tested",
        regarding=k8s.V1ObjectReference(kind="ConfigMap", namespace=SPACE, name="c"),
        note="said in Python",
        type="Normal",
    )
    newer = k8s.EventsV1Api(api)
    newer.create_namespaced_event(SPACE, event)
    older = core.read_namespaced_event("told", SPACE)
    assert (older.message, older.involved_object.name, older.event_time) == ("said in Python", "c", now)
    events = Watch().stream(newer.list_namespaced_event, SPACE, field_selector="metadata.name=told", timeout_seconds=60)
    assert next(events)["object"].note == "said in Python"
    core.delete_namespaced_event("told", SPACE)
    assert next(events)["type"] == "DELETED"
    events.close()
