"""Paths of values in a body, written out only for a value that is reported.

A decoder meets every value but reports few. So it hands a chain of names down and writes the text on demand: a body of one
long key above many values would otherwise cost its length once for each of them.
"""

from __future__ import annotations

FieldPath = tuple["FieldPath", str | int] | None
"""The path above and a member's name or an item's index; None is the body itself."""

MAX_REPORTED = 100
"""Unknown and duplicate fields reported of one body: more would help nobody and would fill the headers of the reply."""
MAX_PATH = 512
"""Characters of a reported path. The deepest field of a Kubernetes kind takes some 150, a key of an annotation 317."""


def path_text(path: FieldPath) -> str:
    """The path as Kubernetes prints it, such as `spec.containers[0].name`; a long one is cut."""
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name[: MAX_PATH + 1]}")
    text = "".join(reversed(parts)).removeprefix(".")
    return text if len(text) <= MAX_PATH else text[:MAX_PATH] + "..."
