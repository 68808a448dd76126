"""Clean form of a path, as Go's `http.ServeMux` makes it: no empty segment, no `.` and no `..`.

Source: net/http, cleanPath, and path.Clean (Go 1.26, with which k3s is built).
"""

from __future__ import annotations


def clean_path(path: str) -> str:
    """Return the clean form of a path. A slash at its end stays."""
    if path[:1] == "/" and "//" not in path and "/." not in path:
        return path
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments) + ("/" if segments and path.endswith("/") else "")
