"""Plan of a join kubeadm's way, from the values of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mooring.secret import Secret
from mooring.trust.joinconfiguration import JoinPlan, JoinSettings


def join_plan(
    node_name: str, address: Sequence[str] = (), token: Secret | str = "", pins: Sequence[str] = (), **more: Any
) -> JoinPlan:
    """Return the plan that the flags mean. Raises ConfigError."""
    text = token.reveal().decode() if isinstance(token, Secret) else token
    values = {"node_name": node_name, "address": address, "token": text, "discovery_token_ca_cert_hash": pins, **more}
    return JoinSettings.read(values).plan("")
