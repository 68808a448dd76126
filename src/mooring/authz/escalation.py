"""Nobody grants what they do not hold.

Rules kept here (reference/kubernetes.md 6.3):
1. Creating or changing a role is allowed to `system:masters`, to whoever may `escalate` that role, and to whoever already
   holds every rule of it. A role that aggregates others wants everything: `*` on resources and on paths.
2. Creating or changing a binding is allowed to `system:masters`, to whoever may `bind` the role, and to whoever holds
   every rule of the role. Without `bind`, a missing role is 404.
3. An update that touches only ownerReferences and finalizers is the garbage collector's and skips the check. Any other
   update is checked even when the rules stay as they are: a new label alone may feed them into an aggregated role.
4. The refusal lists the missing rules compactly, one a line, sorted; verbs of the same resource are merged.

Coverage works on atoms: one verb, one group, one resource, at most one name (or one verb, one path).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision
from mooring.authz.rbac import API_GROUP, Rbac
from mooring.authz.rbacindex import role_place
from mooring.authz.rules import ALL, Rule, compile_rule, compile_rules, path_matches, path_rule, rule
from mooring.errors import ForbiddenError
from mooring.identity import MASTERS, UserInfo
from mooring.kinds.view import Views
from mooring.wire.schema import Obj

Authorize = Callable[[Attributes], Decision]

MAX_MISSING_SHOWN = 64  # lines of a refusal; a role may hold thousands of atoms, a message should not
MAX_ATOMS = 20_000
"""Each is compared with every rule held, while all others wait; the largest default role has some 2 000."""

_FULL = (rule(ALL, ALL, ALL), path_rule(ALL, ALL))
_PLURALS = {"Role": "roles", "ClusterRole": "clusterroles", "RoleBinding": "rolebindings"}
_COLLECTED = frozenset({"ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"})


def covers(held: Iterable[Rule], wanted: Iterable[Rule]) -> tuple[Obj, ...]:
    """The atoms of `wanted` that `held` does not cover: empty means covered."""
    owned = tuple(held)
    return tuple(atom for atom in _atoms(wanted) if not _covered(owned, compile_rule(atom)))


def _covered(owned: Sequence[Rule], atom: Rule) -> bool:
    return any(_covers(one, atom) for one in owned)


def check_role(role: Obj, old: Obj | None, user: UserInfo, rbac: Rbac, views: Views, authorize: Authorize) -> None:
    """May `user` write this Role or ClusterRole? Raises ForbiddenError."""
    if MASTERS in user.groups or (old is not None and _only_collected(role, old)):
        return
    kind, name = role["kind"], role["metadata"].get("name", "")
    namespace = role["metadata"].get("namespace", "") if kind == "Role" else ""
    plural = _PLURALS[kind]
    asked = Attributes(
        user=user,
        verb="escalate",
        group=API_GROUP,
        version=ALL,
        resource=plural,
        name=name if old is not None else "",  # a create carries no name, as for every authorization (6.1)
        namespace=namespace,
    )
    if authorize(asked).allowed:
        return
    missing = _missing(compile_rules(role.get("rules")), user, namespace, rbac, views)
    if missing:
        raise ForbiddenError.of(API_GROUP, plural, name, missing)
    aggregates = "aggregationRule" in role or (old is not None and "aggregationRule" in old)
    if aggregates and _missing(compile_rules(_FULL), user, "", rbac, views):
        raise ForbiddenError.of(
            API_GROUP, plural, name, "must have cluster-admin privileges to use the aggregationRule"
        )


def check_binding(
    binding: Obj, old: Obj | None, user: UserInfo, rbac: Rbac, views: Views, authorize: Authorize
) -> None:
    """May `user` write this RoleBinding or ClusterRoleBinding? Raises ForbiddenError or, for a missing role, NotFoundError."""
    if MASTERS in user.groups or (old is not None and _only_collected(binding, old)):
        return
    kind, name = binding["kind"], binding["metadata"].get("name", "")
    namespace = binding["metadata"].get("namespace", "") if kind == "RoleBinding" else ""
    reference = binding["roleRef"]
    asked = Attributes(
        user=user,
        verb="bind",
        group=reference.get("apiGroup") or API_GROUP,
        version=ALL,
        resource=_PLURALS.get(reference["kind"], ""),
        name=reference["name"],
        namespace=namespace,
    )
    if authorize(asked).allowed:
        return
    place = role_place(reference["kind"], reference["name"], namespace)
    wanted = rbac.role_rules(reference["kind"], place, views)
    missing = _missing(wanted, user, namespace, rbac, views)
    if missing:
        plural = _PLURALS.get(kind, "clusterrolebindings")
        raise ForbiddenError.of(API_GROUP, plural, name, missing)


def compact(atoms: Sequence[Obj]) -> list[str]:
    """The missing atoms as sorted lines, verbs of the same resource (and names) merged."""
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


def _missing(wanted: Sequence[Rule], user: UserInfo, namespace: str, rbac: Rbac, views: Views) -> str:
    """Why the user may not grant these rules; empty when it may."""
    if sum(_size(one) for one in wanted) > MAX_ATOMS:
        return f"the rules multiply to more than {MAX_ATOMS} combinations; split the role"
    held, problems = rbac.rules_for(user, namespace, views)
    uncovered = covers(held, wanted)
    if not uncovered:
        return ""
    lines = compact(uncovered)
    if len(lines) > MAX_MISSING_SHOWN:
        lines = [*lines[:MAX_MISSING_SHOWN], f"and {len(lines) - MAX_MISSING_SHOWN} more"]
    who = f'user "{user.username}" (groups={_quoted(user.groups)})'
    why = f"{who} is attempting to grant RBAC permissions not currently held:\n" + "\n".join(lines)
    if problems:
        why += f"; resolution errors: [{', '.join(problems)}]"
    return why


def _quoted(values: Iterable[str]) -> str:
    """Go's %q of a list of strings."""
    return "[" + " ".join('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values) + "]"


def _size(one: Rule) -> int:
    paths = len(one.verbs) * len(one.paths)
    return paths + len(one.verbs) * len(one.groups) * len(one.resources) * max(1, len(one.names))


def _atoms(rules: Iterable[Rule]) -> Iterator[Obj]:
    for one in rules:
        source = one.source
        for group in source.get("apiGroups") or ():
            for resource in source.get("resources") or ():
                for verb in source["verbs"]:
                    atom: Obj = {"verbs": [verb], "apiGroups": [group], "resources": [resource]}
                    for name in source.get("resourceNames") or ():
                        yield {**atom, "resourceNames": [name]}
                    if not source.get("resourceNames"):
                        yield atom
        for path in source.get("nonResourceURLs") or ():
            for verb in source["verbs"]:
                yield {"verbs": [verb], "nonResourceURLs": [path]}


def _covers(held: Rule, atom: Rule) -> bool:
    if not (held.any_verb or atom.verbs <= held.verbs):
        return False
    if atom.paths:
        return path_matches(held.paths, atom.paths[0])
    (resource,) = atom.resources
    return (
        (held.any_group or atom.groups <= held.groups)
        and (held.any_resource or resource in held.resources or _subresource_covered(held, resource))
        and (not held.names or (bool(atom.names) and atom.names <= held.names))
    )


def _subresource_covered(held: Rule, resource: str) -> bool:
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in held.resources


def _only_collected(new: Obj, old: Obj) -> bool:
    return _without_collected(new) == _without_collected(old)


def _without_collected(obj: Obj) -> Obj:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _COLLECTED}
    return {**obj, "metadata": metadata}
