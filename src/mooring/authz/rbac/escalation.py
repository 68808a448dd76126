"""RBAC escalation checks, and the reconciliation of the default policy at a start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import product
from math import prod

from mooring.api.view import Views
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authz.decision import Attributes, Authorize
from mooring.authz.rbac.authorizer import (
    ALL,
    API_GROUP,
    CompiledRule,
    Rbac,
    compile_rule,
    compile_rules,
    path_rule,
    role_of_binding,
    rule,
)
from mooring.errors import ForbiddenError
from mooring.identity import MASTERS, UserInfo

# RBAC escalation checks: users may grant only permissions that they hold, unless they may `escalate` or `bind`.
#
# Rules kept here (docs/protocol/rbac.md#escalation):
# 1. A role may be created or changed by `system:masters`, by users with the verb `escalate` on that role, and by users who hold
#    every rule of it. A role with an aggregationRule requires all permissions: `*` on resources and on paths.
# 2. A binding may be created or changed by `system:masters`, by users with the verb `bind` on the role, and by users who hold every
#    rule of the role. Without `bind`, a missing role is 404.
# 3. An update that changes only ownerReferences and finalizers, as the garbage collector sends, skips the check. Every other update
#    is checked even when the rules stay as they are: a new label alone may feed them into an aggregated role.
# 4. The refusal lists the missing rules, one a line, sorted, with verbs of the same resource merged.
#
# Coverage is checked on atoms: one verb, one group, one resource, at most one name; or one verb, one path. Held rules are indexed
# by atoms too, as far as they can cover wanted ones, so that each wanted atom costs a few look-ups however many rules are held.

MAX_MISSING_SHOWN = 64  # lines of a refusal, since a role may have thousands of atoms
MAX_ATOMS = 20_000
"""Atoms of one role to be granted: the largest default role has some 2 000, and 20 000 take about 30 ms."""
MAX_HELD_ATOMS = 100_000
"""Held atoms that may cover a wanted one: several full roles. They are indexed for each check, in about 40 ms."""

_FULL = (rule(ALL, ALL, ALL), path_rule(ALL, ALL))
_PLURALS = {"Role": "roles", "ClusterRole": "clusterroles", "RoleBinding": "rolebindings"}
_COLLECTOR_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"})


class TooManyAtomsError(ValueError):
    """Raised when a check would process more atoms than allowed."""


def covers(held: Iterable[CompiledRule], wanted: Sequence[CompiledRule]) -> tuple[Obj, ...]:
    """Return the atoms of `wanted` that `held` does not cover. Raises TooManyAtomsError."""
    index = _HeldAtoms(held, wanted)
    return tuple(atom for one in wanted for atom in _uncovered(one.source, index))


class _HeldAtoms:
    """Atoms of the held rules that can cover an atom of the wanted rules, indexed by group and resource."""

    def __init__(self, held: Iterable[CompiledRule], wanted: Sequence[CompiledRule]) -> None:
        verbs = _vocabulary(one.verbs for one in wanted)
        groups = _vocabulary(one.groups for one in wanted)
        resources = _vocabulary(one.resources for one in wanted)
        resources |= {_any_of_subresource(resource) for resource in resources if "/" in resource}
        names = frozenset(name for one in wanted for name in one.names)
        self.atoms: dict[tuple[str, str], set[tuple[str, str | None]]] = {}
        """(verb, name) pairs by (group, resource); None stands for every name."""
        self._paths: dict[str, set[str]] = {}
        self._prefixes: dict[str, set[str]] = {}
        size = 0
        for one in held:
            held_verbs, held_groups, held_resources = one.verbs & verbs, one.groups & groups, one.resources & resources
            held_names: Set[str | None] = (one.names & names) if one.names else frozenset((None,))
            size += prod(map(len, (held_verbs, held_groups, held_resources, held_names)))
            size += len(held_verbs) * len(one.paths)
            if size > MAX_HELD_ATOMS:
                raise TooManyAtomsError
            pairs = set(product(held_verbs, held_names))
            for place in product(held_groups, held_resources):
                self.atoms.setdefault(place, set()).update(pairs)
            for verb in held_verbs if one.paths else ():
                self._paths.setdefault(verb, set()).update(one.paths)
                prefixes = (path.rstrip(ALL) for path in one.paths if path.endswith(ALL))
                self._prefixes.setdefault(verb, set()).update(prefixes)
        self._lengths = {verb: set(map(len, prefixes)) for verb, prefixes in self._prefixes.items()}

    def covering(self, group: str, resource: str) -> list[set[tuple[str, str | None]]]:
        """Return the held (verb, name) pairs of a resource, in one or several sets."""
        names = {resource, ALL, _any_of_subresource(resource)}
        found = (self.atoms.get(place) for place in product({group, ALL}, names))
        return [pairs for pairs in found if pairs]

    def covers_path(self, verb: str, path: str) -> bool:
        """Return true when a verb on a path is held; a trailing `*` stands for every path with that prefix."""
        return any(
            ALL in paths
            or path in paths
            or any(path[:length] in self._prefixes[verb] for length in self._lengths.get(verb, ()))
            for verb in {verb, ALL}
            if (paths := self._paths.get(verb))
        )


def _vocabulary(sets: Iterable[Set[str]]) -> frozenset[str]:
    return frozenset((ALL,)).union(*sets)


def _any_of_subresource(resource: str) -> str:
    """Return `*/sub` for `res/sub`, and a resource without subresource unchanged."""
    _, slash, subresource = resource.partition("/")
    return f"{ALL}/{subresource}" if slash else resource


def _uncovered(source: Obj, index: _HeldAtoms) -> Iterator[Obj]:
    """Yield the atoms of one rule that no held rule covers."""
    verbs, groups, resources, names, paths = (
        tuple(dict.fromkeys(source.get(part) or ()))  # without duplicates, since the lists are multiplied
        for part in ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    )
    for group, resource in product(groups, resources):
        covering = index.covering(group, resource)
        for verb, name in product(verbs, names or (None,)):
            tried = ((verb, name), (ALL, name), (verb, None), (ALL, None))
            if not any(one in pairs for pairs in covering for one in tried):
                atom: Obj = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                yield atom if name is None else {**atom, "resourceNames": [name]}
    for path, verb in product(paths, verbs):
        if not index.covers_path(verb, path):
            yield {"verbs": [verb], "nonResourceURLs": [path]}


def check_role(role: Obj, old: Obj | None, user: UserInfo, rbac: Rbac, views: Views, authorize: Authorize) -> None:
    """Check that `user` may write this Role or ClusterRole. Raises ForbiddenError."""
    if MASTERS in user.groups or (old is not None and _only_collector_fields_differ(role, old)):
        return
    kind, name = role["kind"], role["metadata"].get("name", "")
    namespace = role["metadata"].get("namespace", "") if kind == "Role" else ""
    plural = _PLURALS[kind]
    attributes = Attributes(
        user=user,
        verb="escalate",
        group=API_GROUP,
        version=ALL,
        resource=plural,
        name=name if old is not None else "",  # a create carries no name, as for every authorization
        namespace=namespace,
    )
    # The verb `escalate` comes first: its holders need not hold the rules that they grant (rule 1).
    if authorize(attributes).allowed:
        return
    reason = _refusal_reason(compile_rules(role.get("rules")), user, namespace, rbac, views)
    if reason:
        raise ForbiddenError.of(API_GROUP, plural, name, reason)
    # The rules of an aggregated role come from other roles later, so no list of rules bounds what it grants.
    aggregates = "aggregationRule" in role or (old is not None and "aggregationRule" in old)
    if aggregates and _refusal_reason(compile_rules(_FULL), user, "", rbac, views):
        raise ForbiddenError.of(
            API_GROUP, plural, name, "must have cluster-admin privileges to use the aggregationRule"
        )


def check_binding(
    binding: Obj, old: Obj | None, user: UserInfo, rbac: Rbac, views: Views, authorize: Authorize
) -> None:
    """Check that `user` may write this RoleBinding or ClusterRoleBinding.

    Raises ForbiddenError or, for a missing role, NotFoundError.
    """
    if MASTERS in user.groups or (old is not None and _only_collector_fields_differ(binding, old)):
        return
    reference = binding.get("roleRef") or {}
    if reference.get("kind") not in ("Role", "ClusterRole") or not reference.get("name"):
        # Validation refuses a binding without a role.
        return
    kind, name = binding["kind"], binding["metadata"].get("name", "")
    namespace = binding["metadata"].get("namespace", "") if kind == "RoleBinding" else ""
    attributes = Attributes(
        user=user,
        verb="bind",
        group=reference.get("apiGroup") or API_GROUP,
        version=ALL,
        resource=_PLURALS[reference["kind"]],
        name=reference["name"],
        namespace=namespace,
    )
    # Before the role is read: with `bind` a user may bind a role that does not exist yet (rule 2).
    if authorize(attributes).allowed:
        return
    role = role_of_binding(reference["kind"], reference["name"], namespace)
    wanted = rbac.role_rules(reference["kind"], role, views)
    reason = _refusal_reason(wanted, user, namespace, rbac, views)
    if reason:
        plural = _PLURALS.get(kind, "clusterrolebindings")
        raise ForbiddenError.of(API_GROUP, plural, name, reason)


def compact(atoms: Sequence[Obj]) -> list[str]:
    """Return the missing atoms as sorted lines, with verbs of the same resource and names merged."""
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for atom in atoms:
        key = tuple(
            tuple(atom.get(part, ())) for part in ("apiGroups", "resources", "nonResourceURLs", "resourceNames")
        )
        merged.setdefault(key, []).extend(atom["verbs"])
    titles = ("APIGroups", "Resources", "NonResourceURLs", "ResourceNames", "Verbs")
    lines = []
    for key, verbs in merged.items():
        parts = [f"{title}:{_quoted(values)}" for title, values in zip(titles, (*key, verbs), strict=True) if values]
        lines.append("{" + ", ".join(parts) + "}")
    return sorted(lines)


def _refusal_reason(wanted: Sequence[CompiledRule], user: UserInfo, namespace: str, rbac: Rbac, views: Views) -> str:
    """Return the reason why the user may not grant these rules, or ""."""
    # Counted before they are made: lists multiply, and a small role could occupy the event loop.
    if sum(_atom_count(one) for one in wanted) > MAX_ATOMS:
        return f"the rules multiply to more than {MAX_ATOMS} combinations; split the role"
    held, problems = rbac.rules_for(user, namespace, views)
    try:
        uncovered = covers(held, wanted)
    except TooManyAtomsError:
        return (
            f"the rules held multiply to more than {MAX_HELD_ATOMS} combinations that could cover these; "
            "split the role, or have an administrator grant you the verb escalate on roles and bind on bindings"
        )
    if not uncovered:
        return ""
    lines = compact(uncovered)
    if len(lines) > MAX_MISSING_SHOWN:
        lines = [*lines[:MAX_MISSING_SHOWN], f"and {len(lines) - MAX_MISSING_SHOWN} more"]
    subject = f'user "{user.username}" (groups={_quoted(user.groups)})'
    reason = f"{subject} is attempting to grant RBAC permissions not currently held:\n" + "\n".join(lines)
    if problems:
        reason += f"; resolution errors: [{', '.join(problems)}]"
    return reason


def _quoted(values: Iterable[str]) -> str:
    """Format a list of strings as Go's %q does."""
    return "[" + " ".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "]"


def _atom_count(one: CompiledRule) -> int:
    paths = len(one.verbs) * len(one.paths)
    return paths + len(one.verbs) * len(one.groups) * len(one.resources) * max(1, len(one.names))


def _only_collector_fields_differ(new: Obj, old: Obj) -> bool:
    return _without_collector_fields(new) == _without_collector_fields(old)


def _without_collector_fields(obj: Obj) -> Obj:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _COLLECTOR_FIELDS}
    return {**obj, "metadata": metadata}


# Reconciliation of default RBAC objects at start: what to write so that a stored object grants at least the default.
#
# Rules kept here (docs/protocol/rbac.md#default-roles):
# 1. Reconciliation only adds missing rules, subjects, labels and annotations. Additions of an administrator stay.
# 2. An object whose autoupdate annotation is `"false"` is left alone.
# 3. An aggregated role keeps its rules, which the aggregation controller writes, and gets missing selectors. The aggregation rule
#    of a role that is not aggregated by default is removed.
# 4. A binding to another role is replaced, because roleRef is immutable: the wanted object is returned without uid and
#    resourceVersion, to be created after the stored one is deleted.

AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"


def reconcile(existing: Obj | None, wanted: Obj) -> Obj | None:
    """Return the object to write so that `existing` grants at least `wanted`, or None when it already does."""
    if existing is None:
        return deep_copy(wanted)
    if (existing["metadata"].get("annotations") or {}).get(AUTOUPDATE) == "false":
        return None
    if "roleRef" in wanted and existing.get("roleRef") != wanted["roleRef"]:
        return deep_copy(wanted)
    result = deep_copy(existing)
    for marks in ("labels", "annotations"):
        merged = {**wanted["metadata"].get(marks, {}), **(existing["metadata"].get(marks) or {})}
        if merged:
            result["metadata"][marks] = merged
    if "roleRef" in wanted:
        _add(result, "subjects", wanted.get("subjects", ()))
    elif "aggregationRule" in wanted:
        _add(result.setdefault("aggregationRule", {}), "clusterRoleSelectors", _selectors(wanted))
    else:
        result.pop("aggregationRule", None)
        held = compile_rules(existing.get("rules"))
        missing = [one for one in wanted.get("rules", ()) if covers(held, (compile_rule(one),))]
        _add(result, "rules", missing)
    return None if result == existing else result


def _selectors(role: Obj) -> Sequence[Obj]:
    selectors: Sequence[Obj] = role["aggregationRule"]["clusterRoleSelectors"]
    return selectors


def _add(holder: Obj, key: str, wanted: Sequence[Obj]) -> None:
    """Append the missing elements to the list `holder[key]`; an absent list stays absent when nothing is missing."""
    present = holder.get(key) or []
    missing = [deep_copy(one) for one in wanted if one not in present]
    if missing:
        holder[key] = [*present, *missing]
