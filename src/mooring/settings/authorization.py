"""Settings of authorization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import TEXT, split_commas


def _parse_modes(text: str, key: str) -> tuple[str, ...]:
    return split_commas((text,))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationSettings(Settings):
    """Authorizers. `mooring.authz.table.build` checks their names."""

    heading: ClassVar[str] = "Authorization"

    authorization_mode: tuple[str, ...] = setting(
        TEXT,
        default="Node,RBAC",
        meaning="Authorizers, in order, with commas.",
        metavar="MODE,...",
        parse=_parse_modes,
    )

    @property
    def always_allow(self) -> bool:
        """Every request is allowed, so that anonymous requests must be refused."""
        return "AlwaysAllow" in self.authorization_mode
