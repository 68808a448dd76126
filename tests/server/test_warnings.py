"""Test warnings of kinds about accepted objects: Warning headers.

Source: docs/protocol/errors.md, docs/protocol/secrets-and-configmaps.md.
"""

from __future__ import annotations

import json

from tests.support.serverroom import Server, in_server

SECRETS = "/api/v1/namespaces/default/secrets"
NO_PAIR = ['299 - "tls: failed to find any PEM data in certificate input"']


@in_server
async def test_every_way_to_write_an_object_warns(server: Server) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a"},
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": "", "tls.key": ""},
    }
    applied = {"body": json.dumps(body).encode(), "content_type": "application/apply-patch+yaml"}
    merged = {"body": {"metadata": {"labels": {"a": "b"}}}, "content_type": "application/merge-patch+json"}
    answers = [
        await server.post(SECRETS, body),
        await server.call("PUT", f"{SECRETS}/a", body=body),
        await server.call("PATCH", f"{SECRETS}/a", **merged),
        await server.call("PATCH", f"{SECRETS}/a?fieldManager=m", **applied),
    ]
    assert [answer.status for answer in answers] == [201, 200, 200, 200]
    assert [answer.warnings for answer in answers] == [NO_PAIR] * 4
    assert (await server.get(f"{SECRETS}/a")).warnings == []


@in_server
async def test_every_answer_about_a_deprecated_kind_says_so_once(server: Server) -> None:
    path = "/api/v1/namespaces/default/endpoints"
    body = {"metadata": {"name": "a"}, "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "unknown": 1}]}
    deprecated = '299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"'
    unknown = '299 - "unknown field \\"subsets[0].unknown\\""'
    assert (await server.post(path, body)).warnings == [deprecated, unknown]
    for method, where in (("GET", path), ("GET", f"{path}/a"), ("DELETE", f"{path}/a"), ("GET", f"{path}/a")):
        assert (await server.call(method, where)).warnings == [deprecated]


@in_server
async def test_an_update_is_judged_beside_what_it_replaces(server: Server) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts"
    meta = {"name": "a", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}
    assert len((await server.post(path, {"metadata": meta})).warnings) == 1
    assert (await server.call("PUT", f"{path}/a", body={"metadata": meta})).warnings == []
