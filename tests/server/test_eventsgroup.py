"""Test Events that two API groups serve from the same objects: /api/v1 and /apis/events.k8s.io/v1."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.events import KIND
from mooring.api.kinds import by_resource
from mooring.apimachinery.codec.protobuf import decode_envelope, decode_message, encode_object
from mooring.apimachinery.metav1 import list_of
from mooring.apimachinery.schema import Obj
from tests.support.manualclock import settle
from tests.support.protobufwatch import decode_watch_frame
from tests.support.serverroom import Server, in_server

OLD = "/api/v1/namespaces/default/events"
NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
PROTOBUF = "application/vnd.kubernetes.protobuf"
STRATEGIC = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
APPLY = "application/apply-patch+yaml"
WHEN = "2026-01-01T00:00:00.000000Z"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def newer(name: str = "e", **more: Any) -> Obj:
    """Return an Event as client-go's newer recorder posts it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name},
        "eventTime": WHEN,
        "reportingController": "example.com/joiner",
        "reportingInstance": "joiner-1",
        "action": "Joining",
        "reason": "Joined",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
        "note": "it joined",
        "type": "Normal",
        **more,
    }


def older(name: str = "e", **more: Any) -> Obj:
    """Return an Event as client-go's older recorder posts it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "reason": "Pulled",
        "message": "image pulled",
        "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "type": "Normal",
        **more,
    }


@in_server
async def test_what_one_group_takes_the_other_shows(server: Server) -> None:
    made = await server.post(NEW, newer())
    assert (made.status, made.obj["apiVersion"], made.obj["note"]) == (201, "events.k8s.io/v1", "it joined")
    seen = (await server.get(f"{OLD}/e")).obj
    assert (seen["apiVersion"], seen["message"], seen["reportingComponent"]) == (
        "v1",
        "it joined",
        "example.com/joiner",
    )
    assert seen["metadata"] == made.obj["metadata"], "one object: one uid, one resourceVersion"
    assert (await server.get(f"{NEW}/e")).obj == made.obj

    await server.post(OLD, older("k"))
    shown = (await server.get(f"{NEW}/k")).obj
    assert shown["deprecatedSource"] == {"component": "kubelet", "host": "n"}
    assert (shown["deprecatedCount"], shown["regarding"]["name"]) == (1, "p")
    assert not {"source", "count", "involvedObject", "message", "firstTimestamp"} & shown.keys()


@in_server
async def test_lists_are_of_one_revision_and_in_one_order(server: Server) -> None:
    await server.post(NEW, newer("b"))
    await server.post(OLD, older("a"))
    old, new = (await server.get(OLD)).obj, (await server.get(NEW)).obj
    assert (old["apiVersion"], new["apiVersion"]) == ("v1", "events.k8s.io/v1")
    assert (old["kind"], new["kind"]) == ("EventList", "EventList")
    assert old["metadata"] == new["metadata"]
    assert [item["metadata"] for item in old["items"]] == [item["metadata"] for item in new["items"]]
    assert [item["note"] for item in new["items"]] == ["image pulled", "it joined"]
    page = (await server.get(f"{NEW}?limit=1")).obj
    assert page["metadata"]["remainingItemCount"] == 1
    rest = (await server.get(f"{NEW}?limit=1&continue={page['metadata']['continue']}")).obj
    assert [item["metadata"]["name"] for item in page["items"] + rest["items"]] == ["a", "b"]
    everywhere = (await server.get("/apis/events.k8s.io/v1/events")).obj
    assert [item["metadata"]["name"] for item in everywhere["items"]] == ["a", "b"]


@in_server
async def test_both_are_watched(server: Server) -> None:
    old, new = await server.follow(f"{OLD}?watch=1"), await server.follow(f"{NEW}?watch=1&{INITIAL}")
    await server.post(NEW, newer())
    await server.call("PATCH", f"{OLD}/e", body={"metadata": {"labels": {"a": "b"}}}, content_type=STRATEGIC)
    await server.call("DELETE", f"{NEW}/e")
    await settle()
    assert old.event_names == ["ADDED e", "MODIFIED e", "DELETED e"]
    assert new.event_names == ["BOOKMARK", "ADDED e", "MODIFIED e", "DELETED e"]
    assert {event["object"]["apiVersion"] for event in old.events} == {"v1"}
    assert {event["object"]["apiVersion"] for event in new.events} == {"events.k8s.io/v1"}
    assert [event["object"]["note"] for event in new.events[1:]] == ["it joined"] * 3
    versions = [
        [event["object"]["metadata"]["resourceVersion"] for event in events] for events in (old.events, new.events[1:])
    ]
    assert versions[0] == versions[1]
    await old.end()
    await new.end()


@in_server
async def test_a_watch_goes_on_from_a_revision_of_either(server: Server) -> None:
    made = (await server.post(OLD, older("a"))).obj
    await server.post(NEW, newer("b"))
    watch = await server.follow(f"{NEW}?watch=1&resourceVersion={made['metadata']['resourceVersion']}")
    assert watch.event_names == ["ADDED b"]
    await watch.end()


@in_server
async def test_the_past_is_shown_in_the_form_asked_for(server: Server) -> None:
    """List an older revision, which comes from the store and not from the watch cache."""
    made = (await server.post(OLD, older())).obj
    label = {"metadata": {"labels": {"a": "b"}}}
    await server.call("PATCH", f"{OLD}/e", body=label, content_type=STRATEGIC)
    then = f"{NEW}?resourceVersion={made['metadata']['resourceVersion']}&resourceVersionMatch=Exact"
    for target in (then, f"{then}&fieldSelector=regarding.name%3Dp"):
        (item,) = (await server.get(target)).obj["items"]
        assert (item["note"], "labels" in item["metadata"]) == ("image pulled", False)
    assert (await server.get(f"{then}&fieldSelector=regarding.name%3Dother")).obj["items"] == []


@in_server
async def test_watchers_of_one_form_share_their_frames(server: Server) -> None:
    one, two = await server.follow(f"{NEW}?watch=1"), await server.follow(f"{NEW}?watch=1")
    await server.post(OLD, older())
    await settle()
    assert one.event_names == ["ADDED e"]
    assert one.raw == two.raw
    await one.end()
    await two.end()


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (f"{NEW}?fieldSelector=regarding.kind%3DPod,reason%3DJoined", ["b"]),
        (f"{NEW}?fieldSelector=reportingController%3Dexample.com/joiner", ["b"]),
        (f"{NEW}?fieldSelector=type!%3DNormal", []),
        (f"{NEW}?fieldSelector=metadata.name%3Da", ["a"]),
        (f"{OLD}?fieldSelector=involvedObject.name%3Dp,reportingComponent%3Dexample.com/joiner", ["b"]),
        (f"{OLD}?fieldSelector=source%3Dkubelet", ["a"]),
    ],
)
@in_server
async def test_each_is_selected_by_its_own_names(server: Server, target: str, found: list[str]) -> None:
    await server.post(OLD, older("a"))
    await server.post(NEW, newer("b"))
    assert [item["metadata"]["name"] for item in (await server.get(target)).obj["items"]] == found
    watch = await server.follow(f"{target}&watch=1")
    assert watch.event_names == [f"ADDED {name}" for name in found]
    await watch.end()


@pytest.mark.parametrize(
    "target", [f"{NEW}?fieldSelector=involvedObject.name%3Dp", f"{OLD}?fieldSelector=regarding.name%3Dp"]
)
@in_server
async def test_and_not_by_those_of_the_other(server: Server, target: str) -> None:
    assert (await server.get(target)).status == 400


@in_server
async def test_a_series_is_patched_as_recorders_do(server: Server) -> None:
    await server.post(NEW, newer())
    series = {"count": 2, "lastObservedTime": "2026-01-01T00:06:00.000000Z"}
    patched = await server.call("PATCH", f"{NEW}/e", body={"series": series}, content_type=STRATEGIC)
    assert (patched.status, patched.obj["series"], patched.obj["note"]) == (200, series, "it joined")
    assert (await server.get(f"{OLD}/e")).obj["series"] == series


@in_server
async def test_the_older_style_counts_through_the_core_group(server: Server) -> None:
    await server.post(OLD, older())
    more = {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z", "message": "pulled again"}
    assert (await server.call("PATCH", f"{OLD}/e", body=more, content_type=STRATEGIC)).status == 200
    assert (await server.get(f"{NEW}/e")).obj["deprecatedCount"] == 2


@pytest.mark.parametrize("content_type", [STRATEGIC, "application/merge-patch+json"])
@in_server
async def test_a_patch_speaks_of_its_own_form(server: Server, content_type: str) -> None:
    await server.post(OLD, older())
    wrong = await server.call("PATCH", f"{NEW}/e", body={"note": "other"}, content_type=content_type)
    assert (wrong.status, wrong.obj["details"].get("group")) == (422, None)
    assert [cause["field"] for cause in wrong.obj["details"]["causes"]] == ["message"]
    strict = await server.call(
        "PATCH", f"{NEW}/e?fieldValidation=Strict", body={"message": "other"}, content_type=content_type
    )
    assert (strict.status, '"message"' in strict.message) == (422, True)


@in_server
async def test_a_json_patch_sees_its_own_form(server: Server) -> None:
    await server.post(OLD, older())
    patch = [
        {"op": "test", "path": "/apiVersion", "value": "events.k8s.io/v1"},
        {"op": "test", "path": "/note", "value": "image pulled"},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
    ]
    done = await server.call("PATCH", f"{NEW}/e", body=patch, content_type="application/json-patch+json")
    assert (done.status, done.obj["metadata"]["labels"]) == (200, {"a": "b"})


@in_server
async def test_put_replaces_and_creates(server: Server) -> None:
    made = await server.call("PUT", f"{NEW}/e", body=newer())
    assert (made.status, made.obj["note"]) == (201, "it joined")
    made.obj["metadata"]["labels"] = {"a": "b"}
    again = await server.call("PUT", f"{NEW}/e", body=newer(metadata={"name": "e", "labels": {"a": "b"}}))
    assert (again.status, again.obj["metadata"]["uid"]) == (200, made.obj["metadata"]["uid"])
    frozen = await server.call("PUT", f"{NEW}/e", body=newer(reason="Other"))
    assert (frozen.status, "reason: Invalid value" in frozen.message) == (422, True)
    assert frozen.message.startswith('Event "e" is invalid: ')
    assert (await server.call("PUT", f"{OLD}/e", body=(await server.get(f"{OLD}/e")).obj)).status == 200


@in_server
async def test_what_is_wrong_is_told_in_the_name_of_the_group(server: Server) -> None:
    missing = await server.get(f"{NEW}/e")
    assert (missing.status, missing.message) == (404, 'events.events.k8s.io "e" not found')
    await server.post(OLD, older())
    twice = await server.post(NEW, newer())
    assert (twice.status, twice.message) == (409, 'events.events.k8s.io "e" already exists')
    refused = await server.post(NEW, newer("f", deprecatedCount=2))
    assert (refused.status, refused.message) == (
        422,
        'Event "f" is invalid: count: Invalid value: "": needs to be unset',
    )
    mixed = await server.post(NEW, older("g"))
    assert mixed.status == 400


@in_server
async def test_dry_runs_leave_nothing(server: Server) -> None:
    made = await server.post(f"{NEW}?dryRun=All", newer())
    assert (made.status, made.obj["note"], made.obj["apiVersion"]) == (201, "it joined", "events.k8s.io/v1")
    assert (await server.get(NEW)).obj["items"] == []
    await server.post(NEW, newer())
    label = {"metadata": {"labels": {"a": "b"}}}
    tried = await server.call("PATCH", f"{NEW}/e?dryRun=All", body=label, content_type=STRATEGIC)
    assert (tried.obj["metadata"]["labels"], tried.obj["note"]) == ({"a": "b"}, "it joined")
    assert "labels" not in (await server.get(f"{NEW}/e")).obj["metadata"]


@in_server
async def test_delete_and_deletecollection(server: Server) -> None:
    for name in ("a", "b", "c"):
        await server.post(NEW, newer(name))
    gone = await server.call("DELETE", f"{NEW}/a")
    assert (gone.obj["status"], gone.obj["details"]["group"]) == ("Success", "events.k8s.io")
    label = {"metadata": {"labels": {"keep": "yes"}, "finalizers": ["example.com/f"]}}
    await server.call("PATCH", f"{NEW}/b", body=label, content_type=STRATEGIC)
    listed = await server.call("DELETE", f"{NEW}?labelSelector=!keep")
    assert [item["note"] for item in listed.obj["items"]] == ["it joined"]
    held = await server.call("DELETE", f"{NEW}/b")
    assert (held.status, held.obj["note"]) == (200, "it joined")
    assert [item["metadata"]["name"] for item in (await server.get(OLD)).obj["items"]] == ["b"]


@in_server
async def test_server_side_apply_owns_fields_in_the_stored_form(server: Server) -> None:
    made = await server.call("PATCH", f"{NEW}/e?fieldManager=one", body=newer(), content_type=APPLY)
    assert (made.status, made.obj["note"]) == (201, "it joined")
    (entry,) = made.obj["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("one", "Apply", "v1")
    assert "f:message" in entry["fieldsV1"]
    assert "f:involvedObject" in entry["fieldsV1"]
    label = newer(metadata={"name": "e", "labels": {"a": "b"}})
    shared = await server.call("PATCH", f"{NEW}/e?fieldManager=two", body=label, content_type=APPLY)
    assert (shared.status, shared.obj["metadata"]["labels"]) == (200, {"a": "b"})
    other = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "message": "no"}
    conflict = await server.call("PATCH", f"{OLD}/e?fieldManager=three", body=other, content_type=APPLY)
    assert conflict.status == 409
    assert {cause["field"] for cause in conflict.obj["details"]["causes"]} == {".message"}


@in_server
async def test_it_speaks_protobuf(server: Server) -> None:
    body = encode_object(newer(), KIND.resource.schema)
    made = await server.call("POST", NEW, body=body, content_type=PROTOBUF, headers=[("Accept", PROTOBUF)])
    assert made.status == 201
    api_version, kind, raw = decode_envelope(made.body)
    assert (api_version, kind) == ("events.k8s.io/v1", "Event")
    shown = decode_message(raw, KIND.resource.schema)
    assert (shown["note"], shown["regarding"]["name"], shown["eventTime"]) == ("it joined", "p", WHEN)
    listed = await server.get(NEW, headers=[("Accept", PROTOBUF)])
    _, _, raw = decode_envelope(listed.body)
    assert [item["note"] for item in decode_message(raw, list_of(KIND.resource.schema))["items"]] == ["it joined"]
    watch = await server.follow(f"{NEW}?watch=1", headers=[("Accept", PROTOBUF)])
    _, body = decode_watch_frame(watch.raw)
    _, _, raw = decode_envelope(body)
    assert decode_message(raw, KIND.resource.schema)["note"] == "it joined"
    await watch.end()


@in_server
async def test_tables_and_metadata(server: Server) -> None:
    await server.post(NEW, newer())
    tables = [(await server.get(target, headers=[("Accept", TABLE)])).obj for target in (OLD, NEW)]
    assert tables[0]["rows"][0]["cells"] == tables[1]["rows"][0]["cells"]
    assert tables[0]["columnDefinitions"] == tables[1]["columnDefinitions"]
    whole = (await server.get(f"{NEW}?includeObject=Object", headers=[("Accept", TABLE)])).obj
    assert whole["rows"][0]["object"]["note"] == "it joined"
    partial = (await server.get(f"{NEW}/e", headers=[("Accept", PARTIAL)])).obj
    assert (partial["kind"], "note" in partial) == ("PartialObjectMetadata", False)
    watch = await server.follow(f"{NEW}?watch=1", headers=[("Accept", TABLE)])
    assert watch.events[0]["object"]["rows"][0]["cells"] == tables[0]["rows"][0]["cells"]
    await watch.end()


@in_server
async def test_discovery_and_openapi_know_both(server: Server) -> None:
    (new,) = (await server.get("/apis/events.k8s.io/v1")).obj["resources"]
    (old,) = [item for item in (await server.get("/api/v1")).obj["resources"] if item["name"] == "events"]
    assert new == old, "also the storageVersionHash: both are stored as the same"
    assert new["storageVersionHash"] == "r2yiGXH7wu8=", "as kube-apiserver shows it"
    paths = (await server.get("/openapi/v3")).obj["paths"]
    assert "apis/events.k8s.io/v1" in paths
    schemas = (await server.get("/openapi/v3/apis/events.k8s.io/v1")).obj["components"]["schemas"]
    assert "deprecatedCount" in schemas["io.k8s.api.events.v1.Event"]["properties"]


@in_server
async def test_rights_to_one_group_are_none_to_the_other(server: Server) -> None:
    await server.post(NEW, newer())
    rule = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["get"]}
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
    await server.post(roles, {"metadata": {"name": "r"}, "rules": [rule]})
    subject = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "r", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "r"}, "subjects": [subject], "roleRef": role}
    assert (await server.post(roles.replace("roles", "rolebindings"), binding)).status == 201
    jane = server.user("jane")
    assert (await server.get(f"{NEW}/e", via=jane)).status == 200
    assert (await server.get(f"{OLD}/e", via=jane)).status == 403


@in_server
async def test_the_registry_keeps_one_cache_and_one_view(server: Server) -> None:
    await server.post(NEW, newer())
    assert by_resource("events.k8s.io", "v1", "events") is KIND
    (seen,) = server.registry.views["events"].list("default")
    assert seen["message"] == "it joined"
    keys = [entry.key for entry in (await server.storage.range("/registry/")).entries if "/events/" in entry.key]
    assert keys == ["/registry/events/default/e"]
