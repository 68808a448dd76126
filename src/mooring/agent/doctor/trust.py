"""Steps of trust: cluster-info, signature and pin, and the token, whose secret is sent to a verified server only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mooring.agent.doctor import supervisor
from mooring.agent.doctor.examination import Examination, ProbedAddress
from mooring.agent.join import REVIEW, REVIEW_PATH, RULES_ADVICE, identity_refusal
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.errors import ForbiddenError, MooringError, NotFoundError, UnauthorizedError
from mooring.trust.answertext import explained_by
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.editedclusterinfo import credentials_in
from mooring.trust.discovery.errors import NotSetUpError, SignatureMissingError, UnusableClusterInfoError
from mooring.trust.discovery.fetch import pinned_ca, read_cluster_info
from mooring.trust.doctor import WARNING, Judgement, failed, failed_by, ok, skipped, warning
from mooring.trust.joinconfiguration import ByAddress, vouched_cas

ACCESS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REQUESTS = {"group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create"}
ACCESS: Obj = {
    "kind": "SelfSubjectAccessReview",
    "apiVersion": "authorization.k8s.io/v1",
    "spec": {"resourceAttributes": REQUESTS},
}


async def check_cluster_info(exam: Examination, target: ProbedAddress) -> Judgement:
    """Fetch the public part of the cluster, which nothing has proved yet."""
    options = exam.options
    if exam.joins_k3s_way_alone:
        await supervisor.published_cas(exam, target)
        return ok("a supervisor of k3s publishes its CA (/cacerts)", signers=[])
    if target.way.ca_pem and not (options.token or options.pins or options.ca_hash or options.document):
        return skipped("the files of this machine hold the CA of the cluster")
    step = f"fetching cluster-info from {target.address}"
    target.data = read_cluster_info(step, await exam.fetch_cluster_info(target))
    if not target.data.get(clusterinfo.KUBECONFIG_KEY):
        raise NotSetUpError(step)
    facts = {"signers": target.signers}
    try:
        found = exam.published(target, target.data)
    except UnusableClusterInfoError as error:
        if options.document is None:
            raise
        # The document vouches for the cluster.
        return replace(failed_by(str(error), **facts), result=WARNING)
    if credentials := credentials_in({"data": target.data}):
        text = "cluster-info is public, and anonymous callers read the credentials in it"
        return warning(f"{text}: {'; '.join(credentials)}", "remove them, and replace them", **facts)
    if not found.ca_pem:
        remedy = (
            "machines verify its servers by their own roots, and no pin can be compared: join by a discovery document"
        )
        return warning("cluster-info names no CA", remedy, **facts)
    return ok(f"cluster-info is there; tokens that sign it: {len(target.signers)}", **facts)


async def check_signature(exam: Examination, target: ProbedAddress) -> Judgement:
    """Verify the signature of cluster-info by the token."""
    token = exam.options.token
    if exam.joins_k3s_way_alone:
        return skipped("k3s's way has no signature: the hash in the token vouches for the CA")
    if token is None:
        return skipped("no token is given")
    if exam.options.document is not None:
        return skipped("the discovery document vouches for the cluster")
    facts = {"tokenId": token.id, "signers": target.signers}
    try:
        clusterinfo.verify(target.data, token, "cluster-info")
    except MooringError as error:
        judgement = failed_by(str(error), **facts)
        if not isinstance(error, SignatureMissingError):
            return judgement
        if exam.is_pinned and not _is_vouched_for(exam, target):
            return failed(
                f"another cluster answers at {target.address}: no CA that it names is pinned, and token id {token.id} is not of it",
                "check the address, which must be one of the cluster that made this token",
                **facts,
            )
        return replace(
            judgement, message=f"{judgement.message} (tokens that sign: {', '.join(target.signers) or 'none'})"
        )
    if not exam.is_pinned:
        target.trusted = exam.published(target, target.data)
    return ok(f"cluster-info is signed by token {token.id}", **facts)


def _is_vouched_for(exam: Examination, target: ProbedAddress) -> bool:
    """Return whether cluster-info names a CA of the pins and the hash that were given."""
    try:
        vouched_cas(exam.published(target, target.data).ca_pem, exam.options.pins, exam.options.ca_hash)
    except MooringError:
        return False
    return True


async def check_pin(exam: Examination, target: ProbedAddress) -> Judgement:
    """Compare the CA with the pins, and prove that it verifies the server. Decide by which way credentials may be sent."""
    options = exam.options
    if exam.joins_k3s_way_alone:
        ca_pem, judgement = await supervisor.prove(exam, target)
        target.trusted = replace(target.way, ca_pem=ca_pem)
        return judgement
    if options.document is not None:
        target.trusted = target.way
        return skipped("the discovery document holds the CA")
    if not exam.is_pinned:
        if target.trusted is not None and target.way.ca_pem:
            return skipped("no pin is given; the files of this machine hold the CA")
        if target.trusted is not None:
            return warning(
                "no pin is given: the token alone vouches for the cluster",
                "give --discovery-token-ca-cert-hash, as mooring token create --print-join-command prints it",
            )
        if target.way.ca_pem:
            target.trusted = target.way
        return skipped("no pin is given")
    found = exam.published(target, target.data)
    anchors = vouched_cas(found.ca_pem, options.pins, options.ca_hash)
    if options.token is not None:
        by = ByAddress((target.address,), options.token, options.pins, options.ca_hash)
        await exam.drive(by.discover(exam.polling))
    else:
        await exam.drive(pinned_ca(target.way.server, options.pins))
    target.trusted = replace(found, ca_pem=anchors)
    if exam.files.is_member and exam.files.clusters and not exam.has_ca_of_files(found):
        if exam.is_own_cluster(target.data):
            return failed(
                "the CA of the cluster is pinned, and the files here name another CA for this cluster",
                "run this mooring join: the machine stays a member, and the CA of the cluster is written",
            )
        return failed(
            f"the CA of the cluster is pinned, and the files here are of another cluster ({exam.files.clusters[0].server})",
            "if this machine shall leave that cluster, run mooring leave first",
        )
    return ok("the CA of the cluster is pinned, and verifies the server")


async def check_token(exam: Examination, target: ProbedAddress) -> Judgement:
    """Send the token, and ask the server for its user and whether it may request certificates."""
    token, user, identity = exam.tls_token, exam.token_user(), exam.options.identity
    if exam.joins_k3s_way_alone and target.trusted is not None:
        return await supervisor.judge_token(exam, target, target.trusted.ca_pem)
    if user is None:
        return skipped("no token is given")
    named = str(identity) if identity is not None or token is None else f"token {token.id}"
    facts: dict[str, Any] = {"tokenId": token.id} if token is not None and identity is None else {}
    if target.trusted is None:
        return skipped("no CA is known with which the server could be verified")
    async with exam.client(target.trusted, user) as client:
        try:
            user_info = (await _reviewed(client, REVIEW_PATH, REVIEW)).get("userInfo") or {}
            may = (await _reviewed(client, ACCESS_PATH, ACCESS)).get("allowed", True)
        except UnauthorizedError as error:
            if identity is not None:
                return failed(identity_refusal(identity), RULES_ADVICE + explained_by(error.audit_id))
            return failed(
                f'the server does not accept token id "{facts["tokenId"]}": it is unknown, was deleted or revoked, has expired, '
                "its secret is wrong, it lacks the usage authentication, it is not for the network of this machine, or a limit in "
                "its annotations cannot be read",
                "list tokens on the server with `mooring token list`, make one with `mooring token create`"
                + explained_by(error.audit_id),
                **facts,
            )
    name, groups = str(user_info.get("username", "")), [str(one) for one in user_info.get("groups") or ()]
    facts |= {"username": name, "groups": groups}
    if not may:
        return failed(
            f"the server accepts {named} as {name}, and does not let it request certificates",
            "bind its groups to the ClusterRole system:node-bootstrapper",
            **facts,
        )
    return ok(f"the server accepts {named}{f' as {name}' if name else ''}", **facts)


async def _reviewed(client: ClusterClient, path: str, review: Obj) -> Obj:
    """Return the status of a review; empty from a server that does not serve it. Raises ApiError, PeerError."""
    try:
        return (await client.post_path(path, review)).get("status") or {}
    except (NotFoundError, ForbiddenError):
        return {}
