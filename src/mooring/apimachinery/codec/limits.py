"""Field paths for errors and warnings, written out only when they are reported.

A decoder visits every value but reports few. So it passes a chain of names down and writes the text on demand. Otherwise one long
key above many values would cost its length once for each value.
"""

from __future__ import annotations

from typing import Any

from mooring.errors import RequestEntityTooLargeError

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


# Limits on request bodies: bytes, values and depth of nesting.
#
# A value costs far more memory than the three bytes that it may take: 3 MiB of `{},` are a million objects. So the values of JSON
# text are counted before anything is built of them, by byte searches that take about a millisecond for each MiB.

MAX_BODY = 3 * 1024 * 1024
"""Bytes of a request body: kube-apiserver's limit."""
MAX_DEPTH = 100
"""Levels of nesting in a body. The deepest Kubernetes kind has about 30. The bound keeps recursive code within the stack."""
MAX_VALUES = 100_000
"""Values in a body, aliases expanded. A Role of 8 000 rules has 64 000 and a full EndpointSlice 20 000. Each value costs the
server some microseconds and 60 bytes of memory, and 3 MiB could hold a million of them."""


def work_size(body: bytes, content_type: str) -> int:
    """Return the bytes about which the work of a body may be: the most, where aliases of YAML may repeat its content.

    A body of 14 kB has 90 000 values with them, some 0.2 s of work in all stages of a write.
    """
    is_yaml = "yaml" in content_type.lower()
    return MAX_BODY if is_yaml and b"&" in body and b"*" in body else len(body)


def body_too_large(limit: int = MAX_BODY) -> RequestEntityTooLargeError:
    """Return the error for a body of more than `limit` bytes, as kube-apiserver words it; programs search for these words."""
    return RequestEntityTooLargeError(f"Request entity too large: limit is {limit}")


def too_many_values() -> RequestEntityTooLargeError:
    """Return the error for a body of more than `MAX_VALUES` values."""
    return RequestEntityTooLargeError(
        f"Request entity too large: the body has more than {MAX_VALUES} values; split it into several objects"
    )


def count_values(text: bytes, enough: int = MAX_VALUES) -> int:
    """Return the number of values of JSON text: its commas and opening brackets outside strings.

    Every value counts at least once, except the outermost. A result above `enough` need not be exact, and the result for text that
    is not JSON has no meaning.
    """
    count = _count_separators(text)
    if count <= enough:  # separators inside strings are counted too, but even with them the limit is kept
        return count
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # without escapes every quote begins or ends a string
    most_quotes = 4 * (enough + 1)  # two strings, a key and a text, for every value
    parts = plain.split(b'"', most_quotes)
    return count if len(parts) > most_quotes else _count_separators(b"".join(parts[::2]))


def _count_separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"{") + text.count(b"[")


def depth_exceeds(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Return whether lists and objects nest deeper than `limit`. The search goes level by level and does not recurse."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)
