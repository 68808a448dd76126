"""Namespace, ServiceAccount, TokenRequest, Lease and Event: defaults, validation, print columns.

Source: docs/protocol/service-account-tokens.md, docs/protocol/tables.md, docs/protocol/selectors.md, docs/protocol/objects.md,
docs/protocol/namespaces.md.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api import reviews
from mooring.api.core.event import new_event
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.names import qualified_name_errors
from tests.support.changes import LATER, NOW, created, texts, updated

NAMESPACE = BY_PLURAL["namespaces"]
ACCOUNT = BY_PLURAL["serviceaccounts"]
LEASE = BY_PLURAL["leases"]
EVENT = BY_PLURAL["events"]

Obj = dict[str, Any]

LABELS = {"kubernetes.io/metadata.name": "x"}


@pytest.mark.parametrize(
    ("given", "finalizers"),
    [
        pytest.param({}, ["kubernetes"], id="a new one has the kubernetes finalizer"),
        pytest.param({"spec": {"finalizers": ["a.example/f"]}}, ["a.example/f", "kubernetes"], id="beside others"),
        pytest.param({"spec": {"finalizers": ["kubernetes"]}}, ["kubernetes"], id="but once"),
    ],
)
def test_a_new_namespace_is_active(given: Obj, finalizers: list[str]) -> None:
    obj, errors = created(NAMESPACE, {"status": {"phase": "Terminating"}, **given})
    assert errors == []
    assert obj["status"] == {"phase": "Active"}
    assert obj["spec"] == {"finalizers": finalizers}
    assert obj["metadata"]["labels"] == LABELS
    assert NAMESPACE.selectable_fields(obj) == {"name": "x", "status.phase": "Active"}
    assert [column.cell(obj, LATER) for column in NAMESPACE.resource.columns] == ["x", "Active", "55m"]


def test_a_generated_name_is_in_the_label_too() -> None:
    obj, _ = created(NAMESPACE, {"metadata": {"generateName": "n-"}})
    assert obj["metadata"]["labels"] == {"kubernetes.io/metadata.name": "n-bbbbb"}


def test_the_name_label_is_forced() -> None:
    stored, _ = created(NAMESPACE, {"metadata": {"name": "x", "labels": {"a": "b", **dict.fromkeys(LABELS, "y")}}})
    assert stored["metadata"]["labels"] == {"a": "b", **LABELS}
    new, errors = updated(NAMESPACE, {"metadata": {"name": "x", "labels": {"c": "d"}}}, stored)
    assert (new["metadata"]["labels"], errors) == ({"c": "d", **LABELS}, [])


def test_a_namespace_finalizer_is_qualified() -> None:
    assert created(NAMESPACE, {"spec": {"finalizers": ["mine"]}})[1] == [
        'spec.finalizers: Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified'
    ]


ASKED = {"spec": {"finalizers": ["a.example/f"]}, "status": {"phase": "Terminating"}}


@pytest.mark.parametrize(
    ("subresource", "spec", "phase", "errors"),
    [
        pytest.param("", ["kubernetes"], "Active", [], id="a PUT changes neither spec nor status"),
        pytest.param("finalize", ["a.example/f"], "Active", [], id="finalize changes the finalizers"),
        pytest.param(
            "status",
            ["kubernetes"],
            "Terminating",
            ["status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"],
            id="status changes the phase, which must fit",
        ),
    ],
)
def test_fields_that_each_namespace_subresource_changes(
    subresource: str, spec: list[str], phase: str, errors: list[str]
) -> None:
    stored = created(NAMESPACE, {})[0]
    new, found = updated(NAMESPACE, ASKED, stored, subresource)
    assert (new["spec"]["finalizers"], new["status"]["phase"], found) == (spec, phase, errors)


def test_finalize_can_empty_the_finalizers_and_a_put_cannot_restore_them() -> None:
    stored = created(NAMESPACE, {})[0]
    stored, errors = updated(NAMESPACE, {"status": {"phase": "Active"}}, stored, "finalize")
    assert (stored.get("spec"), errors) == (None, [])
    new, _ = updated(NAMESPACE, ASKED, stored)
    assert "spec" not in new


@pytest.mark.parametrize(
    ("phase", "errors"),
    [
        pytest.param("Terminating", [], id="a dying namespace is Terminating"),
        pytest.param(
            "Active",
            ["status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"],
            id="and not Active",
        ),
    ],
)
def test_the_phase_of_a_terminating_namespace(phase: str, errors: list[str]) -> None:
    stored = created(NAMESPACE, {})[0]
    stored["metadata"]["deletionTimestamp"] = "2026-01-02T03:10:00Z"
    assert updated(NAMESPACE, {"status": {"phase": phase}}, stored, "status")[1] == errors


def test_a_service_account_keeps_only_names_of_secrets() -> None:
    given = {"secrets": [{"name": "s", "namespace": "other", "uid": "u"}, {"uid": "u"}]}
    stored, errors = created(ACCOUNT, given)
    assert (stored["secrets"], errors) == ([{"name": "s"}, {}], [])
    new, errors = updated(ACCOUNT, {"secrets": [{"name": "t", "kind": "Secret"}]}, stored)
    assert (new["secrets"], errors) == ([{"name": "t"}], [])
    assert "secrets" not in created(ACCOUNT, {})[0]


def test_the_token_subresource_has_the_kind_of_another_group() -> None:
    (token,) = ACCOUNT.resource.subresources
    assert (token.name, token.kind, token.group, token.version) == (
        "token",
        "TokenRequest",
        "authentication.k8s.io",
        "v1",
    )
    assert token.schema is reviews.TOKEN_REQUEST


@pytest.mark.parametrize(
    ("given", "seconds", "errors"),
    [
        pytest.param({}, 3600, [], id="a token lives an hour"),
        pytest.param({"spec": {"expirationSeconds": 600}}, 600, [], id="or ten minutes"),
        pytest.param(
            {"spec": {"expirationSeconds": 599}},
            599,
            ["spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"],
            id="but not less",
        ),
        pytest.param({"spec": {"expirationSeconds": 2**32}}, 2**32, [], id="or 136 years"),
        pytest.param(
            {"spec": {"expirationSeconds": 2**32 + 1}},
            2**32 + 1,
            ["spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"],
            id="but not more",
        ),
        pytest.param(
            {"spec": {"expirationSeconds": 0}},
            0,
            ["spec.expirationSeconds: Invalid value: 0: may not specify a duration less than 10 minutes"],
            id="and zero is not the default",
        ),
        pytest.param({"spec": {"audiences": ["a"] * 64}}, 3600, [], id="it may have many audiences"),
        pytest.param(
            {"spec": {"audiences": ["a"] * 65}},
            3600,
            ["spec.audiences: Too many: must have at most 64 items"],
            id="but not too many",
        ),
        pytest.param(
            {"spec": {"boundObjectRef": {"kind": "Secret", "name": "s"}}}, 3600, [], id="it may be bound to an object"
        ),
        pytest.param({"spec": {"boundObjectRef": {}}}, 3600, [], id="which the issuer looks up"),
    ],
)
def test_token_requests(given: Obj, seconds: int, errors: list[str]) -> None:
    reviews.default(given)
    assert given["spec"]["expirationSeconds"] == seconds
    assert texts(reviews.validate(given)) == errors


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        pytest.param({}, [], id="an empty one is free"),
        pytest.param(
            {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0}, [], id="a released one is fine"
        ),
        pytest.param(
            {"leaseDurationSeconds": 0},
            ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
            id="a duration is positive",
        ),
        pytest.param(
            {"leaseTransitions": -1},
            ["spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"],
            id="transitions are counted",
        ),
        pytest.param(
            {"preferredHolder": "a"},
            ["spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"],
            id="a preferred holder needs a strategy",
        ),
        pytest.param({"preferredHolder": "a", "strategy": "OldestEmulationVersion"}, [], id="and is fine with one"),
    ],
)
def test_leases(spec: Obj, errors: list[str]) -> None:
    assert created(LEASE, {"spec": spec})[1] == errors


def test_a_lease_prints_its_holder() -> None:
    obj = created(LEASE, {"spec": {"holderIdentity": "me"}})[0]
    assert [column.cell(obj, NOW) for column in LEASE.resource.columns] == ["x", "me", "0s"]


NEWER = {
    "eventTime": "2026-01-02T03:00:00.000000Z",
    "involvedObject": {"namespace": "default"},
    "reportingComponent": "kubernetes.io/kubelet",
    "reportingInstance": "n1",
    "action": "Start",
    "reason": "Started",
}
MISMATCH = 'involvedObject.namespace: Invalid value: "": does not match event.namespace'


@pytest.mark.parametrize(
    ("namespace", "given", "errors"),
    [
        pytest.param("a", {"involvedObject": {"namespace": "a"}}, [], id="an event lives where its object does"),
        pytest.param(
            "b",
            {"involvedObject": {"namespace": "a"}},
            ['involvedObject.namespace: Invalid value: "a": does not match event.namespace'],
            id="and nowhere else",
        ),
        pytest.param(
            "default", {"involvedObject": {"kind": "Node"}}, [], id="cluster-scoped objects have theirs in default"
        ),
        pytest.param("kube-system", {"involvedObject": {"kind": "Node"}}, [MISMATCH], id="and not in kube-system"),
        pytest.param("kube-system", {**NEWER, "involvedObject": {"kind": "Node"}}, [], id="unless of the newer style"),
        pytest.param("a", {**NEWER, "involvedObject": {}}, [MISMATCH], id="but never elsewhere"),
        pytest.param("default", NEWER, [], id="a complete newer event is fine"),
        pytest.param(
            "default",
            {"eventTime": NEWER["eventTime"], "involvedObject": {"namespace": "default"}},
            [
                "reportingComponent: Required value",
                *(f'reportingComponent: Invalid value: "": {detail}' for detail in qualified_name_errors("")),
                "reportingInstance: Required value",
                "action: Required value",
                "reason: Required value",
            ],
            id="an event with eventTime needs reporter, action and reason",
        ),
        pytest.param(
            "default",
            {**NEWER, "reportingComponent": "a/b/c", "reason": "x" * 129, "message": "x" * 1025},
            [
                'reportingComponent: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '
                "'-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
                "'123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS "
                "subdomain prefix and '/' (e.g. 'example.com/MyName')",
                'reason: Invalid value: "": can have at most 128 characters',
                'message: Invalid value: "": can have at most 1024 characters',
            ],
            id="within limits",
        ),
    ],
)
def test_events(namespace: str, given: Obj, errors: list[str]) -> None:
    assert created(EVENT, given, namespace=namespace)[1] == errors


def cells(**fields: Any) -> dict[str, object]:
    obj = {"metadata": {"name": "e"}, **fields}
    return {column.name: column.cell(obj, NOW) for column in EVENT.resource.columns}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {
                "firstTimestamp": "2026-01-02T03:00:05Z",
                "lastTimestamp": "2026-01-02T03:03:05Z",
                "count": 4,
                "type": "Normal",
                "reason": "Started",
                "message": " it started \n",
                "source": {"component": "kubelet", "host": "n1"},
                "involvedObject": {"kind": "Node", "name": "n1", "fieldPath": "spec"},
            },
            {
                "Last Seen": "60s",
                "Type": "Normal",
                "Reason": "Started",
                "Object": "node/n1",
                "Message": "it started",
                "Subobject": "spec",
                "Source": "kubelet, n1",
                "First Seen": "4m",
                "Count": 4,
                "Name": "e",
            },
            id="an event of the older style",
        ),
        pytest.param(
            {"eventTime": "2026-01-02T03:00:05.000000Z", "reportingComponent": "c", "involvedObject": {"kind": "Node"}},
            {"Last Seen": "4m", "First Seen": "4m", "Count": 1, "Source": "c", "Object": "node"},
            id="a single one of the newer style",
        ),
        pytest.param(
            {
                "eventTime": "2026-01-02T03:00:05.000000Z",
                "series": {"count": 9, "lastObservedTime": "2026-01-02T03:04:00.000000Z"},
                "reportingComponent": "c",
                "reportingInstance": "c-1",
            },
            {"Last Seen": "5s", "First Seen": "4m", "Count": 9, "Source": "c, c-1"},
            id="a series of the newer style",
        ),
        pytest.param({}, {"Last Seen": "<unknown>", "Count": 1, "Source": "", "Object": ""}, id="an empty one"),
        pytest.param({"series": {}}, {"Last Seen": "<unknown>", "Count": 0}, id="an empty series"),
    ],
)
def test_print_columns_of_events(fields: Obj, expected: dict[str, object]) -> None:
    assert cells(**fields).items() >= expected.items()


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        pytest.param(
            {"involvedObject": {"kind": "Node", "name": "n1", "uid": "u"}, "reason": "R", "type": "Normal"},
            {
                "involvedObject.kind": "Node",
                "involvedObject.name": "n1",
                "involvedObject.uid": "u",
                "involvedObject.namespace": "",
                "reason": "R",
                "type": "Normal",
                "source": "",
            },
            id="by the object, the reason and the type",
        ),
        pytest.param(
            {"source": {"component": "a"}, "reportingComponent": "b"},
            {"source": "a", "reportingComponent": "b"},
            id="by the source",
        ),
        pytest.param({"reportingComponent": "b"}, {"source": "b"}, id="which is the reporter when not given"),
    ],
)
def test_field_labels_of_events(fields: Obj, selected: dict[str, str]) -> None:
    assert EVENT.selectable_fields({"metadata": {}, **fields}).items() >= selected.items()


@pytest.mark.parametrize(
    ("is_warning", "host", "expected"),
    [
        pytest.param(True, "s1", ("Warning", {"component": "mooring", "host": "s1"}), id="a warning of one server"),
        pytest.param(False, "", ("Normal", {"component": "mooring"}), id="no warning, of no server"),
    ],
)
def test_an_event_of_this_program_has_what_kubectl_shows(is_warning: bool, host: str, expected: object) -> None:
    about = {"kind": "Node", "name": "n1"}
    event = new_event(about, "R", "t" * 2000, NOW, metadata={"name": "e"}, is_warning=is_warning, host=host)
    assert (event["type"], event["source"]) == expected
    assert event["metadata"] == {"name": "e", "namespace": "default"}
    assert len(event["message"]) == 1024, "longer messages are not valid"
    assert EVENT.validate(event) == []
