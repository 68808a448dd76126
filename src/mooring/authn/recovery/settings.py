"""Settings of the recovery of nodes whose certificate has expired."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from mooring.settings.checks import duration_within, one_of
from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import DURATION, TEXT

BY_RULE, BY_APPROVAL, OFF = CHOICES = ("by-rule", "by-approval", "off")
MAX_AGE = timedelta(days=30)
"""Longer than a repair or a holiday takes. The disk of a machine that was thrown away may turn up later."""
LONGEST = timedelta(days=3650)
"""Lifetime of the CA: no node certificate is older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings(Settings):
    """Recovery of nodes whose certificate has expired."""

    heading: ClassVar[str] = "Recovery of expired nodes"

    node_recovery: str = setting(
        TEXT,
        default=BY_RULE,
        meaning="How a machine with an expired node certificate gets another: by-rule, by-approval of a person, or off.",
        metavar="MODE",
        parse=one_of(CHOICES),
    )
    node_recovery_max_age: timedelta = setting(
        DURATION,
        default=MAX_AGE,
        meaning="Time since the end of the certificate after which a person must approve.",
        metavar="DURATION",
        parse=duration_within(timedelta(0), LONGEST),
    )

    @property
    def rule_age(self) -> timedelta | None:
        """Time since the end of the certificate within which the rule approves; None when only a person does."""
        return self.node_recovery_max_age if self.node_recovery == BY_RULE else None
