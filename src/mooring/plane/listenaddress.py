"""The address that a server listens on, compared with those that it publishes, and the errors of one that it cannot listen on.

Rules kept here (docs/operate.md#the-address-of-the-control-plane):
* Nothing reaches a published address of this machine that `bind-address` leaves out, unless another program listens there and
  forwards. One that was given at this start is an error while nothing listens there; one of an earlier start is a warning.
* Several servers on one machine, for a trial, publish the loopback addresses of each other: beside one that reaches this server,
  another one is a warning.
* Nothing can be known of names, of other ports, and of addresses of other machines.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from mooring.errors import ConfigError
from mooring.listensockets import ListenError, close_all, is_of_this_machine, listen
from mooring.plane.configuration import ServerConfig
from mooring.settings.addresses import Endpoint, parse_address
from mooring.settings.network import NetworkSettings

log = logging.getLogger("mooring.plane")

_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        errno.EADDRINUSE: "stop what uses the port or choose another with --secure-port",
        errno.EADDRNOTAVAIL: "give an address of this machine with --bind-address",
        errno.EACCES: "a port below 1024 needs the capability CAP_NET_BIND_SERVICE: choose another with --secure-port, or grant it "
        "(AmbientCapabilities= in the systemd unit)",
    }
)


def cannot_listen(error: ListenError) -> ConfigError:
    """Return the error of an operator for an address that cannot be bound."""
    reason = (error.strerror or "").lower()
    remedy = _REMEDIES.get(error.errno or 0, "check --bind-address and --secure-port")
    return ConfigError(f"cannot listen on {error.where}: {reason}; {remedy}")


def check_listening(config: ServerConfig) -> None:
    """Raise ConfigError when the address to listen on cannot be bound now.

    A start that fails later has written the address to admin.conf, and each further start would publish it.
    """
    network = config[NetworkSettings]
    try:
        close_all(listen(network.bind_address, network.secure_port))
    except ListenError as error:
        raise cannot_listen(error) from error


def check_published(config: ServerConfig, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
    """Compare the published addresses with the one to listen on. Raises ConfigError for a given one that cannot be reached."""
    network = config[NetworkSettings]
    here = Endpoint(network.bind_address, network.secure_port)
    for endpoint, key in _published(config):
        address = parse_address(endpoint.host)
        if address is None or endpoint.port != here.port or not here.port or network.listens_at(address):
            continue
        if not is_local(str(address)):
            if not network.listens_in_family_of(address):
                log.warning(
                    "%s is published, and this server listens on %s only, of the other family: clients reach the published "
                    "address only where a program forwards it",
                    endpoint, here,
                )  # fmt: skip
            continue
        remedy = f"listen there too (bind-address 0.0.0.0 means every address), or start the program that forwards it to {here}"
        if _is_taken(str(address), endpoint.port):
            log.warning(
                "%s is published, and this server listens on %s only: the program that listens on the published address must "
                "forward to it", endpoint, here,
            )  # fmt: skip
        elif address.is_loopback and any(map(network.is_reached_by, config.endpoints)):
            log.warning(
                "%s is published, and nothing listens there yet: bind-address is %s; start the server, or the program that "
                "forwards it to %s", endpoint, here.host, here,
            )  # fmt: skip
        elif key:
            raise ConfigError(
                f"{key}: {endpoint} is of this machine, and nothing listens there: bind-address is {here.host}; {remedy} first"
            )
        else:
            log.warning(
                "%s is published since an earlier start, and nothing listens there: bind-address is %s; %s, or withdraw it with "
                "--withdraw-endpoint %s",
                endpoint, here.host, remedy, endpoint,
            )  # fmt: skip


def _published(config: ServerConfig) -> Iterator[tuple[Endpoint, str]]:
    """Yield each published address, with the key of the setting that gave it at this start, or ""."""
    network = config[NetworkSettings]
    advertised = Endpoint(network.advertise_address, network.secure_port)
    key_of = dict.fromkeys(config.given_endpoints, "control-plane-endpoint")
    if network.advertise_address:
        key_of = {advertised: "advertise-address", **key_of}
    for endpoint in dict.fromkeys((*config.endpoints, *key_of)):
        yield endpoint, key_of.get(endpoint, "")


def _is_taken(address: str, port: int) -> bool:
    """Return whether another program listens at an address of this machine, as far as this user may find out."""
    try:
        close_all(listen(address, port))
    except ListenError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return False
