"""Settings of state: the data directory and the store of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.kinds import TEXT


def _without_trailing_slash(text: str, key: str) -> str:
    return text.rstrip("/") or text[:1]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(Settings):
    """Data directory and storage driver."""

    heading: ClassVar[str] = "State"

    data_dir: str = setting(
        TEXT,
        default="",
        meaning="Directory of the keys, the kubeconfigs and the database.",
        default_note="/var/lib/mooring as root, else ~/.local/share/mooring",
        metavar="DIR",
        parse=_without_trailing_slash,
    )
    storage: str = setting(
        TEXT,
        default="",
        meaning="Store of the objects: sqlite:PATH or memory:.",
        default_note="sqlite in the data directory",
        metavar="URL",
    )

    @property
    def storage_url(self) -> str:
        """URL of the store of objects."""
        return self.storage or f"sqlite:{self.data_dir}/mooring.db"

    @property
    def in_memory(self) -> bool:
        """Objects are lost when the process ends."""
        return self.storage_url.startswith("memory:")
