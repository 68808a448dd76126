"""TokenRequest.

Source: docs/protocol/service-account-tokens.md#tokenrequest.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.api.reviews import default, validate
from mooring.api.view import FixedView, View
from mooring.apimachinery.schema import Obj
from mooring.authn.credentials import Credentials
from mooring.authn.serviceaccount import Issued, ServiceAccountAuthenticator, TokenIssuance, issue
from mooring.authn.verdict import Accepted
from mooring.clock import rfc3339
from mooring.errors import ApiError, BadRequestError, ConflictError, InvalidError, NotFoundError
from mooring.pki.jwt.keyset import key_set_of
from mooring.pki.jwt.token import TokenSigner, decode_unverified
from mooring.pki.keys import generate_key
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ISSUER = "https://mooring.example"
SIGNER = TokenSigner(generate_key(), ISSUER)
ISSUANCE = TokenIssuance(now=NOW, token_id="id-1", audiences=("api",))


def obj(name: str, uid: str, spec: Obj | None = None, namespace: str = "ns") -> Obj:
    return {"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": spec or {}}


VIEWS: dict[str, View] = {
    "serviceaccounts": FixedView([obj("sa", "sa-uid")]),
    "secrets": FixedView([obj("s", "s-uid")]),
    "nodes": FixedView([{"metadata": {"name": "n", "uid": "n-uid"}}]),
    "pods": FixedView(
        [
            obj("p", "p-uid", {"serviceAccountName": "sa", "nodeName": "n"}),
            obj("lost", "l-uid", {"serviceAccountName": "sa", "nodeName": "gone"}),
            obj("unscheduled", "u-uid", {"serviceAccountName": "sa"}),
            obj("other", "o-uid", {"serviceAccountName": "default"}),
        ]
    ),
}


def issued(
    spec: Obj | None = None, metadata: Obj | None = None, views: dict[str, View] = VIEWS, name: str = "sa", **more: Any
) -> Issued:
    issuance = TokenIssuance(now=NOW, token_id="id-1", audiences=("api",), **more)
    request: Obj = {"spec": dict(spec or {})}
    default(request)
    assert validate(request) == []
    if metadata is not None:
        request["metadata"] = metadata
    return issue(request, "ns", name, views, SIGNER, issuance)


def claims(found: Issued) -> dict[str, Any]:
    return decode_unverified(found.response["status"]["token"])[1]


def test_an_empty_request_gets_an_hour_for_the_servers_audiences() -> None:
    found = issued()
    start = int(NOW.timestamp())
    assert claims(found) == {
        "iss": ISSUER,
        "sub": "system:serviceaccount:ns:sa",
        "aud": ["api"],
        "exp": start + 3600,
        "iat": start,
        "nbf": start,
        "jti": "id-1",
        "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "sa", "uid": "sa-uid"}},
    }
    response = dict(found.response)
    assert response["status"].pop("token")
    assert response == {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": "sa", "namespace": "ns", "uid": "sa-uid", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"audiences": ["api"], "expirationSeconds": 3600},
        "status": {"expirationTimestamp": "2026-01-01T01:00:00Z"},
    }
    assert (found.credential_id, found.warnings) == ("JTI=id-1", ())


def test_what_is_issued_is_accepted() -> None:
    token = issued({"audiences": ["vault"]}).response["status"]["token"]
    by = ServiceAccountAuthenticator((ISSUER,), key_set_of([SIGNER.public_key]))
    verdict = by.authenticate(Credentials(bearer=Secret(token)), VIEWS, NOW, ("vault",))
    assert isinstance(verdict, Accepted)
    assert verdict.user.username == "system:serviceaccount:ns:sa"


@pytest.mark.parametrize("seconds", [600, 1 << 32], ids=["the shortest", "the longest"])
def test_the_life_asked_for(seconds: int) -> None:
    made = claims(issued({"expirationSeconds": seconds}))
    assert made["exp"] - made["iat"] == seconds


def test_a_life_longer_than_the_server_allows_is_shortened_with_a_warning() -> None:
    found = issued({"expirationSeconds": 7200}, max_seconds=3600)
    assert found.response["spec"]["expirationSeconds"] == 3600
    assert found.warnings == ("requested expiration of 7200 seconds shortened to 3600 seconds",)
    assert issued({"expirationSeconds": 3600}, max_seconds=3600).warnings == ()


YEAR = 365 * 24 * 3600
OF_POD = {"kind": "Pod", "name": "p"}


@pytest.mark.parametrize(
    ("spec", "more", "life"),
    [
        pytest.param({}, {}, YEAR, id="for the API by default"),
        pytest.param({"audiences": ["api"]}, {}, YEAR, id="for the API by name"),
        pytest.param({"audiences": ["api"]}, {"max_seconds": YEAR}, YEAR, id="as long as the server allows"),
        pytest.param({}, {"max_seconds": 7200}, 7200, id="no longer than the server allows"),
        pytest.param({"audiences": ["api", "mesh"]}, {}, None, id="for somebody else as well"),
        pytest.param({"audiences": ["mesh"]}, {}, None, id="for somebody else"),
        pytest.param({"expirationSeconds": 3606}, {}, None, id="for a second less"),
        pytest.param({"expirationSeconds": 3608}, {}, None, id="for a second more"),
        pytest.param({"boundObjectRef": {"kind": "Secret", "name": "s"}}, {}, None, id="bound to a Secret"),
        pytest.param({"boundObjectRef": {"kind": "Node", "name": "n"}}, {}, None, id="bound to a Node"),
        pytest.param({"boundObjectRef": None}, {}, None, id="bound to nothing"),
        pytest.param({}, {"extend": False}, None, id="on a server that extends nothing"),
    ],
)
def test_a_token_that_nobody_asked_for_lives_a_year(spec: Obj, more: dict[str, Any], life: int | None) -> None:
    whole = {"boundObjectRef": OF_POD, "expirationSeconds": 3607, **spec}
    found = issued(whole, **{"extend": True, **more})
    made, seconds = claims(found), whole["expirationSeconds"]
    assert made["exp"] - made["iat"] == (life or seconds)
    assert made["kubernetes.io"].get("warnafter") == (made["iat"] + 3607 if life else None)
    assert found.response["spec"]["expirationSeconds"] == seconds
    assert found.response["status"]["expirationTimestamp"] == rfc3339(NOW + timedelta(seconds=seconds))
    assert found.warnings == ()


def test_a_life_that_was_shortened_is_not_extended() -> None:
    made = claims(issued({"boundObjectRef": OF_POD, "expirationSeconds": 3607}, extend=True, max_seconds=3600))
    assert made["exp"] - made["iat"] == 3600
    assert "warnafter" not in made["kubernetes.io"]


@pytest.mark.parametrize(
    ("reference", "bound"),
    [
        pytest.param({"kind": "Secret", "name": "s"}, {"secret": {"name": "s", "uid": "s-uid"}}, id="a Secret"),
        pytest.param(
            {"kind": "Node", "apiVersion": "v1", "name": "n", "uid": "n-uid"},
            {"node": {"name": "n", "uid": "n-uid"}},
            id="a Node",
        ),
        pytest.param(
            {"kind": "Pod", "name": "p"},
            {"pod": {"name": "p", "uid": "p-uid"}, "node": {"name": "n", "uid": "n-uid"}},
            id="a Pod, with its node",
        ),
        pytest.param(
            {"kind": "Pod", "name": "lost"},
            {"pod": {"name": "lost", "uid": "l-uid"}, "node": {"name": "gone", "uid": ""}},
            id="a Pod whose node is gone",
        ),
        pytest.param(
            {"kind": "Pod", "name": "unscheduled"},
            {"pod": {"name": "unscheduled", "uid": "u-uid"}},
            id="a Pod without a node",
        ),
    ],
)
def test_a_token_is_bound(reference: Obj, bound: Obj) -> None:
    private = claims(issued({"boundObjectRef": reference}))["kubernetes.io"]
    assert {key: value for key, value in private.items() if key not in ("namespace", "serviceaccount")} == bound


def test_the_node_of_a_pod_is_told_where_nobody_knows_nodes() -> None:
    views = {name: view for name, view in VIEWS.items() if name != "nodes"}
    found = issued({"boundObjectRef": {"kind": "Pod", "name": "p"}}, views=views)
    assert claims(found)["kubernetes.io"]["node"]["name"] == "n"


INVALID_SA = 'TokenRequest.authentication.k8s.io "sa" is invalid: '


@pytest.mark.parametrize(
    ("request_of", "error", "message"),
    [
        pytest.param({"name": "nobody"}, NotFoundError, 'serviceaccounts "nobody" not found', id="no such account"),
        pytest.param(
            {"metadata": {"name": "x"}},
            InvalidError,
            INVALID_SA + 'metadata.name: Invalid value: "x": must match the service account name',
            id="another name",
        ),
        pytest.param(
            {"metadata": {"namespace": "x"}},
            InvalidError,
            INVALID_SA + 'metadata.namespace: Invalid value: "x": must match the service account namespace',
            id="another namespace",
        ),
        pytest.param(
            {"metadata": {"uid": "x"}},
            ConflictError,
            'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "sa": the UID in the token request (x) does '
            "not match the UID of the service account (sa-uid)",
            id="another uid of the account",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {}}},
            BadRequestError,
            "cannot bind token to object of type /, Kind=",
            id="an empty reference",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1"}}},
            BadRequestError,
            "Name parameter required.",
            id="a reference without a name",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "name": "x"}}},
            BadRequestError,
            "cannot bind token to object of type rbac.authorization.k8s.io/v1, Kind=Role",
            id="a kind of another group",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Secret", "name": "x"}}},
            NotFoundError,
            'secrets "x" not found',
            id="gone",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "ConfigMap", "name": "x"}}}, BadRequestError, None, id="another kind"
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v2", "name": "s"}}},
            BadRequestError,
            "cannot bind token to object of type /v2, Kind=Secret",
            id="another version",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Secret", "name": "s", "uid": "old"}}},
            ConflictError,
            'Operation cannot be fulfilled on Secret "s": the UID in the bound object reference (old) does not match the UID in '
            "record. The object might have been deleted and then recreated",
            id="another uid",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Pod", "name": "other"}}},
            BadRequestError,
            None,
            id="a Pod of another account",
        ),
    ],
)
def test_refused(request_of: dict[str, Any], error: type[ApiError], message: str | None) -> None:
    with pytest.raises(error) as caught:
        issued(**request_of)
    if message is not None:
        assert str(caught.value) == message


def test_pods_are_not_found_where_nobody_knows_pods() -> None:
    views = {name: view for name, view in VIEWS.items() if name != "pods"}
    with pytest.raises(NotFoundError, match='pods "p" not found'):
        issued({"boundObjectRef": {"kind": "Pod", "name": "p"}}, views=views)


def test_metadata_that_agrees_passes() -> None:
    issued({}, {"name": "sa", "namespace": "ns", "uid": "sa-uid"})
