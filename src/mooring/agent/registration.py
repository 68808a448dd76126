"""Registration of a Node, and the acceptance of its certificate by the API server."""

from __future__ import annotations

from datetime import datetime, timedelta

from mooring.agent.pairfiles import Pair
from mooring.agent.steps import retry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import drive_fetching
from mooring.client.serverversion import read_version
from mooring.clock import Clock, parse_rfc3339
from mooring.errors import MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.settings.nodes import REGISTRATIONS
from mooring.trust.answertext import explained_by, is_mooring
from mooring.trust.discovery.errors import AnotherClusterError, DiscoveryError
from mooring.trust.discovery.refresh import first_published
from mooring.trust.kubeconfig import Cluster, KubeconfigUser

# Registration of a member's Node: whether it is registered and how, and protection of another program's Node.
#
# Rules kept here:
# * `none` writes neither Node nor Lease. `tainted` writes a Node that no scheduler places Pods on: not Ready, tainted
#   `node.kubernetes.io/not-ready:NoSchedule`, with room for no Pod. `ready` writes a Ready Node with room for Pods.
# * Without a choice the Node is `ready` where a Mooring server answers, and `tainted` elsewhere.
# * A Node that this machine registered and that was deleted is not made again: its deletion ends the membership, unless the
#   operator has chosen that it registers again. The uid of the Node tells it from a later one of that name.
# * A Node whose status another program keeps fresh is not written.

NONE, TAINTED, READY = REGISTRATIONS
AGENT = "mooring agent"
"""Prefix of the message in every Ready condition that this program writes."""
FRESH = timedelta(minutes=5, seconds=40)
"""kubelet's `nodeStatusReportFrequency` of 5 minutes, and the 40 seconds after which Kubernetes takes a node for lost."""


class NodeKeptError(MooringError):
    """Another program keeps the Node fresh."""


class MembershipEndedError(MooringError):
    """This machine is not a member any more."""


class NodeDeletedError(MembershipEndedError):
    """The Node that this machine registered was deleted."""


class CertificateRefusedError(MembershipEndedError):
    """The server rejects the certificate of this machine."""

    def __init__(self, node_name: str, audit_id: str = "") -> None:
        super().__init__(
            f"the server rejects the certificate of system:node:{node_name}: the Node was deleted, the certificate was revoked, "
            f"or the server no longer trusts its CA{explained_by(audit_id)}"
        )
        self.audit_id = audit_id


def check_registered(node_name: str, uid: str, found: Obj | None) -> None:
    """Raise NodeDeletedError unless `found` is the Node with `uid`. An empty `uid` stands for any Node, and for none."""
    if not uid or (found is not None and found["metadata"]["uid"] == uid):
        return
    more = "" if found is None else ", and another Node has its name now"
    raise NodeDeletedError(f"the Node {node_name} was deleted{more}: this machine is no member of the cluster any more")


async def choose(client: ClusterClient, wanted: str) -> str:
    """Return `wanted`, or the default for this server when it is empty. Raises ApiError, PeerError."""
    if wanted:
        return wanted
    # Mooring has no scheduler. Elsewhere Pods would be placed on a machine without a kubelet, and nothing would run
    # them.
    return READY if is_mooring(await read_version(client)) else TAINTED


def check_keeper(node: Obj, lease: Obj | None, now: datetime) -> None:
    """Raise NodeKeptError when another program than this agent keeps `node` fresh. `lease` is None when it does not count."""
    ready = ready_condition(node)
    # The message of the Ready condition names the last writer. The heartbeat of the conditions and the Lease show
    # whether it still writes.
    if str(ready.get("message", "")).startswith(AGENT) or not (is_fresh(node, now) or _is_renewed(lease or {}, now)):
        return
    name, version = node["metadata"]["name"], ((node.get("status") or {}).get("nodeInfo") or {}).get("kubeletVersion")
    keeper = f"kubelet {version}" if version else "another program"
    raise NodeKeptError(f"the Node {name} is kept by {keeper} and is left as it is")


def ready_condition(node: Obj) -> Obj:
    """Return the Ready condition; empty when there is none."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == "Ready"), {})


def is_fresh(node: Obj, now: datetime) -> bool:
    """Return True when a program reported the status within FRESH. A condition that is Unknown is not fresh."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(
        one.get("status") != "Unknown" and _within(one.get("lastHeartbeatTime"), FRESH, now) for one in conditions
    )


def _is_renewed(lease: Obj, now: datetime) -> bool:
    spec = lease.get("spec") or {}
    return _within(spec.get("renewTime"), timedelta(seconds=spec.get("leaseDurationSeconds") or 0), now)


def _within(text: object, limit: timedelta, now: datetime) -> bool:
    """Return True when a time is within `limit` of `now`, before or after it, because clocks of two machines differ."""
    try:
        return isinstance(text, str) and abs(now - parse_rfc3339(text)) < limit
    except ValueError:
        return False


# Checks of a client certificate with the server: is it accepted, and does the membership still exist?

REFUSED_SECONDS = 5.0
"""Seconds for which 401 is retried."""


async def check_membership(
    pair: Pair,
    node_name: str,
    uid: str,
    clusters: tuple[Cluster, ...],
    clock: Clock,
    *,
    cluster_id: str = "",
    answer_needed: bool = False,
) -> None:
    """Raise MembershipEndedError when the server rejects the certificate, or the Node with `uid` was deleted.

    Of several addresses those of the cluster of `cluster_id` decide. Raise AnotherClusterError where another one alone answers.
    `answer_needed`: raise the error of a server that does not answer, too.
    """
    try:
        await _check_membership(pair, node_name, uid, clusters, clock, answer_needed=answer_needed)
    except MembershipEndedError:
        own = await cluster_with_id(clusters, cluster_id, clock) if cluster_id else None
        if own is None or len(clusters) == 1:
            raise
        # The server that rejected it may be of another cluster.
        await _check_membership(pair, node_name, uid, (own,), clock, answer_needed=True)


async def check_cluster(clusters: tuple[Cluster, ...], cluster_id: str, clock: Clock) -> None:
    """Raise AnotherClusterError when another cluster than that of `cluster_id` answers, and this one at no address.

    An empty id decides nothing, and neither do servers that do not say of which cluster they are.
    """
    if cluster_id:
        await cluster_with_id(clusters, cluster_id, clock)


async def cluster_with_id(clusters: tuple[Cluster, ...], cluster_id: str, clock: Clock) -> Cluster | None:
    """Return the first address at which the cluster of `cluster_id` answers; None when no server says of which cluster it is.

    Raises AnotherClusterError when another one answers, and this one at no address.
    """
    try:
        found, published = await drive_fetching(first_published(clusters, cluster_id), clock)
    except AnotherClusterError:
        raise
    except DiscoveryError:
        return None
    return found if published.cluster_id else None


async def _check_membership(
    pair: Pair, node_name: str, uid: str, clusters: tuple[Cluster, ...], clock: Clock, *, answer_needed: bool
) -> None:
    user = KubeconfigUser("default-auth", certificate_pem=pair.certificate_pem, key=pair.key_pem)
    async with ClusterClient(clusters[0], user, clock, others=clusters[1:]) as client:

        async def read_node() -> Obj | None:
            try:
                return await client.get("nodes", node_name)
            except NotFoundError:
                return None

        try:
            # Only 401 means that the certificate is not accepted. That of a Mooring server is final. Another server
            # that restarts answers 401 for a moment.
            found = await retry(clock, read_node, REFUSED_SECONDS, transient=(UnauthorizedError,), client=client)
        except UnauthorizedError as error:
            raise CertificateRefusedError(node_name, error.audit_id) from error
        except MooringError:
            # A server that does not answer says nothing about the membership, which goes on.
            if answer_needed:
                raise
            return
    check_registered(node_name, uid, found)


async def check_issued(pair: Pair, node_name: str, clusters: tuple[Cluster, ...], clock: Clock) -> None:
    """Raise PeerError when the server does not accept a certificate that it has just issued."""
    try:
        await check_membership(pair, node_name, "", clusters, clock)
    except CertificateRefusedError as error:
        raise PeerError(
            "the server does not accept the certificate that it has just issued; the CA that signs certificates must be among "
            f"those of its --client-ca-file{explained_by(error.audit_id)}"
        ) from None
