"""Test long lists: slices give the bytes of a list that is made at once (docs/adr/0024)."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import cast

import msgspec
import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.registry.cache import kindcache
from mooring.registry.cache.events import Stored
from mooring.registry.offload import LONG_BYTES
from mooring.server.response import lists
from mooring.server.transport.http import in_pieces
from tests.support.serverroom import Server, in_server

PATH = "/api/v1/namespaces/default/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
FORMS = [
    pytest.param(PATH, "application/json", id="JSON"),
    pytest.param(PATH + "?pretty=1", "application/json", id="indented JSON"),
    pytest.param(PATH, "application/vnd.kubernetes.protobuf", id="protobuf"),
    pytest.param(PATH, "application/yaml", id="YAML"),
    pytest.param(PATH, TABLE, id="a Table"),
    pytest.param(PATH + "?pretty=1", TABLE, id="an indented Table"),
    pytest.param(PATH + "?includeObject=Object", TABLE, id="a Table with the objects"),
    pytest.param(PATH, TABLE.replace("json", "yaml"), id="a Table in YAML"),
    pytest.param(PATH, f"application/json;{PARTIAL}", id="metadata"),
    pytest.param(PATH, f"application/yaml;{PARTIAL}", id="metadata in YAML"),
    pytest.param(PATH, f"application/vnd.kubernetes.protobuf;{PARTIAL}", id="metadata in protobuf"),
    pytest.param("/apis/events.k8s.io/v1/namespaces/default/events", "application/json", id="the other form of a kind"),
    pytest.param(PATH + "?labelSelector=n%3D1", "application/json", id="with a label selector"),
    pytest.param(PATH + "?labelSelector=n%3D1&limit=2", "application/json", id="a page with a label selector"),
    pytest.param(PATH + "?limit=3", "application/json", id="a page"),
]


async def filled(server: Server, count: int) -> None:
    for place in range(count):
        metadata = {"name": f"c{place}", "labels": {"n": str(place % 2)}, "annotations": {"text": "one\ntwo: three"}}
        answer = await server.post(PATH, {"metadata": metadata, "data": {"key": "ü\n- items: []\nitems: []\n"}})
        assert answer.status == 201
        event = {
            "metadata": {"name": f"e{place}"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
            "reason": "Tested",
        }
        answer = await server.post("/api/v1/namespaces/default/events", event)
        assert answer.status == 201


async def listed(server: Server, target: str, accept: str) -> tuple[bytes, int]:
    """Return the bytes of a list, and how often its request gave way to other tasks: waits, which end by the clock, do not count.
    A list that is joined while it is sent gives way between its pieces."""
    turns = 0
    request, give_way = asyncio.current_task(), asyncio.sleep

    async def counted(delay: float) -> None:
        nonlocal turns
        turns += delay == 0 and asyncio.current_task() is request
        await give_way(delay)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", counted)
        answer = await server.response("GET", target, headers=[("accept", accept)])
    assert answer.status == 200
    pieces, size = in_pieces(answer.body)
    made = list(pieces)
    assert size == sum(map(len, made)), "Content-Length"
    return b"".join(made), len(made) if isinstance(answer.body, lists.StoredList | bytes) else turns


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("target", "accept"), FORMS)
def test_a_list_made_in_slices_has_the_bytes_of_one_made_in_one_go(target: str, accept: str, count: int) -> None:
    @in_server
    async def compare(server: Server) -> None:
        await filled(server, count)
        whole, few = await listed(server, target, accept)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kindcache, "SLICE_BYTES", 1)
            patch.setattr(lists, "SLICE_BYTES", 1)
            sliced, many = await listed(server, target, accept)
        assert sliced == whole
        if count == 5:
            assert many > few, "others have their turns while the list is made"
        if b"yaml" in accept.encode():
            document = yaml.safe_load(whole)
            assert len(document.get("items") or document.get("rows")) == count
        elif "protobuf" not in accept:
            assert isinstance(json.loads(whole), dict)

    compare()


@in_server
async def test_a_list_over_all_namespaces_may_select_a_name(server: Server) -> None:
    for namespace, name in (("default", "a"), ("kube-system", "a"), ("kube-system", "b")):
        await server.post(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": name}})
    body, _ = await listed(server, "/api/v1/configmaps?fieldSelector=metadata.name%3Da", "application/json")
    assert [one["metadata"]["namespace"] for one in json.loads(body)["items"]] == ["default", "kube-system"]


@in_server
async def test_an_empty_list_has_an_empty_list_of_members(server: Server) -> None:
    path = "/api/v1/namespaces/nowhere/configmaps"
    for accept, member in (("application/json", "items"), (TABLE, "rows"), ("application/yaml", "items")):
        body, _ = await listed(server, path, accept)
        assert yaml.safe_load(body)[member] == []
    indented, _ = await listed(server, path + "?pretty=1", "application/json")
    assert indented.endswith(b'  "items": []\n}\n')


@pytest.mark.parametrize("accept", ["application/yaml", "application/vnd.kubernetes.protobuf", TABLE])
@pytest.mark.parametrize(("size", "is_beside"), [(LONG_BYTES, True), (10, False)], ids=["large", "small"])
def test_large_objects_are_printed_beside_the_event_loop(accept: str, size: int, is_beside: bool) -> None:
    threads = set()

    def decoded(item: Stored) -> Obj:
        threads.add(threading.current_thread())
        return cast(Obj, msgspec.json.decode(item.raw))

    @in_server
    async def look(server: Server) -> None:
        assert (await server.post(PATH, {"metadata": {"name": "a"}, "data": {"key": "x" * size}})).status == 201
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stored, "obj", property(decoded))
            await listed(server, PATH, accept)

    look()
    assert (threading.main_thread() not in threads) == is_beside
