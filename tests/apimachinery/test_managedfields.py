"""Managed fields: the cases of the end-to-end tests of server-side apply in Kubernetes, and their corner cases."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.apply.applyconfiguration import drop_empty_zeros
from mooring.apimachinery.apply.fieldset import (
    FieldSet,
    contains,
    field_element,
    parse_field_set,
    path_text,
    paths,
    union,
)
from mooring.apimachinery.apply.managedfields import (
    LAST_APPLIED,
    MAX_LAST_APPLIED,
    Author,
    apply_configuration,
    entries_after_update,
    entries_of_creator,
    format_entries,
    parse_entries,
    without_times,
)
from mooring.apimachinery.schema import Obj
from mooring.errors import ConflictError

START = datetime(2026, 1, 1, tzinfo=UTC)
V1 = {"apiVersion": "v1", "fieldsType": "FieldsV1"}


POD: Obj = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}


def author(name: str, plural: str = "configmaps", subresource: str = "", at: int = 0) -> Author:
    resource = BY_PLURAL[plural].resource
    return Author(name, resource.api_version, resource.schema, subresource, START + timedelta(seconds=at))


def config_map(data: dict[str, str] | None = None, **metadata: Any) -> Obj:
    obj: Obj = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m", **metadata}}
    return obj | ({"data": data} if data is not None else {})


def owners(entries: list[Obj]) -> dict[str, list[str]]:
    """`manager Operation[/subresource]` → the fields it owns."""
    found = {}
    for entry in entries:
        who = f"{entry.get('manager', '')} {entry['operation']}"
        if "subresource" in entry:
            who += f"/{entry['subresource']}"
        found[who] = told(parse_field_set(entry["fieldsV1"]))
    return found


def told(fields: FieldSet) -> list[str]:
    return [path_text(path) for path in paths(fields)]


class Thing:
    """One object and everybody who writes it."""

    def __init__(self, plural: str = "configmaps", obj: Obj | None = None) -> None:
        self.plural, self.obj, self.time = plural, obj or {}, 0

    def _keep(self, obj: Obj, entries: list[Obj]) -> None:
        obj = json.loads(json.dumps(obj))
        obj["metadata"].pop("managedFields", None)
        if entries:
            obj["metadata"]["managedFields"] = entries
        self.obj = obj

    def apply(self, name: str, config: Obj, *, force: bool = False, subresource: str = "") -> Thing:
        self.time += 1
        self._keep(
            *apply_configuration(self.obj, config, author(name, self.plural, subresource, self.time), force=force)
        )
        return self

    def update(self, name: str, subresource: str = "", sent: list[Obj] | None = None, **changes: Any) -> Thing:
        self.time += 1
        new = {key: value for key, value in (self.obj | changes).items() if value is not None}
        self._keep(new, entries_after_update(self.obj, new, sent, author(name, self.plural, subresource, self.time)))
        return self

    @property
    def entries(self) -> list[Obj]:
        found: list[Obj] = self.obj["metadata"].get("managedFields", [])
        return found

    @property
    def owners(self) -> dict[str, list[str]]:
        return owners(self.entries)


def pod(*containers: Obj, **spec: Any) -> Obj:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p"},
        "spec": {"containers": list(containers), **spec},
    }


# -- what upstream's end-to-end tests name ------------------------------------------------------------------------


def test_applying_creates_an_object_and_owns_its_fields() -> None:
    thing = Thing().apply("a", config_map({"x": "1"}, labels={"l": "1"}, uid="u"))
    assert thing.obj["data"] == {"x": "1"}
    assert thing.owners == {"a Apply": [".data.x", ".metadata.labels.l"]}
    assert thing.entries[0] == {
        "manager": "a",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:01Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:x": {}}, "f:metadata": {"f:labels": {"f:l": {}}}},
    }


def test_a_subresource_has_owners_of_its_own() -> None:
    thing = Thing("pods").apply("a", pod({"name": "c"}))
    status = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "status": {"message": "m"}}
    thing.apply("a", status, subresource="status")
    assert thing.owners["a Apply/status"] == [".status.message"]
    assert thing.owners["a Apply"] == ['.spec.containers[name="c"]', '.spec.containers[name="c"].name']
    with pytest.raises(ConflictError, match=r'conflict with "a" with subresource "status": \.status\.message'):
        thing.apply("b", status | {"status": {"message": "n"}}, subresource="status")


def test_a_field_that_is_applied_no_more_is_removed() -> None:
    thing = Thing().apply("a", config_map({"x": "1", "y": "2"})).apply("a", config_map({"x": "1"}))
    assert thing.obj["data"] == {"x": "1"}
    assert thing.owners == {"a Apply": [".data.x"]}


def test_a_field_that_another_manager_owns_too_is_not_removed() -> None:
    thing = Thing().apply("a", config_map({"x": "1", "y": "2"})).apply("b", config_map({"y": "2"}))
    thing.apply("a", config_map({"x": "1"}))
    assert thing.obj["data"] == {"x": "1", "y": "2"}
    assert thing.owners == {"a Apply": [".data.x"], "b Apply": [".data.y"]}


def test_a_field_of_another_manager_is_a_conflict_and_force_takes_it() -> None:
    thing = Thing().apply("a", config_map({"x": "1"}))
    with pytest.raises(ConflictError) as caught:
        thing.apply("b", config_map({"x": "2"}))
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "a": .data.x'
    assert [(cause.reason, cause.message, cause.field) for cause in caught.value.details.causes] == [
        ("FieldManagerConflict", 'conflict with "a"', ".data.x")
    ]
    thing.apply("b", config_map({"x": "2"}), force=True)
    assert thing.obj["data"] == {"x": "2"}
    assert thing.owners == {"b Apply": [".data.x"]}


def test_a_field_that_is_no_longer_applied_loses_its_owner() -> None:
    thing = Thing().apply("a", config_map({"x": "1", "y": "1"})).update("c", data={"x": "2", "y": "1"})
    thing.apply("a", config_map({"y": "1"}))
    assert thing.obj["data"] == {"x": "2", "y": "1"}
    thing.apply("a", config_map())
    assert thing.obj["data"] == {"x": "2"}
    assert thing.owners == {"c Update": [".data.x"]}


def test_the_item_of_a_list_is_owned_by_its_manager() -> None:
    one, two = {"name": "one", "image": "1"}, {"name": "two", "image": "2"}
    thing = Thing("pods").apply("a", pod(one)).apply("b", pod(two))
    assert thing.obj["spec"]["containers"] == [one, two]
    thing.apply("a", pod(one | {"image": "3"}))
    assert thing.obj["spec"]["containers"] == [one | {"image": "3"}, two]
    thing.apply("b", pod())
    assert thing.obj["spec"]["containers"] == [one | {"image": "3"}]


def test_fields_without_owners_stay_beside_removed_ones() -> None:
    thing = Thing("pods").apply("a", pod({"name": "c"}, hostNetwork=True, priority=1))
    thing.obj["spec"]["restartPolicy"] = "Always"  # a default: nobody said it
    thing.apply("a", pod({"name": "c"}, priority=1))
    assert thing.obj["spec"] == {"containers": [{"name": "c"}], "priority": 1, "restartPolicy": "Always"}


# -- messages, several conflicts ----------------------------------------------------------------------------------


def test_several_conflicts_are_listed_by_manager() -> None:
    thing = Thing().apply("a", config_map({"x": "1", "z": "1"})).update("b", data={"x": "1", "y": "1", "z": "1"})
    with pytest.raises(ConflictError) as caught:
        thing.apply("c", config_map({"x": "2", "y": "2", "z": "2"}))
    assert caught.value.message == (
        'Apply failed with 3 conflicts: conflicts with "a":\n- .data.x\n- .data.z\nconflicts with "b" using v1:\n- .data.y'
    )
    assert [cause.field for cause in caught.value.details.causes] == [".data.x", ".data.z", ".data.y"]


# -- updates ------------------------------------------------------------------------------------------------------


def test_conflicts_are_ordered_by_manager_and_fields_by_level() -> None:
    thing = Thing("pods").apply(
        "b", {**POD, "metadata": {"name": "p", "labels": {"x": "1"}}, "spec": {"nodeName": "n"}}
    )
    thing.update("a", spec={"nodeName": "n", "hostname": "h"})
    thing.apply("b", {**POD, "status": {"phase": "Q"}}, subresource="status")
    thing.apply("b", {**POD, "metadata": {"name": "p", "labels": {"x": "1"}}, "spec": {"nodeName": "n"}})
    new = {**POD, "metadata": {"name": "p", "labels": {"x": "2"}}, "spec": {"nodeName": "m", "hostname": "i"}}
    with pytest.raises(ConflictError) as caught:
        thing.apply("c", {**new, "status": {"phase": "R"}})
    assert caught.value.message == (
        'Apply failed with 4 conflicts: conflicts with "a" using v1:\n- .spec.hostname\n'
        'conflicts with "b" with subresource "status":\n- .status.phase\n'
        'conflicts with "b":\n- .metadata.labels.x\n- .spec.nodeName'
    )


def test_an_error_names_a_hundred_conflicts_and_counts_the_others() -> None:
    few, many = ({f"{letter}{number:03}": "1" for number in range(99)} for letter in "xy")
    thing = Thing().apply("a", config_map(few)).apply("b", config_map(many)).apply("c", config_map(many))
    with pytest.raises(ConflictError) as caught:
        thing.apply("d", config_map(dict.fromkeys([*few, *many], "2")))
    assert caught.value.message.startswith("Apply failed with 297 conflicts: ")
    assert caught.value.message.endswith('- .data.x098\nconflicts with "b":\n- .data.y000\nand 197 more')
    assert len(caught.value.details.causes) == 100


def test_two_managers_may_apply_the_same_empty_message() -> None:
    config = {**POD, "spec": {"containers": [{"name": "c", "resources": {}}]}, "status": {}}
    thing = Thing("pods").apply("a", config)
    thing.obj = drop_empty_zeros(thing.obj, BY_PLURAL["pods"].resource.schema)
    thing.apply("b", config)
    assert thing.owners["a Apply"] == thing.owners["b Apply"]


def test_the_first_apply_of_a_subresource_leaves_the_rest_to_a_manager_of_that_subresource() -> None:
    thing = Thing("pods", {**POD, "spec": {"nodeName": "n"}})
    thing.apply("a", {**POD, "status": {"phase": "Q"}}, subresource="status")
    assert thing.owners == {"a Apply/status": [".status.phase"], "before-first-apply Update/status": [".spec.nodeName"]}


def test_an_update_owns_changed_fields_and_removed_fields_have_no_owner() -> None:
    thing = Thing().apply("a", config_map({"x": "1", "y": "1", "z": "1"}))
    thing.update("b", data={"x": "2", "y": "1", "w": "1"})
    assert thing.owners == {"a Apply": [".data.y"], "b Update": [".data.w", ".data.x"]}
    thing.update("b", data={"x": "2", "y": "2", "w": "1"})
    assert thing.owners == {"b Update": [".data.w", ".data.x", ".data.y"]}


def test_an_update_that_changes_nothing_records_nothing() -> None:
    thing = Thing().apply("a", config_map({"x": "1"}))
    before = thing.entries
    assert thing.update("b").entries == before


def test_fields_that_the_server_sets_have_no_owner() -> None:
    thing = Thing().apply("a", config_map({"x": "1"}))
    thing.update("b", metadata={"name": "m", "managedFields": thing.entries, "generation": 2, "resourceVersion": "9"})
    assert thing.owners == {"a Apply": [".data.x"]}


def test_the_creator_of_an_object_owns_its_fields_and_none_that_the_server_sets() -> None:
    made = config_map({"x": "1"}, labels={"l": "1"}, uid="u", creationTimestamp="2026-01-01T00:00:00Z")
    entries = entries_of_creator(made, author("a"))
    assert owners(entries) == {"a Update": [".data", ".data.x", ".metadata.labels", ".metadata.labels.l"]}
    assert entries[0]["time"] == "2026-01-01T00:00:00Z"
    assert entries_of_creator(config_map(), author("a")) == []


def test_an_object_that_was_never_applied_is_not_tracked() -> None:
    assert Thing(obj=config_map({"x": "1"})).update("b", data={"x": "2"}).entries == []


def test_what_was_there_before_the_first_apply_is_its_own_managers() -> None:
    thing = Thing(obj=config_map({"x": "1", "y": "1"}, uid="u")).apply("a", config_map({"x": "1"}))
    assert thing.owners == {"a Apply": [".data.x"], "before-first-apply Update": [".data", ".data.x", ".data.y"]}
    with pytest.raises(ConflictError, match=r'conflict with "before-first-apply" using v1: \.data\.y'):
        thing.apply("a", config_map({"y": "2"}))


def test_at_most_ten_update_managers_are_kept() -> None:
    thing = Thing().apply("a", config_map({}))
    data: dict[str, str] = {}
    for number in range(12):
        data = data | {f"k{number:02}": ""}
        thing.update(f"m{number:02}", data=data)
    updates = {who: fields for who, fields in thing.owners.items() if who.endswith("Update")}
    assert len(updates) == 10
    assert updates["ancient-changes Update"] == [".data.k00", ".data.k01", ".data.k02"]
    assert next(iter(thing.owners)) == "a Apply", "appliers are told first and never merged"
    assert [entry["time"] for entry in thing.entries[1:]] == sorted(entry["time"] for entry in thing.entries[1:])


# -- what clients send --------------------------------------------------------------------------------------------


def entry(**more: Any) -> Obj:
    return {"manager": "s", "operation": "Update", **V1, "fieldsV1": {"f:data": {"f:x": {}}}, **more}


@pytest.mark.parametrize(
    ("sent", "subresource", "managers"),
    [
        pytest.param([{}], "", [], id="one empty entry ends tracking"),
        pytest.param([], "", [], id="so does an empty list"),
        pytest.param(None, "", ["a Apply"], id="no entries leave them"),
        pytest.param([entry()], "", ["s Update"], id="entries that can be read replace them"),
        pytest.param([entry()], "status", ["a Apply"], id="not through a subresource"),
        pytest.param([{}], "status", ["a Apply"], id="nor does one empty entry"),
        pytest.param([entry(), {}], "", ["a Apply"], id="an empty entry among others cannot be read"),
        pytest.param([entry(operation="Dream")], "", ["a Apply"], id="another operation cannot be read"),
        pytest.param([entry(apiVersion="")], "", ["a Apply"], id="no apiVersion cannot be read"),
        pytest.param([entry(fieldsType="FieldsV2")], "", ["a Apply"], id="another fieldsType cannot be read"),
        pytest.param([entry(fieldsV1={"x": {}})], "", ["a Apply"], id="other fields cannot be read"),
        pytest.param([entry(manager="m" * 129)], "", ["a Apply"], id="a long name cannot be read"),
        pytest.param([entry(manager="m\n")], "", ["a Apply"], id="a name of two lines cannot be read"),
        pytest.param([entry(subresource="m" * 257)], "", ["a Apply"], id="a long subresource cannot be read"),
        pytest.param([entry(apiVersion="v0")], "", [], id="another version of the kind is dropped"),
        pytest.param([entry(fieldsV1={})], "", [], id="an entry that owns nothing is dropped"),
    ],
)
def test_of_the_entries_a_client_sends(sent: list[Obj] | None, subresource: str, managers: list[str]) -> None:
    thing = Thing().apply("a", config_map({"x": "1"})).update("b", sent=sent, subresource=subresource)
    assert list(thing.owners) == managers


def test_entries_of_a_version_with_the_same_fields_are_kept() -> None:
    old = config_map({"x": "1"}, managedFields=[entry(), entry(manager="q", apiVersion="v0")])
    kept = entries_after_update(old, old, None, replace(author("b"), versions=("v1", "v2")))
    assert [one["manager"] for one in kept] == ["s"], "v0 is none of them"
    kept = entries_after_update(old, old, None, replace(author("b"), api_version="v2", versions=("v0", "v1", "v2")))
    assert [(one["manager"], one["apiVersion"]) for one in kept] == [("q", "v0"), ("s", "v1")]


def test_entries_of_one_manager_are_one() -> None:
    managed = parse_entries([entry(), entry(fieldsV1={"f:data": {"f:y": {}}})])
    assert managed is not None
    assert owners(format_entries(managed)) == {"s Update": [".data.x", ".data.y"]}
    assert parse_entries([]) is None


def test_times_and_order_do_not_change_an_entry() -> None:
    assert without_times([entry(time="t"), entry(manager="q")]) == without_times(
        [entry(manager="q", time="u"), entry()]
    )
    assert without_times([entry()]) != without_times([entry(manager="q")])


# -- kubectl's move from client-side apply -------------------------------------------------------------------------


def client_side(data: dict[str, str], said: Any) -> Thing:
    text = said if isinstance(said, str) else json.dumps(said)
    return Thing(obj=config_map(data, annotations={LAST_APPLIED: text}))


def test_kubectl_does_not_conflict_with_its_own_annotation() -> None:
    thing = client_side({"x": "1", "y": "1"}, config_map({"x": "1", "y": "1"}))
    thing.apply("kubectl", config_map({"x": "2"}, annotations={"other": "1"}))
    assert thing.obj["data"] == {"x": "2", "y": "1"}
    annotations = thing.obj["metadata"]["annotations"]
    assert annotations["other"] == "1"
    assert json.loads(annotations[LAST_APPLIED]) == config_map({"x": "2"}, annotations={"other": "1"})


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(config_map({"x": "0"}), id="when it was changed since"),
        pytest.param(config_map({}), id="when it did not say it"),
        pytest.param(config_map({"x": "1"}) | {"apiVersion": "v0"}, id="when it said it in another version"),
        pytest.param(config_map({"x": "1"}) | {"apiVersion": ["v1"]}, id="when its version is no text"),
        pytest.param(config_map({"x": "1"}) | {"data": 1}, id="when what it said does not fit"),
        pytest.param("{", id="when what it said is no JSON"),
        pytest.param("[" * 5000, id="when what it said has no end"),
        pytest.param("1", id="when what it said is no object"),
        pytest.param("", id="when it said nothing"),
    ],
)
def test_it_is_a_conflict(said: Any) -> None:
    with pytest.raises(ConflictError, match=r'"before-first-apply" using v1: \.data\.x'):
        client_side({"x": "1"}, said).apply("kubectl", config_map({"x": "2"}))


def test_another_manager_conflicts_with_kubectl() -> None:
    with pytest.raises(ConflictError, match=r'"kubectl-client-side-apply" using v1: \.data\.x'):
        client_side({"x": "1"}, config_map({"x": "1"})).apply("other", config_map({"x": "2"}))


def live_pod(*more: Obj, **container: Any) -> Thing:
    """A Pod as client-side apply and the server's admission left it; kubectl said its container's name and image."""
    said = pod({"name": "c", "image": "i"})
    mount = {"name": "token", "mountPath": "/t"}
    live = pod({"name": "c", "image": "i", "volumeMounts": [mount]} | container, *more, volumes=[{"name": "token"}])
    live["metadata"] = {"name": "p", "annotations": {LAST_APPLIED: json.dumps(said)}}
    return Thing("pods", live)


def handed_over(thing: Thing) -> Thing:
    """What kubectl does after its first server-side apply: the annotation's owners become its own Apply entry."""
    managed = parse_entries(thing.entries)
    assert managed is not None
    annotation = (field_element("metadata"), field_element("annotations"), field_element(LAST_APPLIED))
    mine = [o for o, owned in managed.items() if o.operation == "Update" and contains(owned.fields, annotation)]
    entries = [entry for entry in thing.entries if entry["manager"] not in {owner.name for owner in mine}]
    for one in mine:
        sets = union(parse_field_set(entries[0]["fieldsV1"]), managed[one].fields)
        entries[0] = entries[0] | {"fieldsV1": sets}
    return thing.update("kubectl", sent=entries)


CONTAINER = '.spec.containers[name="c"]'


def test_fields_of_client_side_apply_have_its_manager_and_the_servers_have_not() -> None:
    thing = live_pod().apply("a", pod({"name": "c"}))
    assert thing.owners["kubectl-client-side-apply Update"] == [
        f".metadata.annotations.{LAST_APPLIED}",
        CONTAINER,
        f"{CONTAINER}.image",
        f"{CONTAINER}.name",
    ]
    theirs = thing.owners["before-first-apply Update"]
    assert '.spec.volumes[name="token"]' in theirs
    assert not any(path.startswith(CONTAINER) for path in theirs), "an item that kubectl said can go with all it has"


def test_what_changed_since_client_side_apply_is_not_its_managers() -> None:
    thing = live_pod(image="j")
    with pytest.raises(ConflictError, match=r'"before-first-apply" using v1: \.spec\.containers\[name="c"\]\.image'):
        thing.apply("kubectl", pod({"name": "c", "image": "i"}))


def test_kubectl_moves_a_pod_to_server_side_apply_without_taking_the_servers_share_away() -> None:
    thing = handed_over(live_pod().apply("kubectl", pod({"name": "c", "image": "i"})))
    before = json.loads(json.dumps(thing.obj["spec"]))
    assert thing.apply("kubectl", pod({"name": "c", "image": "i"})).obj["spec"] == before
    assert "kubectl-client-side-apply Update" not in thing.owners


def test_an_item_that_kubectl_no_longer_applies_is_removed_with_the_servers_fields() -> None:
    thing = handed_over(live_pod().apply("kubectl", pod({"name": "c", "image": "i"})))
    thing.apply("kubectl", pod({"name": "d", "image": "i"}))
    assert [item["name"] for item in thing.obj["spec"]["containers"]] == ["d"]


def test_an_annotation_that_would_be_too_long_is_emptied() -> None:
    thing = client_side({"x": "1"}, config_map({"x": "1"}))
    thing.apply("kubectl", config_map({"x": "1", "y": "y" * MAX_LAST_APPLIED}))
    assert thing.obj["metadata"]["annotations"] == {LAST_APPLIED: ""}


def test_an_object_without_the_annotation_gets_none() -> None:
    assert "annotations" not in Thing().apply("kubectl", config_map({"x": "1"})).obj["metadata"]


# -- laws ---------------------------------------------------------------------------------------------------------

DATA = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))
STEPS = st.lists(st.tuples(st.sampled_from(["apply", "update"]), st.sampled_from("xyz"), DATA), min_size=1, max_size=8)


@given(STEPS, DATA)
def test_applying_twice_is_applying_once(steps: list[tuple[str, str, dict[str, str]]], data: dict[str, str]) -> None:
    thing = Thing().apply("x", config_map({"a": "1"}))
    for how, who, what in steps:
        if how == "apply":
            thing.apply(who, config_map(what), force=True)
        else:
            thing.update(who, data=what or None)
        for manager, fields in thing.owners.items():
            for path in fields:
                assert path == ".data" or path[6:] in thing.obj.get("data", {}), f"{manager} owns what is not there"
    once = thing.apply("x", config_map(data), force=True).obj
    assert {key: once.get("data", {}).get(key) for key in data} == data
    twice, entries = apply_configuration(once, config_map(data), author("x"), force=False)
    once_entries = once["metadata"].pop("managedFields", [])
    assert twice == once | {"data": once.get("data", data)}
    assert without_times(entries) == without_times(once_entries)
