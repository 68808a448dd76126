"""clusterrole-aggregation-controller.

Source: docs/protocol/rbac.md#aggregation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Update
from mooring.controllers.clusterroleaggregation import ClusterRoleAggregation
from mooring.errors import BadRequestError
from tests.support.plans import plan, thing, views
from tests.support.work import Word, grows_linearly

CONTROLLER = ClusterRoleAggregation()
KEY = ("", "view")


def rule(resource: str) -> Obj:
    return {"verbs": ["get"], "apiGroups": [""], "resources": [resource]}


def role(name: str, *resources: str, **labels: str) -> Obj:
    made = thing(name, metadata={"labels": labels} if labels else {})
    return made | ({"rules": [rule(resource) for resource in resources]} if resources else {})


def view(*resources: str, selectors: list[Obj] | None = None, **labels: str) -> Obj:
    """Return the aggregating role with its current rules."""
    wanted = [{"matchLabels": {"to": "view"}}] if selectors is None else selectors
    return {**role("view", *resources, **labels), "aggregationRule": {"clusterRoleSelectors": wanted}}


def test_any_change_of_a_role_plans_every_aggregating_one() -> None:
    seen = views(clusterroles=[role("a", "pods"), view()])
    assert list(CONTROLLER.keys("clusterroles", role("gone"), True, seen)) == [KEY]


@pytest.mark.parametrize(
    ("before", "sources", "after"),
    [
        pytest.param(view(), [role("b", "x", to="view"), role("a", "y", to="view")], ["y", "x"], id="sources by name"),
        pytest.param(view("old"), [role("a", "x", to="view")], ["x"], id="what stood there goes"),
        pytest.param(
            view(), [role("a", "x", "y", to="view"), role("b", "y", "z", to="view")], ["x", "y", "z"], id="none twice"
        ),
        pytest.param(view("own", to="view"), [role("a", "x", to="view")], ["x"], id="itself excluded"),
        pytest.param(
            view(), [role("a", "x", to="edit"), role("b", "y"), role("c", "z", to="view")], ["z"], id="only selected"
        ),
        pytest.param(view("old"), [role("a", to="view")], [], id="sources without rules give none"),
        pytest.param(
            view(selectors=[{"matchLabels": {"to": "b"}}, {"matchLabels": {"to": "a"}}]),
            [role("a", "x", to="a"), role("b", "y", to="b")],
            ["y", "x"],
            id="selector by selector",
        ),
        pytest.param(
            view(selectors=[{"matchExpressions": [{"key": "to", "operator": "Exists"}]}]),
            [role("a", "x", to="any")],
            ["x"],
            id="selected by expression",
        ),
        pytest.param(view("old", selectors=[]), [role("a", "x", to="view")], [], id="no selector selects nothing"),
    ],
)
def test_the_rules_become_the_union(before: Obj, sources: list[Obj], after: list[str]) -> None:
    wanted = {name: value for name, value in before.items() if name != "rules"}
    if after:
        wanted["rules"] = [rule(resource) for resource in after]
    seen = views(clusterroles=[before, *sources])
    assert plan(CONTROLLER, KEY, seen) == [Update("clusterroles", wanted)]
    assert plan(CONTROLLER, KEY, views(clusterroles=[wanted, *sources])) == [], "the result needs no further action"


@pytest.mark.parametrize(
    "roles", [pytest.param([], id="that is gone"), pytest.param([role("view", "x")], id="that does not aggregate")]
)
def test_a_role_is_left_alone(roles: list[Obj]) -> None:
    assert plan(CONTROLLER, KEY, views(clusterroles=roles)) == []


def test_an_invalid_selector_fails_only_the_plan_of_its_role() -> None:
    broken = view(selectors=[{"matchExpressions": [{"key": "to", "operator": "Maybe"}]}])
    with pytest.raises(BadRequestError):
        plan(CONTROLLER, KEY, views(clusterroles=[broken]))


def test_the_work_is_linear_in_the_rules() -> None:
    def make(size: int) -> Callable[[], object]:
        feeding = [role(name, *(Word(f"{name}{i}") for i in range(size)), to="view") for name in ("a", "b")]
        seen = views(clusterroles=[view(), *feeding])
        return lambda: plan(CONTROLLER, KEY, seen)

    grows_linearly(make, 100)
