"""Addresses of a server: those that it listens on, and those that it publishes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn
from urllib.parse import urlsplit

from mooring.client.files import read_limited, write_atomic
from mooring.client.sourceaddress import detected_addresses
from mooring.clock import Clock
from mooring.controlplane.configuration import ServerConfig
from mooring.errors import ConfigError, MooringError, StorageError
from mooring.listensockets import ListenError, close_all, is_of_this_machine, listen
from mooring.settings.addresses import Endpoint, parse_address, parse_endpoint, unpublishable
from mooring.settings.network import NetworkSettings
from mooring.trust.kubeconfig import CLUSTER_NAME, other_addresses
from mooring.trust.kubeconfigtext import parse_kubeconfig

# The address that a server listens on, compared with those that it publishes, and the errors of one that it cannot listen on.
#
# Rules kept here (docs/operate.md#the-address-of-the-control-plane):
# * Nothing reaches a published address of this machine that `bind-address` leaves out, unless another program listens there and
#   forwards. One that was given at this start is an error while nothing listens there; one of an earlier start is a warning.
# * Several servers on one machine, for a trial, publish the loopback addresses of each other: beside one that reaches this
#   server, another one is a warning.
# * Nothing can be known of names, of other ports, and of addresses of other machines.

log = logging.getLogger("mooring.controlplane")

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


# Addresses that a data directory has published, and which of them the next start publishes.
#
# Rules kept here (docs/operate.md#the-address-of-the-control-plane):
# * Addresses that a person gave are kept, those of this machine as well, until others are given. They stand in a file of the data
#   directory, which is empty where none was given: then the addresses of the machine are determined at each start. The one that
#   was published first stays first while it is of this machine, and while the machine has no other one of its family, as before
#   its DHCP server has responded: kubeadm and kubelets use the first alone.
# * What was published stays published behind the addresses of this start: kubeconfigs and machines have it. It goes when a person
#   withdraws it, or leaves it out of given addresses of which another one stays: machines have that, too.
# * An address that means another machine everywhere, such as 0.0.0.0, is not kept.
# * A port that the system chose is used once, and is not kept.
# * A directory of an earlier version has no such file. There, several addresses and those of other machines count as given.
# * A published address that the machine loses while the server runs is in the log and in the report of the server: it may be
#   another machine's. A restart publishes the others.

FILE = "control-plane-endpoint"
LOOK_SECONDS = 60.0
"""Seconds between two looks at the addresses of this machine."""
MAX_KEPT = 8
"""Addresses of earlier starts that are published: a machine that gets another address every day must not collect them all."""


def published(data_dir: Path) -> tuple[str, ...]:
    """Return each `host:port` in the admin.conf of the last start; none before the first."""
    try:
        config = parse_kubeconfig(read_limited(data_dir / "admin.conf"))
        # `kubectl config` sorts the entries by name.
        cluster = config.cluster(CLUSTER_NAME) or config.clusters[0]
        found = [urlsplit(entry.server).netloc for entry in (cluster, *other_addresses(config, cluster))]
    except (MooringError, IndexError, ValueError):
        return ()
    return tuple(filter(None, found))


def given_before(data_dir: Path, local: Collection[str]) -> tuple[str, ...]:
    """Return the addresses that a person gave at an earlier start. `local`: addresses of this machine. Raises StorageError."""
    path = data_dir / FILE
    if path.exists():
        kept = _kept(path)
        if len(_parsed(kept)) < len(kept):
            raise StorageError(f"{path} is damaged; remove it, and give the addresses again with --{FILE}")
        return _publishable(kept)
    before = published(data_dir)
    return () if len(before) == 1 and urlsplit(f"//{before[0]}").hostname in local else _publishable(before)


def _publishable(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of an earlier start that this version publishes, too."""
    return tuple(text for text in texts if not any(unpublishable(endpoint.host) for endpoint in _parsed((text,))))


def _kept(path: Path) -> tuple[str, ...]:
    """Return what is in the file of a data directory. Raises StorageError: no argument of the command is wrong."""
    try:
        return tuple(read_limited(path).decode("utf-8", "replace").split())
    except ConfigError as error:
        raise StorageError(str(error)) from error


def with_published(
    config: ServerConfig, data_dir: Path, *, port_is_chosen: bool, is_local: Callable[[str], bool] = is_of_this_machine
) -> ServerConfig:
    """Return the configuration that also publishes what the last start published.

    `port_is_chosen`: the system chose the port of this start. `is_local`: an IP address is of this machine. Raises ConfigError for
    a withdrawn address that is given, and StorageError for a file of the data directory.
    """
    settings = config[NetworkSettings]
    withdrawn = [parse_endpoint(text, "withdraw-endpoint", settings.secure_port) for text in settings.withdraw_endpoint]
    if again := [one for one in config.endpoints if one in withdrawn]:
        raise ConfigError(
            f"withdraw-endpoint: {again[0]} is an address of this start; give another with control-plane-endpoint"
        )
    if port_is_chosen:
        return config
    before = _parsed(_publishable(published(data_dir)))
    own = config.endpoints
    if settings.publishes_detected and before and before[0] not in withdrawn:
        first = before[0]
        is_own = first in own or _is_still_own(first, settings, is_local)
        if not is_own and _is_alone_in_family(first, own, settings):
            is_own = True
            # Without network the machine has the loopback address alone.
            own = tuple(filter(_is_for_others, own))
            log.warning(
                "this machine has no address of the family of %s now, which stays the published address, until "
                "--withdraw-endpoint %s removes it", first, first,
            )  # fmt: skip
        if is_own:
            own = (first, *(one for one in own if one != first))
    # After `own` has its final order: an address of before must not be listed twice.
    gone = (*own, *withdrawn, *_left_out(config, data_dir))
    kept = [one for one in before if one not in gone]
    return replace(config, endpoints=(*own, *kept[:MAX_KEPT]))


def _is_still_own(endpoint: Endpoint, settings: NetworkSettings, is_local: Callable[[str], bool]) -> bool:
    """Return whether this server, which listens on every address, can be reached from other machines at an address of before."""
    return endpoint.port == settings.secure_port and _is_for_others(endpoint) and is_local(endpoint.host)


def _is_alone_in_family(endpoint: Endpoint, own: Sequence[Endpoint], settings: NetworkSettings) -> bool:
    """Return whether an address of before, which others could reach, has no successor of its family among those of the machine."""
    if endpoint.port != settings.secure_port or not _is_for_others(endpoint):
        return False
    return all((":" in one.host) != (":" in endpoint.host) for one in filter(_is_for_others, own))


def _is_for_others(endpoint: Endpoint) -> bool:
    """Return whether an endpoint is an IP address that other machines can use."""
    address = parse_address(endpoint.host)
    return address is not None and not (address.is_loopback or address.is_link_local)


def _left_out(config: ServerConfig, data_dir: Path) -> list[Endpoint]:
    """Return the addresses that a person gave at the last start, and left out at this one, where another of them stays."""
    settings, path = config[NetworkSettings], data_dir / FILE
    given = _parsed(settings.control_plane_endpoint, settings.secure_port)
    if not given or not path.exists():
        return []
    before = _parsed(_kept(path), settings.secure_port)
    left_out = [one for one in before if one not in given]
    return left_out if len(left_out) < len(before) else []


def record(config: ServerConfig, data_dir: Path) -> None:
    """Remember the addresses that a person gave, and log a change of the first one. Call it before admin.conf is written."""
    # Before the file is replaced, with which it compares.
    left_out = [str(one) for one in _left_out(config, data_dir)]
    given = config[NetworkSettings].control_plane_endpoint
    content = "".join(f"{one}\n" for one in given).encode()
    path = data_dir / FILE
    if not path.exists() or read_limited(path) != content:
        write_atomic(path, content)
    before, now = published(data_dir), str(config.endpoints[0])
    settings = config[NetworkSettings]
    for text in settings.withdraw_endpoint:
        withdrawn = str(parse_endpoint(text, "withdraw-endpoint", settings.secure_port))
        if withdrawn in before:
            log.warning("%s is withdrawn: it is published no more", withdrawn)
        else:
            log.warning("withdraw-endpoint: %s is not published; leave the flag out", withdrawn)
    for text in left_out:
        if text in before and text != before[0]:
            log.warning("%s was left out of control-plane-endpoint: it is published no more", text)
    if not before or now == before[0]:
        return
    kept = before[0] in map(str, config.endpoints)
    log.warning(
        "the published address changes from %s to %s; %s", before[0], now,
        f"{before[0]} stays published behind it, until --withdraw-endpoint {before[0]} removes it" if kept
        else f"{before[0]} is published no more",
    )  # fmt: skip


class LostAddresses:
    """IP addresses that a server publishes, and that its machine had at the start and does not have any more."""

    def __init__(self, config: ServerConfig, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
        hosts = dict.fromkeys((*(endpoint.host for endpoint in config.endpoints), config.advertise_address))
        self._is_local = is_local
        self._own = [host for host in hosts if parse_address(host) is not None and is_local(host)]
        self._are_given = bool(config[NetworkSettings].control_plane_endpoint)

    def find(self) -> list[str]:
        """Return the addresses that are lost now."""
        return [host for host in self._own if not self._is_local(host)]

    async def run(self, clock: Clock, detect: Callable[[], Sequence[str]] = detected_addresses) -> NoReturn:
        """Log each change until cancelled."""
        before: list[str] = []
        while True:
            lost = self.find()
            if lost and lost != before:
                log.warning(
                    "this machine does not have %s any more, which this server publishes; it has %s now. Restart the "
                    "server%s: its certificate and cluster-info then name the addresses of the machine",
                    " and ".join(lost), " and ".join(detect()) or "not known",
                    " with another --control-plane-endpoint" if self._are_given else "",
                )  # fmt: skip
            elif before and not lost:
                log.info("this machine has %s again", " and ".join(before))
            before = lost
            await clock.sleep(LOOK_SECONDS)


def _parsed(texts: Sequence[str], port: int = 443) -> list[Endpoint]:
    found = []
    for text in texts:
        try:
            found.append(parse_endpoint(text, "admin.conf", port))
        except ConfigError:
            # An edited admin.conf.
            continue
    return found
