"""Registration of a member's Node: whether it is registered and how, and protection of another program's Node.

Rules kept here:
* `none` writes neither Node nor Lease. `tainted` writes a Node that no scheduler places Pods on: not Ready, tainted
  `node.kubernetes.io/not-ready:NoSchedule`, with room for no Pod. `ready` writes a Ready Node with room for Pods.
* Without a choice the Node is `ready` where a Mooring server answers, which has no scheduler, and `tainted` elsewhere: nothing
  runs the Pods of a member that is not a kubelet.
* A Node that this machine registered and that was deleted is not made again: its deletion ends the membership, unless the operator
  has chosen that it registers again. The uid of the Node tells it from a later one of that name.
* A Node whose status another program keeps fresh is not written. The message of the Ready condition tells the last writer. The
  heartbeat of the conditions and the Lease tell the freshness.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import read_version
from mooring.clock import parse_rfc3339
from mooring.errors import MooringError
from mooring.settings.nodes import REGISTRATIONS
from mooring.trust.answertext import explained_by, is_mooring

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
    return READY if is_mooring(await read_version(client)) else TAINTED


def check_keeper(node: Obj, lease: Obj | None, now: datetime) -> None:
    """Raise NodeKeptError when another program than this agent keeps `node` fresh. `lease` is None when it does not count."""
    ready = ready_condition(node)
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
