"""Test paths that are not canonical: authorization and routing read them alike.

Source: docs/protocol/requests.md#attributes.
"""

from __future__ import annotations

import pytest

from mooring.server.transport.httpgrammar import parse_query, read_target
from tests.support.serverroom import Server, in_server

MAPS = "/api/v1/namespaces/kube-public/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        pytest.param("GET", f"{MAPS}/", 200, "", id="a slash at the end"),
        pytest.param("GET", f"{MAPS}//", 200, "", id="two slashes at the end"),
        pytest.param("GET", "/api/v1/namespaces//configmaps", 200, "", id="an empty namespace is every namespace"),
        pytest.param("GET", f"/{MAPS}", 404, "", id="two slashes before"),
        pytest.param("GET", f"//{MAPS}", 404, "", id="three slashes before"),
        pytest.param("POST", "//api/v1/namespaces", 404, "", id="two slashes before a create"),
        pytest.param("GET", f"/{ROLES}", 404, "", id="two slashes before a group's path"),
        pytest.param("GET", "/apis//v1/secrets", 404, "", id="an empty group is not the core group"),
        pytest.param("GET", "/apis//v1/namespaces/kube-public/configmaps", 404, "", id="nor in a namespace"),
        pytest.param(
            "GET", "/apis//rbac.authorization.k8s.io/v1/clusterroles", 404, "", id="an empty part before a group"
        ),
        pytest.param("GET", "/apis/rbac.authorization.k8s.io//clusterroles", 404, "", id="an empty version"),
        pytest.param("GET", "/api//secrets", 404, "", id="an empty version of the core group"),
        pytest.param("GET", f"{MAPS}//cluster-info", 404, "", id="an empty name before a name"),
        pytest.param("GET", "/api/v1/./namespaces", 404, "", id="a dot"),
        pytest.param("GET", "/api/v1/../v1/namespaces", 404, "", id="two dots"),
        pytest.param("GET", "/../api/v1/namespaces", 404, "", id="two dots before"),
        pytest.param("GET", f"{MAPS}/..", 400, "may not be '..'", id="a name of two dots"),
        pytest.param("GET", f"{MAPS}/.", 400, "Name parameter invalid: ", id="a name of one dot"),
        pytest.param("GET", f"{MAPS}/a%b", 400, "may not contain '%'", id="a percent sign in a name"),
        pytest.param("GET", "/healthz/", 404, "", id="a slash behind an exact path"),
        pytest.param("GET", "/metrics/", 404, "", id="a slash behind the metrics"),
        pytest.param("GET", "//healthz", 404, "", id="two slashes before the health check"),
        pytest.param("GET", "/version//", 200, "", id="slashes behind the version"),
        pytest.param("GET", "/apis//", 404, "", id="slashes behind the list of groups"),
    ],
)
@in_server
async def test_an_administrator_asks(server: Server, method: str, path: str, status: int, message: str) -> None:
    reply = await server.call(method, path, body={"metadata": {"name": "x"}} if method == "POST" else None)
    assert reply.status == status, reply.text
    assert message in reply.text


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("//api/v1/secrets", "secrets"),
        ("/apis//v1/secrets", "secrets"),
        ("/api//secrets", "secrets"),
        ("/apis//v1/namespaces/default/configmaps", "configmaps"),
        (f"/{ROLES}", "clusterroles.rbac.authorization.k8s.io"),
    ],
)
@in_server
async def test_another_user_is_refused_by_the_authorizer_and_learns_nothing(
    server: Server, path: str, resource: str
) -> None:
    reply = await server.get(path, via=server.user("bob"))
    assert (reply.status, reply.message.partition(" ")[0]) == (403, resource)


@in_server
async def test_a_verb_in_the_path_brings_no_selector(server: Server) -> None:
    """Test that a node may watch Pods selected by its own name, but not by a selector that this form of watch ignores."""
    node = server.user("system:node:n1", "system:nodes")
    selector = "fieldSelector=spec.nodeName%3Dn1"
    refused = await server.get(f"/api/v1/watch/namespaces/default/pods/p?{selector}", via=node)
    assert refused.status == 403
    listed = await server.get(f"/api/v1/pods?{selector}", via=node)
    assert listed.status == 200


@pytest.mark.parametrize(
    ("target", "message"),
    [
        pytest.param(f"{ROLES}/M\udcfcller", "the path of the request is not UTF-8", id="a name in Latin-1"),
        pytest.param(f"{ROLES}/\udced\udca0\udc80", "the path of the request is not UTF-8", id="a surrogate in UTF-8"),
        pytest.param("/healthz/M\udcfcller", "the path of the request is not UTF-8", id="a path that is no object"),
        pytest.param(f"{ROLES}?fieldSelector=metadata.name%3DM%FCller", "the query string is not UTF-8", id="a query"),
        pytest.param(f"{ROLES}?a=%C3", "the query string is not UTF-8", id="half a letter in a query"),
    ],
)
@in_server
async def test_a_name_that_is_not_utf8_is_refused_before_it_is_compared(
    server: Server, target: str, message: str
) -> None:
    reply = await server.call("GET", target)
    assert (reply.status, reply.obj["message"]) == (400, message)


def test_a_target_is_read_without_loss() -> None:
    assert read_target(b"/a/M%FCller") == ("/a/M\udcfcller", b"")
    assert read_target(b"/a/M%C3%BCller") == ("/a/Müller", b"")
    assert parse_query("a=ü&b=%C3%BC".encode()) == {"a": ["ü"], "b": ["ü"]}
