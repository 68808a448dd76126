"""Steps of the membership: name, request, certificate and node, as the cluster has them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from mooring.agent import certificaterequest, node, registration
from mooring.agent.doctor.examination import Examination, ProbedAddress
from mooring.agent.k3s.membership import certificate_user
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ForbiddenError, NotFoundError, UnauthorizedError
from mooring.identity import NODE_PREFIX, NODES
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import CertificateError
from mooring.trust.doctor import FAILED, Judgement, failed, failed_by, ok, skipped, split_remedy, warning
from mooring.trust.kubeconfig import address_of

LEASE_SECONDS = 40
"""`leaseDurationSeconds` of a kubelet and of the agent."""


async def check_name(exam: Examination, target: ProbedAddress) -> Judgement:
    """Look for a Node of the name, as a join does."""
    name, user = exam.node_name(), exam.token_user()
    if exam.files.is_member:
        return skipped(f"this machine has the name {exam.files.node_name}: step node says what became of it")
    if exam.options.is_k3s_way:
        return skipped("k3s's way: the supervisor says at the join whether the name is free")
    if user is None or target.trusted is None:
        return skipped("no bootstrap token is given that could look up Nodes")
    if exam.options.identity is not None and not exam.options.node_name:
        return skipped("a join rule may name the node: the join looks whether the name is free")
    try:
        async with exam.client(target.trusted, user) as client:
            existing = await client.get("nodes", name)
    except NotFoundError:
        return ok(f"the name {name} is free", nodeName=name)
    except ForbiddenError:
        return skipped("the server does not let this token look up Nodes", nodeName=name)
    if node.is_in_use(existing, exam.clock.now()):
        return failed(
            f'the cluster has a node in use of the name "{name}"',
            f"choose another with --node-name, or if that machine is gone, delete it with `kubectl delete node {name}`",
            nodeName=name,
        )
    return warning(
        f'the cluster has a Node "{name}", which is not in use',
        "another key under this name waits for a person: choose another with --node-name, or, if that machine is gone, delete it "
        f"with `kubectl delete node {name}`",
        nodeName=name,
    )


async def check_request(exam: Examination, target: ProbedAddress) -> Judgement:
    """Look for the certificate request of the pending key."""
    key = exam.files.pending_key
    if key is None:
        return skipped("no request of this machine waits")
    usages = certificaterequest.CertificateTemplate(exam.node_name()).usages(key)
    user_name = NODE_PREFIX + exam.node_name()
    name = certificaterequest.request_name(key, user_name, (NODES,), usages)
    user = exam.token_user() or certificate_user(exam.files.pair)
    if user is None or target.trusted is None or exam.files.way == "k3s":
        return skipped("a key waits for its certificate; give the token to learn about its request", request=name)
    try:
        async with exam.client(target.trusted, user) as client:
            found = await client.get("certificatesigningrequests", name)
    except NotFoundError:
        return skipped("a key is here, and the cluster has no request for it", request=name)
    except (ForbiddenError, UnauthorizedError) as error:
        return skipped(f"the server does not let this credential read the request: {error}", request=name)
    return _judge_request(found, name)


async def check_certificate(exam: Examination, target: ProbedAddress) -> Judgement:
    """Send the node's certificate, and learn whether the server accepts it."""
    user = certificate_user(exam.files.pair)
    if user is None:
        return skipped("this machine has no certificate")
    known = exam.files.cluster_at(target.address)
    if known is not None and known.insecure_skip_tls_verify:
        return failed(
            "the kubeconfig of this node says insecure-skip-tls-verify: nothing proves the server, and the certificate is not sent",
            "name the CA of the cluster there, or join again",
        )
    way = exam.member_way(target)
    if way is None:
        return skipped("the certificate here is of another cluster")
    name = exam.files.node_name
    now = target.server_time or exam.clock.now()
    if exam.files.pair is not None and exam.files.pair.leaf.not_valid_after_utc < now:
        return failed(
            f"the certificate of {NODE_PREFIX}{name} ended at {rfc3339(exam.files.pair.leaf.not_valid_after_utc)}",
            f"start the agent (mooring agent install){'' if exam.files.way == 'k3s' else ', or run mooring join'}: it gets another "
            f"without a token, where the cluster lets it come back; else {exam.files.with_token}",
            nodeName=name,
        )
    # Before the certificate is sent: the CA of two clusters may be the same.
    await registration.check_cluster((way,), exam.files.cluster_id, exam.clock)
    try:
        async with exam.client(way, user) as client:
            target.node = await client.get("nodes", name)
    except UnauthorizedError as error:
        refused = registration.CertificateRefusedError(name, error.audit_id)
        remedy = f"have the Node deleted if it is still there (kubectl delete node {name}), and {exam.files.with_token}"
        return replace(failed_by(str(refused)), remedy=f"{remedy}{explained_by(error.audit_id)}")
    except CertificateError as error:
        if way.ca_pem:
            raise
        reason, _ = split_remedy(str(error))
        return failed(
            f"{reason}: the roots of this machine do not vouch for it, and the files here name no CA",
            exam.files.with_token,
        )
    except (NotFoundError, ForbiddenError) as error:
        target.node = error
    return ok(f"the server accepts the certificate of {NODE_PREFIX}{name}", nodeName=name)


async def check_node(exam: Examination, target: ProbedAddress) -> Judgement:
    """Compare the Node and its Lease with the membership."""
    user, way, name = certificate_user(exam.files.pair), exam.member_way(target), exam.files.node_name
    if user is None or way is None:
        return skipped("this machine is not a member")
    if isinstance(target.node, ForbiddenError):
        return skipped(f"the server does not let this node read its Node: {target.node}")
    found = target.node if isinstance(target.node, dict) else None
    try:
        registration.check_registered(name, exam.files.record.read().node_uid, found)
    except registration.NodeDeletedError as error:
        return failed(str(error), exam.files.with_token, nodeName=name)
    if found is None:
        advice = "mooring agent registers it, unless --register-node none"
        return warning(f"there is no Node {name}", advice, nodeName=name)
    lease: Obj = {}
    with suppress(NotFoundError, ForbiddenError):
        async with exam.client(way, user) as client:
            lease = await client.get("leases", name, "kube-node-lease")
    judgement = _judge_node(found, lease, target.server_time or exam.clock.now())
    if judgement.result == FAILED and exam.files.cluster_at(target.address) is None:
        named = ", ".join(address_of(one.server) for one in exam.files.clusters)
        return replace(
            judgement,
            message=f"{judgement.message}; the files here name {named} and not {target.address}",
            remedy=exam.files.with_token.replace("ADDRESS", target.address).replace("URL", target.url),
        )
    return judgement


def _judge_request(found: Obj, name: str) -> Judgement:
    conditions = (found.get("status") or {}).get("conditions") or ()
    by_type = {str(one.get("type")): one for one in conditions}
    for kind, word in (("Denied", "was denied"), ("Failed", "failed at the signer")):
        if kind in by_type:
            reason = by_type[kind].get("message") or by_type[kind].get("reason") or "no reason is given"
            return failed(f"the request {name} {word}: {reason}", "join again with a token that fits", request=name)
    if "Approved" not in by_type:
        approve = certificaterequest.how_to_approve(name)
        why = certificaterequest.reason_suffix(by_type.get(certificaterequest.HELD, {}))
        return failed(f"the request {name} waits for a person{why}", approve, request=name)
    if certificaterequest.certificate_of(found):
        return ok(f"the request {name} is approved and signed: join again to fetch it", request=name)
    return failed(f"the request {name} is approved and not signed", "see the log of the signer", request=name)


def _judge_node(found: Obj, lease: Obj, now: datetime) -> Judgement:
    name, ready = found["metadata"]["name"], registration.ready_condition(found)
    age: timedelta | None = None
    with suppress(ValueError):
        age = max(timedelta(0), now - parse_rfc3339(str((lease.get("spec") or {}).get("renewTime"))))
    status = str(ready.get("status", ""))
    facts = {
        "nodeName": name,
        "ready": status,
        "leaseAgeSeconds": None if age is None else round(age.total_seconds(), 1),
        "fresh": age is not None and age < timedelta(seconds=LEASE_SECONDS),
    }
    if (age is not None and not facts["fresh"]) or status == "Unknown":
        since = f" {round(age.total_seconds())} s ago" if age is not None else ""
        return failed(
            f"the Node {name} is there, and its last heartbeat came{since or ' long ago'}",
            "start the agent (mooring agent install) or the kubelet of this machine",
            **facts,
        )
    if status != "True":
        return warning(f"the Node {name} is not Ready: {ready.get('message') or 'no reason is given'}", "", **facts)
    if age is None:
        return warning(
            f"the Node {name} is Ready, and no program keeps it so: it has no Lease",
            "start the agent (mooring agent install): without it the Node is not Ready after 50 s",
            **facts,
        )
    return ok(f"the Node {name} is Ready, with a heartbeat {round(age.total_seconds())} s ago", **facts)
