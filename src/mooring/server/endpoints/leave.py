"""Serve POST `/mooring/v1/leave`: a machine ends its own membership, and no other.

Rules kept here (docs/names-and-membership.md#when-a-machine-leaves):
* The machine is that of the client certificate which proved the request. No field of the request names one. A token of the same
  user, an impersonator and a certificate that all machines share end nothing.
* A machine names the cluster that it leaves, where it knows it. Another cluster of the same CA ends nothing.
* The Node is deleted first, which ends the membership by the state of its NodeIdentity. Then the certificates of the machine are
  revoked by serial number, each until its end. A server that is killed in between leaves a membership that has ended; where
  machines may create their Nodes again, one that may leave again: the certificate that proved the request is revoked last.
* A renewal may be signed beside the request, until that certificate is revoked. What it gave is read then, and revoked, too, unless
  the name belongs to another machine by then.
* A dry run is refused.
* Nothing is issued, so that it is possible while ends wait to be settled, too.
* A machine without a Node leaves, too: its NodeIdentity then names a Node that never was, so that the name is free.
* The server writes, as for every deletion of a Node. A node gets no right to delete Nodes or to revoke.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring import certificaterevocation, nodeidentity
from mooring.api.mooring.certificaterevocation import entry_name
from mooring.api.mooring.membership import NODES, may_use_name, node_uid, with_spec
from mooring.api.mooring.nodeidentity import companions_of, keys_of
from mooring.api.view import Views
from mooring.apimachinery.codec.json import decode_json, encode_json
from mooring.apimachinery.names import uuid4
from mooring.apimachinery.options import DeleteOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import AlreadyExistsError, BadRequestError, ConflictError, ForbiddenError, NotFoundError
from mooring.identity import API_SERVER_USER, NODE_PREFIX
from mooring.identity import NODES as NODES_GROUP
from mooring.pki.x509.clientcertificate import ClientCertificate
from mooring.pki.x509.verify import VerifiedPeer
from mooring.registry.store import Registry
from mooring.server.endpoints.tokens import API_VERSION
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response

log = logging.getLogger("mooring")

WRITER = "leave"
REASON = "cessationOfOperation"
MESSAGE = "the machine has left the cluster"
NOT_A_MACHINE, OTHER_CLUSTER = "not-a-machine", "another-cluster"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeaveHandler:
    """Parts with which a membership ends."""

    registry: Registry
    entropy: Callable[[int], bytes]


async def leave(context: RequestContext, parts: LeaveHandler) -> Response:
    """Answer 200 with what ended. Raises ForbiddenError unless the caller is a machine, ConflictError for a Node that changes."""
    peer = _machine(context)
    # It could not show what would be deleted, and a part that did not know the parameter would delete it.
    if "dryRun" in context.request.query:
        raise BadRequestError("dryRun: a membership is not left in a dry run; leave the parameter out")
    name, views = peer.common_name.removeprefix(NODE_PREFIX), parts.registry.views
    _check_cluster(context, views, await context.request.body())
    # No `await` from here to the deletion.
    await context.confirm()
    identity = views[nodeidentity.PLURAL].get(name)
    uid = node_uid(views[NODES].get(name))
    others, own = _revocations(peer, identity, context.received)
    if uid:
        await _delete_node(context, parts, name, uid)
    elif identity is not None:
        await _free_name(context, parts, identity)
    context.ended_itself = True
    # After the Node: a server that is killed in between leaves a membership that has ended.
    revoked = await _revoke(context, parts, others)
    # Last, so that a machine whose request was interrupted can repeat it with this certificate.
    revoked |= await _revoke(context, parts, own)
    # A renewal may have been signed meanwhile. It is revoked, unless the name belongs to another machine by now.
    then = await parts.registry.reader.current(BY_PLURAL[nodeidentity.PLURAL], "", name)
    if then is not None and may_use_name(then.obj, peer.public_key, f"sha256:{peer.fingerprint}"):
        others, own = _revocations(peer, then.obj, context.received)
        later = {entry: spec for entry, spec in (others | own).items() if entry not in revoked}
        revoked |= await _revoke(context, parts, later)
    log.info("the machine of node %s has left; %d certificates are revoked", name, len(revoked))
    body = {
        "kind": "Departure",
        "apiVersion": API_VERSION,
        "nodeName": name,
        "nodeUID": uid,
        "revoked": sorted(revoked),
    }
    return Response(200, encode_json(body), (content_type("application/json"),))


def _machine(context: RequestContext) -> ClientCertificate:
    """Return the certificate of the machine that asks. Raises ForbiddenError."""
    peer, user = context.outcome.certificate, context.user
    is_machine = (
        peer is not None
        and context.impersonator is None
        and user.username.startswith(NODE_PREFIX)
        and user.username == peer.common_name
        and NODES_GROUP in user.groups
    )
    if peer is None or not is_machine:
        context.rejected_reason = NOT_A_MACHINE
        raise ForbiddenError(
            f"a membership is left by the machine itself, with its own client certificate as {NODE_PREFIX}<name>; an administrator "
            "deletes the Node"
        )
    return peer


def _check_cluster(context: RequestContext, views: Views, body: bytes) -> None:
    """Raise ForbiddenError when the body names another cluster than this one. Raises BadRequestError."""
    given = decode_json(body or b"{}")
    wanted = given.get("clusterID", "") if isinstance(given, dict) else None
    if not isinstance(wanted, str):
        raise BadRequestError('the body is not a JSON object with a "clusterID" that is a text')
    system = views["namespaces"].get("kube-system")
    own = "" if system is None else system["metadata"]["uid"]
    if wanted and wanted != own:
        context.rejected_reason = OTHER_CLUSTER
        raise ForbiddenError(f"this is another cluster: its id is {own}, and the machine leaves {wanted}")


def _change(context: RequestContext, *, is_judged: bool) -> Change:
    gate = context.recheck if is_judged else None
    return Change(API_SERVER_USER, context.received, gate=gate, writer=WRITER)


async def _delete_node(context: RequestContext, parts: LeaveHandler, name: str, uid: str) -> None:
    try:
        await parts.registry.writer.delete(
            BY_PLURAL[NODES], "", name, DeleteOptions(uid=uid), _change(context, is_judged=True)
        )
    except NotFoundError:
        raise ConflictError(f'the Node "{name}" was deleted meanwhile: ask again') from None


async def _free_name(context: RequestContext, parts: LeaveHandler, identity: Obj) -> None:
    """Let the identity of a machine without a Node say that its Node is gone."""
    ended = with_spec(identity, nodeUID=uuid4(parts.entropy), changedAt=rfc3339(context.received))
    await parts.registry.writer.update(
        BY_PLURAL[nodeidentity.PLURAL],
        "",
        identity["metadata"]["name"],
        ended,
        _change(context, is_judged=True),
        WriteOptions(),
    )


def _revocations(peer: ClientCertificate, identity: Obj | None, now: datetime) -> tuple[dict[str, Obj], dict[str, Obj]]:
    """Return the specs of an entry for each certificate of the machine that is still valid, by name: those of other keys than that
    of `peer`, and those of its own.
    """
    end = rfc3339(peer.not_after) if isinstance(peer, VerifiedPeer) else ""
    others: dict[str, Obj] = {}
    own = dict([_entry(f"{peer.serial_number:x}", peer.issuer, peer.public_key, end)])
    for key in (*keys_of(identity), *companions_of(identity)) if identity is not None else ():
        if parse_rfc3339(key["notAfter"]) > now:
            which = own if key["publicKey"] == peer.public_key else others
            name, spec = _entry(
                key.get("serialNumber", "").lstrip("0"), key.get("issuer", ""), key["publicKey"], key["notAfter"]
            )
            which[name] = spec
    return others, own


def _entry(serial: str, issuer: str, public_key: str, end: str) -> tuple[str, Obj]:
    """Return the name and the spec of the entry for one certificate, by its key where its number is not known."""
    subject = {"serialNumber": serial, "issuer": issuer} if serial and issuer else {"publicKey": public_key}
    spec = {**subject, "reason": REASON, "message": MESSAGE} | ({"expiresAt": end} if end else {})
    return entry_name(spec), spec


async def _revoke(context: RequestContext, parts: LeaveHandler, entries: Mapping[str, Obj]) -> set[str]:
    """Create these entries. Return their names."""
    await asyncio.gather(*(_create(context, parts, *one) for one in entries.items()))
    return set(entries)


async def _create(context: RequestContext, parts: LeaveHandler, name: str, spec: Obj) -> None:
    kind = BY_PLURAL[certificaterevocation.PLURAL]
    entry = {
        "kind": kind.resource.kind,
        "apiVersion": kind.resource.api_version,
        "metadata": {"name": name},
        "spec": spec,
    }
    try:
        await parts.registry.writer.create(kind, "", entry, _change(context, is_judged=False), WriteOptions())
    except AlreadyExistsError:
        return  # it was revoked before
