"""Steps about this machine: its files of a cluster, its identity, its disk, and the service that keeps the membership.

Rules kept here: files are read and nothing is written, also not what a crash left to be finished. A file that this user may not
read is no failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mooring.agent import machineid
from mooring.agent.disk import RecordFile
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.machineid import MachineIdentity
from mooring.agent.pairfiles import Pair
from mooring.agent.state import NodeState
from mooring.client.files import ROOT, SPARE
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles, names
from mooring.trust.discovery.refresh import digest
from mooring.trust.doctor import Judgement, failed, failed_by, ok, skipped, warning
from mooring.trust.kubeconfig import Cluster, address_of

if TYPE_CHECKING:
    from mooring.pki.keys import PrivateKey

WITH_TOKEN = "join again with a token (mooring join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH)"  # noqa: S105 - advice
WITH_K3S_TOKEN = "join again with the token of the server (mooring agent --server URL --token TOKEN)"  # noqa: S105 - advice
_SAME_REQUEST = "run the same mooring join again: it goes on with the same request"
_DELETE_NODE = "have the Node deleted (kubectl delete node NAME), as its name belongs to the lost key, and "
AS_ROOT = "run mooring doctor as root, which may read them"
SYSTEMD = Path("/run/systemd/system")
"""A directory that is there while systemd runs the machine (sd_booted(3))."""
UNITS = ("mooring-agent.service", "kubelet.service", "k3s-agent.service", "k3s.service")
"""Units that keep a membership: the agent, kubeadm's kubelet, and k3s."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files of a cluster on this machine, in whichever way it joined. `pair` is the certificate of its node."""

    way: str
    """`kubeadm` or `k3s`; empty when there are none."""
    record: RecordFile
    places: tuple[Path, ...]
    clusters: tuple[Cluster, ...] = ()
    pair: Pair | None = None
    pending_key: PrivateKey | None = None
    problems: tuple[str, ...] = ()
    unreadable: tuple[Path, ...] = ()
    exposures: tuple[str, ...] = ()
    ca_problem: str = ""
    """Problem of the file of the CA, with the remedy after its last colon."""
    is_interrupted: bool = False
    cluster_id: str = ""
    """Id of the cluster of the membership; "" when it is not known."""

    @property
    def node_name(self) -> str:
        """Name in the certificate; "" without one."""
        return names.common_name(self.pair.leaf.subject).removeprefix(NODE_PREFIX) if self.pair is not None else ""

    @property
    def with_token(self) -> str:
        """Advice to join again, in the way in which this machine joined."""
        return WITH_K3S_TOKEN if self.way == "k3s" else WITH_TOKEN

    @property
    def with_new_key(self) -> str:
        """Advice to join again where the key may be lost. k3s's way proves the name by the node password, and not by the key."""
        is_lost = self.pair is None and self.clusters and self.way != "k3s"
        return _DELETE_NODE + self.with_token if is_lost else self.with_token

    @property
    def is_member(self) -> bool:
        """True when there is a certificate, whether or not it has expired."""
        return self.pair is not None

    def cluster_at(self, address: str) -> Cluster | None:
        """Return the way to an address that the files name."""
        return next((one for one in self.clusters if address_of(one.server) == address), None)


def read_files(root: Path, data_dir: str = DATA_DIR) -> LocalFiles:
    """Return the files of a cluster below `root`: those of kubeadm's way first."""
    state, agent = NodeState(root), AgentFiles(root, data_dir)
    places = (state.kubeconfig.parent, state.ca.parent, state.certificates, state.record.path.parent)
    named = (state.kubeconfig, state.client.current, state.bootstrap)
    # In a directory that this user may not enter no file seems to be there.
    hidden = tuple(one for one in (state.certificates, agent.directory) if _is_closed(one))
    is_there = any(map(os.path.lexists, named))
    if not is_there and agent.has_joined():
        return _read_agent_files(agent)
    pair = state.client.peek()
    return LocalFiles(
        "kubeadm" if is_there else "",
        state.record,
        places,
        state.read_clusters(),
        pair,
        state.read_pending_key(),
        state.problems(),
        _unreadable(named) + hidden,
        tuple(state.exposures()),
        _ca_problem(state, pair),
        os.path.lexists(state.bootstrap) or os.path.lexists(state.pending_key),
        state.read_cluster_id(),
    )


_WRITTEN_AGAIN = "move it away, mooring agent writes it again"


def _ca_problem(state: NodeState, pair: Pair | None) -> str:
    """Return why kubelet.conf does not verify servers, or ca.crt not the clients of a kubelet; "" where that is not known."""
    cluster, base = state.read_cluster(), state.read_base()
    # The machines of a cluster that published no CA verify its servers by their own roots.
    is_published = base is None or base.ca != digest(b"")
    if is_published and cluster is not None and not (cluster.ca_pem or cluster.insecure_skip_tls_verify):
        reason = "names no CA of the cluster, so that the roots of this machine must verify its servers"
        return f"{state.kubeconfig} {reason}: name it there (certificate-authority), or {WITH_TOKEN}"
    try:
        cas = bundles.certificates_among(found) if (found := state.read_ca()) else ()
    except (ConfigError, PkiError) as error:
        return f"{state.ca} cannot be used: {error}: {_WRITTEN_AGAIN}"
    if not cas or pair is None or any(map(pair.leaf.is_issued_by, cas)):
        return ""
    return f"{state.ca} does not hold the CA that signed this certificate: {_WRITTEN_AGAIN}"


def _read_agent_files(agent: AgentFiles) -> LocalFiles:
    """Return the files of an agent of k3s's way. Its kubeconfig may name the load balancer of k3s; then those behind it count."""
    ca_pem = agent.read_server_ca()
    urls = agent.read_learned() or tuple(filter(None, (agent.read_api_server(),)))
    named = (agent.client.current, agent.client.key, agent.server_ca, agent.kubeconfig)
    return LocalFiles(
        "k3s",
        agent.record,
        (agent.directory, agent.node_password.parent),
        tuple(Cluster(address_of(url), url, ca_pem, is_k3s=True) for url in urls),
        agent.client.peek(),
        agent.client.read_pending_key(),
        tuple(filter(None, (agent.client.problem(),))),
        _unreadable(named),
        tuple(agent.exposures()),
        _server_ca_problem(agent.server_ca, ca_pem),
        os.path.lexists(agent.client.next_key),
        agent.read_cluster_id(),
    )


def _server_ca_problem(path: Path, ca_pem: bytes) -> str:
    try:
        return "" if ca_pem and bundles.certificates_among(ca_pem) else f"{path} is missing or empty: {WITH_K3S_TOKEN}"
    except PkiError as error:
        return f"{path} cannot be used: {error}: {WITH_K3S_TOKEN}"


def _unreadable(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files that are there and that this user may not read."""
    return tuple(one for one in paths if os.path.lexists(one) and not _may_read(one))


def _is_closed(directory: Path) -> bool:
    """Return whether a directory is there that this user may not enter."""
    return os.path.lexists(directory) and not os.access(directory, os.X_OK)


def _may_read(path: Path) -> bool:
    try:
        return not path.exists() or os.access(path, os.R_OK)
    except PermissionError:
        return False


def judge_files(files: LocalFiles, node_name: str, now: datetime) -> Judgement:
    """Return the judgement of the files. `node_name` is the one that was given; "" for none."""
    if files.unreadable:
        listed = ", ".join(map(str, files.unreadable))
        return warning(f"files of a cluster are here, and this user may not read them: {listed}", AS_ROOT)
    if files.problems:
        text = f"the files of a membership cannot be used: {'; '.join(files.problems)}"
        if files.pair is None and files.pending_key is not None:
            return warning(f"{text}; a join with another key has not ended", _SAME_REQUEST)
        return failed(text, files.with_new_key)
    if not files.way:
        return ok("no files of a cluster: this machine has not joined", joined=False)
    if files.pair is None:
        if files.is_interrupted:
            again = _SAME_REQUEST.replace("mooring join", "mooring agent") if files.way == "k3s" else _SAME_REQUEST
            return warning("a join was interrupted before the certificate came", again, joined=False)
        return failed("files of a cluster are here, but no certificate of a node", files.with_new_key, joined=False)
    end = files.pair.leaf.not_valid_after_utc
    facts = {
        "joined": True,
        "way": files.way,
        "nodeName": files.node_name,
        "notAfter": rfc3339(end),
        "servers": [one.server for one in files.clusters],
    }
    text = f"a certificate of {NODE_PREFIX}{files.node_name}, valid until {rfc3339(end)}"
    if node_name and node_name != files.node_name:
        return failed(
            f'{text}, but the name "{node_name}" was given',
            f"give --node-name {files.node_name}, or end that membership with mooring leave first",
            **facts,
        )
    if not files.clusters:
        return failed(f"{text}, but no server is named in the files", files.with_token, **facts)
    if not files.pair.valid_at(now):
        return warning(
            f"{text}: by the clock of this machine it is not valid now",
            "mooring agent asks for another one, without a token",
            **facts,
        )
    if files.ca_problem:
        reason, _, remedy = files.ca_problem.rpartition(": ")
        return warning(f"{text}; {reason}", remedy, **facts)
    if files.exposures:
        reason, _, remedy = files.exposures[0].rpartition(": ")
        return warning(f"{text}; {reason}", remedy, **facts)
    return ok(text, **facts)


def judge_machine(files: LocalFiles, machine: MachineIdentity) -> Judgement:
    """Return the judgement of the identity: the machine is the one that joined."""
    if not files.way:
        return skipped("this machine has not joined")
    if machine.is_container():
        return skipped("in a container nothing tells two machines apart")
    if machineid.is_copy(files.record, machine):
        return failed(
            f"the files here were copied from another machine ({files.node_name or 'its name is not known'})",
            "join as a new machine with a token; or, after a replaced board or a restored disk, run mooring agent --adopt",
        )
    recorded = files.record.read()
    if not (recorded.machine_id or recorded.product_uuid):
        return skipped("the files do not say on which machine they were made")
    return ok("the same machine as at the join")


def judge_disk(files: LocalFiles, root: Path) -> Judgement:
    """Return the judgement of the directories that a join writes."""
    if files.way != "k3s":
        try:
            NodeState(root).check_places()
        except ConfigError as error:
            return failed_by(str(error))
    above = dict.fromkeys(one for place in files.places for one in (place, *place.parents))
    problems = [
        (f"{one} is no directory", "move it away") for one in above if os.path.lexists(one) and not _is_directory(one)
    ]
    closed: list[str] = []
    for place in dict.fromkeys(map(_nearest, files.places)):
        try:
            found = os.statvfs(place)
        except OSError as error:
            problems.append((f"{place} cannot be examined: {(error.strerror or str(error)).lower()}", ""))
            continue
        if found.f_flag & os.ST_RDONLY:
            remedy = "mount it writable, or name a directory that is with --root"
            problems.append((f"{place} is on a read-only file system", remedy))
        elif found.f_blocks and found.f_bavail * found.f_frsize < SPARE:
            problems.append((f"the file system of {place} is full", "remove files there (df -h)"))
        elif found.f_files and not found.f_favail:
            problems.append((f"the file system of {place} has no inode left", "remove files there (df -i)"))
        elif not os.access(place, os.W_OK):
            closed.append(str(place))
            if os.geteuid() == ROOT:
                problems.append((f"{place} cannot be written, even by root", "see lsattr, and the mount"))
    facts = {"directories": [str(one) for one in files.places], "closedToThisUser": closed}
    if problems:
        text, remedy = "; ".join(one for one, _ in problems), next((one for _, one in problems if one), "")
        # A member works on for the life of its certificate.
        return (warning if files.is_member else failed)(text, remedy, **facts)
    if closed:
        return ok(f"root can write what a join writes; this user cannot ({', '.join(closed)})", **facts)
    return ok("the directories that a join writes can be written", **facts)


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(filter(_is_directory, (path, *path.parents)), Path("/"))


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - swallows EACCES


async def judge_service(files: LocalFiles, root: Path, seconds: float, *, is_fresh: bool) -> Judgement:
    """Return the judgement of the service that keeps the membership. `is_fresh`: the cluster says that some program does."""
    if not files.is_member:
        return skipped("this machine has no membership to keep")
    if root != Path("/"):
        return skipped("no service is known for files below another root")
    if not (program := _systemctl()):
        return skipped("systemd does not run this machine")
    active = await _active_units(program, seconds)
    if active:
        return ok(f"{', '.join(active)} is active", active=list(active))
    text = "no service that keeps the membership is active: neither the agent nor a kubelet"
    if is_fresh:
        return warning(f"{text}, but the Node is fresh: another program keeps it", active=[])
    return failed(text, "start it: mooring agent install, or systemctl start kubelet", active=[])


def _systemctl() -> str:
    """Return the path of systemctl; "" where systemd does not run, and for one from a relative entry of PATH."""
    program = shutil.which("systemctl") or ""
    return program if SYSTEMD.is_dir() and os.path.isabs(program) else ""  # noqa: PTH117 - "" is not absolute


async def _active_units(program: str, seconds: float) -> tuple[str, ...]:
    process = await asyncio.create_subprocess_exec(
        program,
        "is-active",
        *UNITS,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(seconds):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    states = out.decode("utf-8", "replace").splitlines()
    return tuple(unit for unit, state in zip(UNITS, states, strict=False) if state == "active")
