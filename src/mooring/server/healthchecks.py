"""Health checks by name, and the reports of `/healthz`, `/livez` and `/readyz`.

Source: docs/protocol/health.md#health-checks.

Rules kept here:
* A check is a synchronous function that returns True while its subject is healthy. The reason of a failure goes to the operator's
  log, never to the client.
* `livez` fails when a restart would help, `readyz` when requests should go to another server.
* Names are those of kube-apiserver where this server has the same part, because scripts and tests look for them: `etcd` is the
  storage, whichever driver it has. The work of kube-apiserver's `poststarthook/...` is done here before the server listens.
* A report has one line for each check, `[+]name ok`. A failed check makes it verbose, a warning (`[!]`) does not. Excluded names
  that do not exist share one line.
* The log names the failed checks of an endpoint when they change, and then at growing intervals: probes come every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mooring.clock import SystemClock
from mooring.reminders import Reminders

DONE_BEFORE_SERVING = (
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/rbac/bootstrap-roles",
)
"""Hooks of kube-apiserver whose work is part of the first boot (`controlplane.publishing.firstboot`), so done before serving."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One named check. `endpoints` lists those of healthz, livez and readyz that include it."""

    name: str
    passes: Callable[[], bool]
    endpoints: tuple[str, ...] = ("healthz", "livez", "readyz")
    warns: Callable[[], bool] = lambda: False
    """Returns True for what the verbose report names while the endpoint still passes."""


class HealthChecks:
    """All checks of one process, in order. `monotonic` returns the time in seconds."""

    def __init__(self, monotonic: Callable[[], float] | None = None) -> None:
        self._checks: list[HealthCheck] = [HealthCheck("ping", lambda: True)]
        self._reminders = Reminders(monotonic or SystemClock().monotonic)

    def add(
        self, name: str, passes: Callable[[], bool], *endpoints: str, warns: Callable[[], bool] = lambda: False
    ) -> None:
        """Add a check, to every endpoint unless some are given."""
        self._checks.append(HealthCheck(name, passes, endpoints or ("healthz", "livez", "readyz"), warns))

    def add_warning(self, name: str, passes: Callable[[], bool], *endpoints: str) -> None:
        """Add a check whose failure is a warning, for what needs an operator and no other server."""
        self._checks.append(HealthCheck(name, lambda: True, endpoints, lambda: not passes()))

    def report(self, endpoint: str, excluded: Collection[str] = (), verbose: bool = False) -> tuple[bool, str]:
        """Run the checks of an endpoint; return whether all passed, and the text of the reply."""
        lines: list[str] = []
        known, failed = set(), []
        for check in self._checks:
            if endpoint not in check.endpoints:
                continue
            known.add(check.name)
            if check.name in excluded:
                lines.append(f"[+]{check.name} excluded: ok")
            elif not check.passes():
                failed.append(check.name)
                lines.append(f"[-]{check.name} failed: reason withheld")
            elif check.warns():
                lines.append(f"[!]{check.name} warning: see the log of the server")
            else:
                lines.append(f"[+]{check.name} ok")
        if unknown := sorted(set(excluded) - known):
            names = ",".join(f'"{name}"' for name in unknown)
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        if self._reminders.is_due(endpoint, tuple(failed)):
            if failed:
                log.info("%s check failed: %s", endpoint, ",".join(failed))
            else:
                log.info("%s check passes again", endpoint)
        if not failed and not verbose:
            return True, "ok"
        lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
        return not failed, "\n".join(lines) + "\n"

    def single(self, endpoint: str, name: str) -> tuple[bool, str] | None:
        """Run one check; return None when this endpoint has no check of that name."""
        for check in self._checks:
            if check.name == name and endpoint in check.endpoints:
                healthy = check.passes()
                return healthy, "ok" if healthy else "internal server error: reason withheld\n"
        return None
