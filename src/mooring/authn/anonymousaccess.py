"""Access without a credential, as a flag or the AuthenticationConfiguration sets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnonymousAccess:
    """Requests without a credential are accepted when `enabled`: for `paths`, or for every path when none is named."""

    enabled: bool
    paths: frozenset[str] = frozenset()


EVERYWHERE = AnonymousAccess(True)
