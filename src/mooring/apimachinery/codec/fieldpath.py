"""Field paths for errors and warnings, written out only when they are reported.

A decoder visits every value but reports few. So it passes a chain of names down and writes the text on demand. Otherwise one long
key above many values would cost its length once for each value.
"""

from __future__ import annotations

FieldPath = tuple["FieldPath", str | int] | None
"""The path of the parent, and the name of a member or the index of an item; None is the body itself."""

MAX_REPORTED = 100
"""Unknown and duplicate fields reported for one body: more would fill the headers of the response."""
MAX_PATH = 512
"""Characters of a reported path. The deepest field of a Kubernetes kind takes some 150, a key of an annotation 317."""


def path_text(path: FieldPath) -> str:
    """Return the path as Kubernetes prints it, such as `spec.containers[0].name`; a long path is cut."""
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name[: MAX_PATH + 1]}")
    text = "".join(reversed(parts)).removeprefix(".")
    return text if len(text) <= MAX_PATH else text[:MAX_PATH] + "..."
