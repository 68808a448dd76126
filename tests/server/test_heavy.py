"""Test expensive requests: long queries before authentication, and large objects beside the event loop."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.registry.offload import LONG_BYTES
from mooring.server.pipeline import MAX_JOIN_BODY
from mooring.server.transport import httpgrammar
from tests.support.serverroom import Server, connection, in_server
from tests.support.work import work

LONG_QUERY = "fieldSelector=" + "a%3Db," * 5_000


@in_server
async def test_a_long_query_is_not_parsed_before_authentication(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def parse_query(raw: bytes) -> dict[str, list[str]]:
        parsed.append(raw)
        return {}

    monkeypatch.setattr(httpgrammar, "parse_query", parse_query)
    refused = await server.get(f"/api/v1/secrets?{LONG_QUERY}", token="wrong", via=connection())
    assert (refused.status, parsed) == (401, [])


@in_server
async def test_a_long_selector_is_a_bad_request_and_its_query_is_parsed_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    before = httpgrammar.parse_query

    def parse_query(raw: bytes) -> dict[str, list[str]]:
        parsed.append(raw)
        return before(raw)

    monkeypatch.setattr(httpgrammar, "parse_query", parse_query)
    refused = await server.get(f"/api/v1/secrets?{LONG_QUERY}")
    assert (refused.status, refused.message) == (
        400,
        "a selector may have at most 16384 characters; select in several requests",
    )
    assert len(parsed) == 1


def role(rules: int, name: str = "large") -> Obj:
    """Return a Role with 70 bytes and 7 values for each rule."""
    rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    metadata = {"name": name, "namespace": "default"}
    return {
        "kind": "Role",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": metadata,
        "rules": [{**rule, "resourceNames": [f"x{index}"]} for index in range(rules)],
    }


ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
YAML = [("Accept", "application/yaml")]
PROTOBUF = [("Accept", "application/vnd.kubernetes.protobuf")]
TABLE = [("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]
LARGE = json.dumps(role(4_000)).encode()

Call = tuple[str, str, dict[str, Any]]


def patch(kind: str, value: Any, **query: str) -> Call:
    text = "&".join(f"{name}={said}" for name, said in query.items())
    how = {"body": json.dumps(value).encode(), "content_type": f"application/{kind}"}
    return "PATCH", f"{ROLES}/large?{text}", how


HEAVY: dict[str, Call] = {
    "a create": ("POST", ROLES, {"body": json.dumps(role(4_000, "other")).encode()}),
    "an update": ("PUT", f"{ROLES}/large", {"body": json.dumps(role(4_001)).encode()}),
    "a merge patch": patch("merge-patch+json", {"metadata": {"labels": {"a": "b"}}}),
    "a strategic merge patch": patch("strategic-merge-patch+json", {"metadata": {"labels": {"a": "b"}}}),
    "a JSON patch": patch("json-patch+json", [{"op": "remove", "path": "/rules/0"}]),
    "an apply": patch("apply-patch+yaml", role(4_000), fieldManager="me", force="true"),
    "YAML": ("GET", f"{ROLES}/large", {"headers": YAML}),
    "protobuf": ("GET", f"{ROLES}/large", {"headers": PROTOBUF}),
    "a Table": ("GET", f"{ROLES}/large?includeObject=Object", {"headers": TABLE}),
    "delete options": (
        "DELETE",
        f"{ROLES}/large",
        {"body": json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "x": [{}] * 10_000}).encode()},
    ),
    "a review": (
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "body": json.dumps(
                {"spec": {"user": "u", "groups": ["g"] * 10_000, "nonResourceAttributes": {"path": "/", "verb": "get"}}}
            ).encode()
        },
    ),
}


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in HEAVY.items()])
@in_server
async def test_others_are_answered_while_a_heavy_request_is_computed(
    server: Server, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await server.call("POST", ROLES, body=LARGE)
    assert created.status == 201, created.text
    longest = server.registry.long_work
    answered_during: list[int] = []
    answered = 0
    run = longest.run

    async def counted(size: int, user: str, compute: Callable[[], Any]) -> Any:
        """Let the thread begin only when another request was answered while this one waits."""
        if size <= LONG_BYTES:
            return await run(size, user, compute)
        before, others = answered, threading.Event()

        def held() -> Any:
            assert others.wait(60), "no other request was answered meanwhile"
            return compute()

        computed = asyncio.ensure_future(run(size, user, held))
        while answered < before + 3:
            await asyncio.sleep(0)
        others.set()
        result = await computed
        answered_during.append(answered - before)
        return result

    monkeypatch.setattr(longest, "run", counted)
    method, target, how = call
    heavy = asyncio.ensure_future(server.call(method, target, **how))
    while not heavy.done():
        assert (await server.get("/readyz")).status == 200
        answered += 1
        await asyncio.sleep(0)
    reply = await heavy
    assert reply.status in (200, 201), reply.text[:500]
    assert answered_during, "it was computed on the loop"


STEPS = 200_000
"""Lines and calls of Python, some 50 ms."""
ALIASED = (
    "kind: Role\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: grown, namespace: default}\n"
    "rules: [&a {apiGroups: [a, b, c], resources: [pods, nodes, secrets], verbs: [get]}" + ", *a" * 2000 + "]\n"
).encode()
ELEMENT = {"uid": "u", **{f"u{index}": 1 for index in range(600)}}
GROWING: dict[str, tuple[int, Call]] = {
    "aliases in an apply": (
        201,
        ("PATCH", f"{ROLES}/grown?fieldManager=me", {"body": ALIASED, "content_type": "application/apply-patch+yaml"}),
    ),
    "aliases in a create": (201, ("POST", ROLES, {"body": ALIASED, "content_type": "application/yaml"})),
    "aliases in a review": (
        201,
        (
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {
                "body": b"spec: {user: u, nonResourceAttributes: {path: /, verb: get}, extra: {a: &a [x"
                + b",x" * 1000
                + b"]"
                + b"".join(b", a%d: *a" % index for index in range(50))
                + b"}}",
                "content_type": "application/yaml",
            },
        ),
    ),
    "copies": (
        200,
        patch(
            "json-patch+json",
            [{"op": "add", "path": "/x", "value": [[]] * 1_000}, *[{"op": "copy", "from": "/x", "path": "/x/-"}] * 6],
        ),
    ),
    "repeated elements": (
        422,
        patch("strategic-merge-patch+json", {"metadata": {"ownerReferences": [ELEMENT, *[{"uid": "u"}] * 300]}}),
    ),
}


@pytest.mark.parametrize(("status", "call"), [pytest.param(*case, id=name) for name, case in GROWING.items()])
@in_server
async def test_a_small_body_that_grows_is_computed_beside_the_loop(
    server: Server, status: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await server.call("POST", ROLES, body=role(1))).status == 201
    run = server.registry.long_work.run
    on_loop: list[int] = []

    async def counted(size: int, user: str, compute: Callable[[], Any]) -> Any:
        if size > LONG_BYTES:
            return await run(size, user, compute)
        results: list[Any] = []
        on_loop.append(work(lambda: results.append(compute())))
        return results[0] if results else compute()

    monkeypatch.setattr(server.registry.long_work, "run", counted)
    method, target, how = call
    assert len(how["body"]) < LONG_BYTES
    reply = await server.call(method, target, **how)
    assert (reply.status, sum(on_loop) < STEPS) == (status, True), (reply.text[:300], on_loop)


REQUIREMENTS = [{"key": f"k{index}", "operator": "In", "values": ["a"]} for index in range(2_000)]


@pytest.mark.parametrize("kind", ["selfsubjectaccessreviews", "subjectaccessreviews"])
@pytest.mark.parametrize("selector", ["labelSelector", "fieldSelector"])
@in_server
async def test_a_long_selector_of_a_review_is_parsed_beside_the_loop(server: Server, kind: str, selector: str) -> None:
    attributes = {"verb": "list", "resource": "pods", selector: {"requirements": REQUIREMENTS}}
    body = {"spec": {"resourceAttributes": attributes} | ({"user": "u"} if kind[:4] != "self" else {})}
    await server.call(
        "POST", f"/apis/authorization.k8s.io/v1/{kind}", body={"spec": {"resourceAttributes": {}, "user": "u"}}
    )
    on_loop = 0

    def trace(*_: object) -> Callable[..., Any]:
        nonlocal on_loop
        on_loop += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # of this thread, which runs the loop
    try:
        reply = await server.call("POST", f"/apis/authorization.k8s.io/v1/{kind}", body=body)
    finally:
        sys.settrace(before)
    assert (reply.status, on_loop < STEPS // 10) == (201, True), (reply.text[:300], on_loop)


@in_server
async def test_small_requests_are_computed_on_the_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a small request needs no thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    assert (await server.call("POST", ROLES, body=role(10))).status == 201
    assert (await server.call(*HEAVY["a merge patch"][:2], **HEAVY["a merge patch"][2])).status == 200


@pytest.mark.parametrize("as_bootstrapper", [True, False])
@in_server
async def test_a_join_token_sends_small_bodies_only(server: Server, as_bootstrapper: bool) -> None:
    token = await server.bootstrap_token()
    body = b'{"spec":{"x":"' + b"A" * MAX_JOIN_BODY + b'"}}'
    how: dict[str, Any] = {"token": token} if as_bootstrapper else {"via": server.user("jane", "system:masters")}
    refused = await server.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body, **how)
    assert (refused.status == 413) is as_bootstrapper
    if as_bootstrapper:
        assert refused.message == f"Request entity too large: limit is {MAX_JOIN_BODY}"
