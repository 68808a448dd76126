"""Health checks by name (reference/kubernetes.md 7.4).

Rules kept here: a check is a synchronous function that says whether all is well; why it is not is for the operator's log, never
for the caller. `livez` asks whether a restart would help; `readyz` whether requests should come here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One named check. `endpoints`: which of healthz, livez, readyz ask it."""

    name: str
    passes: Callable[[], bool]
    endpoints: tuple[str, ...] = ("healthz", "livez", "readyz")


class HealthChecks:
    """All checks of one process, in order."""

    def __init__(self) -> None:
        self._checks: list[Check] = [Check("ping", lambda: True)]

    def add(self, name: str, passes: Callable[[], bool], *endpoints: str) -> None:
        self._checks.append(Check(name, passes, endpoints or ("healthz", "livez", "readyz")))

    def report(self, endpoint: str, excluded: Collection[str] = (), verbose: bool = False) -> tuple[bool, str]:
        """Whether all pass, and the text to answer with."""
        lines: list[str] = []
        healthy = True
        known = set()
        for check in self._checks:
            if endpoint not in check.endpoints:
                continue
            known.add(check.name)
            if check.name in excluded:
                lines.append(f"[+]{check.name} excluded: ok")
            elif check.passes():
                lines.append(f"[+]{check.name} ok")
            else:
                healthy = False
                lines.append(f"[-]{check.name} failed: reason withheld")
        lines += [
            f'warn: some health checks cannot be excluded: no matches for "{name}"'
            for name in sorted(set(excluded) - known)
        ]
        if healthy and not verbose:
            return True, "ok"
        lines.append(f"{endpoint} check {'passed' if healthy else 'failed'}")
        return healthy, "\n".join(lines) + "\n"

    def single(self, endpoint: str, name: str) -> tuple[bool, str] | None:
        """The result of one check, or None when this endpoint has none of that name."""
        for check in self._checks:
            if check.name == name and endpoint in check.endpoints:
                healthy = check.passes()
                return healthy, "ok" if healthy else "internal server error: reason withheld\n"
        return None
