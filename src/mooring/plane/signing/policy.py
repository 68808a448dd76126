"""Follows the file of the signing policy."""

from __future__ import annotations

from collections.abc import Callable

from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy, parse_policy
from mooring.errors import ConfigError
from mooring.observed import Observed
from mooring.plane.files.reloading import Reloading

KEY = "cluster-signing-policy-file"


class FollowedPolicy(Observed[[]]):
    """The signing policy of one program. A file that cannot be used leaves the last good policy in force."""

    def __init__(self, path: str, reloading: Reloading) -> None:
        """Raises ConfigError for a file that cannot be used. Without a path there are no rules."""
        super().__init__()
        self._path = path
        self._policy = NO_POLICY
        if not path:
            return
        try:
            data = reloading.follow_prepared(path, self._prepare)
        except ConfigError as error:
            raise ConfigError(f"{KEY}: {error}") from None
        reloading.warn_if_exposed(path)
        self._policy = parse_policy(data, f"{KEY}: {path}")

    def current(self) -> SigningPolicy:
        """Return the policy in force."""
        return self._policy

    def _prepare(self, data: bytes) -> Callable[[], None]:
        policy = parse_policy(data, f"{KEY}: {self._path}")

        def use() -> None:
            self._policy = policy
            self.notify()

        return use
