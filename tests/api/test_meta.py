"""Object metadata: server-set fields and validation on create and update.

Source: docs/protocol/objects.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL
from mooring.api.objectmeta import (
    MAX_ANNOTATIONS,
    prepare_meta_for_create,
    prepare_meta_for_update,
    validate_meta,
    validate_meta_update,
)
from mooring.errors import MAX_FIELD_ERRORS, BadRequestError, ConflictError
from tests.support.changes import NOW, UID, created, texts, updated

CONFIG_MAP = BY_PLURAL["configmaps"]
NODE = BY_PLURAL["nodes"]
LEASE = BY_PLURAL["leases"]
ROLE = BY_PLURAL["roles"]
TRACKED = replace(LEASE, has_generation=True)

Obj = dict[str, Any]


def prepared(meta: Obj, kind: Kind = CONFIG_MAP, namespace: str = "ns") -> Obj:
    obj: Obj = {"metadata": meta}
    prepare_meta_for_create(obj, kind, namespace, UID, NOW, bytes)
    result: Obj = obj["metadata"]
    return result


SERVER = {"uid": UID, "creationTimestamp": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize(
    ("kind", "given", "made"),
    [
        pytest.param(CONFIG_MAP, {"name": "a"}, {"name": "a", "namespace": "ns"}, id="the namespace is the request's"),
        pytest.param(
            CONFIG_MAP, {"name": "a", "namespace": "ns"}, {"name": "a", "namespace": "ns"}, id="or equal to it"
        ),
        pytest.param(NODE, {"name": "a", "namespace": "ns"}, {"name": "a"}, id="cluster-scoped objects have none"),
        pytest.param(
            NODE,
            {
                "name": "a",
                "uid": "mine",
                "creationTimestamp": "2000-01-01T00:00:00Z",
                "deletionTimestamp": "2000-01-01T00:00:00Z",
                "deletionGracePeriodSeconds": 3,
                "generation": 9,
                "selfLink": "/x",
                "managedFields": [{}],
            },
            {"name": "a"},
            id="what the server sets is not the client's to say",
        ),
        pytest.param(
            NODE,
            {"generateName": "n-"},
            {"name": "n-bbbbb", "generateName": "n-"},
            id="a name is made from generateName",
        ),
        pytest.param(
            NODE, {"name": "a", "generateName": "n-"}, {"name": "a", "generateName": "n-"}, id="a name wins over it"
        ),
        pytest.param(NODE, {}, {}, id="without either there is no name"),
        pytest.param(NODE, {"name": "a", "resourceVersion": ""}, {"name": "a"}, id="an empty resourceVersion is none"),
        pytest.param(
            TRACKED,
            {"name": "a"},
            {"name": "a", "namespace": "ns", "generation": 1},
            id="tracked generations start at 1",
        ),
    ],
)
def test_create_fills_in(kind: Kind, given: Obj, made: Obj) -> None:
    assert prepared(given, kind) == {**SERVER, **made}


def test_create_makes_metadata_where_there_is_none() -> None:
    obj: Obj = {}
    prepare_meta_for_create(obj, NODE, "", UID, NOW, bytes)
    assert obj == {"metadata": SERVER}


def test_create_refuses_a_resource_version() -> None:
    with pytest.raises(BadRequestError, match=r"^resourceVersion should not be set on objects to be created$"):
        prepared({"name": "a", "resourceVersion": "1"})


def test_create_refuses_another_namespace() -> None:
    with pytest.raises(
        BadRequestError,
        match=r"^the namespace of the provided object does not match the namespace sent on the request$",
    ):
        prepared({"name": "a", "namespace": "other"})


OLD: Obj = {
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": UID,
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "resourceVersion": "5",
    },
    "spec": {"x": 1},
}


def changed(old: Obj = OLD, **meta: Any) -> Obj:
    return {"metadata": {**old["metadata"], **meta}, "spec": {"x": 1}}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param({"name": "a"}, {"name": "a", "namespace": "ns"} | SERVER, id="what was left out comes back"),
        pytest.param(
            {
                "name": "a",
                "creationTimestamp": "1999-01-01T00:00:00Z",
                "selfLink": "/x",
                "managedFields": [{}],
                "generation": 4,
            },
            {"name": "a", "namespace": "ns"} | SERVER,
            id="what the server sets is not the client's to say",
        ),
        pytest.param(
            {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0},
            {"name": "a", "namespace": "ns"} | SERVER,
            id="an update cannot mark for deletion",
        ),
        pytest.param(
            {"name": "a", "resourceVersion": "5", "labels": {"x": "y"}},
            {"name": "a", "namespace": "ns", "resourceVersion": "5", "labels": {"x": "y"}} | SERVER,
            id="the resourceVersion and labels are the client's",
        ),
    ],
)
def test_update_restores(given: Obj, made: Obj) -> None:
    new: Obj = {"metadata": dict(given)}
    prepare_meta_for_update(new, OLD, CONFIG_MAP)
    assert new["metadata"] == made


def test_update_makes_metadata_where_there_is_none() -> None:
    new: Obj = {}
    prepare_meta_for_update(new, OLD, NODE)
    assert new["metadata"] == SERVER


def test_update_cannot_unmark_for_deletion() -> None:
    old = changed(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0)
    new: Obj = {"metadata": {"name": "a"}}
    prepare_meta_for_update(new, old, CONFIG_MAP)
    assert new["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert new["metadata"]["deletionGracePeriodSeconds"] == 0


def test_update_drops_a_namespace_from_a_cluster_scoped_object() -> None:
    new: Obj = {"metadata": {"name": "a", "namespace": "ns"}}
    prepare_meta_for_update(new, {"metadata": {"name": "a", "uid": UID}}, NODE)
    assert new["metadata"] == {"name": "a", "uid": UID}


def test_update_of_another_uid_is_a_conflict() -> None:
    with pytest.raises(ConflictError) as caught:
        prepare_meta_for_update({"metadata": {"name": "a", "uid": "other"}}, OLD, CONFIG_MAP)
    assert caught.value.message == (
        'Operation cannot be fulfilled on configmaps "a": Precondition failed: UID in precondition: other, '
        f"UID in object meta: {UID}"
    )


@pytest.mark.parametrize(
    ("spec", "generation"),
    [
        pytest.param({"x": 2}, 4, id="a changed spec is a new generation"),
        pytest.param({"x": 1}, 3, id="an equal spec is not"),
    ],
)
def test_generation(spec: Obj, generation: int) -> None:
    new: Obj = {"metadata": {"name": "a"}, "spec": spec}
    prepare_meta_for_update(new, changed(generation=3), TRACKED)
    assert new["metadata"]["generation"] == generation


SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
OWNER = {"apiVersion": "v1", "kind": "Secret", "name": "o", "uid": "u"}


@pytest.mark.parametrize(
    ("kind", "meta", "errors"),
    [
        pytest.param(CONFIG_MAP, {"name": "a", "namespace": "ns"}, [], id="a plain object is fine"),
        pytest.param(
            NODE, {}, ["metadata.name: Required value: name or generateName is required"], id="a name is needed"
        ),
        pytest.param(
            CONFIG_MAP,
            {"name": "a"},
            ["metadata.namespace: Required value"],
            id="a namespace is needed where there are any",
        ),
        pytest.param(
            CONFIG_MAP,
            {"name": "a", "namespace": "a.b"},
            ['metadata.namespace: Invalid value: "a.b": must not contain dots'],
            id="a namespace is a label",
        ),
        pytest.param(
            NODE, {"name": "A"}, [f'metadata.name: Invalid value: "A": {SUBDOMAIN}'], id="names follow the kind's rule"
        ),
        pytest.param(ROLE, {"name": "system:x", "namespace": "ns"}, [], id="role names may have colons"),
        pytest.param(
            ROLE,
            {"name": "a/b", "namespace": "ns"},
            ["metadata.name: Invalid value: \"a/b\": may not contain '/'"],
            id="but no slashes",
        ),
        pytest.param(NODE, {"name": "a-bbbbb", "generateName": "a-"}, [], id="a base may end in a dash"),
        pytest.param(
            NODE,
            {"name": "A-bbbbb", "generateName": "A-"},
            [f'metadata.name: Invalid value: "A-bbbbb": {SUBDOMAIN}'],
            id="the last two characters of such a base are masked, as upstream does",
        ),
        pytest.param(
            NODE,
            {"name": "Ab", "generateName": "Ab"},
            [
                f'metadata.generateName: Invalid value: "Ab": {SUBDOMAIN}',
                f'metadata.name: Invalid value: "Ab": {SUBDOMAIN}',
            ],
            id="an invalid generateName is reported",
        ),
        pytest.param(
            NODE,
            {"name": "a", "labels": {"-k": "v", "k": "-v"}},
            [
                f'metadata.labels: Invalid value: "-k": {QUALIFIED}',
                'metadata.labels: Invalid value: "-v": a valid label must be an empty string or consist of alphanumeric '
                "characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
                "'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ],
            id="label keys and values are checked",
        ),
        pytest.param(
            NODE, {"name": "a", "annotations": {"Example.COM/k": "any\nthing"}}, [], id="annotation case is free"
        ),
        pytest.param(
            NODE,
            {"name": "a", "annotations": {"-K": "v"}},
            [f'metadata.annotations: Invalid value: "-K": {QUALIFIED}'],
            id="annotation keys are checked",
        ),
        pytest.param(NODE, {"name": "a", "annotations": {"k": "v" * (MAX_ANNOTATIONS - 1)}}, [], id="256 KiB fit"),
        pytest.param(
            NODE,
            {"name": "a", "annotations": {"k": "é" * (MAX_ANNOTATIONS // 2)}},
            ["metadata.annotations: Too long: may not be more than 262144 bytes"],
            id="one byte more does not, counted in bytes",
        ),
        pytest.param(NODE, {"name": "a", "ownerReferences": [OWNER]}, [], id="a complete owner is fine"),
        pytest.param(
            NODE,
            {"name": "a", "ownerReferences": [{}]},
            [
                'metadata.ownerReferences[0].apiVersion: Invalid value: "": version must not be empty',
                'metadata.ownerReferences[0].kind: Invalid value: "": must not be empty',
                'metadata.ownerReferences[0].name: Invalid value: "": must not be empty',
                'metadata.ownerReferences[0].uid: Invalid value: "": must not be empty',
            ],
            id="an owner is complete",
        ),
        pytest.param(
            NODE,
            {"name": "a", "ownerReferences": [OWNER | {"kind": "Event"}]},
            [
                'metadata.ownerReferences[0]: Invalid value: {"apiVersion":"v1","kind":"Event","name":"o","uid":"u"}: '
                "/v1, Kind=Event is disallowed from being an owner"
            ],
            id="an Event owns nothing",
        ),
        pytest.param(
            NODE,
            {"name": "a", "ownerReferences": [OWNER | {"controller": True}, OWNER | {"controller": False}]},
            [],
            id="one controller is fine",
        ),
        pytest.param(
            NODE,
            {
                "name": "a",
                "ownerReferences": [{**OWNER, "controller": True}, {**OWNER, "name": "p", "controller": True}],
            },
            [
                "metadata.ownerReferences: Invalid value: "
                '[{"apiVersion":"v1","kind":"Secret","name":"o","uid":"u","controller":true},'
                '{"apiVersion":"v1","kind":"Secret","name":"p","uid":"u","controller":true}]: '
                'Only one reference can have Controller set to true. Found "true" in references for Secret/o and Secret/p'
            ],
            id="two controllers are not",
        ),
        pytest.param(
            NODE,
            {"name": "a", "finalizers": ["kubernetes", "orphan", "a.example/f"]},
            [],
            id="standard and qualified finalizers",
        ),
        pytest.param(
            NODE,
            {"name": "a", "finalizers": ["mine", "-"]},
            [
                'metadata.finalizers[0]: Invalid value: "mine": name is neither a standard finalizer name nor is it fully '
                "qualified",
                f'metadata.finalizers[1]: Invalid value: "-": {QUALIFIED}',
            ],
            id="other finalizers need a domain",
        ),
        pytest.param(
            NODE,
            {"name": "a", "finalizers": ["orphan", "foregroundDeletion"]},
            [
                'metadata.finalizers: Invalid value: ["orphan","foregroundDeletion"]: '
                "finalizer orphan and foregroundDeletion cannot be both set"
            ],
            id="dependents cannot be both orphaned and deleted",
        ),
        pytest.param(NODE, {"name": "a", "finalizers": ["foregroundDeletion"]}, [], id="one of the two is fine"),
    ],
)
def test_validation(kind: Kind, meta: Obj, errors: list[str]) -> None:
    assert texts(validate_meta({"metadata": meta}, kind)) == errors


def test_several_controllers_are_reported_once() -> None:
    # Each telling shows all references: 30 000 of them took all memory there was.
    references = [{**OWNER, "controller": True}] * 5
    errors = validate_meta({"metadata": {"name": "a", "ownerReferences": references}}, NODE)
    assert [error.field for error in errors] == ["metadata.ownerReferences"]


def test_no_more_labels_are_validated_than_errors_are_reported() -> None:
    labels = {f"!{number}": "" for number in range(MAX_FIELD_ERRORS * 5)}
    assert len(validate_meta({"metadata": {"name": "a", "labels": labels}}, NODE)) == MAX_FIELD_ERRORS + 1


DELETING: Obj = changed(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a.example/f"])


@pytest.mark.parametrize(
    ("kind", "new", "old", "errors"),
    [
        pytest.param(CONFIG_MAP, changed(), OLD, [], id="no change is fine"),
        pytest.param(CONFIG_MAP, changed(finalizers=["a.example/f"]), OLD, [], id="a living object may get finalizers"),
        pytest.param(
            CONFIG_MAP, changed(DELETING, finalizers=["a.example/f"]), DELETING, [], id="a dying one may keep them"
        ),
        pytest.param(CONFIG_MAP, changed(DELETING, finalizers=[]), DELETING, [], id="and lose them"),
        pytest.param(
            CONFIG_MAP,
            changed(DELETING, finalizers=["z.example/g", "a.example/f", "b.example/g"]),
            DELETING,
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, "
                'found new finalizers []string{"b.example/g", "z.example/g"}'
            ],
            id="but not get new ones",
        ),
        pytest.param(CONFIG_MAP, changed(resourceVersion=""), OLD, [], id="most kinds need no resourceVersion"),
        pytest.param(
            LEASE,
            changed(resourceVersion=""),
            OLD,
            ["metadata.resourceVersion: Invalid value: 0: must be specified for an update"],
            id="a Lease needs one",
        ),
        pytest.param(LEASE, changed(), OLD, [], id="a Lease with one is fine"),
        pytest.param(
            CONFIG_MAP,
            changed(name="b", namespace="other"),
            OLD,
            [
                'metadata.name: Invalid value: "b": field is immutable',
                'metadata.namespace: Invalid value: "other": field is immutable',
            ],
            id="name and namespace never change",
        ),
        pytest.param(
            CONFIG_MAP,
            changed(uid="x", creationTimestamp="x", deletionTimestamp="x", deletionGracePeriodSeconds=1),
            OLD,
            [
                'metadata.uid: Invalid value: "x": field is immutable',
                'metadata.creationTimestamp: Invalid value: "x": field is immutable',
                'metadata.deletionTimestamp: Invalid value: "x": field is immutable',
                "metadata.deletionGracePeriodSeconds: Invalid value: 1: field is immutable",
            ],
            id="nor does what the server set",
        ),
    ],
)
def test_update_validation(kind: Kind, new: Obj, old: Obj, errors: list[str]) -> None:
    assert texts(validate_meta_update(new, old, kind)) == errors


def test_a_created_object_can_be_updated_as_it_is() -> None:
    for kind in BY_PLURAL.values():
        if kind.resource.plural not in (
            "certificatesigningrequests",
            "certificaterevocations",
            "authorizedmachines",
            "joinrules",
            "clustertrustbundles",
            "podcertificaterequests",
            "lineagerecords",
            "certificateauthorityrollovers",
            "rolebindings",
            "clusterrolebindings",
            "endpointslices",
            "events",
            "pods",
            "podtemplates",
            "services",
        ):
            obj, errors = created(kind, {"metadata": {"name": "x"}})
            assert (kind.resource.plural, errors) == (kind.resource.plural, [])
            assert updated(kind, obj, obj)[1] == []


@pytest.mark.parametrize(("plural", "refused"), [("leases", False), ("events", False), ("configmaps", True)])
def test_finalizers_without_a_domain(plural: str, refused: bool) -> None:
    meta = {"name": "a", "namespace": "default", "finalizers": ["nodomain"]}
    assert bool(validate_meta({"metadata": meta}, BY_PLURAL[plural])) is refused
