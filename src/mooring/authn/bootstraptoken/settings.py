"""Settings of bootstrap tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import Settings, setting
from mooring.settings.valuetypes import BOOLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTokenSettings(Settings):
    """Bootstrap tokens, with which machines join."""

    heading: ClassVar[str] = "Bootstrap tokens"

    enable_bootstrap_token_auth: bool = setting(
        BOOLEAN,
        default=True,
        meaning="Accept bootstrap tokens, as kubeadm sets kube-apiserver up. Without them no machine joins with a token.",
    )
