"""Settings of the approval of certificate requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.addresses import parse_suffixes
from mooring.settings.checks import one_of
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import COMMA_SEPARATED, TEXT

OPTIONAL, REQUIRED = CHOICES = ("optional", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSettings(Settings):
    """Approval of certificate requests."""

    heading: ClassVar[str] = "Approval of certificate requests"

    machine_inventory: str = setting(
        TEXT,
        default=OPTIONAL,
        meaning="Inventory of authorized machines: optional, or required, so that others wait for a person.",
        metavar="MODE",
        parse=one_of(CHOICES),
    )

    node_dns_suffixes: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Suffixes of DNS names, such as nodes.example.com. Any node may have a serving certificate for a free name below "
        "one of them; repeatable, or with commas.",
        metavar="SUFFIX,...",
        parse=parse_suffixes,
    )

    @property
    def inventory_required(self) -> bool:
        """Every joining machine needs an AuthorizedMachine, or the approval of a person."""
        return self.machine_inventory == REQUIRED
