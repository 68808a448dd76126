"""Rule by which a machine whose certificate expired gets another one without a person.

Rules kept here (docs/come-back-after-expiry.md):
* The requester is a recovering node (`mooring.authn.recovery`): its certificate, whose key it proved to have, was that of the name
  and is neither revoked nor of a deleted Node. The request is for the same name, or denied.
* Every other fault holds the request for a person: a certificate that expired longer ago than `max_age`, a key that NodeIdentity
  does not list, a Node that is gone, another network than that from which the newest certificate was requested.
* The key of the request counts like the old one when NodeIdentity lists it: the claim of the name, which precedes the approval, may
  have replaced the old key.
* A network is an IPv4 /24 or an IPv6 /64: a machine that was off may get another address of its network.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network

from mooring.api.certificates.requestrecords import source_address_of
from mooring.api.core.addresses import parse_address
from mooring.api.mooring import certificaterevocation, nodeidentity
from mooring.api.mooring.membership import was_deleted
from mooring.api.objectmeta import spec_of
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import gap, parse_rfc3339
from mooring.controllers.certificates.issuance import Hold, PendingIssue
from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX, RECOVERING_NODES, RECOVERY_KEY, RECOVERY_NOT_AFTER

NODE_KIND = "nodes"
IPV4_PREFIX, IPV6_PREFIX = 24, 64
"""Bits of a network: the usual size of one segment."""


def is_recovery(csr: Obj) -> bool:
    """Return true when a recovering node has made the request."""
    return RECOVERING_NODES in (csr["spec"].get("groups") or ())


def proven_key(csr: Obj) -> str:
    """Return the key of the expired certificate with which a request was made, as the server recorded it; "" when none was."""
    extra = csr["spec"].get("extra") or {}
    return str(next(iter(extra.get(RECOVERY_KEY) or ()), ""))


@dataclass(frozen=True, slots=True)
class NodeRecovery:
    """The rule. `max_age`: None leaves every request to a person."""

    max_age: timedelta | None
    watches: tuple[str, ...] = (nodeidentity.PLURAL, certificaterevocation.PLURAL, NODE_KIND)

    def hold(self, pending: PendingIssue, views: Views) -> Hold | None:
        """Return the reason for which the rule does not approve a request of a recovering node; None when it does."""
        name = pending.username.removeprefix(RECOVERING_NODE_PREFIX)
        # A recovering node has proved the key of one name. A request for another name is denied and not held.
        if pending.request.common_name != NODE_PREFIX + name or name == pending.username:
            return Hold("RecoveryOfAnotherNode", f'"{pending.username}" may only request its own name', denies=True)
        key, ended = _proof(pending.csr)
        if ended is None:
            return Hold(
                "RecoveryNotProven", "the server recorded no key and no end of the old certificate; ask a person"
            )
        age = pending.now - ended
        if self.max_age is None:
            return Hold("RecoveryNeedsApproval", _waiting(age, "this cluster lets a person decide"))
        if age > self.max_age:
            return Hold("ExpiredTooLongAgo", _waiting(age, f"the rule ends after {gap(self.max_age)}"))
        identity = views[nodeidentity.PLURAL].get(name)
        own = f"sha256:{pending.request.key_fingerprint}"
        # The claim of the name precedes the approval and may have replaced the old key, so the key of the request is
        # accepted, too.
        if identity is None or not any(one.get("publicKey") in (key, own) for one in nodeidentity.keys_of(identity)):
            return Hold("KeyNotOfNode", _waiting(age, f'the NodeIdentity "{name}" does not list its key {key}'))
        if _is_revoked(key, name, identity, views):
            return Hold("Revoked", _waiting(age, "its key, its certificate or its node was revoked"))
        node = views[NODE_KIND].get(name)
        if node is None or was_deleted(identity, node):
            return Hold("NodeMissing", _waiting(age, f'the Node "{name}" was deleted, or never registered'))
        # A machine that was off may get another address of its network, so networks and not addresses are compared.
        known = spec_of(identity).get("sourceAddress", "")
        source = source_address_of(pending.csr)
        if _network(known) is None or _network(known) != _network(source):
            networks = (
                f"it comes from {source or 'an unknown address'}, and came from {known or 'an unknown address'} before"
            )
            return Hold("AnotherNetwork", _waiting(age, networks))
        return None


def _proof(csr: Obj) -> tuple[str, datetime | None]:
    """Return the key and the end of the old certificate, as the server recorded them."""
    key = proven_key(csr)
    ended = next(iter((csr["spec"].get("extra") or {}).get(RECOVERY_NOT_AFTER) or ()), "")
    try:
        return key, parse_rfc3339(ended) if key else None
    except ValueError:
        return key, None


def _is_revoked(key: str, name: str, identity: Obj, views: Views) -> bool:
    """Return true when an entry of the denylist names the node, the key or a certificate for it.

    The authenticator has checked the certificate; an entry may be newer than the request, which waits for long when it is held.
    """
    entries = {certificaterevocation.key_entry(key), certificaterevocation.node_entry(name)}
    for one in nodeidentity.keys_of(identity):
        if one.get("publicKey") == key:
            entries |= certificaterevocation.entries_about(one)
    return any(views[certificaterevocation.PLURAL].get(entry) is not None for entry in entries)


def _waiting(age: timedelta, reason: str) -> str:
    # the age is in whole days, so that the condition changes once a day at most
    return f"the certificate of this machine expired {max(age, timedelta(0)).days} days ago; {reason}"


def _network(text: str) -> object | None:
    address: IPv4Address | IPv6Address | None = parse_address(text)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address is None:
        return None
    prefix = IPV4_PREFIX if isinstance(address, IPv4Address) else IPV6_PREFIX
    return ip_network((address, prefix), strict=False)
