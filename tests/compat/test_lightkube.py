"""lightkube, unmodified: a small typed client, strict about the types in answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Secret, ServiceAccount, ServiceAccountToken
from lightkube.types import PatchType

from tests.support.liveserver import LiveServer

SPACE = "lightkube"


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    server.once(create_space)
    client = Client(KubeConfig.from_file(server.kubeconfig), namespace=SPACE, trust_env=False)
    yield client
    client.close()


def create_space(server: LiveServer) -> None:
    client = Client(KubeConfig.from_file(server.kubeconfig), trust_env=False)
    client.create(Namespace(metadata=ObjectMeta(name=SPACE)))
    client.close()


def _config_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, labels={"test": name.partition("-")[0]}), data=data)


@pytest.mark.shows("create -f", "get, every output and selector", "replace")
def test_create_list_and_replace(client: Client) -> None:
    for name in ("list-1", "list-2", "list-3"):
        made = client.create(_config_map(name, color="red"))
        assert made.metadata
        assert made.metadata.uid
        assert made.metadata.creationTimestamp
    with pytest.raises(ApiError, match='configmaps "list-1" already exists') as refused:
        client.create(_config_map("list-1"))
    assert refused.value.status.reason == "AlreadyExists"

    listed = client.list(ConfigMap, labels={"test": "list"}, chunk_size=1)  # follows the continue tokens
    assert sorted(str(item.metadata and item.metadata.name) for item in listed) == ["list-1", "list-2", "list-3"]
    assert [item.data for item in client.list(ConfigMap, fields={"metadata.name": "list-1"})] == [{"color": "red"}]
    names = {item.metadata.name for item in client.list(Namespace) if item.metadata}
    assert {"kube-system", SPACE} <= names

    one = client.get(ConfigMap, "list-1")
    one.data = {"color": "blue"}
    assert client.replace(one).data == {"color": "blue"}
    with pytest.raises(ApiError) as stale:
        client.replace(one)
    assert stale.value.status.reason == "Conflict"
    with pytest.raises(ApiError) as missing:
        client.get(ConfigMap, "none")
    assert (missing.value.status.code, missing.value.status.reason) == (404, "NotFound")


@pytest.mark.shows("patch, three types")
def test_patch(client: Client) -> None:
    client.create(_config_map("patched", a="1"))
    client.patch(ConfigMap, "patched", {"data": {"b": "2", "a": None}}, patch_type=PatchType.MERGE)
    client.patch(ConfigMap, "patched", [{"op": "add", "path": "/data/c", "value": "3"}], patch_type=PatchType.JSON)
    for finalizer in ("x.io/one", "x.io/two"):
        client.patch(ConfigMap, "patched", {"metadata": {"finalizers": [finalizer]}})
    patched = client.get(ConfigMap, "patched")
    assert patched.data == {"b": "2", "c": "3"}
    assert patched.metadata
    assert sorted(patched.metadata.finalizers or ()) == ["x.io/one", "x.io/two"]
    client.patch(ConfigMap, "patched", {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE)


@pytest.mark.shows("get -w", "delete")
def test_watch_and_delete(client: Client) -> None:
    client.create(_config_map("seen", a="1"))
    events = client.watch(ConfigMap, fields={"metadata.name": "seen"})
    kind, seen = next(events)
    assert (kind, seen.data) == ("ADDED", {"a": "1"})
    client.patch(ConfigMap, "seen", {"data": {"a": "2"}})
    kind, seen = next(events)
    assert (kind, seen.data) == ("MODIFIED", {"a": "2"})
    client.delete(ConfigMap, "seen")
    assert next(events)[0] == "DELETED"
    del events
    for name in ("x", "y"):
        client.create(Secret(metadata=ObjectMeta(name=name), stringData={"word": "sesame"}))
    assert client.get(Secret, "x").data == {"word": "c2VzYW1l"}
    client.deletecollection(Secret)
    assert list(client.list(Secret)) == []


@pytest.mark.shows("create token")
def test_token(client: Client) -> None:
    client.create(ServiceAccount(metadata=ObjectMeta(name="robot")))
    spec = TokenRequestSpec(audiences=[], expirationSeconds=1200)
    made = client.create(ServiceAccountToken(metadata=ObjectMeta(), spec=spec), "robot")
    assert made.status
    assert str(made.status.token).count(".") == 2


@pytest.mark.shows("apply --server-side")
def test_server_side_apply(client: Client) -> None:
    def applied(data: dict[str, str]) -> ConfigMap:
        return ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name="applied"), data=data)

    made = client.apply(applied({"a": "1"}), field_manager="one")
    assert made.metadata
    assert made.metadata.managedFields
    assert made.metadata.managedFields[0].manager == "one"
    with pytest.raises(ApiError) as conflict:
        client.apply(applied({"a": "2"}), field_manager="two")
    assert conflict.value.status.reason == "Conflict"
    assert client.apply(applied({"a": "2"}), field_manager="two", force=True).data == {"a": "2"}
