"""Settings of the agent beyond those of a join."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.settings.declaration import LINES, OPTIONAL_PORT, SWITCH, Settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(Settings):
    """Certificates that are kept, hooks, and the load balancer of kubeadm's way."""

    heading: ClassVar[str] = "The agent"

    serving_certificates: bool = setting(
        SWITCH,
        default=False,
        meaning="Request a serving certificate for the addresses of the Node too, as kubelet does with serverTLSBootstrap.",
    )
    on_renew: tuple[str, ...] = setting(
        LINES,
        default=(),
        meaning="Line for /bin/sh that runs after each renewal and change of a CA, with MOORING_KIND (client, serving or ca), "
        "MOORING_CERTIFICATE and MOORING_NODE_NAME; repeatable.",
        metavar="COMMAND",
    )
    leave_on_stop: bool = setting(
        SWITCH,
        default=False,
        meaning="End the membership and remove its files on SIGTERM and SIGINT, as mooring leave does. For machines that are "
        "thrown away: a restart of the service is a stop, too.",
    )
    load_balancer_port: int | None = setting(
        OPTIONAL_PORT,
        default=None,
        meaning="Port of a load balancer on 127.0.0.1, through which a kubelet reaches a server that answers; 0 for a free one. "
        "With --server it is --lb-server-port.",
        default_note="no load balancer",
        metavar="PORT",
    )
