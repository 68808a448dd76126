"""What a kind has to say about an object that it takes all the same: Warning headers (reference/kubernetes.md 7.5, 7.16)."""

from __future__ import annotations

import json

from tests.support.serverroom import Server, in_server

SECRETS = "/api/v1/namespaces/default/secrets"
NO_PAIR = ['299 - "tls: the text holds no public key in PEM form"']


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
