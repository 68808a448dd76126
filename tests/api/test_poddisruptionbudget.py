"""Test PodDisruptionBudgets: what each way of writing changes, validation and print columns, in kube-apiserver's words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mooring.api.kind import Change
from mooring.api.policy.poddisruptionbudget import KIND
from mooring.apimachinery.patch.strategic import strategic_merge_patch
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CHANGE = Change(UserInfo("ann"), NOW)
ZERO = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, ""),
        ({"minAvailable": 0, "selector": {"matchLabels": {"a": "b"}}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, ""),
        ({"maxUnavailable": "100%"}, ""),
        ({"maxUnavailable": "0050%"}, ""),
        ({"minAvailable": -1}, "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"),
        (
            {"maxUnavailable": "half"},
            'spec.maxUnavailable: Invalid value: "half": a valid percent string must be a numeric',
        ),
        ({"maxUnavailable": "101%"}, 'spec.maxUnavailable: Invalid value: "101%": must not be greater than 100%'),
        ({"minAvailable": f"{'9' * 5000}%"}, "spec.minAvailable: Invalid value: "),
        ({"selector": {"matchLabels": {"a": "b c"}}}, 'spec.selector.matchLabels: Invalid value: "b c": '),
        (
            {"unhealthyPodEvictionPolicy": "Never"},
            'spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget"',
        ),
    ],
    ids=[
        "nothing",
        "a number",
        "all",
        "a part with zeros in front",
        "less than none",
        "a word",
        "more than all",
        "digits without end",
        "a selector",
        "a policy",
    ],
)
def test_what_a_budget_may_say(spec: Obj, error: str) -> None:
    found = [str(one) for one in KIND.validate({"metadata": {"name": "x"}, "spec": spec})]
    assert len(found) == bool(error)
    assert not error or found[0].startswith(error)


def test_both_amounts_are_one_too_many() -> None:
    (error,) = KIND.validate({"spec": {"minAvailable": 1, "maxUnavailable": 1}})
    assert (error.field, error.detail) == ("spec", "minAvailable and maxUnavailable cannot be both set")


def test_the_main_resource_changes_the_spec_and_status_the_status() -> None:
    obj: Obj = {"spec": {"minAvailable": 1}, "status": {"currentHealthy": 7}}
    KIND.prepare_for_create(obj, CHANGE)
    assert obj["status"] == ZERO
    new: Obj = {"spec": {"minAvailable": 2}, "status": {"currentHealthy": 7}}
    KIND.prepare_for_update(new, obj, CHANGE)
    assert new == {"spec": {"minAvailable": 2}, "status": ZERO}
    assert KIND.subresources is not None
    status = KIND.subresources["status"]
    new = {"spec": {"minAvailable": 3}, "status": {"currentHealthy": 7}}
    status.prepare_for_update(new, obj, CHANGE)
    assert new == {"spec": {"minAvailable": 1}, "status": {"currentHealthy": 7}}
    assert status.validate_update(new, obj) == []
    (error,) = status.validate_update({"status": {"expectedPods": -1}}, obj)
    assert str(error) == "status.expectedPods: Invalid value: -1: must be greater than or equal to 0"


def test_a_patch_replaces_the_selector() -> None:
    """As the patch strategy of upstream's field says; without it the Pods of both selectors' common part would be meant."""
    old: Obj = {"spec": {"selector": {"matchLabels": {"a": "1"}}}}
    patch: Obj = {"spec": {"selector": {"matchLabels": {"b": "2"}}}}
    patched = strategic_merge_patch(old, patch, KIND.resource.schema)
    assert patched["spec"]["selector"] == {"matchLabels": {"b": "2"}}


@pytest.mark.parametrize(
    ("spec", "cells"),
    [({"minAvailable": "50%"}, ["50%", "N/A", 3]), ({"maxUnavailable": 1}, ["N/A", "1", 3])],
    ids=["a part", "a number"],
)
def test_the_table_shows_the_amounts(spec: Obj, cells: list[object]) -> None:
    obj: Obj = {"metadata": {"name": "x"}, "spec": spec, "status": {"disruptionsAllowed": 3}}
    assert [column.cell(obj, NOW) for column in KIND.resource.columns[1:4]] == cells


def test_conditions_are_validated_in_the_status() -> None:
    assert KIND.subresources is not None
    obj: Obj = {"spec": {}, "status": {**ZERO, "conditions": [{"type": "A", "status": "Perhaps"}]}}
    found = [str(error) for error in KIND.subresources["status"].validate_update(obj, obj)]
    assert found[0].startswith('status.conditions[0].status: Unsupported value: "Perhaps"')
