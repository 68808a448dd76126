"""One RBAC rule against one request.

Source: docs/protocol/rbac.md#evaluation.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes
from mooring.authz.rbac.authorizer import compile_rule, path_rule, rule
from mooring.identity import UserInfo

JANE = UserInfo("jane")


@pytest.mark.parametrize(
    ("granted", "asked", "allowed"),
    [
        pytest.param(rule("get", "", "pods"), {"resource": "pods"}, True, id="what is named is allowed"),
        pytest.param(rule("list", "", "pods"), {"resource": "pods"}, False, id="another verb is not"),
        pytest.param(rule("*", "", "pods"), {"resource": "pods"}, True, id="a star is any verb"),
        pytest.param(rule("get", "apps", "pods"), {"resource": "pods"}, False, id="another group is not"),
        pytest.param(rule("get", "*", "pods"), {"resource": "pods", "group": "x"}, True, id="a star is any group"),
        pytest.param(rule("get", ",apps", "pods"), {"resource": "pods"}, True, id="the core group among others"),
        pytest.param(
            rule("get", "", "pods"), {"resource": "pods", "subresource": "log"}, False, id="pods is not pods/log"
        ),
        pytest.param(
            rule("get", "", "pods/log"), {"resource": "pods", "subresource": "log"}, True, id="pods/log is pods/log"
        ),
        pytest.param(rule("get", "", "pods/log"), {"resource": "pods"}, False, id="pods/log is not pods"),
        pytest.param(
            rule("get", "", "*"), {"resource": "pods", "subresource": "log"}, True, id="a star is any subresource"
        ),
        pytest.param(
            rule("get", "", "*/scale"), {"resource": "x", "subresource": "scale"}, True, id="star slash scale"
        ),
        pytest.param(rule("get", "", "*/scale"), {"resource": "x"}, False, id="star slash scale is no resource"),
        pytest.param(
            rule("get", "", "pods/*"), {"resource": "pods", "subresource": "log"}, False, id="pods/* is no pattern"
        ),
        pytest.param(rule("get", "", "pods", "a,b"), {"resource": "pods", "name": "b"}, True, id="a listed name"),
        pytest.param(rule("get", "", "pods", "a"), {"resource": "pods", "name": "c"}, False, id="an unlisted name"),
        pytest.param(
            rule("create", "", "pods", "a"),
            {"resource": "pods", "verb": "create"},
            False,
            id="names never match create",
        ),
        pytest.param(path_rule("get", "/healthz"), {"path": "/healthz"}, True, id="a path"),
        pytest.param(path_rule("get", "/healthz"), {"path": "/healthz/"}, False, id="a path with a slash is another"),
        pytest.param(path_rule("get", "/api/*"), {"path": "/api/v1"}, True, id="a prefix"),
        pytest.param(path_rule("get", "/api/*"), {"path": "/api"}, False, id="a prefix ends with its slash"),
        pytest.param(path_rule("get", "*"), {"path": "/x"}, True, id="a star is any path"),
        pytest.param(path_rule("get", "/a*b"), {"path": "/axb"}, False, id="a star within is no pattern"),
        pytest.param(path_rule("*", "/x"), {"path": "/x", "verb": "post"}, True, id="any method"),
        pytest.param(path_rule("get", "*"), {"resource": "pods"}, False, id="a path rule grants no resource"),
        pytest.param(rule("*", "*", "*"), {"path": "/x"}, False, id="a resource rule grants no path"),
        pytest.param({}, {"resource": "pods"}, False, id="an empty rule grants nothing"),
    ],
)
def test_a_rule_allows_a_request(granted: Obj, asked: dict[str, str], allowed: bool) -> None:
    attributes = Attributes(user=JANE, **{"verb": "get", **asked})
    assert compile_rule(granted).allows(attributes) is allowed
