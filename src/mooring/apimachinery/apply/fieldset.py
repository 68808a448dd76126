"""Field sets in the format FieldsV1, with the operations that server-side apply needs.

Rules kept here:
* A set is the JSON of FieldsV1 itself, so that it is stored without conversion: a field of an object under `f:<name>`, an item of a
  keyed list under `k:<its keys as JSON>`, an item of a set under `v:<its value as JSON>`, an item by position under `i:<number>`.
  An empty node is a member of the set; so is a node that has `.` beside its children.
* The root itself is never a member: `{}` is the empty set.
* Sets are values: no operation changes its arguments, and results may share parts with them.
* A set from a client is parsed strictly and rewritten in one normal form (keys sorted, JSON compact); anything else is a
  ValueError. The request body bounds its depth.
* A path prints as kube-apiserver prints it in conflicts: `.spec.containers[name="web"].image`, `.metadata.finalizers[="x"]`.

Source: the structured-merge-diff format of FieldsV1 (k8s.io/apimachinery `metav1.FieldsV1`);
docs/protocol/server-side-apply.md#managed-fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

from mooring.apimachinery.codec.json import MAX_DEPTH, MAX_PATH

FieldSet = dict[str, Any]
"""One node of a set, or a whole set: path element → node. Treat as immutable."""
Path = tuple[str, ...]
"""Path elements from the root on, each in its FieldsV1 spelling."""

SELF = "."
"""Child of a node with children that is a member itself."""
_NUMBERS = frozenset("0123456789")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def field_element(name: str) -> str:
    """Return the path element of a field of an object."""
    return f"f:{name}"


def key_element(keys: FieldSet) -> str:
    """Return the path element of an item of a keyed list."""
    return f"k:{_compact(keys)}"


def value_element(value: Any) -> str:
    """Return the path element of an item of a set."""
    return f"v:{_compact(value)}"


def is_member(node: FieldSet) -> bool:
    """Return whether the path of this node, which is not the root, is in the set."""
    return not node or SELF in node


def node(member: bool, children: FieldSet) -> FieldSet:
    """Return a node with these children. The caller drops a node that is not a member and has no children."""
    return {SELF: {}, **children} if member and children else children


def insert(target: FieldSet, element: str, member: bool, children: FieldSet) -> None:
    """Put a node into `target`, in place, unless it is not a member and has no children."""
    if member or children:
        target[element] = node(member, children)


def parse_field_set(value: Any) -> FieldSet:
    """Return the set of the JSON of FieldsV1. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("a set of fields is an object")
    parsed: FieldSet = {}
    for key, child in value.items():
        if key == SELF:
            continue
        below = parse_field_set(child)
        insert(parsed, _parse_element(key), is_member(child), below)
    return parsed


def _parse_element(text: str) -> str:
    kind, rest = text[:2], text[2:]
    if kind == "f:":
        return text
    if kind in ("k:", "v:"):
        if rest.count("[") + rest.count("{") > MAX_DEPTH:
            raise ValueError("a path element nests too deeply")
        value = json.loads(rest)
        if kind == "v:" or isinstance(value, dict):
            element = kind + _compact(value)
            # Half of a surrogate pair cannot be encoded. UnicodeEncodeError is a ValueError.
            element.encode()
            return element
    elif kind == "i:" and rest and _NUMBERS.issuperset(rest):
        return text
    raise ValueError("a path element of a set of fields begins with f:, k:, v: or i:")


def sorted_field_set(fields: FieldSet) -> FieldSet:
    """Return the set with its members in order, so that equal sets are equal bytes."""
    return {key: sorted_field_set(fields[key]) for key in sorted(fields)}


def _combine(a: FieldSet, b: FieldSet, keeps: Callable[[bool, bool], bool], only_a: bool, only_b: bool) -> FieldSet:
    """Return the members for which `keeps(in a, in b)`; subtrees that only one set has are kept or dropped whole."""
    result: FieldSet = {}
    for key, child in a.items():
        if key == SELF:
            continue
        other = b.get(key)
        if other is None:
            if only_a:
                result[key] = child
        else:
            below = _combine(child, other, keeps, only_a, only_b)
            insert(result, key, keeps(is_member(child), is_member(other)), below)
    if only_b:
        result |= {key: child for key, child in b.items() if key != SELF and key not in a}
    return result


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the members of either set."""
    return _combine(a, b, lambda in_a, in_b: in_a or in_b, True, True)


def union_all(sets: Iterable[FieldSet]) -> FieldSet:
    """Return the members of any of the sets. Merging in pairs avoids copying the growing union once for each set."""
    level = list(sets)
    while len(level) > 1:
        nothing: FieldSet = {}
        level = [union(a, b) for a, b in zip_longest(level[::2], level[1::2], fillvalue=nothing)]
    return level[0] if level else {}


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the members of both sets."""
    return _combine(a, b, lambda in_a, in_b: in_a and in_b, False, False)


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the members of `a` that are not in `b`. Paths below a member of `b` are kept."""
    return _combine(a, b, lambda in_a, in_b: in_a and not in_b, True, False)


def unrelated(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return the members of `a` that are not in `b`, not above a member of `b`, and not in a keyed item with a member of `b`."""
    result: FieldSet = {}
    for key, child in a.items():
        if key == SELF:
            continue
        other = b.get(key)
        if other is None:
            result[key] = child
        elif not key.startswith("k:"):
            insert(result, key, False, unrelated(child, other))
    return result


def contains(fields: FieldSet, path: Path) -> bool:
    """Return whether the path is a member of the set."""
    for element in path:
        if element not in fields:
            return False
        fields = fields[element]
    return bool(path) and is_member(fields)


def field_set_of(*paths: Path) -> FieldSet:
    """Return the set of these paths."""
    result: FieldSet = {}
    for path in paths:
        below: FieldSet = {}
        for element in reversed(path):
            below = {element: below}
        result = union(result, below)
    return result


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of the set below `prefix` in the order of kube-apiserver: the members of a level, then those below each."""
    elements = [element for element in sorted(fields) if element != SELF]
    yield from ((*prefix, element) for element in elements if is_member(fields[element]))
    for element in elements:
        yield from paths(fields[element], (*prefix, element))


def path_text(path: Path) -> str:
    """Return a path as text. An element longer than MAX_PATH is cut without being parsed."""
    return "".join(
        _element_text(element[:2], element[2:]) if len(element) <= MAX_PATH else f".{element[2:MAX_PATH]}..."
        for element in path
    )


def _element_text(kind: str, rest: str) -> str:
    if kind == "f:":
        return f".{rest}"
    if kind == "k:":
        return "[" + ",".join(f"{key}={_compact(value)}" for key, value in json.loads(rest).items()) + "]"
    return f"[={rest}]" if kind == "v:" else f"[{rest}]"
