"""Flags of `join` and `agent`: kubeadm's flags, and the join that they mean together.

`mooring.trust.joinconfiguration` decides which flags need or exclude each other, before anything is sent. A token may come from the
environment: other users of the machine do not see it in the list of processes.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from mooring.agent import registration
from mooring.agent.join import CERTIFICATE_TIMEOUT, JoinOptions
from mooring.cli.options.flags import DURATION, usage
from mooring.client.files import MAX_READ, read_limited
from mooring.duration import format_duration
from mooring.secret import Secret
from mooring.settings.kinds import split_commas
from mooring.trust.discovery.polling import Polling
from mooring.trust.joinconfiguration import JoinInput, JoinPlan, validate_join_input
from mooring.trust.machinecode import parse_code

SHORTEST_LIFETIME = timedelta(seconds=600)
"""Shortest `expirationSeconds` that a server accepts."""
LONGEST_LIFETIME = timedelta(seconds=2**31 - 1)
"""`expirationSeconds` is an int32."""

P = ParamSpec("P")
R = TypeVar("R")

_TOKEN: dict[str, Any] = {"default": "", "metavar": "TOKEN", "show_envvar": True}
_FLAGS = (
    click.argument("address", nargs=-1),
    click.option(
        "--token",
        "-t",
        envvar="MOORING_TOKEN",
        help="Token for discovery and for the certificate request, where none of their own is given; k3s's form pins the CA.",
        **_TOKEN,
    ),
    click.option(
        "--discovery-token",
        envvar="MOORING_DISCOVERY_TOKEN",
        help="Token for discovery: its signature proves the cluster.",
        **_TOKEN,
    ),
    click.option(
        "--tls-bootstrap-token",
        envvar="MOORING_TLS_BOOTSTRAP_TOKEN",
        help="Token for the certificate request.",
        **_TOKEN,
    ),
    click.option(
        "--discovery-token-ca-cert-hash",
        multiple=True,
        metavar="sha256:HEX",
        help="Pin: hash of the public key of a CA of the cluster; repeatable, one match is enough.",
    ),
    click.option(
        "--discovery-token-unsafe-skip-ca-verification",
        is_flag=True,
        help="Trust the token alone, without a pin: anyone who knows the token could pose as the cluster.",
    ),
    click.option(
        "--discovery-file",
        default="",
        metavar="FILE|URL|-",
        help="Discovery document, a kubeconfig: a file, an https URL, or - for standard input.",
    ),
    click.option(
        "--allow-discovery-credentials",
        is_flag=True,
        help="Accept credentials in the discovery document, and use them for the certificate request.",
    ),
    click.option("--node-name", default="", metavar="NAME", help="Name of the node. [default: the host name]"),
    click.option(
        "--register-node",
        type=click.Choice(registration.CHOICES),
        default=None,
        help="Node to register: none, tainted (no Pods are placed here), or ready. [default: ready with a Mooring server, "
        "tainted with another]",
    ),
    click.option(
        "--node-deletion",
        type=click.Choice(registration.DELETIONS),
        default=registration.ENDS_MEMBERSHIP,
        show_default=True,
        help="Meaning of the deletion of this machine's Node: the machine is no member any more, or it registers again, as "
        "kubelet does.",
    ),
    click.option(
        "--root",
        default="/",
        show_default=True,
        metavar="DIR",
        help="Directory under which etc/kubernetes and var/lib/kubelet are written.",
    ),
    click.option(
        "--discovery-timeout",
        type=DURATION,
        default=format_duration(timedelta(seconds=Polling().total)),
        show_default=True,
        help="Time limit of discovery.",
    ),
    click.option(
        "--tls-bootstrap-timeout",
        type=DURATION,
        default=format_duration(timedelta(seconds=CERTIFICATE_TIMEOUT)),
        show_default=True,
        help="Time limit of the wait for the certificate.",
    ),
    click.option(
        "--machine-code-file",
        default="",
        metavar="FILE",
        help="File with the one-time code that mooring machine authorize printed; - for standard input.",
    ),
    click.option(
        "--certificate-lifetime",
        type=DURATION,
        default=None,
        help="Lifetime of the client certificate to ask for, at least 10m; renewals repeat it. The signer may shorten it. "
        "[default: the signer's]",
    ),
)


def join_flags(function: Callable[P, R]) -> Callable[P, R]:
    """Add the flags. The command receives them as keywords for `JoinFlags`."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFlags:
    """Values of the flags."""

    address: Sequence[str]
    token: str
    discovery_token: str
    tls_bootstrap_token: str
    discovery_token_ca_cert_hash: Sequence[str]
    discovery_token_unsafe_skip_ca_verification: bool
    discovery_file: str
    allow_discovery_credentials: bool
    node_name: str
    register_node: str | None
    node_deletion: str
    root: str
    discovery_timeout: timedelta
    tls_bootstrap_timeout: timedelta
    certificate_lifetime: timedelta | None
    machine_code_file: str

    @property
    def has_discovery(self) -> bool:
        """True when a flag names a way of discovery."""
        return bool(self.address or self.token or self.discovery_token or self.discovery_file)

    def plan(self) -> JoinPlan:
        """Return the validated join. Raises UsageError that names the flag."""
        given = JoinInput(
            self.node_name or socket.gethostname().lower(),
            tuple(self.address),
            _secret(self.token),
            _secret(self.discovery_token),
            _secret(self.tls_bootstrap_token),
            split_commas(self.discovery_token_ca_cert_hash),
            self.discovery_token_unsafe_skip_ca_verification,
            self.discovery_file,
            self.allow_discovery_credentials,
        )
        with usage():
            return validate_join_input(given)

    def options(self, **more: Any) -> JoinOptions:
        """Return the options of the join. Raises UsageError for a duration of zero."""
        for name, value in (
            ("--discovery-timeout", self.discovery_timeout),
            ("--tls-bootstrap-timeout", self.tls_bootstrap_timeout),
        ):
            if value <= timedelta(0):
                raise click.UsageError(f"{name} must be longer than 0")
        lifetime = self.certificate_lifetime
        if lifetime is not None and not SHORTEST_LIFETIME <= lifetime <= LONGEST_LIFETIME:
            raise click.UsageError(
                f"--certificate-lifetime must be between {format_duration(SHORTEST_LIFETIME)} and "
                f"{format_duration(LONGEST_LIFETIME)}"
            )
        return JoinOptions(
            root=Path(self.root).absolute(),
            polling=Polling(total=self.discovery_timeout.total_seconds()),
            certificate_timeout=self.tls_bootstrap_timeout.total_seconds(),
            register_node=self.register_node or "",
            machine_code=_machine_code(self.machine_code_file),
            node_deletion=self.node_deletion,
            expiration_seconds=int(lifetime.total_seconds()) if lifetime is not None else 0,
            **more,
        )


def _machine_code(path: str) -> Secret | None:
    """Return the code in a file. Raises ConfigError."""
    if not path:
        return None
    return parse_code(sys.stdin.buffer.read(MAX_READ) if path == "-" else read_limited(Path(path)))


def _secret(text: str) -> Secret | None:
    return Secret(text) if text else None
