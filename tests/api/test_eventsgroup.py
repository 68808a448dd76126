"""Events of events.k8s.io: another form of those of the core group (k8s.io/api events/v1).

Source: docs/protocol/tables.md, docs/protocol/selectors.md.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.events import KIND, from_core, to_core
from mooring.api.kinds import BY_PLURAL, by_resource
from mooring.apimachinery.names import qualified_name_errors
from tests.support.changes import NOW, created, updated

Obj = dict[str, Any]

CORE = BY_PLURAL["events"]
WHEN = "2026-01-02T03:00:00.000000Z"
OLD_WHEN = "2026-01-02T03:00:00Z"
WHOLE: Obj = {
    "eventTime": WHEN,
    "reportingController": "example.com/joiner",
    "reportingInstance": "joiner-1",
    "action": "Joining",
    "reason": "Joined",
    "regarding": {"kind": "Pod", "namespace": "default", "name": "p", "fieldPath": "spec"},
    "related": {"kind": "Node", "name": "n"},
    "note": "it joined",
    "type": "Normal",
}
"""Event as client-go's recorder for events.k8s.io sends it."""
OLDER: Obj = {
    "involvedObject": {"namespace": "default", "kind": "Pod", "name": "p"},
    "reason": "Old",
    "message": "as kubelets report",
    "source": {"component": "kubelet", "host": "n"},
    "firstTimestamp": OLD_WHEN,
    "lastTimestamp": OLD_WHEN,
    "count": 3,
    "type": "Normal",
}
"""In stored form: what client-go's recorder of the older style leaves."""
SERIES = {"count": 2, "lastObservedTime": WHEN}


def test_conversion_renames_fields() -> None:
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": WHEN,
        "series": SERIES,
        "reportingController": "c",
        "reportingInstance": "i",
        "action": "a",
        "reason": "r",
        "regarding": {"name": "x"},
        "related": {"name": "y"},
        "note": "n",
        "type": "Normal",
        "deprecatedSource": {"component": "k", "host": "h"},
        "deprecatedFirstTimestamp": OLD_WHEN,
        "deprecatedLastTimestamp": OLD_WHEN,
        "deprecatedCount": 4,
    }
    stored = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": WHEN,
        "series": SERIES,
        "reportingComponent": "c",
        "reportingInstance": "i",
        "action": "a",
        "reason": "r",
        "involvedObject": {"name": "x"},
        "related": {"name": "y"},
        "message": "n",
        "type": "Normal",
        "source": {"component": "k", "host": "h"},
        "firstTimestamp": OLD_WHEN,
        "lastTimestamp": OLD_WHEN,
        "count": 4,
    }
    assert to_core(event) == stored
    assert from_core(stored) == event
    assert set(event) == set(KIND.resource.schema.by_name) | {"apiVersion", "kind"}
    assert set(stored) == set(CORE.resource.schema.by_name) | {"apiVersion", "kind"}


@given(st.sets(st.sampled_from(sorted(KIND.resource.schema.by_name))))
def test_conversion_keeps_absent_fields_absent_and_copies(names: set[str]) -> None:
    event: Obj = {"apiVersion": "events.k8s.io/v1", "kind": "Event", **{name: {"of": name} for name in names}}
    before = copy.deepcopy(event)
    assert from_core(to_core(event)) == event == before


def test_both_kinds_exist_and_the_core_kind_is_stored() -> None:
    assert by_resource("events.k8s.io", "v1", "events") is KIND
    assert by_resource("", "v1", "events") is CORE
    assert KIND.storage_kind is CORE
    assert KIND.key("a", "e") == CORE.key("a", "e")
    assert CORE.to_storage(WHOLE) is CORE.from_storage(WHOLE) is WHOLE, "a kind without an alias has one form"


def create_errors(event: Obj, namespace: str = "default") -> list[str]:
    return created(KIND, to_core(event), namespace=namespace)[1]


def without(*names: str) -> Obj:
    return {name: value for name, value in WHOLE.items() if name not in names}


@pytest.mark.parametrize(
    ("event", "errors"),
    [
        pytest.param(WHOLE, [], id="what a recorder sends is fine"),
        pytest.param({**WHOLE, "type": "Warning"}, [], id="a warning, too"),
        pytest.param({**WHOLE, "series": SERIES}, [], id="a series, too"),
        pytest.param({**WHOLE, "deprecatedSource": {"component": ""}}, [], id="an empty source is none"),
        pytest.param(without("related", "note"), [], id="related and note are optional"),
        pytest.param(without("eventTime"), ["eventTime: Required value"], id="it says when"),
        pytest.param(
            without("reportingController", "reportingInstance", "action", "reason"),
            [
                "reportingController: Required value",
                *(f'reportingController: Invalid value: "": {detail}' for detail in qualified_name_errors("")),
                "reportingInstance: Required value",
                "action: Required value",
                "reason: Required value",
            ],
            id="reporter, action and reason",
        ),
        pytest.param(
            {**WHOLE, "reportingController": "a b"},
            [
                "reportingController: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or "
                "'.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', "
                "regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ],
            id="who reports is a qualified name",
        ),
        pytest.param(without("type"), ['type: Invalid value: "": has invalid value: '], id="it has a type"),
        pytest.param(
            {**WHOLE, "type": "Odd"}, ['type: Invalid value: "": has invalid value: Odd'], id="which is one of two"
        ),
        pytest.param(
            {**WHOLE, "note": "é" * 513},
            ['message: Invalid value: "": can have at most 1024 characters'],
            id="its note is short, counted in bytes",
        ),
        pytest.param(
            {
                **WHOLE,
                "deprecatedSource": {"host": "n"},
                "deprecatedFirstTimestamp": OLD_WHEN,
                "deprecatedLastTimestamp": OLD_WHEN,
                "deprecatedCount": 1,
            },
            [
                'firstTimestamp: Invalid value: "": needs to be unset',
                'lastTimestamp: Invalid value: "": needs to be unset',
                'count: Invalid value: "": needs to be unset',
                'source: Invalid value: "": needs to be unset',
            ],
            id="what is deprecated is unset",
        ),
        pytest.param(
            {**WHOLE, "series": {"count": 1}},
            ['series.count: Invalid value: "": should be at least 2', "series.lastObservedTime: Required value"],
            id="a series has two members and a last time",
        ),
    ],
)
def test_validation_on_create(event: Obj, errors: list[str]) -> None:
    assert sorted(create_errors(event)) == sorted(errors)


def test_only_an_older_event_is_in_the_namespace_of_its_object() -> None:
    assert create_errors(WHOLE, "elsewhere") == []
    assert created(CORE, OLDER, namespace="elsewhere")[1] == [
        'involvedObject.namespace: Invalid value: "default": does not match event.namespace'
    ]


def test_namespaces_of_events_about_cluster_scoped_objects() -> None:
    about_a_node = {**WHOLE, "regarding": {"kind": "Node", "name": "n"}}
    assert create_errors(about_a_node) == create_errors(about_a_node, "kube-system") == []
    assert create_errors(about_a_node, "elsewhere") == [
        'involvedObject.namespace: Invalid value: "": does not match event.namespace'
    ]


def changed(stored: Obj, **changes: Any) -> list[str]:
    """Validate a change of a stored Event through the group."""
    old, _ = created(CORE, stored)
    return updated(KIND, {**old, **changes}, old)[1]


@pytest.mark.parametrize("stored", [pytest.param(to_core(WHOLE), id="newer"), pytest.param(OLDER, id="older")])
def test_metadata_and_series_may_change(stored: Obj) -> None:
    assert changed(stored) == []
    assert changed(stored, metadata={"labels": {"a": "b"}}) == []
    assert changed(stored, series=SERIES) == []
    assert changed({**stored, "series": SERIES}, series={**SERIES, "count": 9}) == []
    assert changed({**stored, "series": {"count": 1}}) == [], "a bad series may stay"


def test_a_changed_series_is_validated() -> None:
    assert changed(to_core(WHOLE), series={"count": 0, "lastObservedTime": WHEN}) == [
        'series.count: Invalid value: "": should be at least 2'
    ]


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("involvedObject", {**WHOLE["regarding"], "name": "other"}, "involvedObject"),
        ("related", {"name": "other"}, "related"),
        ("reason", "Other", "reason"),
        ("message", "other", "message"),
        ("type", "Warning", "type"),
        ("action", "Other", "action"),
        ("eventTime", "2026-01-02T03:00:00.000001Z", "eventTime"),
        ("reportingComponent", "example.com/other", "reportingController"),
        ("reportingInstance", "other", "reportingInstance"),
        ("source", {"component": "other"}, "source"),
        ("firstTimestamp", OLD_WHEN, "firstTimestamp"),
        ("lastTimestamp", OLD_WHEN, "lastTimestamp"),
        ("count", 2, "count"),
    ],
)
def test_other_fields_are_immutable(field: str, value: Any, path: str) -> None:
    (error,) = changed(to_core(WHOLE), **{field: value})
    assert error.startswith(f"{path}: Invalid value: ")
    assert error.endswith(": field is immutable")


def test_the_core_group_allows_every_change() -> None:
    old, _ = created(CORE, OLDER)
    assert updated(CORE, {**old, "count": 4, "message": "again", "lastTimestamp": WHEN}, old)[1] == []


def test_field_labels_are_those_of_the_group() -> None:
    assert KIND.alias is not None
    fields = CORE.selectable_fields(to_core({"metadata": {"name": "e"}, **WHOLE}))
    assert {label: fields[name] for label, name in KIND.alias.field_labels.items()} == {
        "reason": "Joined",
        "regarding.kind": "Pod",
        "regarding.namespace": "default",
        "regarding.name": "p",
        "regarding.uid": "",
        "regarding.apiVersion": "",
        "regarding.resourceVersion": "",
        "regarding.fieldPath": "spec",
        "reportingController": "example.com/joiner",
        "type": "Normal",
    }


@pytest.mark.parametrize("stored", [pytest.param(to_core(WHOLE), id="newer"), pytest.param(OLDER, id="older")])
def test_print_columns_equal_those_of_the_core_group(stored: Obj) -> None:
    obj, _ = created(CORE, stored)
    cells = [column.cell(obj, NOW) for column in CORE.resource.columns]
    assert [column.cell(from_core(obj), NOW) for column in KIND.resource.columns] == cells
    assert [column.name for column in KIND.resource.columns] == [column.name for column in CORE.resource.columns]


def test_fields_that_only_the_core_group_always_writes_are_dropped() -> None:
    bare = {"kind": "Event", "apiVersion": "v1", "reportingComponent": "", "reportingInstance": ""}
    assert KIND.from_storage(bare) == {"kind": "Event", "apiVersion": "events.k8s.io/v1"}
