"""Plan and options of a join kubeadm's way, from the values of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from mooring.agent.join import JoinOptions
from mooring.secret import Secret
from mooring.settings.nodes import ENDS_MEMBERSHIP
from mooring.trust.joinconfiguration import CERTIFICATE_TIMEOUT, JoinPlan, JoinSettings


def join_plan(
    node_name: str, address: Sequence[str] = (), token: Secret | str = "", pins: Sequence[str] = (), **more: Any
) -> JoinPlan:
    """Return the plan that the flags mean. Raises ConfigError."""
    text = token.reveal().decode() if isinstance(token, Secret) else token
    values = {"node_name": node_name, "address": address, "token": text, "discovery_token_ca_cert_hash": pins, **more}
    return JoinSettings.read(values).plan("")


def join_options(
    root: Path,
    *,
    certificate_timeout: float = CERTIFICATE_TIMEOUT,
    expiration_seconds: int = 0,
    register_node: str = "",
    node_deletion: str = ENDS_MEMBERSHIP,
    node_ip: tuple[str, ...] = (),
    **more: Any,
) -> JoinOptions:
    """Return the options that the flags mean, and those of one run."""
    settings = JoinSettings(
        root=str(root),
        tls_bootstrap_timeout=timedelta(seconds=certificate_timeout),
        certificate_lifetime=timedelta(seconds=expiration_seconds) if expiration_seconds else None,
        register_node=register_node,
        node_deletion=node_deletion,
        node_ip=node_ip,
    )
    return JoinOptions(settings=settings, **more)
