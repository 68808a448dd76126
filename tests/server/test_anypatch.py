"""Test that any change of any kind is either a client error, or is stored and readable in every form.

Rules kept here (docs/protocol/patches.md, docs/protocol/requests.md#options):
* No body of a JSON patch, merge patch, strategic merge patch, apply or update is answered with a code of 500 or more.
* What came of it is what a client can send back: strictly, and changing nothing, in JSON; and readable in protobuf.
* What was applied, applied again, changes nothing.

Bodies are made from the kind's own schema, so that most of what is in them is understood, and each is spoiled in places.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.apimachinery.schema import MapOf, Message, Obj, Scalar, Type
from mooring.errors import qualified
from mooring.pki.keys import generate_key
from mooring.trust.issuancelog import START, IssuanceLogKey, new_record
from tests.support.examples import one_in
from tests.support.podrequests import spec_of_pod
from tests.support.serverroom import Server, encoded, open_server
from tests.support.testca import ThrowawayCA, node_request

SMP = "strategic-merge-patch+json"
OPEN_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
MAX_DEPTH = 7
PROTOBUF = "application/vnd.kubernetes.protobuf"
RBAC = {"apiGroup": "rbac.authorization.k8s.io"}
POD = {
    "containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "1"}]}],
    "serviceAccountName": "default",
}
ISSUED = {"time": "2026-01-01T00:00:00Z", "event": "Issued", "notAfter": "2026-06-01T00:00:00Z"}
RECORD = new_record(
    START,
    (ISSUED,),
    IssuanceLogKey(generate_key()),
)[0]
REGARDING = {"kind": "Pod", "name": "p", "namespace": "default"}
EVENT = {"eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "a.b/c", "reportingInstance": "i"}
BODIES: dict[str, Obj] = {
    "configmaps": {"data": {"a": "b"}, "binaryData": {"c": "AA=="}},
    "secrets": {"data": {"a": "Yg=="}},
    "serviceaccounts": {"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "b"}]},
    "namespaces": {},
    "nodes": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "pods": {"spec": POD},
    "podtemplates": {"template": {"spec": POD}},
    "services": {"spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}], "selector": {"a": "b"}}},
    "endpoints": {"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 1}]}]},
    "endpointslices": {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 1}]},
    "events": {"involvedObject": REGARDING, "reason": "r", "type": "Normal"},
    "events.events.k8s.io": {"regarding": REGARDING, "reason": "r", "type": "Normal", "action": "a", **EVENT},
    "leases": {"spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "roles": {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    "clusterroles": {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]},
    "rolebindings": {"roleRef": {**RBAC, "kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]},
    "clusterrolebindings": {"roleRef": {**RBAC, "kind": "ClusterRole", "name": "r"}},
    "authorizedmachines": {"spec": {"nodeName": "x"}},
    "certificaterevocations": {"spec": {"serialNumber": "1"}},
    "joinrules": {"spec": {"issuer": {"url": "https://id.example"}, "claims": [{"claim": "sub", "value": "x"}]}},
    "certificateauthorityrollovers": {"spec": {"phase": "TrustBoth"}},
    "clustertrustbundles": {"spec": {"trustBundle": ThrowawayCA().certificate_pem.decode()}},
    "clustertrustbundles.certificates.k8s.io": {"spec": {"trustBundle": ThrowawayCA().certificate_pem.decode()}},
    "podcertificaterequests": {"spec": spec_of_pod()},
    "podcertificaterequests.certificates.k8s.io": {"spec": spec_of_pod()},
    "lineagerecords": {"spec": RECORD["spec"]},
    "csinodes": {"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}},
    "certificatesigningrequests": {
        "spec": {
            "request": encoded(node_request("n")[0].decode()),
            "signerName": "example.com/s",
            "usages": ["client auth"],
        }
    },
}
NAMES = {
    "certificateauthorityrollovers": "cluster-ca",
    "certificaterevocations": "serial-1",
    "lineagerecords": RECORD["metadata"]["name"],
}
"""Names of objects whose kind prescribes them; others are `x`."""

TEXTS = st.sampled_from(
    ["", "a", "name", "TCP", "Ready", "True", "192.0.2.1", "x.io/y", "80", "..", "é\x00", "9" * 300]
)
LEAVES: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: TEXTS,
    Scalar.BOOL: st.booleans(),
    Scalar.INT32: st.sampled_from([-1, 0, 1, 80, 2**31]),
    Scalar.INT64: st.sampled_from([-1, 0, 1, 80, 2**63]),
    Scalar.BYTES: st.sampled_from(["", "AA==", "?"]),
    Scalar.TIME: st.sampled_from(["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9+14:00", "x"]),
    Scalar.MICRO_TIME: st.sampled_from(["2026-01-01T00:00:00.000001Z", "0001-01-01T00:00:00Z", "x"]),
    Scalar.QUANTITY: st.sampled_from(["1", "10m", "1e9Gi", -1]),
    Scalar.INT_OR_STRING: st.sampled_from([80, "http", 2**31]),
    Scalar.STRING_LIST: st.lists(TEXTS, max_size=2),
}
NONSENSE: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, 2**70, -1e300, "x", [], {}, [None], [{}], [[]], {"a": None}, {"$patch": "delete"}]
)
DIRECTIVES = st.sampled_from(
    [
        ("$patch", "delete"),
        ("$patch", "replace"),
        ("$patch", 1),
        ("$retainKeys", ["name"]),
        ("$retainKeys", None),
        ("$setElementOrder/containers", [{"name": "c"}]),
        ("$setElementOrder/ports", [None]),
        ("$deleteFromPrimitiveList/finalizers", ["x.io/y"]),
        ("unknown", {}),
    ]
)


Draw = Callable[..., Any]
"""`data.draw`. Strategies made of whole schemas would have reports of megabytes; what is drawn here is small."""


def part(draw: Draw, kind: Type, depth: int) -> Any:
    """Generate a value of a type, sometimes a wrong one."""
    if not draw(st.integers(0, 12)):
        return draw(NONSENSE)
    if isinstance(kind, Scalar):
        return draw(LEAVES.get(kind, NONSENSE))
    if isinstance(kind, Message):
        return message(draw, kind, depth)
    count = range(draw(st.integers(0, 2)))
    if isinstance(kind, MapOf):
        return {draw(st.sampled_from("ab")): part(draw, kind.value, depth + 1) for _ in count}
    return [part(draw, kind.item, depth + 1) for _ in count]


def message(draw: Draw, kind: Message, depth: int = 0) -> Obj:
    count = draw(st.integers(0, 3)) if depth < MAX_DEPTH else 0
    chosen = [kind.fields[draw(st.integers(0, len(kind.fields) - 1))] for _ in range(count) if kind.fields]
    value = {field.name: part(draw, field.type, depth + 1) for field in chosen}
    if not draw(st.integers(0, 9)):
        name, said = draw(DIRECTIVES)
        value[name] = said
    return value


def pointers(value: Any, prefix: str = "") -> list[str]:
    """JSON pointers to everything in an object."""
    found = [prefix]
    if isinstance(value, dict):
        for name, inner in value.items():
            found += pointers(inner, f"{prefix}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += pointers(inner, f"{prefix}/{index}")
        found.append(f"{prefix}/-")
    return found


def operation(draw: Draw, schema: Message, paths: list[str]) -> Obj:
    path, source = (draw(st.sampled_from(paths)) + draw(st.sampled_from(["", "", "/x", "/0"])) for _ in range(2))
    op = draw(st.sampled_from(["add", "replace", "test", "remove", "move", "copy", "other"]))
    return {"op": op, "path": path, "from": source, "value": part(draw, schema, 0)}


def whole(draw: Draw, kind: Kind, known: Obj) -> Obj:
    """Generate an object: a valid one with further fields."""
    resource = kind.resource
    obj: Obj = {**message(draw, resource.schema), "apiVersion": resource.api_version, "kind": resource.kind}
    for name, good in known.items():
        mixed = isinstance(good, dict) and isinstance(obj.get(name), dict) and draw(st.booleans())
        obj[name] = {**good, **obj[name]} if mixed else good
    metadata = obj["metadata"] if isinstance(obj.get("metadata"), dict) else {}
    told = {name: said for name, said in metadata.items() if name in OPEN_METADATA}
    return {**obj, "metadata": {**told, "name": NAMES.get(name_of(kind), "x")}}


def change(draw: Draw, kind: Kind, known: Obj, now: Obj) -> tuple[str, str, str, Any]:
    """Method, Content-Type, query and body of a request that changes the object."""
    how = draw(st.sampled_from(["json", "apply-patch+yaml", "json-patch+json", "merge-patch+json", SMP]))
    query = draw(st.sampled_from(["", "&dryRun=All", "&fieldValidation=Strict"]))
    if how == "json":
        return "PUT", how, query, whole(draw, kind, known)
    if how == "apply-patch+yaml":
        return "PATCH", how, f"&force={draw(st.booleans())}", whole(draw, kind, known)
    if how == "json-patch+json":
        paths = pointers(now)
        steps = range(draw(st.integers(1, 3)))
        return "PATCH", how, query, [operation(draw, kind.resource.schema, paths) for _ in steps]
    return "PATCH", how, query, message(draw, kind.resource.schema)


async def readable_and_settled(server: Server, target: str) -> None:
    """Assert that a stored object can be read in protobuf, and sent back without effect."""
    now = await server.get(target)
    assert (await server.response("GET", target, headers=[("Accept", PROTOBUF)])).status == 200
    again = await server.call("PUT", f"{target}?fieldValidation=Strict", body=now.body)
    assert (again.status, again.obj) == (200, now.obj)


async def changed_at_will(server: Server, kind: Kind, draw: Draw) -> None:
    known = BODIES.get(name_of(kind), {})
    collection = kind.resource.path("default" if kind.resource.namespaced else "")
    name = NAMES.get(name_of(kind), "x")
    target = f"{collection}/{name}"
    await server.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    reply = await server.post(collection, {"metadata": {"name": name}, **known})
    assert reply.status == 201, f"BODIES needs one for {name_of(kind)}: {reply.text}"
    subresources = ["", "", *(f"/{name}" for name in kind.subresources or () if name != "finalize")]
    for _ in range(draw(st.integers(1, 4))):
        now = await server.get(target)
        if now.status == 404:  # it lost its last finalizer
            return
        method, content, query, body = change(draw, kind, known, now.obj)
        path = f"{target}{draw(st.sampled_from(subresources))}?fieldManager=a{query}"
        send = partial(server.call, method, path, body=json.dumps(body).encode(), content_type=f"application/{content}")
        reply = await send()
        assert reply.status < 500, reply.text
        if reply.status < 300 and "dryRun" not in query and (await server.get(target)).status == 200:
            await readable_and_settled(server, target)
            if content == "apply-patch+yaml" and "stringData" not in body:
                assert (await send()).obj == (await server.get(target)).obj


def name_of(kind: Kind) -> str:
    return qualified(kind.resource.plural, kind.resource.group) if kind.alias else kind.resource.plural


STORED = [kind for kind in KINDS if "update" in kind.resource.verbs]


@pytest.mark.parametrize("kind", STORED, ids=name_of)
@one_in(10)
@given(data=st.data())
def test_no_change_is_an_internal_error_and_what_is_stored_can_be_read_and_sent_back(
    kind: Kind, data: st.DataObject
) -> None:
    async def body() -> None:
        async with open_server() as server:
            await changed_at_will(server, kind, data.draw)

    asyncio.run(body())
