"""Request info: verb, resource, namespace and name of requests.

Source: docs/protocol/requests.md#attributes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.requestinfo import RequestInfo, parse_request
from mooring.errors import ApiError, BadRequestError


def said(info: RequestInfo) -> str:
    """verb group/version resource/subresource namespace name, with - for nothing."""
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    return " ".join(
        text or "-" for text in (info.verb, f"{info.group}/{info.version}", resource, info.namespace, info.name)
    )


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/namespaces/x/secrets/y", "get /v1 secrets x y"),
        ("HEAD", "/api/v1/namespaces/x/secrets/y", "get /v1 secrets x y"),
        ("GET", "/api/v1/namespaces/x/secrets", "list /v1 secrets x -"),
        ("GET", "/api/v1/namespaces/x/secrets/", "list /v1 secrets x -"),
        ("HEAD", "/api/v1/secrets", "list /v1 secrets - -"),
        ("POST", "/api/v1/namespaces/x/secrets", "create /v1 secrets x -"),
        ("PUT", "/api/v1/namespaces/x/secrets/y", "update /v1 secrets x y"),
        ("PATCH", "/api/v1/namespaces/x/secrets/y", "patch /v1 secrets x y"),
        ("DELETE", "/api/v1/namespaces/x/secrets/y", "delete /v1 secrets x y"),
        ("DELETE", "/api/v1/namespaces/x/secrets", "deletecollection /v1 secrets x -"),
        ("OPTIONS", "/api/v1/nodes/n", "- /v1 nodes - n"),
        ("get", "/api/v1/nodes/n", "- /v1 nodes - n"),
        ("GET", "/api/v1/nodes/n/status", "get /v1 nodes/status - n"),
        ("GET", "/api/v1/nodes/n/proxy/metrics", "get /v1 nodes/proxy - n"),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/a",
            "get rbac.authorization.k8s.io/v1 clusterroles - a",
        ),
        ("GET", "/apis/apps/v1/namespaces/x/deployments", "list apps/v1 deployments x -"),
        ("POST", "/api/v1/namespaces/x/serviceaccounts/s/token", "create /v1 serviceaccounts/token x s"),
        ("GET", "/api/v1/namespaces", "list /v1 namespaces - -"),
        ("POST", "/api/v1/namespaces", "create /v1 namespaces - -"),
        ("GET", "/api/v1/namespaces/x", "get /v1 namespaces x x"),
        ("DELETE", "/api/v1/namespaces/x", "delete /v1 namespaces x x"),
        ("PUT", "/api/v1/namespaces/x/status", "update /v1 namespaces/status x x"),
        ("PUT", "/api/v1/namespaces/x/finalize", "update /v1 namespaces/finalize x x"),
        ("GET", "/api/v1/namespaces/x/namespaces", "list /v1 namespaces x -"),
        ("GET", "/api/v1/watch/namespaces/x/secrets", "watch /v1 secrets x -"),
        ("GET", "/api/v1/watch/secrets", "watch /v1 secrets - -"),
        ("GET", "/api/v1/watch/namespaces/x/secrets/y", "watch /v1 secrets x y"),
        ("GET", "/api/v1/proxy/namespaces/x/pods/y/log", "proxy /v1 pods x y"),
        ("GET", "/api/v1/namespaces//secrets", "list /v1 secrets - -"),
        ("GET", "/api//secrets", "list / secrets - -"),
        ("GET", "//api/v1/secrets", "list /v1 secrets - -"),
        ("GET", "/apis//v1/secrets/y", "get /v1 secrets - y"),
    ],
)
def test_a_path_of_an_api_is_a_resource_request(method: str, path: str, expected: str) -> None:
    info = parse_request(method, path, {})
    assert info.is_resource
    assert said(info) == expected
    assert info.path == path


@pytest.mark.parametrize(
    ("method", "path", "verb"),
    [
        ("GET", "/", "get"),
        ("GET", "", "get"),
        ("GET", "/api", "get"),
        ("GET", "/api/v1", "get"),
        ("GET", "/api/v1/", "get"),
        ("GET", "/apis", "get"),
        ("GET", "/apis/apps", "get"),
        ("GET", "/apis/apps/v1", "get"),
        ("POST", "/healthz", "post"),
        ("GET", "/openapi/v3/apis/apps/v1", "get"),
        ("DELETE", "/API/v1/secrets", "delete"),
        ("GET", "/api/v1//x", "get"),
        ("GET", "/api/v1/namespaces/x//y", "get"),
    ],
)
def test_any_other_path_is_a_non_resource_request(method: str, path: str, verb: str) -> None:
    assert parse_request(method, path, {"watch": ["1"]}) == RequestInfo(verb, False, path)


@pytest.mark.parametrize(
    ("values", "verb"),
    [(["true"], "watch"), (["True"], "watch"), (["1"], "watch"), ([""], "watch"), (["x"], "watch"), (["true", "false"], "watch"),
     (["false"], "list"), (["FALSE"], "list"), (["0"], "list"), ([], "list")],
)  # fmt: skip
def test_the_watch_parameter_is_true_unless_false_or_0(values: list[str], verb: str) -> None:
    assert parse_request("GET", "/api/v1/secrets", {"watch": values}).verb == verb


@pytest.mark.parametrize(
    ("method", "selector", "verb", "name"),
    [
        ("GET", "metadata.name=x", "list", "x"),
        ("GET", "type=a,metadata.name==x", "list", "x"),
        ("GET", "metadata.name!=x", "list", ""),
        ("GET", "metadata.namespace=x", "list", ""),
        ("GET", "metadata.name=..", "list", ""),
        ("GET", "metadata.name=a/b", "list", ""),
        ("GET", "broken", "list", ""),
        ("DELETE", "metadata.name=x", "deletecollection", ""),
    ],
)
def test_a_field_selector_names_the_object_of_a_list_only(method: str, selector: str, verb: str, name: str) -> None:
    info = parse_request(method, "/api/v1/namespaces/n/secrets", {"fieldSelector": [selector]})
    assert (info.verb, info.name) == (verb, name)


def test_a_field_selector_names_the_object_of_a_watch() -> None:
    info = parse_request("GET", "/api/v1/secrets", {"watch": ["true"], "fieldSelector": ["metadata.name=x"]})
    assert (info.verb, info.name) == ("watch", "x")


def test_a_field_selector_never_renames_a_named_object() -> None:
    info = parse_request("GET", "/api/v1/nodes/a", {"watch": ["1"], "fieldSelector": ["metadata.name=b"]})
    assert (info.verb, info.name) == ("get", "a")


def test_the_parts_begin_with_the_resource() -> None:
    info = parse_request("GET", "/apis/apps/v1/namespaces/x/pods/y/log/z", {})
    assert (info.prefix, info.parts) == ("apis", ("pods", "y", "log", "z"))


@pytest.mark.parametrize("path", ["/api/v1/watch", "/apis/apps/v1/proxy/"])
def test_a_verb_in_the_path_needs_a_resource(path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse_request("GET", path, {})
    assert str(caught.value) == f"unable to determine kind and namespace from url, {path}"


SEGMENTS = st.sampled_from(
    ["api", "apis", "v1", "watch", "proxy", "namespaces", "x", "secrets", "status", "", "..", "%2f", "é"]
)


@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", ""]),
    st.lists(SEGMENTS, max_size=9).map("/".join),
    st.dictionaries(st.sampled_from(["watch", "fieldSelector"]), st.lists(st.text(max_size=20), max_size=2)),
)
def test_no_request_is_more_than_refused(method: str, path: str, query: dict[str, list[str]]) -> None:
    try:
        info = parse_request(method, path, query)
    except ApiError:
        return
    assert info.is_resource == bool(info.resource)
    assert info.version or not info.canonical


@pytest.mark.parametrize(
    ("path", "canonical"),
    [
        ("/api/v1/secrets", True),
        ("/api/v1/secrets/", True),
        ("/api/v1/namespaces//secrets", True),
        ("/apis/apps/v1/deployments", True),
        ("//api/v1/secrets", False),
        ("api/v1/secrets", False),
        ("///apis/apps/v1/deployments", False),
        ("/apis//v1/secrets", False),
        ("/apis//v1/namespaces/x/secrets/y", False),
        ("/api//secrets", False),
        ("api//api", False),
        ("/api//api", False),
        ("/apis/apps//deployments", False),
    ],
)
def test_only_one_form_of_a_path_is_canonical(path: str, canonical: bool) -> None:
    info = parse_request("GET", path, {})
    assert info.is_resource
    assert info.canonical is canonical


@pytest.mark.parametrize(
    ("path", "verb_in_path"),
    [
        ("/api/v1/watch/pods/p", True),
        ("/api/v1/proxy/nodes/n", True),
        ("/api/v1/pods", False),
        ("/api/v1/pods/watch", False),
    ],
)
def test_a_verb_may_come_from_the_path(path: str, verb_in_path: bool) -> None:
    assert parse_request("GET", path, {}).verb_in_path is verb_in_path
