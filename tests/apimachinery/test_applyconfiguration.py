"""Apply configurations: requirements on the body, and that zeros in it are kept."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.apply.applyconfiguration import decode_apply, drop_empty_zeros
from mooring.apimachinery.codec.json import MAX_BODY
from mooring.errors import ApiError, BadRequestError, RequestEntityTooLargeError

PODS, MAPS = BY_PLURAL["pods"].resource, BY_PLURAL["configmaps"].resource
POD = b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
MAP = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n"


@pytest.mark.parametrize(
    ("body", "members"),
    [
        pytest.param(POD + b"spec: {hostNetwork: false}", {"spec": {"hostNetwork": False}}, id="false"),
        pytest.param(POD + b"spec: {hostname: ''}", {"spec": {"hostname": ""}}, id="an empty text"),
        pytest.param(POD + b"spec: {tolerations: []}", {"spec": {"tolerations": []}}, id="an empty list"),
        pytest.param(POD + b"spec: {}", {"spec": {}}, id="an empty message"),
        pytest.param(POD + b"spec: {hostname: null}", {"spec": {}}, id="null, which is no opinion"),
        pytest.param(
            POD + b"status: {conditions: [{type: Ready, reason: r}, {type: A, status: null}]}",
            {"status": {"conditions": [{"type": "Ready", "reason": "r"}, {"type": "A"}]}},
            id="nothing, also about a required field",
        ),
        pytest.param(
            POD + b"status: {startTime: '0001-01-01T00:00:00Z'}", {"status": {}}, id="the zero time, which is none"
        ),
        pytest.param(
            POD + b"spec: {containers: [{name: c, stdin: false}, null]}",
            {"spec": {"containers": [{"name": "c", "stdin": False}, {}]}},
            id="a zero in an item of a list",
        ),
        pytest.param(
            POD + b"spec: {containers: [{name: c, resources: {limits: {cpu: 1, memory: null}}}]}",
            {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "0"}}}]}},
            id="the values of a map, in normal form",
        ),
    ],
)
def test_an_apply_configuration_may_be(body: bytes, members: dict[str, Any]) -> None:
    assert decode_apply(body, PODS).obj == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}} | members


def test_json_is_read_and_yaml_that_begins_with_a_brace() -> None:
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}
    assert decode_apply(b'{"apiVersion":"v1","kind":"ConfigMap"}', MAPS).obj == wanted
    assert decode_apply(b"{apiVersion: v1, kind: ConfigMap, metadata: null}", MAPS).obj == wanted


def test_required_fields_that_are_not_applied_are_not_owned() -> None:
    body = b"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: e, labels: {a: b}}}"
    wanted = {"name": "e", "labels": {"a": "b"}}
    assert decode_apply(body, BY_PLURAL["endpointslices"].resource).obj == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": wanted,
    }


def test_duplicate_keys_are_reported() -> None:
    assert decode_apply(MAP + b"data: {a: '1', a: '2'}", MAPS).duplicates == ('line 4: key "a" already set in map',)
    body = b'{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"1","a":"2"}}'
    assert decode_apply(body, MAPS).duplicates == ('line 1: key "a" already set in map',)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(
            b"[]",
            "error decoding patch: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value",
            id="a list",
        ),
        pytest.param(b"", "invalid object type: /, Kind=", id="nothing"),
        pytest.param(b"\xff", "error encoding patch: invalid UTF-8", id="no UTF-8"),
        pytest.param(b"a: [", "error encoding patch: yaml: ", id="broken YAML"),
        pytest.param(b"kind: ConfigMap", "invalid object type: /, Kind=ConfigMap", id="no apiVersion"),
        pytest.param(
            b"{apiVersion: v2, kind: ConfigMap}", "invalid object type: /v2, Kind=ConfigMap", id="another apiVersion"
        ),
        pytest.param(b"{apiVersion: v1, kind: Pod}", "invalid object type: /v1, Kind=Pod", id="another kind"),
        pytest.param(
            MAP + b"spec: 1\nmeta: 2",
            "failed to create typed patch object (/m; /v1, Kind=ConfigMap): "
            ".meta: field not declared in schema, .spec: field not declared in schema",
            id="unknown fields",
        ),
        pytest.param(
            MAP + b"data: 1", "json: cannot unmarshal number into Go struct field", id="a value of the wrong type"
        ),
        pytest.param(
            b"{apiVersion: v1, kind: ConfigMap, metadata: {managedFields: [{}]}}",
            "metadata.managedFields must be nil",
            id="managedFields",
        ),
    ],
)
def test_it_is_refused_for(body: bytes, why: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        decode_apply(body, MAPS)
    assert why in caught.value.message


def test_a_body_has_a_limit() -> None:
    with pytest.raises(RequestEntityTooLargeError):
        decode_apply(b" " * (MAX_BODY + 1), MAPS)


def test_zeros_are_dropped_from_a_merged_object() -> None:
    merged = {"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {"hostNetwork": False, "hostname": "h"}}
    assert drop_empty_zeros(merged, PODS.schema) == merged | {"spec": {"hostname": "h"}}
    assert merged["spec"] == {"hostNetwork": False, "hostname": "h"}


def test_only_errors_of_the_caller_come_out() -> None:
    for body in (b"{", b"\x00", b"!!python/none x", b"&a [*a]", b'{"a": ' * 500):
        with pytest.raises(ApiError):
            decode_apply(body, MAPS)
