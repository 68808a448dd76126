"""Nobody grants what they do not hold.

Rules kept here (docs/protocol/rbac.md#escalation):
1. Creating or changing a role is allowed to `system:masters`, to whoever may `escalate` that role, and to whoever already
   holds every rule of it. A role that aggregates others wants everything: `*` on resources and on paths.
2. Creating or changing a binding is allowed to `system:masters`, to whoever may `bind` the role, and to whoever holds
   every rule of the role. Without `bind`, a missing role is 404.
3. An update that touches only ownerReferences and finalizers is the garbage collector's and skips the check. Any other
   update is checked even when the rules stay as they are: a new label alone may feed them into an aggregated role.
4. The refusal lists the missing rules compactly, one a line, sorted; verbs of the same resource are merged.

Coverage works on atoms: one verb, one group, one resource, at most one name (or one verb, one path). What is held is indexed by
atoms too, as far as it can cover what is wanted, so that each wanted atom costs a few look-ups however many rules are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import product
from math import prod

from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision
from mooring.authz.rbac.authorizer import API_GROUP, Rbac
from mooring.authz.rbac.index import role_place
from mooring.authz.rbac.rules import ALL, Rule, compile_rules, path_rule, rule
from mooring.errors import ForbiddenError
from mooring.identity import MASTERS, UserInfo

Authorize = Callable[[Attributes], Decision]

MAX_MISSING_SHOWN = 64  # lines of a refusal; a role may hold thousands of atoms, a message should not
MAX_ATOMS = 20_000
"""Atoms that one role may want: the largest default role has some 2 000, and 20 000 take about 30 ms."""
MAX_HELD_ATOMS = 100_000
"""Atoms held that may cover one of those wanted: several full roles. They are indexed for each check, in about 40 ms."""

_FULL = (rule(ALL, ALL, ALL), path_rule(ALL, ALL))
_PLURALS = {"Role": "roles", "ClusterRole": "clusterroles", "RoleBinding": "rolebindings"}
_COLLECTED = frozenset({"ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"})


class TooManyAtomsError(ValueError):
    """More atoms than one check may look at."""


def covers(held: Iterable[Rule], wanted: Sequence[Rule]) -> tuple[Obj, ...]:
    """The atoms of `wanted` that `held` does not cover: empty means covered. Raises TooManyAtomsError."""
    index = _Index(held, wanted)
    return tuple(atom for one in wanted for atom in _uncovered(one.source, index))


class _Index:
    """The rules held, as far as they can cover any of the rules wanted."""

    def __init__(self, held: Iterable[Rule], wanted: Sequence[Rule]) -> None:
        verbs = _vocabulary(one.verbs for one in wanted)
        groups = _vocabulary(one.groups for one in wanted)
        resources = _vocabulary(one.resources for one in wanted)
        resources |= {_any_of_subresource(resource) for resource in resources if "/" in resource}
        names = frozenset(name for one in wanted for name in one.names)
        self.atoms: dict[tuple[str, str], set[tuple[str, str | None]]] = {}
        """(verb, name) by (group, resource); None stands for every name."""
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
        """The (verb, name) pairs that are held of a resource, in one or several sets."""
        names = {resource, ALL, _any_of_subresource(resource)}
        found = (self.atoms.get(place) for place in product({group, ALL}, names))
        return [pairs for pairs in found if pairs]

    def covers_path(self, verb: str, path: str) -> bool:
        """Whether a verb on a path is held; a trailing `*` stands for every path that begins so."""
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
    """`*/sub` for `res/sub`; a resource without a subresource itself."""
    _, slash, subresource = resource.partition("/")
    return f"{ALL}/{subresource}" if slash else resource


def _uncovered(source: Obj, index: _Index) -> Iterator[Obj]:
    """The atoms of one rule that nothing held covers."""
    verbs, groups, resources, names, paths = (
        tuple(dict.fromkeys(source.get(part) or ()))  # each once: a list may repeat a word, and lists multiply
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
        name=name if old is not None else "",  # a create carries no name, as for every authorization
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
    reference = binding.get("roleRef") or {}
    if reference.get("kind") not in ("Role", "ClusterRole") or not reference.get("name"):
        return  # no role: validation refuses the binding
    kind, name = binding["kind"], binding["metadata"].get("name", "")
    namespace = binding["metadata"].get("namespace", "") if kind == "RoleBinding" else ""
    asked = Attributes(
        user=user,
        verb="bind",
        group=reference.get("apiGroup") or API_GROUP,
        version=ALL,
        resource=_PLURALS[reference["kind"]],
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


def _only_collected(new: Obj, old: Obj) -> bool:
    return _without_collected(new) == _without_collected(old)


def _without_collected(obj: Obj) -> Obj:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _COLLECTED}
    return {**obj, "metadata": metadata}
