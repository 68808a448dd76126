"""Member of a cluster, in whichever way the machine joined: its client, its Node and its heartbeat.

Rules kept here:
* A member without its files has left: its agent ends, and does not join again with a token that it was given.
* The Node is registered, and kept, with the same rules and the same errors for every way of joining.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

from mooring.agent import node, registration, steps
from mooring.agent.heartbeat import RECORD_SECONDS, Heartbeat
from mooring.agent.hooks import WatchedFiles, WatchedPair
from mooring.agent.pairfiles import Pair
from mooring.agent.registration import CertificateRefusedError, MembershipEndedError
from mooring.agent.renewal import ClientCertificateExpiredError
from mooring.agent.steps import Steps, retry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock, human_duration, parse_rfc3339, rfc3339
from mooring.errors import ConfigError, ForbiddenError, MooringError, PeerError, UnauthorizedError
from mooring.identity import NODE_PREFIX
from mooring.settings.nodes import ENDS_MEMBERSHIP
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import AnotherClusterError
from mooring.trust.kubeconfig import Cluster, KubeconfigUser

log = logging.getLogger("mooring.agent")

READ_SECONDS = 10.0
"""Seconds between bytes of a response while there is another server, as in kubelet's client of the Lease. The Lease lasts 40 s."""
LEFT_SECONDS = 2.0
"""Seconds between two looks whether the files are still there. A look asks the file system for one or two names."""
SILENT = timedelta(seconds=2 * RECORD_SECONDS)
"""Silence that is mentioned: twice the time by which the record of a machine that lost its power may be behind."""
_NOT_READY = "as NotReady, so that no Pods are placed here; --register-node says otherwise"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Settings that were chosen for the Node of a machine."""

    register_node: str = ""
    """One of REGISTRATIONS; empty for the default of the server."""
    node_deletion: str = ENDS_MEMBERSHIP
    """One of DELETIONS."""
    address: str = ""
    """InternalIP of the Node; empty for the address towards the server."""
    more_addresses: tuple[tuple[str, str], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Obj, ...] = ()
    """Labels and taints that the Node is created with."""


def internal_addresses(addresses: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return addresses of the Node as NodeOptions.more_addresses has them."""
    return tuple(("InternalIP", address) for address in addresses)


class MemberPair(WatchedPair, Protocol):
    """Files of one certificate and its key, which may be the same file."""

    @property
    def key(self) -> Path: ...

    def read_pair(self) -> Pair | None: ...


class MemberFiles(WatchedFiles, Protocol):
    """Files of a member."""

    @property
    def client(self) -> MemberPair: ...

    @property
    def kubeconfig(self) -> Path: ...

    def exposures(self) -> list[str]: ...

    def read_cluster_id(self) -> str: ...


class FilesGoneError(ConfigError):
    """The files of the membership were removed, as `mooring leave` does it last."""


def check_files(files: MemberFiles) -> None:
    """Raise FilesGoneError without certificate and kubeconfig. One may be missing: a join replaces a rejected certificate."""
    paths = files.client.current, files.kubeconfig
    if not any(map(os.path.lexists, paths)):
        raise FilesGoneError(
            f"this machine has left its cluster: {paths[0]} and {paths[1]} were removed while the agent ran, which ends it; join "
            "again with a token"
        )


def check_expired(files: MemberFiles, error: MembershipEndedError, clock: Clock) -> None:
    """Raise ClientCertificateExpiredError when the server refused a certificate because it has expired.

    A machine that slept learns it from the server, before its renewal looks at the clock.
    """
    pair = files.client.read_pair()
    if isinstance(error, CertificateRefusedError) and pair is not None and not pair.valid_at(clock.now()):
        end = rfc3339(pair.leaf.not_valid_after_utc)
        raise ClientCertificateExpiredError(f"the client certificate expired at {end}") from error


def silence(files: MemberFiles, now: datetime) -> str:
    """Return the sentence about a silence of this machine that may have ended its membership; "" without one.

    A refused machine may read nothing in the cluster, so that it knows its own silence at most.
    """
    try:
        last = parse_rfc3339(files.record.read().last_heartbeat)
    except ValueError:
        return ""
    if now - last < SILENT:
        return ""
    return (
        f". The cluster answered no heartbeat of this machine from {rfc3339(last)} to {rfc3339(now)} ({human_duration(now - last)} "
        "by its own clock): a cluster may remove silent machines (reason Silent)"
    )


async def watch_files(files: MemberFiles, clock: Clock) -> NoReturn:
    """Look for the files of the membership until cancelled. Raises FilesGoneError."""
    while True:
        check_files(files)
        await clock.sleep(LEFT_SECONDS)


@dataclass(frozen=True, slots=True)
class Member:
    """A member. `clusters` are the addresses of the API servers, first the one to use."""

    node_name: str
    clusters: tuple[Cluster, ...]
    files: MemberFiles
    options: NodeOptions

    @property
    def server(self) -> str:
        return self.clusters[0].server

    def client(self, clock: Clock, headers: Sequence[tuple[str, str]] = ()) -> ClusterClient:
        """Return a client with the certificate of the node."""
        first, *others = self.clusters
        pair = self.files.client
        # Paths, and no contents: a renewed certificate is used at once.
        user = KubeconfigUser("default-auth", certificate_file=str(pair.current), key_file=str(pair.key))
        return ClusterClient(first, user, clock, others=others, headers=headers, failover_read_timeout=READ_SECONDS)

    def machine(self, *, ready: bool = True) -> node.Machine:
        """Return the facts of this machine for its Node."""
        options = self.options
        address = options.address or node.address_towards(self.clusters[0])
        return replace(
            node.this_machine(self.node_name, address, ready=ready),
            more_addresses=options.more_addresses,
            given_labels=options.labels,
            given_taints=options.taints,
        )

    async def address(self) -> str:
        """Return the address of this machine towards the server now; "" while there is none."""
        return await asyncio.to_thread(node.address_towards, self.clusters[0])

    def chosen(self, machine: node.Machine) -> node.Machine:
        """Return the machine with the addresses that a join beside this process may have chosen for its Node."""
        if not (found := self.files.record.read().node_ip):
            return machine
        return replace(machine, address=found[0], more_addresses=internal_addresses(found[1:]))

    def known_uid(self) -> str:
        """Return the uid of the Node whose deletion ends the membership; empty when none does."""
        ends = self.options.node_deletion == ENDS_MEMBERSHIP
        return self.files.record.read().node_uid if ends else ""

    async def check_cluster(self, clock: Clock) -> None:
        """Raise AnotherClusterError when another cluster than that of this member answers at its addresses."""
        await registration.check_cluster(self.clusters, self.files.read_cluster_id(), clock)

    async def is_accepted(self, clock: Clock) -> bool:
        """Return whether the cluster of this machine accepts its certificate, at whichever address, after a server rejected it.

        Raises AnotherClusterError.
        """
        pair, cluster_id = self.files.client.read_pair(), self.files.read_cluster_id()
        if pair is None or not cluster_id:
            return False
        try:
            await registration.check_membership(
                pair, self.node_name, self.known_uid(), self.clusters, clock, cluster_id=cluster_id, answer_needed=True
            )
        except AnotherClusterError:
            raise
        except MooringError:
            return False
        return True

    def remember_heartbeat(self, moment: datetime) -> None:
        """Record when a heartbeat was answered, for `silence`."""
        record = self.files.record
        # A machine that has left keeps no file. That a heartbeat goes on is more than the time of it on a full disk.
        if record.path.exists():
            with suppress(ConfigError):
                record.write("lastHeartbeat", rfc3339(moment))

    def remember_node(self, uid: str) -> None:
        """Record the Node that this machine registered; an empty `uid` for none."""
        self.files.record.write("nodeUID", uid)


async def register(
    member: Member, progress: Steps, clock: Clock, *, until_ready: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Register the Node of a member, as its options say, in the step `node`. Raises JoinError.

    `until_ready` returns once the server registers Nodes.
    """
    name = member.node_name
    with progress.step(steps.NODE) as summary, _explain_refusal(NODE_PREFIX + name):
        if until_ready is not None:
            await until_ready()
        async with member.client(clock) as client:
            wanted = member.options.register_node
            kind = await retry_reported(progress, client, lambda: registration.choose(client, wanted))
            if kind == registration.NONE:
                summary.append(f"{name} is not registered, as --register-node=none says")
                return
            machine, uid = member.machine(ready=kind == registration.READY), member.known_uid()
            try:
                registered = await retry_reported(progress, client, lambda: node.register(client, machine, uid=uid))
            except registration.NodeKeptError as error:
                summary.append(str(error))
                return
        member.remember_node(registered["metadata"]["uid"])
        summary.append(f"{name} is registered {'and Ready' if machine.ready else _NOT_READY}")


def heartbeat(
    member: Member,
    client: ClusterClient,
    locate: Callable[[], Awaitable[str]] | None = None,
    on_alone: Callable[[], None] = lambda: None,
) -> Heartbeat | None:
    """Return the heartbeat of a member; None, with a line in the log, when another program has its Node.

    `locate` returns the address of the machine now, where servers may have changed since the join. `on_alone` is called when no
    other program keeps the Node.
    """
    if member.options.register_node == registration.NONE:
        log.info("no heartbeat: --register-node=none leaves Node and Lease to another program")
        return None
    return Heartbeat(
        client,
        member.machine(),
        member.options.register_node,
        known_uid=member.known_uid,
        on_registered=member.remember_node,
        on_answered=member.remember_heartbeat,
        on_alone=on_alone,
        chosen=member.chosen,
        locate=None if member.options.address else locate or member.address,
    )


async def retry_reported(
    progress: Steps,
    client: ClusterClient,
    call: Callable[[], Awaitable[T]],
    transient: tuple[type[MooringError], ...] = steps.TRANSIENT,
) -> T:
    """Return the result of `call`, repeated as `retry` does. The first failure is reported."""

    def report(error: MooringError) -> None:
        progress.say(f"{steps.described(error)}; asking again for up to {steps.API_CALL_SECONDS:g} s", kept=True)

    return await retry(client.clock, call, transient=transient, on_failure=report, client=client)


@contextmanager
def _explain_refusal(user: str) -> Iterator[None]:
    """Replace refusals of the node's certificate by errors that name the remedy."""
    try:
        yield
    except UnauthorizedError as error:
        raise PeerError(
            f"the server does not accept the certificate of {user}: the CA that signs certificates is not among those of its "
            "--client-ca-file, the certificate or the node was revoked, or the Node was deleted meanwhile"
            + explained_by(error.audit_id)
        ) from None
    except ForbiddenError as error:
        raise PeerError(
            f"the server does not let {user} register its Node ({error}); its --authorization-mode must include Node; "
            f"--register-node=none leaves the Node to kubelet{explained_by(error.audit_id)}"
        ) from None
