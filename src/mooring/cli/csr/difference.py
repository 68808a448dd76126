"""Difference between a request for a node's certificate and what the name of the node had before.

Rules kept here:
* The name is that of the subject. Its NodeIdentity holds the keys, the token and the address of before. The Node holds the names
  and addresses of the machine, with which those of a serving certificate are compared.
* An object that is missing, or that the user may not read, is left out without an error. Another Kubernetes has no NodeIdentity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooring.api.certificates.sourceaddress import source_address_of
from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring import nodeidentity
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import ForbiddenError, NotFoundError
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX
from mooring.pki.x509.signers import KUBELET_SERVING


@dataclass(frozen=True, slots=True)
class Before:
    """Objects that the name of a node has now: its NodeIdentity and its Node, where there are any."""

    node_name: str
    identity: Obj | None
    node: Obj | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One line: what it is about, the value of before, and that of the request. Empty texts mean none."""

    label: str
    old: str
    new: str

    @property
    def changed(self) -> bool:
        return self.old != self.new


async def fetch_before(client: ClusterClient, details: dict[str, Any]) -> Before | None:
    """Return what the node of a request has now; None for a request that is not for a node. Raises ApiError, PeerError."""
    common_name = details.get("request", {}).get("subject", {}).get("commonName", "")
    if not common_name.startswith(NODE_PREFIX):
        return None
    name = common_name.removeprefix(NODE_PREFIX)
    return Before(name, await _found(client, nodeidentity.PLURAL, name), await _found(client, "nodes", name))


async def _found(client: ClusterClient, plural: str, name: str) -> Obj | None:
    try:
        return await client.get(plural, name)
    except (NotFoundError, ForbiddenError):
        return None


def differences(obj: Obj, details: dict[str, Any], before: Before) -> list[Difference]:
    """Return what a person compares before a decision."""
    request, requester = details.get("request", {}), details.get("requester", {}).get("username", "")
    recorded = spec_of(before.identity) if before.identity is not None else {}
    keys = nodeidentity.keys_of(before.identity) if before.identity is not None else []
    newest = keys[-1] if keys else {}
    token = requester.removeprefix(BOOTSTRAP_USER_PREFIX)
    found = [
        Difference("Source address", recorded.get("sourceAddress", ""), source_address_of(obj)),
        Difference("Token", recorded.get("token", ""), token if token != requester else ""),
        Difference("Node", before.node["metadata"].get("uid", "") if before.node else "", ""),
    ]
    if details.get("signerName") == KUBELET_SERVING:
        status = (before.node.get("status") or {}) if before.node else {}
        reported = sorted({one.get("address", "") for one in status.get("addresses") or ()})
        asked = sorted((*request.get("dnsNames", ()), *request.get("ipAddresses", ())))
        return [Difference("Names and addresses", ", ".join(reported), ", ".join(asked)), *found]
    key = request.get("key", {}).get("fingerprint", "")
    has_key = any(one.get("publicKey") == key for one in keys)
    return [
        Difference("Key", key if has_key else newest.get("publicKey", ""), key),
        *found,
        Difference("Certificate serial", newest.get("serialNumber", ""), ""),
        Difference("Certificate expiry", newest.get("notAfter", ""), ""),
    ]


def document(obj: Obj, details: dict[str, Any], before: Before) -> dict[str, Any]:
    """Return the difference for JSON and YAML."""
    lines = differences(obj, details, before)
    return {
        "nodeName": before.node_name,
        "recorded": before.identity is not None,
        "fields": [{"field": one.label, "old": one.old, "new": one.new} for one in lines],
    }


def text_lines(obj: Obj, details: dict[str, Any], before: Before) -> list[tuple[str, str, bool]]:
    """Return (label, text, whether a person must look at it) for each line."""
    if before.identity is None and before.node is None:
        return [("Before", f'nothing is recorded about node "{before.node_name}"', False)]
    lines = []
    for one in differences(obj, details, before):
        if not one.old and not one.new:
            continue
        if one.label.startswith("Certificate") or one.label == "Node":
            lines.append((f"Before: {one.label.lower()}", one.old, False))
        elif one.changed:
            lines.append((one.label, f"{one.old or '<none>'} -> {one.new or '<none>'}", bool(one.old)))
        else:
            lines.append((one.label, f"{one.new} (as before)", False))
    return lines
