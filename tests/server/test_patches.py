"""Test errors about patch bodies: duplicate keys, and types that do not fit.

Source: docs/protocol/patches.md, docs/protocol/requests.md#options.
"""

from __future__ import annotations

import pytest

from tests.support.serverroom import Server, in_server

MAPS = "/api/v1/namespaces/default/configmaps"
REPEATED = [
    pytest.param("merge-patch", b'{"data":{"a":"1","a":"2"}}', 'duplicate field "data.a"', id="a merge patch"),
    pytest.param(
        "strategic-merge-patch",
        b'{"data":{"a":"1","a":"2"}}',
        'duplicate field "data.a"',
        id="a strategic merge patch",
    ),
    pytest.param(
        "json-patch",
        b'[{"op":"add","path":"/data","value":{"a":"1","a":"2"}}]',
        'json patch duplicate field "[0].value.a"',
        id="a JSON patch",
    ),
]


@pytest.mark.parametrize(("kind", "body", "warning"), REPEATED)
@in_server
async def test_a_repeated_key_is_warned_about_and_the_last_counts(
    server: Server, kind: str, body: bytes, warning: str
) -> None:
    await server.post(MAPS, {"metadata": {"name": "a"}})
    answer = await server.call("PATCH", f"{MAPS}/a", body=body, content_type=f"application/{kind}+json")
    assert (answer.status, answer.obj["data"]) == (200, {"a": "2"})
    escaped = warning.replace('"', '\\"')
    assert answer.warnings == [f'299 - "{escaped}"']


@pytest.mark.parametrize(("kind", "body", "warning"), REPEATED)
@in_server
async def test_a_repeated_key_is_invalid_when_the_client_is_strict(
    server: Server, kind: str, body: bytes, warning: str
) -> None:
    await server.post(MAPS, {"metadata": {"name": "a"}})
    target = f"{MAPS}/a?fieldValidation=Strict"
    answer = await server.call("PATCH", target, body=body, content_type=f"application/{kind}+json")
    assert answer.status == 422
    assert answer.message.endswith(f": strict decoding error: {warning}")
    assert "data" not in (await server.get(f"{MAPS}/a")).obj


@in_server
async def test_a_directive_in_a_list_that_is_not_merged_is_an_unknown_field(server: Server) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await server.post(accounts, {"metadata": {"name": "a"}})
    body = b'{"imagePullSecrets":[{"$patch":"replace"},{"name":"q"}]}'
    answer = await server.call(
        "PATCH", f"{accounts}/a", body=body, content_type="application/strategic-merge-patch+json"
    )
    assert (answer.status, answer.obj["imagePullSecrets"]) == (200, [{}, {"name": "q"}])
    assert answer.warnings == ['299 - "unknown field \\"imagePullSecrets[0].$patch\\""']


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        pytest.param("merge-patch", b"null", 400, "Invalid JSON Patch", id="a merge patch of nothing"),
        pytest.param("strategic-merge-patch", b"null", 200, "", id="a strategic merge patch of nothing"),
        pytest.param("json-patch", b"null", 200, "", id="a JSON patch of nothing"),
        pytest.param(
            "strategic-merge-patch", b'{"apiVersion":"xxx"}', 200, "", id="a version, which Go's converter passes over"
        ),
        pytest.param(
            "merge-patch",
            b'{"metadata":{"namespace":"other"}}',
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
            id="another namespace",
        ),
    ],
)
@in_server
async def test_odd_patches_are_answered_in_kubernetes_words(
    server: Server, kind: str, body: bytes, status: int, message: str
) -> None:
    await server.post(MAPS, {"metadata": {"name": "a"}, "data": {"b": "c"}})
    answer = await server.call("PATCH", f"{MAPS}/a", body=body, content_type=f"application/{kind}+json")
    assert (answer.status, answer.obj.get("message", "")) == (status, message)
    assert (await server.get(f"{MAPS}/a")).obj["data"] == {"b": "c"}


MISMATCH = '"(not shown)": json: cannot unmarshal number into Go struct field ConfigMap.data of type string'


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        pytest.param("merge-patch", {"data": {"a": 1}}, MISMATCH, id="a merge patch"),
        pytest.param(
            "strategic-merge-patch",
            {"data": {"a": 1}},
            '"map[data:map[a:1]]": cannot convert int64 to string',
            id="a strategic merge patch",
        ),
        pytest.param("json-patch", [{"op": "add", "path": "/data", "value": {"a": 1}}], MISMATCH, id="a JSON patch"),
        pytest.param(
            "json-patch",
            [{"op": "add", "path": "/apiVersion", "value": "xxx"}],
            '"(not shown)": no kind "ConfigMap" is registered for version "xxx" in scheme "pkg/api/legacyscheme/scheme.go:30"',
            id="an unknown version",
        ),
        pytest.param(
            "merge-patch",
            {"kind": "Secret"},
            '"(not shown)": converting (v1.Secret) to (core.ConfigMap): unknown conversion',
            id="another kind",
        ),
    ],
)
@in_server
async def test_what_makes_an_object_that_cannot_be_is_invalid(
    server: Server, kind: str, body: object, told: str
) -> None:
    await server.post(MAPS, {"metadata": {"name": "a"}, "data": {"b": "hunter2"}})
    answer = await server.call("PATCH", f"{MAPS}/a", body=body, content_type=f"application/{kind}+json")
    assert (answer.status, answer.obj["reason"]) == (422, "Invalid")
    wanted = f"Invalid value: {told}"
    assert answer.obj["details"]["causes"] == [{"reason": "FieldValueInvalid", "message": wanted, "field": "patch"}]
    assert (answer.message, "hunter2" in str(answer.obj)) == (f' "" is invalid: patch: {wanted}', False)


DEEP = b'{"a":' * 101 + b"1" + b"}" * 101
INVALID = "invalid JSON patch"


@pytest.mark.parametrize(
    ("kind", "body", "status", "message"),
    [
        pytest.param("json-patch+json", b'[{"op":', 400, INVALID, id="half a JSON patch"),
        pytest.param("json-patch+json", b" ", 400, INVALID, id="blanks"),
        pytest.param("merge-patch+json", b"{'a': 1}", 400, INVALID, id="a merge patch that is not JSON"),
        pytest.param("strategic-merge-patch+json", b"a: 1", 400, INVALID, id="YAML as a strategic merge patch"),
        pytest.param(
            "merge-patch+json", DEEP, 400, "error decoding patch: exceeded max depth of 100", id="a deep merge patch"
        ),
        pytest.param("merge-patch+json", b"[]", 404, 'configmaps "a" not found', id="a list as a merge patch"),
        pytest.param("json-patch+json", b"{}", 404, 'configmaps "a" not found', id="an object as a JSON patch"),
        pytest.param("merge-patch+json", b"{}", 404, 'configmaps "a" not found', id="a merge patch"),
        pytest.param(
            "apply-patch+yaml",
            b"a: [",
            400,
            "error encoding patch: yaml: line 1: did not find expected node content",
            id="an apply patch that is not YAML",
        ),
        pytest.param(
            "apply-patch+yaml",
            b"[]",
            400,
            "error decoding patch: error unmarshaling JSON: while decoding JSON: "
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
            id="a list as an apply patch",
        ),
        pytest.param(
            "apply-patch+yaml",
            b"{apiVersion: v1, kind: ConfigMap, data: {a: '1', a: '2'}}",
            400,
            "error strict decoding patch: error converting YAML to JSON: "
            'yaml: unmarshal errors:\n  line 1: key "a" already set in map',
            id="an apply patch with a key twice",
        ),
    ],
)
@in_server
async def test_a_body_is_parsed_before_the_object_is_looked_up(
    server: Server, kind: str, body: bytes, status: int, message: str
) -> None:
    target = f"{MAPS}/a?fieldManager=m&fieldValidation=Strict"
    answer = await server.call("PATCH", target, body=body, content_type=f"application/{kind}")
    assert (answer.status, answer.message) == (status, message)


@in_server
async def test_rights_and_options_are_judged_before_the_body(server: Server) -> None:
    media = "application/merge-patch+json"
    refused = await server.call("PATCH", f"{MAPS}/a", body=b"{", content_type=media, via=server.user("jane"))
    assert (refused.status, refused.obj["reason"]) == (403, "Forbidden")
    refused = await server.call("PATCH", f"{MAPS}/a?force=true", body=b"{", content_type=media)
    assert (refused.status, refused.obj["reason"]) == (422, "Invalid")
