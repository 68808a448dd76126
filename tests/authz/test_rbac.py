"""RBAC authorizer over views: decisions, reasons, caches.

Source: docs/protocol/rbac.md#evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.view import FixedView, View, namespaced_name
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.authz.rbac import authorizer
from mooring.authz.rbac.authorizer import (
    MAX_GROUPS_CACHED,
    CompiledRule,
    Rbac,
    binding,
    cluster_binding,
    cluster_role,
    compile_rules,
    path_rule,
    role,
    rule,
    service_account,
)
from mooring.errors import NotFoundError
from mooring.identity import UserInfo
from tests.support.rbac import group, rbac_views, user
from tests.support.work import peak, work

JANE = UserInfo("jane", groups=("dev", "system:authenticated"))
ROBOT = UserInfo("system:serviceaccount:ns:robot", groups=("system:serviceaccounts",))
READER = cluster_role("reader", rule("get", "", "secrets"), path_rule("get", "/metrics"))
LOCAL = role("ns", "local", rule("get", "", "secrets"))


def bound_to_cluster_role(namespace: str, name: str, role_name: str, *subjects: Obj) -> Obj:
    made = binding(namespace, name, role_name, *subjects)
    made["roleRef"]["kind"] = "ClusterRole"
    return made


def ask(user_info: UserInfo = JANE, namespace: str = "ns", **changed: str) -> Attributes:
    asked = {"verb": "get", "resource": "secrets", "namespace": namespace, "name": "s", **changed}
    return Attributes(user=user_info, **asked)


def path(user_info: UserInfo = JANE) -> Attributes:
    return Attributes(user=user_info, verb="get", path="/metrics")


@pytest.mark.parametrize(
    ("objects", "asked", "reason"),
    [
        pytest.param(
            [READER, cluster_binding("b", "reader", group("dev"))],
            ask(),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "dev"',
            id="by a group of a cluster binding",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", user("jane"))],
            ask(),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to User "jane"',
            id="by name",
        ),
        pytest.param(
            [LOCAL, binding("ns", "b", "local", user("jane"))],
            ask(),
            'RBAC: allowed by RoleBinding "b/ns" of Role "local" to User "jane"',
            id="by a role binding of the namespace",
        ),
        pytest.param(
            [READER, bound_to_cluster_role("ns", "b", "reader", group("dev"))],
            ask(),
            'RBAC: allowed by RoleBinding "b/ns" of ClusterRole "reader" to Group "dev"',
            id="by a role binding to a cluster role",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", service_account("ns", "robot"))],
            ask(ROBOT),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to ServiceAccount "robot/ns"',
            id="by service account",
        ),
        pytest.param(
            [LOCAL, binding("ns", "b", "local", {"kind": "ServiceAccount", "name": "robot"})],
            ask(ROBOT),
            'RBAC: allowed by RoleBinding "b/ns" of Role "local" to ServiceAccount "robot/ns"',
            id="by service account of the binding's own namespace",
        ),
        pytest.param(
            [LOCAL, binding("ns", "a", "local", user("jane")), READER, cluster_binding("z", "reader", group("dev"))],
            ask(),
            'RBAC: allowed by ClusterRoleBinding "z" of ClusterRole "reader" to Group "dev"',
            id="cluster bindings are looked at first",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", group("dev"), user("jane"))],
            ask(),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "dev"',
            id="the first subject that matches is named",
        ),
        pytest.param(
            [READER, cluster_binding("z", "reader", user("jane")), cluster_binding("a", "reader", group("dev"))],
            ask(),
            'RBAC: allowed by ClusterRoleBinding "a" of ClusterRole "reader" to Group "dev"',
            id="bindings are looked at by name",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", group("dev"))],
            path(),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "dev"',
            id="a path by a cluster binding",
        ),
    ],
)
def test_allowed(objects: list[Obj], asked: Attributes, reason: str) -> None:
    assert Rbac().authorize(asked, rbac_views(objects)) == Decision(Ruling.ALLOW, reason)


MISSING = 'RBAC: clusterroles.rbac.authorization.k8s.io "gone" not found'


@pytest.mark.parametrize(
    ("objects", "asked", "reason"),
    [
        pytest.param([], ask(), "", id="nothing grants nothing"),
        pytest.param([READER, cluster_binding("b", "reader", user("joe"))], ask(), "", id="a binding to somebody else"),
        pytest.param(
            [READER, cluster_binding("b", "reader", user("dev"))], ask(), "", id="a user named like the group"
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", group("jane"))], ask(), "", id="a group named like the user"
        ),
        pytest.param(
            [LOCAL, binding("ns", "b", "local", user("jane"))], ask(namespace="other"), "", id="another namespace"
        ),
        pytest.param([LOCAL, binding("ns", "b", "local", user("jane"))], ask(namespace=""), "", id="the cluster scope"),
        pytest.param(
            [READER, bound_to_cluster_role("ns", "b", "reader", group("dev"))],
            path(),
            "",
            id="a path by a role binding",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", {"kind": "ServiceAccount", "name": "robot"})],
            ask(ROBOT),
            "",
            id="a cluster binding to an account of no namespace",
        ),
        pytest.param(
            [READER, cluster_binding("b", "reader", {"kind": "Robot", "name": "jane"})],
            ask(),
            "",
            id="an unknown kind of subject",
        ),
        pytest.param(
            [cluster_binding("b", "gone", user("jane"))], ask(), MISSING, id="a missing cluster role is reported"
        ),
        pytest.param(
            [binding("ns", "b", "gone", user("jane"))],
            ask(),
            'RBAC: roles.rbac.authorization.k8s.io "gone" not found',
            id="a missing role is reported",
        ),
        pytest.param(
            [cluster_binding("b", "gone", user("jane")), binding("ns", "c", "lost", user("jane"))],
            ask(),
            'RBAC: [clusterroles.rbac.authorization.k8s.io "gone" not found, '
            'roles.rbac.authorization.k8s.io "lost" not found]',
            id="several missing roles are bracketed",
        ),
        pytest.param(
            [cluster_binding("b", "gone", user("jane")), cluster_binding("c", "gone", group("dev"))],
            ask(),
            MISSING,
            id="one missing role is reported once",
        ),
        pytest.param(
            [{**cluster_binding("b", "reader", user("jane")), "roleRef": {"kind": "Odd", "name": "reader"}}, READER],
            ask(),
            'RBAC: clusterroles.rbac.authorization.k8s.io "reader" not found',
            id="a reference to an unknown kind grants nothing",
        ),
        pytest.param(
            [cluster_binding("b", "gone", user("joe"))], ask(), "", id="a missing role of another user is not reported"
        ),
    ],
)
def test_no_opinion(objects: list[Obj], asked: Attributes, reason: str) -> None:
    assert Rbac().authorize(asked, rbac_views(objects)) == Decision(Ruling.NO_OPINION, reason)


class Recorder(FixedView):
    """Counts how often it is listed; can be given new content, and remembers what changed then, or not."""

    def __init__(self, objects: Iterable[Obj], revision: int = 1, *, remembers: bool = True) -> None:
        super().__init__(objects, revision)
        self.lists = 0
        self.remembers = remembers
        self._changed: dict[int, set[tuple[str, str]]] = {}

    def list(self, namespace: str = "") -> Iterable[Obj]:
        self.lists += 1
        return super().list(namespace)

    def become(self, objects: Iterable[Obj]) -> None:
        before, self._objects = self._objects, {namespaced_name(obj): obj for obj in objects}
        self._revision += 1
        places = before.keys() | self._objects.keys()
        self._changed[self._revision] = {place for place in places if before.get(place) != self._objects.get(place)}

    def changed(self, since: int) -> Iterable[tuple[str, str]] | None:
        if not self.remembers:
            return None
        return set().union(*(places for revision, places in self._changed.items() if revision > since))


def test_views_are_listed_again_only_when_their_revision_grew() -> None:
    bindings = Recorder([cluster_binding("b", "reader", user("jane"))])
    roles = Recorder([READER])
    views: dict[str, View] = {**rbac_views(), "clusterroles": roles, "clusterrolebindings": bindings}
    rbac = Rbac()
    for _ in range(3):
        assert rbac.authorize(ask(), views).allowed
    assert (roles.lists, bindings.lists) == (1, 1)
    bindings.become([])
    assert not rbac.authorize(ask(), views).allowed
    assert (roles.lists, bindings.lists) == (1, 1), "the view tells what changed"


def test_a_view_without_history_is_listed_again() -> None:
    bindings = Recorder([cluster_binding("b", "reader", user("jane"))], remembers=False)
    views: dict[str, View] = {**rbac_views([READER]), "clusterrolebindings": bindings}
    rbac = Rbac()
    assert rbac.authorize(ask(), views).allowed
    bindings.become([])
    assert not rbac.authorize(ask(), views).allowed
    assert bindings.lists == 2


def test_deleting_one_of_two_bindings_keeps_the_grants_of_the_other() -> None:
    both = [cluster_binding("a", "reader", user("jane")), cluster_binding("b", "reader", user("jane"), user("jane"))]
    bindings = Recorder(both)
    views: dict[str, View] = {**rbac_views([READER]), "clusterrolebindings": bindings}
    rbac = Rbac()
    for present, named in (([both[0]], '"a"'), ([both[1]], '"b"'), (both, '"a"')):
        bindings.become(present)
        decision = rbac.authorize(ask(), views)
        assert (decision.allowed, named in decision.reason) == (True, True)
    bindings.become([])
    assert not rbac.authorize(ask(), views).allowed


def test_a_role_that_is_deleted_grants_nothing() -> None:
    roles = Recorder([READER])
    views: dict[str, View] = {**rbac_views([cluster_binding("b", "reader", user("jane"))]), "clusterroles": roles}
    rbac = Rbac()
    assert rbac.authorize(ask(), views).allowed
    roles.become([])
    assert not rbac.authorize(ask(), views).allowed


def test_every_change_takes_effect_at_once() -> None:
    roles = Recorder([READER])
    views: dict[str, View] = {
        **rbac_views([cluster_binding("b", "reader", user("jane")), cluster_binding("c", "other", user("jane"))]),
        "clusterroles": roles,
    }
    rbac = Rbac()
    assert rbac.authorize(ask(), views).allowed
    roles.become([cluster_role("reader", rule("list", "", "secrets"))])
    assert not rbac.authorize(ask(), views).allowed
    roles.become([cluster_role("reader"), cluster_role("other", rule("get", "", "secrets"))])
    assert '"other"' in rbac.authorize(ask(), views).reason


def test_a_binding_whose_subjects_changed_grants_to_the_new_ones() -> None:
    bindings = Recorder([cluster_binding("b", "reader", user("jane"))])
    views: dict[str, View] = {**rbac_views([READER]), "clusterrolebindings": bindings}
    rbac = Rbac()
    assert rbac.authorize(ask(), views).allowed
    bindings.become([cluster_binding("b", "reader", user("joe"))])
    assert not rbac.authorize(ask(), views).allowed
    assert rbac.authorize(ask(UserInfo("joe")), views).allowed


def test_a_long_name_of_a_role_is_kept_once_for_all_subjects() -> None:
    def indexed(size: int) -> Callable[[], object]:
        binding = cluster_binding("b", "r" * 30 * size, *(user(f"u{number}") for number in range(size)))
        view = FixedView([binding])
        return lambda: authorizer.Bindings("ClusterRoleBinding").refresh(view)

    small, large = peak(indexed(500)), peak(indexed(1_000))
    assert large < 2.5 * small


def test_a_role_is_compiled_when_a_request_depends_on_it_and_again_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []

    def counted(rules: list[Obj] | None) -> tuple[CompiledRule, ...]:
        compiled.append(rules)
        return compile_rules(rules)

    monkeypatch.setattr(authorizer, "compile_rules", counted)
    pods, nodes = rule("get", "", "pods"), rule("list", "", "nodes")
    many = [cluster_role(f"r{number}", pods) for number in range(50)]
    roles = Recorder(many)
    views: dict[str, View] = {
        **rbac_views(),
        "clusterroles": roles,
        "clusterrolebindings": FixedView([cluster_binding("b", "r49", user("jane"))]),
    }
    rbac = Rbac()
    for asking in (ask(ROBOT), ask(), ask()):
        assert not rbac.authorize(asking, views).allowed
    assert compiled == [[pods]]
    roles.become([*many[:-1], cluster_role("r49", rule("get", "", "secrets"))])
    assert rbac.authorize(ask(), views).allowed
    assert compiled == [[pods], [rule("get", "", "secrets")]]
    roles.become([cluster_role("r0", nodes), *many[1:-1], cluster_role("r49", rule("get", "", "secrets"))])
    assert rbac.authorize(ask(), views).allowed
    assert len(compiled) == 2


def test_other_views_invalidate_the_cache() -> None:
    rbac = Rbac()
    assert rbac.authorize(ask(), rbac_views([READER, cluster_binding("b", "reader", user("jane"))])).allowed
    assert not rbac.authorize(ask(), rbac_views([READER])).allowed


def effort(rbac: Rbac, views: dict[str, View], user: UserInfo) -> int:
    """Return the work of one decision, which is less for a cached user."""
    return work(lambda: rbac.authorize(ask(user), views))


def test_the_number_of_cached_users_is_bounded() -> None:
    rbac = Rbac(max_cached=2)
    views = rbac_views([READER, cluster_binding("b", "reader", group("dev"))])
    for number in range(5):
        assert rbac.authorize(ask(UserInfo(f"u{number}", groups=("dev",))), views).allowed
    cached, evicted = (effort(rbac, views, UserInfo(name, groups=("dev",))) for name in ("u4", "u2"))
    assert cached < evicted


def test_a_user_with_many_groups_is_not_cached() -> None:
    rbac = Rbac()
    views = rbac_views([READER, cluster_binding("b", "reader", group("dev"))])
    groups = ("dev", *(f"g{number}" for number in range(MAX_GROUPS_CACHED)))
    assert rbac.authorize(ask(UserInfo("x", groups=groups)), views).allowed
    assert effort(rbac, views, UserInfo("x", groups=groups)) == effort(rbac, views, UserInfo("x", groups=groups))
    assert not rbac.authorize(ask(UserInfo("x", groups=groups[1:])), views).allowed


def test_the_rules_of_the_last_user_are_kept_until_something_changes() -> None:
    rbac = Rbac()
    binding = cluster_binding("b", "reader", group("dev"))
    views = rbac_views([READER, binding])
    many = UserInfo("x", groups=("dev", *(f"g{number}" for number in range(MAX_GROUPS_CACHED))))
    first = effort(rbac, views, many)
    assert effort(rbac, views, many) < first / 2, "an impersonation judges the same user for each group"
    assert rbac.authorize(ask(many, namespace="other"), views).allowed
    assert not rbac.authorize(ask(many), rbac_views([READER])).allowed
    assert not rbac.authorize(ask(replace(many, groups=many.groups[1:])), views).allowed
    assert rbac.authorize(ask(many), views).allowed


def test_the_smaller_of_groups_and_subjects_is_iterated() -> None:
    rbac = Rbac()
    views = rbac_views([READER, cluster_binding("b", "reader", group("dev"), user("dev2"))])

    def make(size: int) -> Callable[[], object]:
        asked = ask(UserInfo("x", groups=tuple(f"g{number}" for number in range(size))))
        return lambda: rbac.authorize(asked, views)

    work(make(8))
    assert work(make(5_000)) <= work(make(2_000)) + 20


def test_the_cache_distinguishes_users_by_groups() -> None:
    rbac = Rbac()
    views = rbac_views([READER, cluster_binding("b", "reader", group("dev"))])
    assert rbac.authorize(ask(UserInfo("x", groups=("dev",))), views).allowed
    assert not rbac.authorize(ask(UserInfo("x")), views).allowed


def test_rules_for_lists_cluster_and_namespace_rules_each_once() -> None:
    views = rbac_views(
        [
            READER,
            LOCAL,
            cluster_binding("b", "reader", user("jane")),
            cluster_binding("c", "gone", user("jane")),
            binding("ns", "b", "local", user("jane")),
        ]
    )
    rules, problems = Rbac().rules_for(JANE, "ns", views)
    assert [one.source for one in rules] == [READER["rules"][0], LOCAL["rules"][0], READER["rules"][1]]
    assert problems == ('clusterroles.rbac.authorization.k8s.io "gone" not found',)


def test_rules_for_lists_no_path_of_a_role_binding() -> None:
    views = rbac_views([READER, bound_to_cluster_role("ns", "b", "reader", user("jane"))])
    rules, _ = Rbac().rules_for(JANE, "ns", views)
    assert [one.source for one in rules] == [READER["rules"][0]]


def test_role_rules_are_found_or_not_found() -> None:
    rbac, views = Rbac(), rbac_views([READER, LOCAL])
    assert len(rbac.role_rules("ClusterRole", ("", "reader"), views)) == 2
    assert len(rbac.role_rules("Role", ("ns", "local"), views)) == 1
    with pytest.raises(NotFoundError, match=r'roles.rbac.authorization.k8s.io "local" not found'):
        rbac.role_rules("Role", ("other", "local"), views)


words = st.sampled_from(["*", "a", "b", "a/x", "*/x"])
some_rules = st.builds(
    lambda verbs, groups, resources, names: {
        "verbs": verbs,
        "apiGroups": groups,
        "resources": resources,
        **({"resourceNames": names} if names else {}),
    },
    st.lists(st.sampled_from(["*", "get", "list"]), min_size=1, max_size=2),
    st.lists(st.sampled_from(["*", "", "g"]), min_size=1, max_size=2),
    st.lists(words, min_size=1, max_size=2),
    st.lists(st.sampled_from(["n", "m"]), max_size=1),
)
requests = st.builds(
    lambda verb, api_group, resource, subresource, name: ask(
        verb=verb, group=api_group, resource=resource, subresource=subresource, name=name
    ),
    st.sampled_from(["get", "list", "watch"]),
    st.sampled_from(["", "g", "h"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "x"]),
    st.sampled_from(["", "n", "m"]),
)


@given(st.lists(some_rules, max_size=4), some_rules, requests)
def test_adding_a_rule_never_removes_an_allow(rules: list[Obj], more: Obj, asked: Attributes) -> None:
    to_jane = cluster_binding("b", "r", user("jane"))
    before = Rbac().authorize(asked, rbac_views([cluster_role("r", *rules), to_jane]))
    after = Rbac().authorize(asked, rbac_views([cluster_role("r", *rules, more), to_jane]))
    assert after.allowed or not before.allowed


@given(st.lists(some_rules, min_size=1, max_size=4), requests)
def test_a_role_allows_what_one_of_its_rules_allows(rules: list[Obj], asked: Attributes) -> None:
    to_jane = cluster_binding("b", "r", user("jane"))
    whole = Rbac().authorize(asked, rbac_views([cluster_role("r", *rules), to_jane])).allowed
    parts = [Rbac().authorize(asked, rbac_views([cluster_role("r", one), to_jane])).allowed for one in rules]
    assert whole == any(parts)
