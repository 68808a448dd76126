"""Health checks by name.

Source: docs/protocol/health.md#health-checks.

Rules kept here:
* A check is a synchronous function that says whether all is well; why it is not is for the operator's log, never for the caller.
* `livez` asks whether a restart would help; `readyz` whether requests should come here.
* Names are kube-apiserver's where we have the thing, because scripts and tests look for them: `etcd` is the store, whatever it
  is, and `poststarthook/...` is what kube-apiserver does after it began to listen, and we before.
* One line a check, `[+]name ok`; a failed one makes the answer verbose. Names to exclude that are none get one line together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

DONE_BEFORE_SERVING = (
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/rbac/bootstrap-roles",
)
"""The hooks of kube-apiserver whose work is first boot here (`mooring.plane.firstboot`): whoever can ask finds them done."""

log = logging.getLogger(__name__)


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
        known, failed = set(), []
        for check in self._checks:
            if endpoint not in check.endpoints:
                continue
            known.add(check.name)
            if check.name in excluded:
                lines.append(f"[+]{check.name} excluded: ok")
            elif check.passes():
                lines.append(f"[+]{check.name} ok")
            else:
                failed.append(check.name)
                lines.append(f"[-]{check.name} failed: reason withheld")
        if unknown := sorted(set(excluded) - known):
            names = ",".join(f'"{name}"' for name in unknown)
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if failed:
            log.info("%s check failed: %s", endpoint, ",".join(failed))
        elif not verbose:
            return True, "ok"
        lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
        return not failed, "\n".join(lines) + "\n"

    def single(self, endpoint: str, name: str) -> tuple[bool, str] | None:
        """The result of one check, or None when this endpoint has none of that name."""
        for check in self._checks:
            if check.name == name and endpoint in check.endpoints:
                healthy = check.passes()
                return healthy, "ok" if healthy else "internal server error: reason withheld\n"
        return None
