"""namespace-controller: deletion of content in stages, conditions, finalization.

Source: docs/protocol/namespaces.md#life-of-a-namespace.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Update
from mooring.controllers.namespace import CONTENT, STAGES, NamespaceController
from tests.support.plans import HOUR, moment, plan, thing, views

CONTROLLER = NamespaceController()
KEY = ("", "a")


def namespace(*finalizers: str, deleted: bool = True, **status: Any) -> Obj:
    return thing(
        "a",
        metadata={"deletionTimestamp": moment(-HOUR)} if deleted else {},
        spec={"finalizers": list(finalizers)},
        status={"phase": "Terminating" if deleted else "Active", **status},
    )


GOING, STAYING = namespace("kubernetes"), namespace("kubernetes", deleted=False)


def held(name: str, *finalizers: str, place: str = "a") -> Obj:
    """Return a deleted object with finalizers."""
    return thing(name, place, metadata={"deletionTimestamp": moment(-HOUR), "finalizers": list(finalizers)})


def test_every_namespaced_kind_is_content_and_belongs_to_one_stage() -> None:
    assert set(CONTENT) == {plural for plural, kind in BY_PLURAL.items() if kind.resource.namespaced}
    assert sorted(plural for stage in STAGES for plural in stage) == list(CONTENT)


@pytest.mark.parametrize(
    ("plural", "obj", "deleted", "known", "enqueues"),
    [
        pytest.param("namespaces", GOING, False, GOING, True, id="a namespace that is to go"),
        pytest.param("namespaces", GOING, True, None, False, id="not one that is gone"),
        pytest.param("namespaces", STAYING, False, STAYING, False, id="not one that stays"),
        pytest.param("secrets", thing("s", "a"), True, GOING, True, id="content of one that is to go"),
        pytest.param("secrets", thing("s", "a"), False, STAYING, False, id="not content of one that stays"),
        pytest.param("secrets", thing("s", "a"), True, None, False, id="not content of one that is gone"),
    ],
)
def test_keys_of_an_event(plural: str, obj: Obj, deleted: bool, known: Obj | None, enqueues: bool) -> None:
    seen = views(namespaces=[known] if known else [])
    assert list(CONTROLLER.keys(plural, obj, deleted, seen)) == ([KEY] if enqueues else [])


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(views(), id="one that is gone"),
        pytest.param(views(namespaces=[STAYING], secrets=[thing("s", "a")]), id="one that stays"),
        pytest.param(
            views(namespaces=[namespace("example.com/own")], secrets=[thing("s", "a")]),
            id="one that only others still hold",
        ),
        pytest.param(
            views(namespaces=[{**GOING, "spec": None}], secrets=[thing("s", "a")]), id="one without finalizers at all"
        ),
    ],
)
def test_no_action_for_a_namespace(seen: Views) -> None:
    assert plan(CONTROLLER, KEY, seen) == []


def test_pods_are_deleted_before_what_they_use() -> None:
    seen = views(namespaces=[GOING], pods=[thing("p", "a")], secrets=[thing("s", "a")])
    assert plan(CONTROLLER, KEY, seen) == [Delete("pods", "a", "p", "uid-of-p")]


def test_other_content_waits_for_terminating_pods() -> None:
    seen = views(namespaces=[GOING], pods=[held("p", "example.com/f")], secrets=[thing("s", "a")])
    assert not any(isinstance(action, Delete) for action in plan(CONTROLLER, KEY, seen))


def test_everything_except_permissions_is_deleted_after_the_pods() -> None:
    seen = views(
        namespaces=[GOING],
        secrets=[thing("s1", "a"), thing("s2", "a"), thing("other", "b")],
        events=[thing("e", "a")],
        roles=[thing("r", "a")],
        clusterroles=[thing("a")],
    )
    assert plan(CONTROLLER, KEY, seen) == [
        Delete("events", "a", "e", "uid-of-e"),
        Delete("secrets", "a", "s1", "uid-of-s1"),
        Delete("secrets", "a", "s2", "uid-of-s2"),
    ]


def test_permissions_are_deleted_last() -> None:
    seen = views(namespaces=[GOING], roles=[thing("r", "a")], serviceaccounts=[thing("default", "a")])
    assert plan(CONTROLLER, KEY, seen) == [
        Delete("roles", "a", "r", "uid-of-r"),
        Delete("serviceaccounts", "a", "default", "uid-of-default"),
    ]


def test_terminating_objects_are_not_deleted_again() -> None:
    seen = views(namespaces=[GOING], secrets=[held("s1", "example.com/f"), thing("s2", "a")])
    assert plan(CONTROLLER, KEY, seen) == [Delete("secrets", "a", "s2", "uid-of-s2")]


def test_an_empty_namespace_is_finalized_at_once() -> None:
    """The conditions are not updated, because the namespace is removed at once."""
    wanted = {**GOING, "spec": {"finalizers": []}}
    assert plan(CONTROLLER, KEY, views(namespaces=[GOING])) == [Update("namespaces", wanted, "finalize")]


def condition(about: str, status: str, reason: str, message: str, since: str) -> Obj:
    return {
        "type": f"Namespace{about}",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def well(since: str) -> list[Obj]:
    """Return the three conditions about failures, which never occur in this server."""
    return [
        condition("DeletionDiscoveryFailure", "False", "ResourcesDiscovered", "Every kind was looked through", since),
        condition("DeletionGroupVersionParsingFailure", "False", "ParsedGroupVersions", "Every kind is known", since),
        condition("DeletionContentFailure", "False", "ContentDeleted", "All content was told to go", since),
    ]


def removed(since: str) -> Obj:
    return condition("ContentRemaining", "False", "ContentRemoved", "No content is left", since)


def unheld(since: str) -> Obj:
    return condition("FinalizersRemaining", "False", "ContentHasNoFinalizers", "No content waits for finalizers", since)


def waiting(since: str, secrets: int = 1) -> list[Obj]:
    content = f"Waiting for content to go: 1 leases, {secrets} secrets"
    finalizers = f"Waiting for finalizers: 1 example.com/f, {secrets} example.com/g"
    return [
        *well(since),
        condition("ContentRemaining", "True", "SomeResourcesRemain", content, since),
        condition("FinalizersRemaining", "True", "SomeFinalizersRemain", finalizers, since),
    ]


BEFORE, NOW = moment(-HOUR), moment(0 * HOUR)
HELD = {"leases": [held("l", "example.com/f")], "secrets": [held("s", "example.com/g")]}


def planned_updates(conditions: list[Obj], **more: list[Obj]) -> list[Action]:
    found = namespace("kubernetes", conditions=conditions)
    return plan(CONTROLLER, KEY, views(**{"namespaces": [found], **HELD, **more}))


def test_five_conditions_explain_the_wait() -> None:
    other = {"type": "Other", "status": "False"}
    wanted = namespace("kubernetes", conditions=[other, *waiting(NOW)])
    assert planned_updates([other]) == [Update("namespaces", wanted, "status")]
    assert len(waiting(NOW)) == 5


def test_current_conditions_are_not_written_again() -> None:
    assert planned_updates(waiting(BEFORE)) == []


def test_an_update_keeps_the_transition_time_of_unchanged_statuses() -> None:
    more = [*HELD["secrets"], held("s2", "example.com/g")]
    wanted = namespace("kubernetes", conditions=waiting(BEFORE, secrets=2))
    assert planned_updates(waiting(BEFORE), secrets=more) == [Update("namespaces", wanted, "status")]


def test_only_a_changed_status_gets_a_new_transition_time() -> None:
    before = [*well(BEFORE), removed(BEFORE), unheld(BEFORE)]
    wanted = namespace("kubernetes", conditions=[*well(BEFORE), *waiting(NOW)[3:]])
    assert planned_updates(before) == [Update("namespaces", wanted, "status")]


def test_content_without_finalizers_is_reported() -> None:
    """A Pod in its grace period waits for its node."""
    pod = thing("p", "a", metadata={"deletionTimestamp": moment(HOUR), "deletionGracePeriodSeconds": 30})
    remaining = condition("ContentRemaining", "True", "SomeResourcesRemain", "Waiting for content to go: 1 pods", NOW)
    wanted = namespace("kubernetes", conditions=[*well(NOW), remaining, unheld(NOW)])
    seen = views(namespaces=[GOING], pods=[pod])
    assert plan(CONTROLLER, KEY, seen) == [Update("namespaces", wanted, "status")]


@pytest.mark.parametrize(
    ("finalizers", "metadata"),
    [
        pytest.param(("kubernetes", "example.com/own"), {}, id="in spec"),
        pytest.param(("kubernetes",), {"finalizers": ["example.com/own"]}, id="in metadata"),
    ],
)
def test_conditions_are_updated_before_a_namespace_is_left_to_other_finalizers(
    finalizers: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    def going(**status: Any) -> Obj:
        found = namespace(*finalizers, **status)
        return {**found, "metadata": found["metadata"] | metadata}

    done = going(conditions=[*well(BEFORE), removed(NOW), unheld(NOW)])
    found = going(conditions=waiting(BEFORE))
    assert plan(CONTROLLER, KEY, views(namespaces=[found])) == [Update("namespaces", done, "status")]
    free = {**done, "spec": {"finalizers": list(finalizers[1:])}}
    assert plan(CONTROLLER, KEY, views(namespaces=[done])) == [Update("namespaces", free, "finalize")]
