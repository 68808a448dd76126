"""Settings of admission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import COMMA_SEPARATED


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings(Settings):
    """Admission plugins. `mooring.registry.admission.table.build` checks their names."""

    heading: ClassVar[str] = "Admission"

    disable_admission_plugins: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Admission plugins to disable; repeatable, or with commas.",
        metavar="NAME,...",
    )
