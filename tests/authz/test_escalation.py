"""RBAC escalation checks: granting needs the granted permissions, or the verbs escalate and bind.

Source: docs/protocol/rbac.md#escalation.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Decision, Ruling
from mooring.authz.rbac import escalation
from mooring.authz.rbac.authorizer import (
    CompiledRule,
    Rbac,
    binding,
    cluster_binding,
    cluster_role,
    compile_rule,
    compile_rules,
    path_matches,
    path_rule,
    role,
    rule,
)
from mooring.authz.rbac.escalation import check_binding, check_role, compact, covers
from mooring.errors import ForbiddenError, NotFoundError
from mooring.identity import UserInfo
from tests.support.rbac import group, rbac_views, user
from tests.support.work import grows_linearly

JANE = UserInfo("jane", groups=("dev",))
MASTER = UserInfo("root", groups=("system:masters",))
PODS = rule("get,list", "", "pods")
STARS = (rule("*", "*", "*"), path_rule("*", "*"))


@pytest.mark.parametrize(
    ("held", "wanted", "covered"),
    [
        pytest.param([PODS], [rule("get", "", "pods")], True, id="a part of what is held"),
        pytest.param([PODS], [rule("watch", "", "pods")], False, id="another verb"),
        pytest.param([PODS], [rule("*", "", "pods")], False, id="all verbs when some are held"),
        pytest.param([rule("*", "", "pods")], [rule("*,get", "", "pods")], True, id="all verbs when all are held"),
        pytest.param([PODS], [rule("get", "apps", "pods")], False, id="another group"),
        pytest.param(
            [rule("get", "*", "pods")], [rule("get", "apps,", "pods")], True, id="any group when all are held"
        ),
        pytest.param([PODS], [rule("get", "", "pods,secrets")], False, id="one resource more"),
        pytest.param([rule("get", "", "*")], [rule("get", "", "pods/log")], True, id="a subresource of everything"),
        pytest.param([PODS], [rule("get", "", "pods/log")], False, id="a subresource of what is held"),
        pytest.param([rule("get", "", "*/log")], [rule("get", "", "pods/log,*/log")], True, id="a subresource of any"),
        pytest.param([rule("get", "", "*/log")], [rule("get", "", "pods")], False, id="the resource of a subresource"),
        pytest.param([rule("get", "", "pods", "a")], [rule("get", "", "pods", "a")], True, id="the name held"),
        pytest.param([rule("get", "", "pods", "a")], [rule("get", "", "pods")], False, id="all names when one is held"),
        pytest.param([rule("get", "", "pods", "a")], [rule("get", "", "pods", "a,b")], False, id="one name more"),
        pytest.param([PODS], [rule("get", "", "pods", "a,b")], True, id="names when all are held"),
        pytest.param(
            [rule("get", "", "pods"), rule("list", "", "pods")],
            [rule("get,list", "", "pods")],
            True,
            id="held in two rules",
        ),
        pytest.param([path_rule("get", "/a/*")], [path_rule("get", "/a/b,/a/*")], True, id="a path below a prefix"),
        pytest.param([path_rule("get", "/a/*")], [path_rule("get", "/*")], False, id="a wider prefix"),
        pytest.param([rule("*", "*", "*")], [path_rule("get", "/a")], False, id="a path when resources are held"),
        pytest.param([path_rule("*", "*")], [PODS], False, id="resources when paths are held"),
        pytest.param([], [PODS], False, id="anything when nothing is held"),
        pytest.param([], [], True, id="nothing"),
    ],
)
def test_coverage(held: list[Obj], wanted: list[Obj], covered: bool) -> None:
    assert (covers(compile_rules(held), compile_rules(wanted)) == ()) is covered


verbs = st.lists(st.sampled_from(["*", "get", "list"]), min_size=1, max_size=2)
resources = st.lists(st.sampled_from(["*", "a", "b", "a/x", "*/x"]), min_size=1, max_size=2)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2)
some_rules = st.lists(
    st.builds(
        lambda v, r, n: {"verbs": v, "apiGroups": [""], "resources": r, **({"resourceNames": n} if n else {})},
        verbs,
        resources,
        names,
    ),
    max_size=3,
)


@given(some_rules, some_rules)
def test_coverage_is_reflexive_and_monotonic(one: list[Obj], other: list[Obj]) -> None:
    assert covers(compile_rules(one), compile_rules(one)) == ()
    missing = covers(compile_rules(one), compile_rules(other))
    assert len(covers(compile_rules(one + other[:1]), compile_rules(other))) <= len(missing)


@given(some_rules, some_rules, st.sampled_from(["get", "list"]), st.sampled_from(["", "x"]), st.sampled_from(["", "n"]))
def test_a_covered_role_allows_nothing_that_its_grantor_may_not(
    held: list[Obj], wanted: list[Obj], verb: str, subresource: str, name: str
) -> None:
    """Coverage is sound: it never includes a permission that the holder lacks."""
    if covers(compile_rules(held), compile_rules(wanted)):
        return
    asked = Attributes(user=JANE, verb=verb, resource="a", subresource=subresource, name=name)
    if any(one.allows(asked) for one in compile_rules(wanted)):
        assert any(one.allows(asked) for one in compile_rules(held))


def test_missing_rules_are_compact() -> None:
    wanted = [
        rule("get,list", ",apps", "pods"),
        rule("get", "", "secrets", "b,a"),
        path_rule("get", "/x"),
        rule("get", "", 'odd"name'),
    ]
    assert compact(covers((), compile_rules(wanted))) == [
        '{APIGroups:[""], Resources:["odd\\"name"], Verbs:["get"]}',
        '{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}',
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["a"], Verbs:["get"]}',
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["b"], Verbs:["get"]}',
        '{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/x"], Verbs:["get"]}',
    ]


def nobody(attributes: Attributes) -> Decision:
    return Decision(Ruling.NO_OPINION)


def everybody(attributes: Attributes) -> Decision:
    return Decision(Ruling.ALLOW)


def holding(*rules: Obj) -> list[Obj]:
    return [cluster_role("held", *rules), cluster_binding("held", "held", user("jane"))]


def write_role(
    new: Obj,
    old: Obj | None = None,
    who: UserInfo = JANE,
    held: tuple[Obj, ...] = (),
    authorize: Callable[[Attributes], Decision] = nobody,
) -> None:
    check_role(new, old, who, Rbac(), rbac_views(holding(*held)), authorize)


def aggregating(*rules: Obj) -> Obj:
    return {**cluster_role("sum", *rules), "aggregationRule": {"clusterRoleSelectors": []}}


WANTED = role("ns", "r", PODS)


def labelled(obj: Obj, **metadata: object) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"new": WANTED, "who": MASTER}, id="system:masters"),
        pytest.param({"new": WANTED, "authorize": everybody}, id="anyone who may escalate"),
        pytest.param({"new": WANTED, "held": (PODS,)}, id="anyone who holds the rules"),
        pytest.param({"new": cluster_role("r", PODS), "held": (PODS,)}, id="anyone who holds the rules everywhere"),
        pytest.param(
            {"new": labelled(WANTED, ownerReferences=[], finalizers=["x"]), "old": WANTED}, id="the garbage collector"
        ),
        pytest.param({"new": role("ns", "empty")}, id="anybody, when the role grants nothing"),
        pytest.param({"new": aggregating(), "held": STARS}, id="anyone who holds everything, for an aggregated role"),
    ],
)
def test_a_role_may_be_written_by(arguments: dict[str, object]) -> None:
    write_role(**arguments)  # type: ignore[arg-type]  # a table of keyword arguments


REFUSED = (
    'roles.rbac.authorization.k8s.io "r" is forbidden: user "jane" (groups=["dev"]) is attempting to grant RBAC '
    'permissions not currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}'
)
AGGREGATION = (
    'clusterroles.rbac.authorization.k8s.io "sum" is forbidden: '
    "must have cluster-admin privileges to use the aggregationRule"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"new": WANTED}, REFUSED, id="a rule not held"),
        pytest.param(
            {"new": labelled(WANTED, labels={"a": "b"}), "old": WANTED}, REFUSED, id="a new label on rules not held"
        ),
        pytest.param({"new": aggregating(), "held": (rule("*", "*", "*"),)}, AGGREGATION, id="an aggregated role"),
        pytest.param(
            {"new": cluster_role("sum"), "old": aggregating(), "held": (PODS,)},
            AGGREGATION,
            id="a role that aggregated",
        ),
    ],
)
def test_a_role_may_not_be_written_with(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ForbiddenError) as caught:
        write_role(**arguments)  # type: ignore[arg-type]  # a table of keyword arguments
    assert str(caught.value) == message


def test_what_is_held_in_a_namespace_may_be_granted_there_only() -> None:
    views = rbac_views([WANTED, binding("ns", "b", "r", user("jane"))])
    check_role(role("ns", "copy", PODS), None, JANE, Rbac(), views, nobody)
    for elsewhere in (role("other", "copy", PODS), cluster_role("copy", PODS)):
        with pytest.raises(ForbiddenError):
            check_role(elsewhere, None, JANE, Rbac(), views, nobody)


def test_resolution_errors_are_reported() -> None:
    views = rbac_views([cluster_binding("b", "gone", user("jane"))])
    with pytest.raises(
        ForbiddenError, match=r'; resolution errors: \[clusterroles.rbac.authorization.k8s.io "gone" not found\]$'
    ):
        check_role(WANTED, None, JANE, Rbac(), views, nobody)


def test_a_long_refusal_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "MAX_MISSING_SHOWN", 2)
    with pytest.raises(ForbiddenError) as caught:
        write_role(role("ns", "r", rule("get", "", "a,b,c,d")))
    assert str(caught.value).splitlines()[1:] == [
        '{APIGroups:[""], Resources:["a"], Verbs:["get"]}',
        '{APIGroups:[""], Resources:["b"], Verbs:["get"]}',
        "and 2 more",
    ]


def test_a_role_of_too_many_combinations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "MAX_ATOMS", 3)
    with pytest.raises(ForbiddenError, match="more than 3 combinations"):
        write_role(role("ns", "r", rule("get,list", "", "a", "x,y")), held=STARS)


def many_rules(prefix: str) -> Callable[[int], tuple[CompiledRule, ...]]:
    return lambda size: compile_rules([rule("get,list", "", "pods", f"{prefix}{index}") for index in range(size)])


def many_names(size: int) -> tuple[CompiledRule, ...]:
    return compile_rules([rule("get", "", "pods", ",".join(f"a{index}" for index in range(size)))])


def many_paths(prefix: str) -> Callable[[int], tuple[CompiledRule, ...]]:
    return lambda size: compile_rules([path_rule("get", f"/{prefix}{index}/*") for index in range(size)])


def repeated_words(size: int) -> tuple[CompiledRule, ...]:
    words = ["a"] * size
    return compile_rules([{"verbs": words, "apiGroups": words, "resources": words, "resourceNames": words}])


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        pytest.param(many_rules("a"), many_rules("a"), id="the same rules"),
        pytest.param(many_rules("a"), many_rules("b"), id="rules of which none is held"),
        pytest.param(many_rules("a"), many_names, id="one rule of many names"),
        pytest.param(many_names, many_rules("a"), id="names of one rule"),
        pytest.param(many_paths("a"), many_paths("a"), id="paths"),
        pytest.param(many_paths("a"), many_paths("b"), id="paths of which none is held"),
        pytest.param(many_rules("a"), repeated_words, id="words that are repeated"),
    ],
)
def test_the_work_of_a_check_is_linear_in_the_rules(
    held: Callable[[int], tuple[CompiledRule, ...]], wanted: Callable[[int], tuple[CompiledRule, ...]]
) -> None:
    def make(size: int) -> Callable[[], object]:
        before, after = held(size), wanted(size)
        return lambda: covers(before, after)

    grows_linearly(make, 100)


def test_too_many_held_atoms_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "MAX_HELD_ATOMS", 3)
    with pytest.raises(ForbiddenError, match="the rules held multiply to more than 3 combinations"):
        write_role(role("ns", "r", rule("get,list", "", "a,b")), held=(rule("get,list", "", "a,b"),))


def test_held_rules_of_other_resources_do_not_count_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escalation, "MAX_HELD_ATOMS", 3)
    write_role(role("ns", "r", rule("get", "", "a")), held=(rule("get,list,watch", "", "a,b,c,d"),))


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param({}, id="none"),
        pytest.param({"kind": "Pod", "name": "r"}, id="something else"),
        pytest.param({"kind": "Role"}, id="no name"),
    ],
)
def test_a_binding_without_a_role_is_left_to_validation(reference: Obj) -> None:
    written = {**binding("ns", "b", "r", user("x")), "roleRef": reference}
    check_binding(written, None, JANE, Rbac(), rbac_views(), lambda attributes: Decision(Ruling.NO_OPINION))


_words = st.lists(st.sampled_from(["*", "a", "b", "a/s", "*/s", "b/s"]), min_size=1, max_size=2)
_rules = st.lists(
    st.builds(
        lambda verbs, groups, resources, names: {
            "verbs": verbs,
            "apiGroups": groups,
            "resources": resources,
            "resourceNames": names,
        },
        _words,
        _words,
        _words,
        st.lists(st.sampled_from(["x", "y"]), max_size=2),
    )
    | st.builds(
        lambda verbs, paths: {"verbs": verbs, "nonResourceURLs": paths},
        _words,
        st.lists(st.sampled_from(["*", "/a", "/a/*", "/a/b", "/*"]), min_size=1, max_size=2),
    ),
    max_size=3,
)


def _compared_one_by_one(held: CompiledRule, atom: CompiledRule) -> bool:
    """Coverage as docs/protocol/rbac.md#escalation has it, of one rule and one combination."""
    if not (held.any_verb or atom.verbs <= held.verbs):
        return False
    if atom.paths:
        return path_matches(held.paths, atom.paths[0])
    (resource,) = atom.resources
    _, slash, subresource = resource.partition("/")
    return (
        (held.any_group or atom.groups <= held.groups)
        and (held.any_resource or resource in held.resources or (bool(slash) and f"*/{subresource}" in held.resources))
        and (not held.names or (bool(atom.names) and atom.names <= held.names))
    )


@given(_rules, _rules)
def test_the_index_equals_a_comparison_of_every_pair(held: list[Obj], wanted: list[Obj]) -> None:
    owned = compile_rules(held)
    atoms = covers((), compile_rules(wanted))
    missing = tuple(atom for atom in atoms if not any(_compared_one_by_one(one, compile_rule(atom)) for one in owned))
    assert covers(owned, compile_rules(wanted)) == missing


@pytest.mark.parametrize(
    ("new", "old", "resource", "name", "namespace"),
    [
        pytest.param(WANTED, None, "roles", "", "ns", id="a create carries no name"),
        pytest.param(labelled(WANTED, labels={"a": "b"}), WANTED, "roles", "r", "ns", id="an update names the role"),
        pytest.param(cluster_role("c", PODS), None, "clusterroles", "", "", id="a cluster role has no namespace"),
    ],
)
def test_attributes_of_the_escalate_check(new: Obj, old: Obj | None, resource: str, name: str, namespace: str) -> None:
    asked: list[Attributes] = []

    def record(attributes: Attributes) -> Decision:
        asked.append(attributes)
        return Decision(Ruling.ALLOW)

    write_role(new, old, authorize=record)
    (one,) = asked
    assert (one.user, one.verb, one.group) == (JANE, "escalate", "rbac.authorization.k8s.io")
    assert (one.resource, one.name, one.namespace) == (resource, name, namespace)


READER = cluster_role("reader", PODS)
TO_BOB = cluster_binding("b", "reader", user("bob"))
LOCALLY = binding("ns", "b", "r", group("ops"))


@pytest.mark.parametrize(
    ("new", "old", "who", "held", "authorize"),
    [
        pytest.param(TO_BOB, None, MASTER, (), nobody, id="system:masters"),
        pytest.param(TO_BOB, None, JANE, (), everybody, id="anyone who may bind"),
        pytest.param(
            cluster_binding("b", "gone", user("bob")),
            None,
            JANE,
            (),
            everybody,
            id="anyone who may bind, a missing role",
        ),
        pytest.param(TO_BOB, None, JANE, (PODS,), nobody, id="anyone who holds the rules"),
        pytest.param(LOCALLY, None, JANE, (PODS,), nobody, id="anyone who holds the rules of a Role"),
        pytest.param(labelled(TO_BOB, finalizers=["x"]), TO_BOB, JANE, (), nobody, id="the garbage collector"),
    ],
)
def test_a_binding_may_be_written_by(
    new: Obj, old: Obj | None, who: UserInfo, held: tuple[Obj, ...], authorize: Callable[[Attributes], Decision]
) -> None:
    check_binding(new, old, who, Rbac(), rbac_views([READER, WANTED, *holding(*held)]), authorize)


@pytest.mark.parametrize(
    ("new", "old", "error", "message"),
    [
        pytest.param(
            TO_BOB,
            None,
            ForbiddenError,
            'clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "jane"',
            id="a cluster role not held",
        ),
        pytest.param(
            LOCALLY,
            None,
            ForbiddenError,
            'rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "jane"',
            id="a role not held",
        ),
        pytest.param(
            {**TO_BOB, "subjects": [user("eve")]},
            TO_BOB,
            ForbiddenError,
            "is forbidden",
            id="another subject of a role not held",
        ),
        pytest.param(
            cluster_binding("b", "gone", user("bob")),
            None,
            NotFoundError,
            'clusterroles.rbac.authorization.k8s.io "gone" not found',
            id="a missing role",
        ),
    ],
)
def test_a_binding_may_not_be_written_to(new: Obj, old: Obj | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        check_binding(new, old, JANE, Rbac(), rbac_views([READER, WANTED]), nobody)
    assert message in str(caught.value)


def test_attributes_of_the_bind_check() -> None:
    asked: list[Attributes] = []

    def record(attributes: Attributes) -> Decision:
        asked.append(attributes)
        return Decision(Ruling.ALLOW)

    check_binding(LOCALLY, None, JANE, Rbac(), rbac_views(), record)
    check_binding(TO_BOB, None, JANE, Rbac(), rbac_views(), record)
    assert [(one.verb, one.resource, one.name, one.namespace) for one in asked] == [
        ("bind", "roles", "r", "ns"),
        ("bind", "clusterroles", "reader", ""),
    ]
