"""A machine leaves its cluster: the server ends the membership, then the files of the member are removed.

Rules kept here:
* Files that were copied from another machine end no membership.
* The server is asked first. Nothing is removed while it has not answered, because the certificate is the proof.
* Another cluster of the same CA ends nothing: where the cluster of the machine is known, a server of it is asked, or one that
  compares the id in the request. The 401 of a server that does not say of which cluster it is removes no file.
* 401 of a Mooring server means that the membership has ended before, unless the certificate has expired or its CA was retired.
* An agent that leaves when it is stopped has STOP_SECONDS for it. Without an answer its files stay, and a line says so.
* Files that this program or a kubelet wrote for the membership are removed, and no other. Directories stay, and so does the CA of a
  control plane on the same machine, whose own files are beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mooring.agent import disk, machineid, registration
from mooring.agent.disk import RecordFile
from mooring.agent.k3s.files import KUBECONFIGS, AgentFiles
from mooring.agent.machineid import MachineIdentity
from mooring.agent.member import MemberFiles
from mooring.agent.recovery import RECOVERY_HEADER
from mooring.agent.registration import REFUSED_SECONDS
from mooring.agent.state import NodeState
from mooring.agent.steps import retry
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import check_anonymously, other_program
from mooring.clock import Clock
from mooring.errors import ConfigError, ForbiddenError, MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509 import names
from mooring.trust.kubeconfig import Cluster, KubeconfigUser

log = logging.getLogger("mooring.agent")

PATH = "/mooring/v1/leave"
STOP_SECONDS = 8.0
"""Time in which an agent that is stopped leaves: `docker stop` kills a process after 10 seconds."""
MOST_ASKED = 3
"""Servers among which this time is divided: a server that answers does so within a second."""
_OF_CONTROL_PLANE = ("ca.key", "apiserver.crt")
"""Files beside ca.crt on a machine that kubeadm made a control plane of: the CA is that of its servers then."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Files that are left of a membership on this machine, and its name."""

    files: tuple[Path, ...]
    """Files to remove, in their order."""
    member: MemberFiles
    proof: Path
    """File that is there while the machine is a member."""
    pending_key: Path
    """Key of a client certificate that was requested."""
    node_name: str = ""
    """"" without a certificate that can be read."""
    clusters: tuple[Cluster, ...] = ()

    @property
    def server(self) -> str:
        return self.clusters[0].server if self.clusters else ""


def find(root: Path, k3s_data_dir: str) -> Membership | None:
    """Return the membership of this machine, by whichever way it joined; None without a file of one.

    Raises ConfigError for a machine with the files of both ways.
    """
    state, agent = NodeState(root), AgentFiles(root, k3s_data_dir)
    kubeadm, k3s = _existing(_of_kubeadm(state), state.record), _existing(_of_k3s(agent), agent.record)
    if kubeadm and k3s:
        raise ConfigError(
            f"this machine has joined in both ways ({kubeadm[-1]} and {k3s[-1]}): choose one with --way kubeadm or --way k3s"
        )
    if kubeadm:
        return of_kubeadm(state)
    return of_k3s(agent) if k3s else None


def of_kubeadm(state: NodeState) -> Membership | None:
    """Return the membership of a machine that joined kubeadm's way; None without a file of one."""
    files = _existing(_of_kubeadm(state), state.record)
    pair = state.client.read_pair()
    name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX) if pair is not None else ""
    return Membership(files, state, state.kubeconfig, state.pending_key, name, state.read_clusters()) if files else None


def of_k3s(agent: AgentFiles) -> Membership | None:
    """Return the membership of a machine that joined the k3s way; None without a file of one."""
    files = _existing(_of_k3s(agent), agent.record)
    pair = agent.client.read_pair()
    name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX) if pair is not None else ""
    # The address in the kubeconfig comes last: it may be that of a load balancer which has ended
    urls = dict.fromkeys((*agent.read_learned(), agent.read_api_server()))
    ca_pem = b"" if agent.record.read().system_roots else agent.read_server_ca()
    clusters = tuple(Cluster("local", url, ca_pem, is_k3s=True) for url in urls if url)
    return Membership(files, agent, agent.client.current, agent.client.pending_key, name, clusters) if files else None


def check_machine(found: Membership, machine: MachineIdentity) -> None:
    """Raise CopiedFilesError when the files are those of another machine, whose membership must not end."""
    machineid.check(
        found.member.record,
        machine,
        found.node_name,
        "they would end the membership of that machine, so no server was asked; remove them here with mooring leave --files-only",
    )


async def end(found: Membership, clock: Clock, machine: MachineIdentity | None = None) -> bool:
    """Let the server end the membership. Return False when it had ended before. Raises ApiError, PeerError, ConfigError."""
    check_machine(found, machine or machineid.this_machine())
    if not found.node_name and found.pending_key.exists():
        raise ConfigError(
            f"this machine is not a member yet: a join waits for its certificate, or was cut off ({found.pending_key} is "
            "there); stop it, have an administrator deny its request (mooring csr list --pending), and remove the files with "
            "--files-only"
        )
    if not found.node_name or not found.clusters:
        raise ConfigError(
            f"{found.files[-1]} is left of a membership, and no certificate and server with which it could be ended: have an "
            "administrator delete the Node, and remove the files with --files-only"
        )
    if isinstance(found.member, AgentFiles):
        # Without that CA the roots of the machine would verify the server, and a foreign one could say that the
        # membership has ended.
        found.member.check_server_ca()
    pair = found.member.client
    user = KubeconfigUser("default-auth", certificate_file=str(pair.current), key_file=str(pair.key))
    known_id = found.member.read_cluster_id()
    proved = await registration.cluster_with_id(found.clusters, known_id, clock) if known_id else None
    first, *others = found.clusters if proved is None else (proved,)
    async with ClusterClient(first, user, clock, others=others) as client:

        async def ask() -> None:
            await client.post_path(PATH, {"clusterID": known_id} if known_id else {})

        try:
            # 401 of a server that does not say what it is counts after a few seconds: one that restarts answers so
            # for a moment.
            await retry(clock, ask, REFUSED_SECONDS, transient=(UnauthorizedError,), client=client)
        except UnauthorizedError:
            await _check_ended(found, client.server, user, clock)
            if known_id and proved is None:
                raise ConfigError(
                    f"{client.server} does not accept the certificate of node {found.node_name}, and does not say of which cluster "
                    f"it is, which may be another one; if this membership has ended, {_by_an_administrator(found)}"
                ) from None
            return False
        except (NotFoundError, ForbiddenError) as error:
            if program := await other_program(client):
                raise ConfigError(
                    f"{client.server} is {program}, where no machine ends its own membership: {_by_an_administrator(found)}"
                ) from error
            raise
    return True


async def _check_ended(found: Membership, server: str, user: KubeconfigUser, clock: Clock) -> None:
    """Return when 401 of `server` means the end of the membership. Raises ConfigError."""
    cluster = next(one for one in found.clusters if one.server == server)
    await check_anonymously(cluster, clock, f"lets a machine end its own membership: {_by_an_administrator(found)}")
    pair = found.member.client.read_pair()
    # Such a machine may still be a member, and the key in its files may be what brings it back.
    if pair is None or not pair.valid_at(clock.now()) or await _may_come_back(cluster, user, clock):
        raise ConfigError(
            f"{server} does not accept the certificate of node {found.node_name}, which has expired or whose CA was replaced, so "
            f"that it ends no membership: let mooring agent get another one and leave then, or {_by_an_administrator(found)}"
        )


async def _may_come_back(cluster: Cluster, user: KubeconfigUser, clock: Clock) -> bool:
    """Return True when the server lets the machine come back by this certificate, which may do nothing else."""
    async with ClusterClient(cluster, user, clock, headers=[RECOVERY_HEADER]) as client:
        try:
            await client.post_path(PATH, {})
        except ForbiddenError:
            return True
        except UnauthorizedError:
            return False
    return False


def _by_an_administrator(found: Membership) -> str:
    return (
        f"have an administrator run kubectl delete node {found.node_name}, then remove the files here with --files-only"
    )


def remove(found: Membership) -> None:
    """Remove the files. Raises ConfigError."""
    for path in found.files:
        disk.remove(path)


async def _end_at_any(found: Membership, clock: Clock) -> bool:
    """Let one of the servers end the membership, each with its share of STOP_SECONDS. Raises as `end` does, and TimeoutError."""
    *others, last = [replace(found, clusters=(one,)) for one in found.clusters] or [found]
    share = STOP_SECONDS / min(len(others) + 1, MOST_ASKED)
    for one in others:
        # One that is cut off never answers. Asking the next one as well ends the membership once.
        with suppress(PeerError, TimeoutError):
            async with asyncio.timeout(share):
                return await end(one, clock)
    return await end(last, clock)


async def on_stop(find_membership: Callable[[], Membership | None], clock: Clock) -> None:
    """Leave within STOP_SECONDS, because the agent was stopped. Where that fails, the files stay, and the log says so."""
    try:
        if (found := find_membership()) is None:
            return
        async with asyncio.timeout(STOP_SECONDS):
            was_member = await _end_at_any(found, clock)
    except (MooringError, TimeoutError) as error:
        reason = str(error) or f"no server answered within {STOP_SECONDS:g} s; mooring leave ends it later"
        log.warning("--leave-on-stop: the membership was not ended, its files stay: %s", reason)
        return
    state = "is deleted, its certificates are revoked" if was_member else "had left before"
    try:
        remove(found)
    except ConfigError as error:
        log.warning(
            "--leave-on-stop: node %s %s, but a file stays: %s. Run mooring leave", found.node_name, state, error
        )
        return
    log.info("left %s: node %s %s; the files are removed", found.server, found.node_name, state)


def _of_kubeadm(state: NodeState) -> Iterator[Path]:
    yield from (state.bootstrap, state.pending_key, *state.serving.files())
    if not any((state.ca.parent / name).exists() for name in _OF_CONTROL_PLANE):
        yield state.ca
    # Last, so that a run that was cut off can be repeated: these name the servers, and prove the membership. The record goes after
    # them: without it the rest of copied files would count as those of this machine.
    yield from (state.kubeconfig, *state.client.files(), state.record.path)


def _of_k3s(agent: AgentFiles) -> Iterator[Path]:
    for pair in agent.pairs.values():
        if pair is not agent.client:
            yield from pair.files()
    yield from (agent.node_password, agent.node_id, agent.client_ca, agent.load_balancer)
    yield from (agent.directory / name for name in KUBECONFIGS)
    # Last, so that a run that was cut off can be repeated.
    yield from (agent.server_ca, *agent.client.files(), agent.record.path)


def _existing(paths: Iterator[Path], record: RecordFile) -> tuple[Path, ...]:
    """Return the files that are there; none where the record alone is left, of a run that was cut off."""
    found = tuple(path for path in paths if path.is_symlink() or path.exists())
    return () if found == (record.path,) else found
