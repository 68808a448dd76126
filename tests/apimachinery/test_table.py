"""Tables and ages.

Source: docs/protocol/tables.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.schema import Obj
from mooring.apimachinery.table import age, parse_include, partial_metadata_list, table
from mooring.clock import human_duration
from mooring.errors import BadRequestError
from tests.support.shapes import GADGETS, WIDGETS

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
WIDGET: Obj = {
    "kind": "Widget",
    "apiVersion": "v1",
    "metadata": {"name": "a", "resourceVersion": "7", "creationTimestamp": "2026-03-01T11:58:30Z"},
    "parts": [{"id": "x"}],
}
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86400, 365 * 86400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1.9, "0s"),
        (-0.5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (119, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (3 * HOUR + 61, "3h1m"),
        (8 * HOUR - 1, "7h59m"),
        (8 * HOUR, "8h"),
        (48 * HOUR - 1, "47h"),
        (48 * HOUR, "2d"),
        (49 * HOUR, "2d1h"),
        (8 * DAY - 1, "7d23h"),
        (8 * DAY, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + DAY, "2y1d"),
        (8 * YEAR - 1, "7y364d"),
        (8 * YEAR, "8y"),
        (100 * YEAR + DAY, "100y"),
    ],
)
def test_human_duration(seconds: float, text: str) -> None:
    """Vectors: the thresholds of k8s.io/apimachinery `duration.HumanDuration`, each side of each."""
    assert human_duration(timedelta(seconds=seconds)) == text


@given(st.integers(0, 10**10))
def test_ages_are_at_most_two_units(seconds: int) -> None:
    text = human_duration(timedelta(seconds=seconds))
    assert 1 <= sum(char.isalpha() for char in text) <= 2
    assert text[-1].isalpha()


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        pytest.param("2026-03-01T11:58:30Z", "90s", id="a time"),
        pytest.param(None, "<unknown>", id="no time"),
        pytest.param("", "<unknown>", id="an empty time"),
        pytest.param("yesterday", "<unknown>", id="no time that can be read"),
        pytest.param("2026-03-01T12:05:00Z", "<invalid>", id="the future"),
    ],
)
def test_age(timestamp: str | None, text: str) -> None:
    assert age(timestamp, NOW) == text


def test_a_list_as_a_table() -> None:
    meta = {"resourceVersion": "9", "continue": "c", "remainingItemCount": 3}
    assert table(WIDGETS, [WIDGET], NOW, "Metadata", meta) == {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "description": "Its name.", "priority": 0},
            {"name": "Parts", "type": "integer", "format": "", "description": "", "priority": 1},
        ],
        "rows": [
            {
                "cells": ["a", 1],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": WIDGET["metadata"],
                },
            }
        ],
    }


def test_include_object_decides_what_rows_carry() -> None:
    assert table(WIDGETS, [WIDGET], NOW, "Object")["rows"] == [{"cells": ["a", 1], "object": WIDGET}]
    assert table(WIDGETS, [WIDGET], NOW, "None")["rows"] == [{"cells": ["a", 1]}]


def test_a_single_object_gives_the_table_its_version() -> None:
    assert table(WIDGETS, [WIDGET], NOW)["metadata"] == {"resourceVersion": "7"}
    assert table(WIDGETS, [{"metadata": {"name": "new"}}], NOW)["metadata"] == {}
    assert table(WIDGETS, [], NOW)["metadata"] == {}
    assert table(WIDGETS, [WIDGET], NOW, list_meta={})["metadata"] == {}


def test_later_events_of_a_watch_have_no_columns_and_keep_the_requested_version() -> None:
    event = table(WIDGETS, [WIDGET], NOW, api_version="meta.k8s.io/v1beta1", with_columns=False)
    assert event["columnDefinitions"] is None, "as kube-apiserver; Go tells it from an empty list"
    assert event["apiVersion"] == "meta.k8s.io/v1beta1"
    assert event["rows"][0]["object"]["apiVersion"] == "meta.k8s.io/v1beta1"


def test_a_resource_without_columns_prints_name_and_age() -> None:
    printed = table(GADGETS, [WIDGET, {"metadata": {}}], NOW)
    assert [column["name"] for column in printed["columnDefinitions"]] == ["Name", "Age"]
    assert [row["cells"] for row in printed["rows"]] == [["a", "90s"], ["", "<unknown>"]]


@pytest.mark.parametrize(
    ("text", "include"), [("", "Metadata"), ("None", "None"), ("Metadata", "Metadata"), ("Object", "Object")]
)
def test_include_object_is_read(text: str, include: str) -> None:
    assert parse_include(text) == include


def test_an_unknown_include_object_is_a_bad_request() -> None:
    with pytest.raises(BadRequestError, match=r'^Unable to convert .* includeObject: Invalid value: "All": must'):
        parse_include("All")


def test_lists_of_partial_metadata() -> None:
    assert partial_metadata_list([WIDGET], {"resourceVersion": "9"}) == {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "9"},
        "items": [
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": WIDGET["metadata"]},
        ],
    }
