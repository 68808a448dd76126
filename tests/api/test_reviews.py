"""TokenReview, SelfSubjectReview and the access reviews: validation.

Source: docs/protocol/authentication-reviews.md, docs/protocol/authorization.md#access-reviews.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kind import Change, Kind
from mooring.api.kinds import by_resource
from mooring.api.reviews import (
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    user_info,
)
from mooring.api.reviews import SELF_SUBJECT_REVIEWS as SELF_SUBJECT_REVIEWS
from mooring.api.reviews import TOKEN_REVIEWS as TOKEN_REVIEWS
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.errors import BadRequestError
from mooring.identity import UserInfo
from tests.support.changes import NOW, USER, texts

Obj = dict[str, Any]

BY = Change(USER, NOW)


def test_a_token_review_needs_a_token() -> None:
    for obj in ({}, {"spec": {"audiences": ["a"]}}):
        with pytest.raises(BadRequestError, match=r"^token is required for TokenReview in authentication$"):
            TOKEN_REVIEWS[0].prepare_for_create(obj, BY)


def prepared(kind: Kind, body: Obj) -> tuple[Obj, list[str]]:
    """The object that a client's body is, and the mistakes in it."""
    assert unmarshal(body, kind.resource.schema) == []
    kind.prepare_for_create(body, BY)
    return body, texts(kind.validate(body))


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"spec": {"token": "t", "audiences": None}}, {"spec": {"token": "t"}}),
        ({"spec": {"token": "t", "audiences": []}}, {"spec": {"token": "t"}}),
        ({"spec": {"token": "t", "audiences": [None]}}, {"spec": {"token": "t", "audiences": [""]}}),
        ({"metadata": None, "spec": {"token": "t"}, "status": None}, {"spec": {"token": "t"}}),
        ({"kind": None, "apiVersion": "", "spec": {"token": "t"}}, {"spec": {"token": "t"}}),
        ({"metadata": {"creationTimestamp": None}, "spec": {"token": "t"}, "status": {"user": {}}},
         {"metadata": {}, "spec": {"token": "t"}}),
    ],
    ids=str,
)  # fmt: skip
def test_null_and_empty_fields_of_a_token_review_are_absent(body: Obj, read: Obj) -> None:
    """Programs in Go write `"creationTimestamp": null` and an empty status."""
    assert prepared(TOKEN_REVIEWS[0], body) == (read, [])


@pytest.mark.parametrize(
    "body", [{"spec": None}, {"spec": {}}, {"spec": {"token": None}}, {"spec": {"token": ""}}], ids=str
)
def test_an_empty_token_is_none(body: Obj) -> None:
    with pytest.raises(BadRequestError, match="token is required"):
        prepared(TOKEN_REVIEWS[0], body)


ONE_OF = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


@pytest.mark.parametrize(
    ("spec", "read", "mistake"),
    [
        ({**dict.fromkeys(("groups", "extra", "uid", "nonResourceAttributes")), "user": "u", "resourceAttributes": {}},
         {"user": "u", "resourceAttributes": {}}, ""),
        ({"user": "u", "resourceAttributes": None, "nonResourceAttributes": {}}, {"user": "u", "nonResourceAttributes": {}}, ""),
        ({"user": "", "groups": ["g"], "resourceAttributes": {"verb": None, "namespace": ""}},
         {"groups": ["g"], "resourceAttributes": {}}, ""),
        ({"user": "u", "extra": {"a": None, "b": [None]}, "resourceAttributes": {"fieldSelector": None}},
         {"user": "u", "extra": {"a": [], "b": [""]}, "resourceAttributes": {}}, ""),
        ({"user": "u", "resourceAttributes": None}, {"user": "u"}, ONE_OF),
        ({"user": None, "groups": None, "resourceAttributes": {}}, {"resourceAttributes": {}}, "at least one of user or group"),
        ({"user": "", "groups": [], "resourceAttributes": {}}, {"resourceAttributes": {}}, "at least one of user or group"),
        ({"user": "u", "resourceAttributes": {"labelSelector": {}}},
         {"user": "u", "resourceAttributes": {"labelSelector": {}}}, "requirements or rawSelector is required"),
    ],
    ids=str,
)  # fmt: skip
def test_null_and_empty_fields_of_an_access_review(spec: Obj, read: Obj, mistake: str) -> None:
    """An empty object is there where Go has a pointer, and null is not."""
    obj, mistakes = prepared(SUBJECT_ACCESS_REVIEW, {"spec": spec})
    assert obj == {"spec": read}
    assert len(mistakes) == bool(mistake)
    assert all(mistake in one for one in mistakes)


def test_a_token_review_drops_the_clients_status() -> None:
    obj: Obj = {"spec": {"token": "t"}, "status": {"authenticated": True}}
    TOKEN_REVIEWS[0].prepare_for_create(obj, BY)
    assert obj == {"spec": {"token": "t"}}


def test_a_self_review_drops_the_clients_status() -> None:
    obj: Obj = {"status": {"userInfo": {"username": "root"}}}
    SELF_SUBJECT_REVIEWS[0].prepare_for_create(obj, BY)
    assert obj == {}


def test_user_info_has_all_attributes() -> None:
    assert user_info(USER) == {
        "username": "jane",
        "uid": "u-1",
        "groups": ["devs", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=ab"]},
    }


def test_attributes_a_user_lacks_are_absent() -> None:
    assert user_info(UserInfo("jane")) == {"username": "jane"}


def test_each_version_is_built_by_one_call() -> None:
    older = SELF_SUBJECT_REVIEWS[1].resource
    assert (older.api_version, older.schema.name) == (
        "authentication.k8s.io/v1beta1",
        "io.k8s.api.authentication.v1beta1.SelfSubjectReview",
    )


def test_a_rules_review_needs_a_namespace() -> None:
    for obj in ({}, {"spec": {"namespace": ""}}):
        with pytest.raises(BadRequestError, match=r"^no namespace on request$"):
            SELF_SUBJECT_RULES_REVIEW.prepare_for_create(obj, BY)
    obj = {"spec": {"namespace": "ns"}, "status": {}}
    SELF_SUBJECT_RULES_REVIEW.prepare_for_create(obj, BY)
    assert obj == {"spec": {"namespace": "ns"}}
    assert SELF_SUBJECT_RULES_REVIEW.validate(obj) == []


def test_an_access_review_drops_the_clients_status() -> None:
    obj: Obj = {"spec": {}, "status": {"allowed": True}}
    SUBJECT_ACCESS_REVIEW.prepare_for_create(obj, BY)
    assert obj == {"spec": {}}


def test_only_the_local_review_is_namespaced() -> None:
    found = {
        plural: kind.resource.namespaced
        for plural in (
            "subjectaccessreviews",
            "localsubjectaccessreviews",
            "selfsubjectaccessreviews",
            "selfsubjectrulesreviews",
        )
        if (kind := by_resource("authorization.k8s.io", "v1", plural)) is not None
    }
    assert found == {
        "subjectaccessreviews": False,
        "localsubjectaccessreviews": True,
        "selfsubjectaccessreviews": False,
        "selfsubjectrulesreviews": False,
    }


POD = {"verb": "get", "resource": "pods", "namespace": "ns"}
URL = {"verb": "get", "path": "/healthz"}
NEITHER = (
    "spec.resourceAttributes: Invalid value: null: "
    "exactly one of nonResourceAttributes or resourceAttributes must be specified"
)
NOBODY = 'spec.user: Invalid value: "": at least one of user or group must be specified'
SUBJECT, LOCAL, SELF = SUBJECT_ACCESS_REVIEW, LOCAL_SUBJECT_ACCESS_REVIEW, SELF_SUBJECT_ACCESS_REVIEW


@pytest.mark.parametrize(
    ("kind", "meta", "spec", "errors"),
    [
        pytest.param(SUBJECT, {}, {"user": "jane", "resourceAttributes": POD}, [], id="about a user and a resource"),
        pytest.param(SUBJECT, {}, {"groups": ["devs"], "nonResourceAttributes": URL}, [], id="about a group and a URL"),
        pytest.param(SUBJECT, {}, {"user": "jane"}, [NEITHER], id="something must be asked"),
        pytest.param(SUBJECT, {}, None, [NEITHER, NOBODY], id="about somebody"),
        pytest.param(
            SUBJECT,
            {},
            {"user": "jane", "resourceAttributes": POD, "nonResourceAttributes": URL},
            [
                'spec.nonResourceAttributes: Invalid value: {"Path":"/healthz","Verb":"get"}: '
                "cannot be specified in combination with resourceAttributes"
            ],
            id="one thing at a time",
        ),
        pytest.param(
            SUBJECT,
            {"name": "x"},
            {"user": "jane", "resourceAttributes": POD},
            ['metadata: Invalid value: {"name":"x"}: must be empty'],
            id="metadata is empty",
        ),
        pytest.param(
            SUBJECT, {"managedFields": []}, {"user": "jane", "resourceAttributes": POD}, [], id="but for managed fields"
        ),
        pytest.param(
            SUBJECT, {"labels": {}}, {"user": "jane", "resourceAttributes": POD}, [], id="and for what says nothing"
        ),
        pytest.param(SELF, {}, {"resourceAttributes": POD}, [], id="the caller needs no user"),
        pytest.param(
            SELF,
            {"name": "x"},
            {},
            [NEITHER, 'metadata: Invalid value: {"name":"x"}: must be empty'],
            id="but a question",
        ),
        pytest.param(
            LOCAL, {"namespace": "ns"}, {"user": "jane", "resourceAttributes": POD}, [], id="in one namespace"
        ),
        pytest.param(
            LOCAL,
            {"namespace": "other", "name": "x"},
            {"user": "jane", "resourceAttributes": POD},
            [
                'metadata: Invalid value: {"namespace":"other","name":"x"}: must be empty except for namespace',
                'spec.resourceAttributes.namespace: Invalid value: "ns": must match metadata.namespace',
            ],
            id="which is that of the attributes",
        ),
        pytest.param(
            LOCAL,
            {"namespace": "ns"},
            {"user": "jane", "nonResourceAttributes": URL},
            [
                'spec.nonResourceAttributes: Invalid value: {"Path":"/healthz","Verb":"get"}: '
                "disallowed on this kind of request"
            ],
            id="and has no URLs",
        ),
    ],
)
def test_access_reviews(kind: Kind, meta: Obj, spec: Obj | None, errors: list[str]) -> None:
    obj = {"metadata": meta} if spec is None else {"metadata": meta, "spec": spec}
    assert texts(kind.validate(obj)) == errors


F, L = "spec.resourceAttributes.fieldSelector", "spec.resourceAttributes.labelSelector"


@pytest.mark.parametrize(
    ("selectors", "errors"),
    [
        pytest.param({"fieldSelector": {"rawSelector": "a=b"}}, [], id="a selector may be text"),
        pytest.param(
            {"labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}, [], id="or parts"
        ),
        pytest.param(
            {"fieldSelector": {"requirements": [{"key": "a", "operator": "Near", "values": ["b"]}]}},
            [],
            id="with operators nobody knows yet",
        ),
        pytest.param(
            {"fieldSelector": {}},
            [f"{F}.requirements: Required value: when {F} is specified, requirements or rawSelector is required"],
            id="but not nothing",
        ),
        pytest.param(
            {"labelSelector": {"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists"}]}},
            [f'{L}.rawSelector: Invalid value: "a": may not specified at the same time as requirements'],
            id="nor both",
        ),
        pytest.param(
            {"fieldSelector": {"requirements": [{"operator": "NotIn"}]}},
            [
                f"{F}.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                f"{F}.requirements[0].key: Required value: must be specified",
            ],
            id="a field requirement is complete",
        ),
        pytest.param(
            {"labelSelector": {"requirements": [{"key": "/a", "operator": "Exists", "values": ["x" * 64]}]}},
            [
                f"{L}.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                f'{L}.requirements[0].key: Invalid value: "/a": prefix part must be non-empty',
                f'{L}.requirements[0].values[0]: Invalid value: "{"x" * 64}": must be no more than 63 bytes',
            ],
            id="a label requirement is valid",
        ),
    ],
)
def test_selectors_of_access_reviews(selectors: Obj, errors: list[str]) -> None:
    assert texts(SELF.validate({"spec": {"resourceAttributes": {**POD, **selectors}}})) == errors
