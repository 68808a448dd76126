"""Test requests and replies: bodies, media types, options, headers, documents.

Source: docs/protocol/index.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from mooring import build
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.json import MAX_BODY
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from tests.support.manualclock import settle
from tests.support.registryroom import secret
from tests.support.serverroom import Server, connection, encoded, in_server, open_server

SECRETS = "/api/v1/namespaces/default/secrets"
KINDCAR = "application/vnd.kubernetes.protobuf"
V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "body", "how", "status", "part"),
    [
        pytest.param("POST", SECRETS, b"x" * (MAX_BODY + 1), {}, 413, "3145728", id="a body over 3 MiB"),
        pytest.param("POST", SECRETS, b"{", {}, 400, "", id="a body that is no JSON"),
        pytest.param("POST", SECRETS, b"", {}, 400, "", id="no body"),
        pytest.param("POST", SECRETS, b"[]", {}, 400, "", id="a body that is a list"),
        pytest.param("POST", SECRETS, b'{"kind":"Pod","apiVersion":"v1"}', {}, 400, "Pod", id="another kind"),
        pytest.param("POST", SECRETS, b'{"kind":"Secret","apiVersion":"v2"}', {}, 400, "v2", id="another version"),
        pytest.param("POST", SECRETS, b'{"metadata":{"name":7}}', {}, 400, "", id="a name that is a number"),
        pytest.param("POST", SECRETS, b"[" * 100_000, {}, 400, "", id="deep nesting of lists"),
        pytest.param("POST", SECRETS, b'{"a":' * 100_000, {}, 400, "", id="deep nesting of objects"),
        pytest.param("POST", SECRETS, b"\xff\xfe", {}, 400, "", id="a body that is no UTF-8"),
        pytest.param("POST", SECRETS, b"k8s\x00\xff\xff", {"content_type": KINDCAR}, 400, "", id="broken protobuf"),
        pytest.param("POST", SECRETS, b"a: [", {"content_type": "application/yaml"}, 400, "", id="broken YAML"),
        pytest.param("POST", SECRETS, b"{}", {"content_type": "text/plain"}, 415, "application/json", id="plain text"),
        pytest.param("PATCH", f"{SECRETS}/a", b"{}", {}, 415, "415: Unsupported", id="a patch of no type"),
        pytest.param(
            "PATCH",
            f"{SECRETS}/a",
            b"{}",
            {"content_type": "text/plain", "headers": [("Accept", "text/plain")]},
            415,
            "415: Unsupported Media Type",
            id="a patch of no type before the type of its answer",
        ),
        pytest.param(
            "PATCH",
            f"{SECRETS}/a",
            b"{}",
            {"content_type": "application/apply-patch+yaml"},
            422,
            "fieldManager",
            id="server-side apply by nobody",
        ),
        pytest.param(
            "PATCH",
            f"{SECRETS}/a",
            b"[]",
            {"content_type": "application/merge-patch+json"},
            404,
            "not found",
            id="a merge patch that is a list, of an object that is not there",
        ),
        pytest.param(
            "PATCH",
            f"{SECRETS}/cabinet",
            b"{",
            {"content_type": "application/json-patch+json"},
            400,
            "",
            id="a JSON patch that is no JSON",
        ),
        pytest.param("GET", f"{SECRETS}?limit=x", None, {}, 400, "strconv.ParseInt", id="a limit that is no number"),
        pytest.param("GET", f"{SECRETS}?labelSelector=(", None, {}, 400, "", id="a selector that is none"),
        pytest.param("GET", f"{SECRETS}?fieldSelector=a=b", None, {}, 400, "", id="a field nobody can select by"),
        pytest.param("GET", f"{SECRETS}?continue=x", None, {}, 400, "continue", id="a token of nobody's"),
        pytest.param(
            "GET", f"{SECRETS}?timeout=soon", None, {}, 400, "timeout specified in the request URL", id="a bad timeout"
        ),
        pytest.param(
            "GET", f"{SECRETS}?" + "&".join(["a=b"] * 1001), None, {}, 400, "parameters", id="1001 parameters"
        ),
        pytest.param("GET", f"{SECRETS}/nobody", None, {}, 404, 'secrets "nobody" not found', id="an unknown name"),
        pytest.param("GET", "/api/v1/watch", None, {}, 400, "url", id="a watch of nothing"),
        pytest.param("POST", "/api/v1/secrets", b"{}", {}, 405, "method", id="creating in no namespace"),
        pytest.param("PUT", SECRETS, b"{}", {}, 405, "method", id="updating a collection"),
        pytest.param("POST", f"{SECRETS}/a", b"{}", {}, 405, "method", id="posting to an object"),
        pytest.param("OPTIONS", SECRETS, None, {}, 405, "method", id="a method no resource has"),
        pytest.param("POST", "/version", b"{}", {}, 405, "method", id="posting to a document"),
        pytest.param("GET", REVIEW, None, {}, 405, "method", id="listing reviews"),
        pytest.param(
            "GET", "/api/v1/namespaces/default/serviceaccounts/default/token", None, {}, 405, "", id="a token by GET"
        ),
        pytest.param("GET", f"{SECRETS}/a/status", None, {}, 404, "", id="a subresource the kind does not have"),
        pytest.param("POST", f"{SECRETS}?dryRun=Some", b"{}", {}, 422, "dryRun", id="an unknown dryRun"),
        pytest.param(
            "POST", f"{SECRETS}?fieldValidation=Perhaps", b"{}", {}, 422, "fieldValidation", id="an unknown policy"
        ),
    ],
)
@in_server
async def test_bad_input_is_told_apart(
    server: Server, method: str, target: str, body: bytes | None, how: dict[str, Any], status: int, part: str
) -> None:
    await server.create("secrets", secret("cabinet"))
    answer = await server.call(method, target, body=body, **how)
    assert answer.status == status, answer.text
    assert answer.obj["kind"] == "Status"
    assert answer.obj["code"] == status
    assert part in answer.message
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["audit-id"]


@pytest.mark.parametrize(
    "target",
    [
        "/nowhere",
        "/apis/nobody.example",
        "/apis/nobody.example/v1",
        "/apis/nobody.example/v1/things",
        "/api/v1//secrets",
        "/apis/certificates.k8s.io//v1",
        "/openapi/v3/api/v9",
        "/livez/nothing",
        "/nothing",
    ],
)
@in_server
async def test_a_path_nobody_serves_is_plain_404(server: Server, target: str) -> None:
    answer = await server.get(target)
    assert (answer.status, answer.text) == (404, "404 page not found\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    "target",
    [
        "/api/v2",
        "/api/v1/gadgets",
        "/apis/certificates.k8s.io/v9",
        "/apis/certificates.k8s.io/v9/certificatesigningrequests",
        "/version/nothing",
        f"{SECRETS}/a/status/deeper",
        f"{SECRETS}/a/nothing",
        "/api/v1/secrets/a",
        "/api/v1/nodes/a/proxy/metrics",
        "/api/v1/proxy/nodes/a",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews/a",
    ],
)
@in_server
async def test_below_an_api_group_a_path_nobody_serves_is_404_with_a_status(server: Server, target: str) -> None:
    answer = await server.get(target)
    assert (answer.status, answer.obj["reason"], answer.obj["details"]) == (404, "NotFound", {})
    assert answer.message == "the server could not find the requested resource"


@in_server
async def test_the_root_names_every_path_that_can_be_read(server: Server) -> None:
    paths = (await server.get("/")).obj["paths"]
    assert paths == sorted(paths)
    assert {"/api/v1", "/apis/apps/v1", "/livez", "/openapi/v3", "/version"} <= set(paths)
    assert "/mooring/v1/login" not in paths, "it is posted to"
    codes = {path: (await server.get(path)).status for path in paths}
    assert codes.pop("/mooring/v1/crl") == 503, "this server runs no background work, which signs the CRL"
    assert set(codes.values()) == {200}
    assert (await server.get("/", token=await server.bootstrap_token())).status == 403


@pytest.mark.parametrize("path", ["/version", "/nowhere"])
@in_server
async def test_every_reply_has_the_time_of_the_server(server: Server, path: str) -> None:
    date = (await server.get(path)).headers["date"]
    assert parsedate_to_datetime(date) == server.clock.now().replace(microsecond=0)
    assert date.endswith(" GMT")


@in_server
async def test_a_body_of_two_mebibytes_is_read(server: Server) -> None:
    body = secret("big", data={"key": encoded("x" * 900_000)}) | {"metadata": {"name": "big", "annotations": {}}}
    padded = json.dumps(body).encode() + b" " * (1 << 20)
    assert (await server.post(SECRETS, padded)).status == 201


@in_server
async def test_a_body_in_pieces_is_bounded_as_a_whole(server: Server) -> None:
    piece = b" " * (1 << 20)
    answer = await server.call("POST", SECRETS, pieces=[piece] * 4, content_type="application/json")
    assert answer.status == 413


@in_server
async def test_a_client_that_goes_away_in_the_middle_of_its_body_writes_nothing(server: Server) -> None:
    from mooring.server.transport.http import Request

    async def receive() -> Any:
        return None

    request = Request("POST", SECRETS, b"", [], server.admin, receive)
    response = await server.handle(request)
    assert response.status == 400


@in_server
async def test_406_is_told_before_anything_is_written(server: Server) -> None:
    answer = await server.post(SECRETS, secret("a"), headers=[("Accept", "text/html")])
    assert answer.status == 406
    assert answer.headers["content-type"] == "application/json", "what cannot be expressed is told as JSON"
    assert await server.names("secrets", "default") == []


@in_server
async def test_what_has_no_table_is_sent_as_it_is(server: Server) -> None:
    await server.create("secrets", secret("a"))
    answer = await server.call("DELETE", f"{SECRETS}/a", headers=[("Accept", TABLE)])
    assert (answer.status, answer.obj["status"]) == (200, "Success")
    assert answer.obj["details"] == {"name": "a", "kind": "secrets", "uid": answer.obj["details"]["uid"]}


# -- headers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param("my-own-id", True, id="an Audit-ID is echoed"),
        pytest.param("x" * 64, True, id="one of 64 characters is echoed"),
        pytest.param("x" * 65, False, id="a longer one is not"),
        pytest.param("two\tlines", False, id="one with control characters is not"),
        pytest.param("\xe9", False, id="one outside ASCII is not"),
        pytest.param("", False, id="an empty one is not"),
    ],
)
@in_server
async def test_audit_ids(server: Server, given: str, kept: bool) -> None:
    answer = await server.get("/version", headers=[("Audit-ID", given)])
    assert (answer.headers["audit-id"] == given) is kept
    assert len(answer.headers["audit-id"]) == (len(given) if kept else 36)


@in_server
async def test_each_reply_has_an_audit_id_of_its_own(server: Server) -> None:
    ids = {(await server.get(path)).headers["audit-id"] for path in ("/version", "/nowhere", SECRETS, "/livez")}
    assert len(ids) == 4


@in_server
async def test_unknown_and_duplicate_fields_are_warnings_by_default(server: Server) -> None:
    body = b'{"metadata":{"name":"a","odd":1},"data":{},"data":{},"q\\"x":2}'
    answer = await server.post(SECRETS, body)
    assert answer.status == 201
    assert answer.warnings == [
        '299 - "unknown field \\"metadata.odd\\""',
        '299 - "unknown field \\"q\\"x\\""',
        '299 - "duplicate field \\"data\\""',
    ]


@in_server
async def test_strict_is_400_with_every_field(server: Server) -> None:
    answer = await server.post(f"{SECRETS}?fieldValidation=Strict", b'{"metadata":{"name":"a"},"odd":1,"even":2}')
    assert answer.status == 400
    assert answer.message == (
        'Secret in version "v1" cannot be handled as a Secret: strict decoding error: unknown field "odd", unknown field "even"'
    )


@in_server
async def test_ignore_says_nothing(server: Server) -> None:
    answer = await server.post(f"{SECRETS}?fieldValidation=Ignore", b'{"metadata":{"name":"a"},"odd":1}')
    assert (answer.status, answer.warnings) == (201, [])


@in_server
async def test_warnings_are_bounded_together(server: Server) -> None:
    body = {"metadata": {"name": "a"}, **{f"odd{number}{'x' * 500}": 1 for number in range(2000)}}
    answer = await server.post(SECRETS, body)
    assert answer.status == 201
    assert len(answer.warnings) > 1
    assert sum(map(len, answer.warnings)) < 5000


@in_server
async def test_a_patch_warns_of_unknown_fields_once(server: Server) -> None:
    await server.create("secrets", secret("a"))
    how = {"content_type": "application/merge-patch+json", "headers": [("Authorization", "Bearer  x")]}
    answer = await server.call("PATCH", f"{SECRETS}/a", body={"odd": 1}, **how)
    assert answer.status == 200
    assert [("odd" in warning) for warning in answer.warnings] == [False, True], "the credential's warning stays"


@in_server
async def test_a_bug_of_ours_tells_the_caller_an_id_and_nothing_else(
    server: Server,
) -> None:
    async def broken(_: Any) -> Any:
        raise RuntimeError("the secret sauce")

    server.pipeline.dispatch = broken
    answer = await server.get("/version")
    assert answer.status == 500
    assert answer.obj["reason"] == "InternalError"
    assert answer.headers["audit-id"] in answer.message
    assert "sauce" not in answer.text


@in_server
async def test_a_request_that_takes_too_long_is_504(server: Server) -> None:
    async def slow(_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    server.pipeline.dispatch = slow
    answer = await server.get(f"{SECRETS}?timeout=1ms")
    assert (answer.status, answer.obj["reason"]) == (504, "Timeout")


# -- representations ---------------------------------------------------------------------------------------------


@in_server
async def test_one_object_in_every_representation(server: Server) -> None:
    stored = await server.create("secrets", secret("a"))
    target = f"{SECRETS}/a"
    plain = await server.get(target)
    assert plain.body == stored.raw, "kept bytes are sent as they are"
    shown = await server.get(target, headers=[("Accept", "application/yaml")])
    assert shown.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(shown.body)["data"] == {"key": "dmFsdWU="}
    binary = await server.get(target, headers=[("Accept", KINDCAR)])
    assert binary.headers["content-type"] == KINDCAR
    api_version, kind, raw = decode_envelope(binary.body)
    assert (api_version, kind) == ("v1", "Secret")
    assert decode_message(raw, BY_PLURAL["secrets"].resource.schema)["metadata"]["name"] == "a"
    either = await server.get(target, headers=[("Accept", f"{KINDCAR},application/json")])
    assert either.headers["content-type"] == "application/json"
    curl = await server.get(target, headers=[("User-Agent", "curl/8.0")])
    assert curl.text.startswith('{\n  "kind": "Secret"')
    assert (await server.get(f"{target}?pretty=1")).body == curl.body
    partial = await server.get(target, headers=[("Accept", PARTIAL)])
    assert partial.obj["kind"] == "PartialObjectMetadata"
    assert "data" not in partial.obj
    rows = await server.get(target, headers=[("Accept", TABLE)])
    assert rows.obj["rows"][0]["cells"] == ["a", "Opaque", 1, "0s"]
    assert rows.headers["content-type"] == "application/json"


PLAIN = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
STREAMS = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
PARTIAL_LIST = PARTIAL.replace("Metadata;", "MetadataList;")
CONTINUED = (
    'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when'
)
AVAILABLE = "406: Not Acceptable\n\nAvailable representations: "


@pytest.mark.parametrize(
    ("method", "target", "accept", "message"),
    [
        pytest.param("GET", "/api", "text/html", AVAILABLE + PLAIN, id="a document of discovery"),
        pytest.param("GET", f"{SECRETS}/none", "application/xml", AVAILABLE + PLAIN, id="an object, there or not"),
        pytest.param("DELETE", f"{SECRETS}/none", "application/xml", AVAILABLE + PLAIN, id="a write"),
        pytest.param("GET", SECRETS, "application/cbor", f"{AVAILABLE}{PLAIN}, {STREAMS}", id="a list"),
        pytest.param("GET", f"{SECRETS}?watch=1", "text/*", f"{AVAILABLE}{PLAIN}, {STREAMS}", id="a watch"),
        pytest.param(
            "GET",
            f"{SECRETS}?watch=1",
            "application/json;as=Table;v=v1",
            f"only the following media types are accepted: {PLAIN}",
            id="a watch of an unknown shape",
        ),
        pytest.param(
            "GET",
            f"{SECRETS}?watch=1&fieldSelector=nosuch=1",
            PARTIAL_LIST,
            "field label not supported: nosuch",
            id="a watch with a wrong selector",
        ),
        pytest.param(
            "GET",
            f"{SECRETS}?watch=1&fieldSelector=metadata.name=a&continue=x&resourceVersionMatch=",
            PARTIAL_LIST,
            f"{CONTINUED} continue is provided",
            id="a watch with wrong options",
        ),
        pytest.param(
            "GET",
            SECRETS,
            PARTIAL,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.SecretList)",
            id="a list as an object",
        ),
        pytest.param(
            "GET",
            f"{SECRETS}/a",
            PARTIAL_LIST,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.Secret)",
            id="an object as a list",
        ),
    ],
)
@in_server
async def test_what_is_not_acceptable_is_refused_in_kubernetes_words(
    server: Server, method: str, target: str, accept: str, message: str
) -> None:
    await server.create("secrets", secret("a"))
    answer = await server.call(method, target, headers=[("Accept", accept)])
    assert answer.message == message


@in_server
async def test_a_list_in_every_representation(server: Server) -> None:
    for name in ("a", "b"):
        await server.create("secrets", secret(name))
    plain = (await server.get(SECRETS)).obj
    assert (plain["kind"], plain["apiVersion"]) == ("SecretList", "v1")
    assert [item["metadata"]["name"] for item in plain["items"]] == ["a", "b"]
    assert not any("kind" in item or "apiVersion" in item for item in plain["items"]), "only the list says them"
    assert (await server.get(f"{SECRETS}?labelSelector=no%3Dsuch")).obj["items"] == []
    longer = ",".join(f"no-{number}!=such" for number in range(100))
    assert (await server.get(f"{SECRETS}?labelSelector={longer}")).obj["items"] == plain["items"]
    rows = (await server.get(SECRETS, headers=[("Accept", TABLE)])).obj
    assert [column["name"] for column in rows["columnDefinitions"]] == ["Name", "Type", "Data", "Age"]
    assert rows["metadata"]["resourceVersion"] == plain["metadata"]["resourceVersion"]
    assert rows["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = (await server.get(f"{SECRETS}?includeObject=Object", headers=[("Accept", TABLE)])).obj
    assert whole["rows"][0]["object"]["kind"] == "Secret"
    accept = PARTIAL.replace("Metadata;", "MetadataList;")
    assert (await server.get(SECRETS, headers=[("Accept", accept)])).obj["kind"] == "PartialObjectMetadataList"
    first = ",".join(text.replace("application/json", KINDCAR) for text in (accept, PARTIAL)) + f",{accept}"
    for path, kind in ((SECRETS, "PartialObjectMetadataList"), (f"{SECRETS}/a", "PartialObjectMetadata")):
        answer = await server.get(path, headers=[("Accept", first)])
        assert answer.headers["content-type"] == KINDCAR
        assert decode_envelope(answer.body)[:2] == ("meta.k8s.io/v1", kind)
    assert yaml.safe_load((await server.get(SECRETS, headers=[("Accept", "application/yaml")])).body) == plain
    binary = await server.get(SECRETS, headers=[("Accept", KINDCAR)])
    assert decode_envelope(binary.body)[:2] == ("v1", "SecretList")
    page = (await server.get(f"{SECRETS}?limit=1")).obj
    assert page["metadata"]["remainingItemCount"] == 1
    second = (await server.get(f"{SECRETS}?limit=1&continue={page['metadata']['continue']}")).obj
    assert [item["metadata"]["name"] for item in second["items"]] == ["b"]


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        pytest.param(TABLE, 406, id="a Table alone is not there to give"),
        pytest.param(f"{TABLE},application/json", 201, id="whoever takes the object too gets it"),
    ],
)
@in_server
async def test_a_review_has_no_table(server: Server, accept: str, status: int) -> None:
    review = {"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await server.call("POST", path, body=review, headers=[("Accept", accept)])
    assert (answer.status, answer.obj["kind"]) == (status, "Status" if status == 406 else "SelfSubjectAccessReview")


@in_server
async def test_errors_come_in_the_representation_asked_for(server: Server) -> None:
    binary = await server.get(f"{SECRETS}/x", headers=[("Accept", KINDCAR)])
    assert (binary.status, binary.headers["content-type"]) == (404, KINDCAR)
    assert decode_envelope(binary.body)[:2] == ("v1", "Status")
    shown = await server.get(f"{SECRETS}/x", headers=[("Accept", "application/yaml")])
    assert yaml.safe_load(shown.body)["reason"] == "NotFound"
    assert (await server.get(f"{SECRETS}/x?pretty=true")).text.startswith("{\n")


@in_server
async def test_verbs_change_what_they_say(server: Server) -> None:
    created = await server.post(SECRETS, secret("a"))
    assert created.status == 201
    changed = await server.call("PUT", f"{SECRETS}/a", body={**created.obj, "data": {}})
    assert (changed.status, "data" in changed.obj) == (200, False)
    dry = await server.post(f"{SECRETS}?dryRun=All", secret("b"))
    assert dry.status == 201
    assert await server.names("secrets", "default") == ["a"]
    for content_type, patch in (
        ("application/json-patch+json", [{"op": "add", "path": "/metadata/labels", "value": {"x": "1"}}]),
        ("application/merge-patch+json", {"metadata": {"labels": {"x": "2"}}}),
        ("application/strategic-merge-patch+json", {"metadata": {"labels": {"x": "3"}}}),
    ):
        answer = await server.call("PATCH", f"{SECRETS}/a", body=patch, content_type=content_type)
        assert answer.status == 200, answer.text
    assert answer.obj["metadata"]["labels"] == {"x": "3"}
    assert (await server.call("HEAD", f"{SECRETS}/a")).status == 200
    wrong = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}}
    assert (await server.call("DELETE", f"{SECRETS}/a", body=wrong)).status == 409
    swept = await server.call("DELETE", SECRETS)
    assert (swept.status, len(swept.obj["items"])) == (200, 1)
    await server.create("namespaces", {"metadata": {"name": "going"}})
    going = await server.call("DELETE", "/api/v1/namespaces/going")
    assert (going.obj["kind"], going.obj["status"]["phase"]) == ("Namespace", "Terminating")


@in_server
async def test_put_creates_only_for_who_may_create(server: Server) -> None:
    rbac = "rbac.authorization.k8s.io"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}
    target = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}
    await server.create("roles", {"metadata": {"name": "one"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "one"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "one"},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": rbac}],
    }
    await server.create("rolebindings", binding)
    refused = await server.call("PUT", target, body=lease, via=server.user("bob"))
    assert (refused.status, refused.obj["reason"]) == (403, "Forbidden")
    created = await server.call("PUT", target, body=lease)
    assert created.status == 201
    assert (await server.call("PUT", target, body=created.obj, via=server.user("bob"))).status == 200


# -- documents ---------------------------------------------------------------------------------------------------


@in_server
async def test_the_version_document(server: Server) -> None:
    document = (await server.get("/version", via=connection())).obj
    named = {name: document[name] for name in document if name.endswith(("ajor", "inor"))}
    assert named == {
        "major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "37",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "36",
    }  # fmt: skip
    assert document["gitVersion"].startswith("v1.37.1+mooring-")
    assert document["gitCommit"] == build.commit()
    assert set(document) >= {"gitTreeState", "buildDate", "goVersion", "compiler", "platform"}


@pytest.mark.parametrize("target", ["/api", "/apis"])
@in_server
async def test_aggregated_discovery_and_its_etag(server: Server, target: str) -> None:
    answer = await server.get(target, headers=[("Accept", f"{V2},application/json")])
    assert answer.headers["content-type"] == V2
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["etag"] == f'"{hashlib.sha512(answer.body).hexdigest().upper()}"'
    again = await server.get(target, headers=[("Accept", V2), ("If-None-Match", answer.headers["etag"])])
    assert (again.status, again.body) == (304, b"")
    assert (await server.get(f"{target}/", headers=[("Accept", V2)])).body == answer.body


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/api/v1", "APIResourceList"),
        ("/api/v1/", "APIResourceList"),
        ("/apis/certificates.k8s.io", "APIGroup"),
        ("/apis/certificates.k8s.io/", "APIGroup"),
        ("/apis/certificates.k8s.io/v1", "APIResourceList"),
    ],
)
@in_server
async def test_legacy_discovery(server: Server, target: str, kind: str) -> None:
    answer = await server.get(target)
    assert (answer.status, answer.obj["kind"]) == (200, kind)
    assert answer.headers["content-type"] == "application/json"


@in_server
async def test_openapi_v3_is_immutable_under_its_hash(server: Server) -> None:
    index = (await server.get("/openapi/v3")).obj["paths"]
    for entry in index.values():
        target = entry["serverRelativeURL"]
        answer = await server.get(target)
        assert (answer.status, answer.headers["cache-control"]) == (200, "public, immutable")
        again = await server.get(target, headers=[("If-None-Match", answer.headers["etag"])])
        assert again.status == 304
    index_etag = (await server.get("/openapi/v3")).headers["etag"]
    assert (await server.get("/openapi/v3", headers=[("If-None-Match", index_etag)])).status == 304
    moved = await server.get("/openapi/v3/api/v1?hash=old")
    assert (moved.status, moved.headers["location"]) == (301, index["api/v1"]["serverRelativeURL"])


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        pytest.param("{}", 304, id="the ETag"),
        pytest.param("W/{}", 304, id="a weak one, as nginx makes it"),
        pytest.param('"a", W/{} ,"b"', 304, id="a list"),
        pytest.param("*", 304, id="anything"),
        pytest.param('"other"', 200, id="another"),
        pytest.param('W/"other", "*"', 200, id="others, and a star that is a tag"),
        pytest.param('"' * 5000, 200, id="no tag"),
    ],
)
@pytest.mark.parametrize("target", ["/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"])
@in_server
async def test_a_condition_is_compared_as_by_a_cache(server: Server, target: str, condition: str, status: int) -> None:
    """Source: RFC 9110 13.1.2, which kube-apiserver follows (Go's `http.ServeContent`)."""
    etag = (await server.get(target)).headers["etag"]
    assert (await server.get(target, headers=[("If-None-Match", condition.format(etag))])).status == status


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        pytest.param(["{}", '"a"'], 304, id="the ETag in the first line"),
        pytest.param(['"a"', "W/{}"], 304, id="in the second"),
        pytest.param(['"a", "b"', '"c",', "{}"], 304, id="in the last of several lists"),
        pytest.param(['"a"', '"b"'], 200, id="in none"),
        pytest.param(['"a', '{}"'], 200, id="no tag is made of two lines"),
    ],
)
@in_server
async def test_a_condition_in_several_lines_is_one_list(server: Server, conditions: list[str], status: int) -> None:
    """Source: RFC 9110 5.3."""
    etag = (await server.get("/openapi/v3")).headers["etag"]
    headers = [("If-None-Match", condition.format(etag)) for condition in conditions]
    assert (await server.get("/openapi/v3", headers=headers)).status == status


HOOK = "/readyz/poststarthook/rbac/bootstrap-roles"


# -- health ------------------------------------------------------------------------------------------------------


@in_server
async def test_health_is_ok_in_two_letters(server: Server) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/livez/ping", "/readyz/informer-sync", "/livez/etcd", HOOK):
        answer = await server.get(path, via=server.admin)
        assert (answer.status, answer.text) == (200, "ok"), path
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@in_server
async def test_health_by_name(server: Server) -> None:
    wrong = False
    server.assembly.http.health.add("wrong", lambda: wrong, "livez")
    answer = await server.get("/livez?verbose")
    assert answer.status == 500
    assert answer.text.splitlines() == [
        "[+]ping ok",
        "[+]log ok",
        "[+]etcd ok",
        "[+]poststarthook/start-system-namespaces-controller ok",
        "[+]poststarthook/rbac/bootstrap-roles ok",
        "[+]controllers ok",
        "[-]wrong failed: reason withheld",
        "livez check failed",
    ]
    excluded = await server.get("/livez?verbose&exclude=wrong&exclude=nothing&exclude=any")
    assert excluded.status == 200
    assert excluded.text.splitlines()[-3:] == [
        "[+]wrong excluded: ok",
        'warn: some health checks cannot be excluded: no matches for "any","nothing"',
        "livez check passed",
    ]
    assert (await server.get("/livez/wrong")).status == 500
    assert (await server.get("/livez/wrong")).text == "internal server error: reason withheld\n"
    assert (await server.get("/readyz")).status == 200, "a check of livez alone"
    wrong = True
    assert (await server.get("/livez")).text == "ok"
    lines = (await server.get("/readyz?verbose")).text.splitlines()
    assert lines[-1] == "readyz check passed"
    assert {"[+]informer-sync ok", "[+]shutdown ok", "[+]certificates ok"} <= set(lines)
    assert (await server.get("/livez/informer-sync")).status == 404


def test_who_writes_the_audit_log_no_more_is_not_well(tmp_path: Path) -> None:
    async def body() -> None:
        async with open_server(audit_log_path=str(tmp_path / "audit.log")) as server:
            assert (await server.get("/livez/log")).status == 200
            [writer] = [task for task in asyncio.all_tasks() if task.get_name() == "audit"]
            writer.cancel()
            await settle()
            assert (await server.get("/livez/log")).status == 500

    asyncio.run(body())


# -- tokens and reviews ------------------------------------------------------------------------------------------


@in_server
async def test_a_requested_token_authenticates_and_is_reviewed(server: Server) -> None:
    await server.create("serviceaccounts", {"metadata": {"name": "robot"}})
    target = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    issued = await server.post(target, {"spec": {"expirationSeconds": 3600}})
    assert issued.status == 201
    token = issued.obj["status"]["token"]
    who = await server.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    assert who.status == 201
    user = who.obj["status"]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:robot"
    assert "system:authenticated" in user["groups"]
    reviewed = await server.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    assert (reviewed.status, reviewed.obj["status"]["authenticated"]) == (201, True)
    await server.delete("serviceaccounts", "robot")
    assert (await server.get("/version", token=token)).status == 401
    refused = await server.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}})
    assert (refused.status, refused.obj["status"].get("authenticated", False)) == (201, False)


@in_server
async def test_a_token_for_nobody_is_404(server: Server) -> None:
    answer = await server.post("/api/v1/namespaces/default/serviceaccounts/nobody/token", {"spec": {}})
    assert (answer.status, answer.message) == (404, 'serviceaccounts "nobody" not found')


@pytest.mark.parametrize(
    ("target", "spec", "allowed"),
    [
        pytest.param(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"user": "ann", "groups": ["system:masters"], "resourceAttributes": {"verb": "get", "resource": "secrets"}},
            True,
            id="about a master",
        ),
        pytest.param(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"user": "ann", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}},
            False,
            id="about nobody in particular",
        ),
        pytest.param(REVIEW, {"resourceAttributes": {"verb": "get", "resource": "secrets"}}, True, id="about oneself"),
        pytest.param(
            "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews",
            {"user": "ann", "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "secrets"}},
            False,
            id="in a namespace",
        ),
    ],
)
@in_server
async def test_access_reviews(server: Server, target: str, spec: dict[str, Any], allowed: bool) -> None:
    answer = await server.post(target, {"spec": spec})
    assert answer.status == 201, answer.text
    assert answer.obj["status"].get("allowed", False) is allowed


@in_server
async def test_rules_are_told(server: Server) -> None:
    answer = await server.post(
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": "default"}}
    )
    assert answer.obj["status"]["resourceRules"]


@in_server
async def test_the_issuer_is_discoverable_for_service_accounts(server: Server) -> None:
    document = (await server.get("/.well-known/openid-configuration")).obj
    assert document["issuer"] == server.config[ServiceAccountSettings].issuer
    assert document["jwks_uri"] == "https://192.0.2.10:6443/openid/v1/jwks"
    keys = await server.get("/openid/v1/jwks")
    assert keys.headers["content-type"] == "application/jwk-set+json"
    assert "max-age" in keys.headers["cache-control"]
    assert not {"d", "p", "q"} & set(keys.obj["keys"][0])


def test_an_issuer_that_is_no_https_url_is_not_discoverable() -> None:
    async def body() -> None:
        async with open_server(service_account_issuer=("robots",)) as server:
            for target in ("/.well-known/openid-configuration", "/openid/v1/jwks"):
                assert (await server.get(target)).status == 404

    asyncio.run(body())


@in_server
async def test_metrics_are_prometheus_text_with_names_of_ours_only(server: Server) -> None:
    await server.get(SECRETS)
    await server.get("/api/v1/namespaces/default/made-up")
    await server.get("/apis/made.up/v1/things")
    await server.get(f"{SECRETS}/a/made-up")
    await server.get("/made/up")
    answer = await server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    expected = 'apiserver_request_total{code="200",group="",resource="secrets",subresource="",verb="list"} 1.0'
    assert expected in answer.text
    assert "made" not in answer.text
    types = dict(line.split()[2:] for line in answer.text.splitlines() if line.startswith("# TYPE"))
    assert {name for name, of in types.items() if name.endswith("_total")} == {
        n for n, of in types.items() if of == "counter"
    }
    assert types["mooring_audit_dropped_total"] == "counter"
