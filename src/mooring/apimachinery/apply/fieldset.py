"""Sets of fields, in the form FieldsV1 gives them: who owns what of an object.

Rules kept here:
* A set is the JSON of FieldsV1 itself, so that storing one is no conversion: a member of an object under `f:<name>`, an item of
  a keyed list under `k:<its keys as JSON>`, an item of a set under `v:<its value as JSON>`, an item by position under
  `i:<number>`. A child that is empty is a member; so is one that says `.` beside children of its own.
* The root itself is never a member: `{}` is the empty set.
* Sets are values: no operation changes what it is given, and results may share parts with it.
* What a client sends is read strictly and rewritten in one normal form (keys sorted, JSON compact); anything else is a
  ValueError. Its depth is bounded by the reader of the body.
* A path prints as kube-apiserver prints it in conflicts: `.spec.containers[name="web"].image`, `.metadata.finalizers[="x"]`.

Source: the structured-merge-diff format of FieldsV1 (k8s.io/apimachinery `metav1.FieldsV1`);
docs/protocol/server-side-apply.md#managed-fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

from mooring.apimachinery.codec.fieldpath import MAX_PATH

FieldSet = dict[str, Any]
"""One node of a set, or a whole set: path element → node. Treat as immutable."""
Path = tuple[str, ...]
"""Path elements from the root on, each in its FieldsV1 spelling."""

SELF = "."
"""The child that says that a node with children is a member itself."""
_NUMBERS = frozenset("0123456789")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def field(name: str) -> str:
    """Path element of an object's member."""
    return f"f:{name}"


def keyed(keys: FieldSet) -> str:
    """Path element of an item of a keyed list."""
    return f"k:{_compact(keys)}"


def valued(value: Any) -> str:
    """Path element of an item of a set."""
    return f"v:{_compact(value)}"


def is_member(node: FieldSet) -> bool:
    """Whether the path of this node (not the root's) is in the set."""
    return not node or SELF in node


def node(member: bool, children: FieldSet) -> FieldSet:
    """A node with these children. Not being a member and having none is nothing at all: the caller drops it."""
    return {SELF: {}, **children} if member and children else children


def insert(target: FieldSet, element: str, member: bool, children: FieldSet) -> None:
    """Put a node into `target`, which belongs to the caller, unless there is nothing to put."""
    if member or children:
        target[element] = node(member, children)


def parse(value: Any) -> FieldSet:
    """A set from the JSON of FieldsV1. Raises ValueError for what is none."""
    if not isinstance(value, dict):
        raise ValueError("a set of fields is an object")
    parsed: FieldSet = {}
    for key, child in value.items():
        if key == SELF:
            continue
        below = parse(child)
        insert(parsed, _element(key), is_member(child), below)
    return parsed


def _element(text: str) -> str:
    kind, rest = text[:2], text[2:]
    if kind == "f:":
        return text
    if kind in ("k:", "v:"):
        try:
            value = json.loads(rest)
        except RecursionError:
            raise ValueError("a path element nests too deeply") from None
        if kind == "v:" or isinstance(value, dict):
            element = kind + _compact(value)
            element.encode()  # half a surrogate pair is text that no JSON can carry: UnicodeEncodeError is a ValueError
            return element
    elif kind == "i:" and rest and _NUMBERS.issuperset(rest):
        return text
    raise ValueError("a path element of a set of fields is f:, k:, v: or i: and what follows from that")


def printed(fields: FieldSet) -> FieldSet:
    """The JSON of FieldsV1 with its members in order, so that equal sets are equal bytes."""
    return {key: printed(fields[key]) for key in sorted(fields)}


def _combined(a: FieldSet, b: FieldSet, wanted: Callable[[bool, bool], bool], only_a: bool, only_b: bool) -> FieldSet:
    """Members of either by `wanted(in a, in b)`; subtrees that one side does not have are taken or left whole."""
    result: FieldSet = {}
    for key, child in a.items():
        if key == SELF:
            continue
        other = b.get(key)
        if other is None:
            if only_a:
                result[key] = child
        else:
            below = _combined(child, other, wanted, only_a, only_b)
            insert(result, key, wanted(is_member(child), is_member(other)), below)
    if only_b:
        result |= {key: child for key, child in b.items() if key != SELF and key not in a}
    return result


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in either set."""
    return _combined(a, b, lambda in_a, in_b: in_a or in_b, True, True)


def union_all(sets: Iterable[FieldSet]) -> FieldSet:
    """What is in any of the sets. By halves: one after the other would copy the growing union once for each."""
    level = list(sets)
    while len(level) > 1:
        nothing: FieldSet = {}
        level = [union(a, b) for a, b in zip_longest(level[::2], level[1::2], fillvalue=nothing)]
    return level[0] if level else {}


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in both sets."""
    return _combined(a, b, lambda in_a, in_b: in_a and in_b, False, False)


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in `a` and not in `b`; each path counts for itself, not for what lies below it."""
    return _combined(a, b, lambda in_a, in_b: in_a and not in_b, True, False)


def without(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in `a` and neither in `b` nor below a member of it."""
    result: FieldSet = {}
    for key, child in a.items():
        if key == SELF:
            continue
        other = b.get(key)
        if other is None:
            result[key] = child
        elif not is_member(other):
            insert(result, key, is_member(child), without(child, other))
    return result


def outside(a: FieldSet, b: FieldSet) -> FieldSet:
    """What is in `a`, and neither in `b`, nor above a member of it, nor part of a keyed item of which `b` has anything."""
    result: FieldSet = {}
    for key, child in a.items():
        if key == SELF:
            continue
        other = b.get(key)
        if other is None:
            result[key] = child
        elif not key.startswith("k:"):
            insert(result, key, False, outside(child, other))
    return result


def has(fields: FieldSet, path: Path) -> bool:
    """Whether the set has exactly this path."""
    for element in path:
        if element not in fields:
            return False
        fields = fields[element]
    return bool(path) and is_member(fields)


def of_paths(*paths: Path) -> FieldSet:
    """The set of these paths."""
    result: FieldSet = {}
    for path in paths:
        below: FieldSet = {}
        for element in reversed(path):
            below = {element: below}
        result = union(result, below)
    return result


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Every path of the set below `prefix`, as kube-apiserver tells them: the members of a level, then what lies below each."""
    elements = [element for element in sorted(fields) if element != SELF]
    yield from ((*prefix, element) for element in elements if is_member(fields[element]))
    for element in elements:
        yield from paths(fields[element], (*prefix, element))


def path_text(path: Path) -> str:
    """A path as people read it. An element that is longer than a whole path should be is cut, unread."""
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
