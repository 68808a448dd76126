"""Random objects that fit their schema never make a hook fail: invalid input is a client error, not a 500."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.kind import Kind
from mooring.api.kinds import KINDS
from mooring.apimachinery.codec.unmarshal import unmarshal
from mooring.apimachinery.schema import ListOf, MapOf, Message, Scalar, Type
from mooring.errors import ApiError
from tests.support.changes import LATER, created, updated
from tests.support.examples import one_in

Obj = dict[str, Any]

WORDS = st.sampled_from(
    [
        "", "x", "a/b", "..", "-", "True", "Approved", "Denied", "Ready", "User", "Group", "ServiceAccount", "Role", "In",
        "Opaque", "kubernetes.io/tls", "kubernetes.io/dockercfg", "kubernetes.io/ssh-auth", "kubernetes.io/basic-auth",
        "NoSchedule", "10.0.0.0/24", "kubernetes", "example.com/x", "client auth", "\ud7ff\U0001f600",
    ]
)  # fmt: skip
LEAVES: dict[Scalar, st.SearchStrategy[Any]] = {
    Scalar.STRING: WORDS,
    Scalar.BOOL: st.booleans(),
    Scalar.INT32: st.sampled_from([-1, 0, 1, 600, 2**31 - 1]),
    Scalar.INT64: st.sampled_from([-1, 0, 1, 600, 2**63 - 1]),
    Scalar.BYTES: st.sampled_from(["", "e30=", "/w==", "LS0tLS1CRUdJTiBYLS0tLS0K"]),
    Scalar.TIME: st.sampled_from(["2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1000-01-01T00:00:00Z"]),
    Scalar.MICRO_TIME: st.sampled_from(["2026-01-01T00:00:00.000001Z"]),
    Scalar.QUANTITY: st.sampled_from(["-1", "4Gi", "0"]),
    Scalar.INT_OR_STRING: st.integers(0, 9) | WORDS,
    Scalar.STRING_LIST: st.lists(WORDS, max_size=2),
    Scalar.FIELDS_V1: st.just({}),
    Scalar.RAW: st.just({}),
}


def fitting(kind: Type) -> st.SearchStrategy[Any]:
    match kind:
        case Message():
            return st.fixed_dictionaries({}, optional={field.name: fitting(field.type) for field in kind.fields})
        case ListOf():
            return st.lists(fitting(kind.item), max_size=3)
        case MapOf():
            return st.dictionaries(WORDS, fitting(kind.value), max_size=3)
        case Scalar():
            return LEAVES[kind]


def normal(obj: Obj, kind: Kind) -> Obj:
    assert unmarshal(obj, kind.resource.schema) == []
    return kind.to_storage(obj)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.resource.plural for kind in KINDS])
@one_in(4)
@given(data=st.data())
def test_nothing_that_fits_its_schema_makes_a_hook_fail(kind: Kind, data: st.DataObject) -> None:
    anything = fitting(kind.resource.schema)
    first, second = (normal(copy.deepcopy(data.draw(anything)), kind) for _ in range(2))
    first.setdefault("metadata", {})["name"] = (
        "x"  # what is stored has a name; the rest of it may have come from elsewhere
    )
    try:
        old, _ = created(kind, first)
    except ApiError:
        return
    for column in kind.resource.columns:
        column.cell(kind.from_storage(old), LATER)
    assert tuple(kind.storage_kind.selectable_fields(old)) == kind.storage_kind.field_labels
    for subresource in ("", *(kind.subresources or {})):
        try:
            new, _ = updated(kind, second, old, subresource)
        except ApiError:
            continue
        assert new["metadata"].get("uid") == old["metadata"]["uid"]
