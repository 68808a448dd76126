"""Steps of trust: cluster-info, signature and pin, and the token, whose secret is sent to a verified server only."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from mooring.agent.doctor.examination import NO_TOKEN, Examination, ProbedAddress
from mooring.client.cluster import ClusterClient
from mooring.client.http.requests import drive_notifying
from mooring.errors import ForbiddenError, MooringError, NotFoundError, UnauthorizedError
from mooring.trust.answertext import explained_by
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import SIGNATURE_PREFIX
from mooring.trust.discovery.errors import SignatureMissingError
from mooring.trust.discovery.fetch import (
    DiscoveryExchange,
    Polling,
    discover_by_token,
    pinned_ca,
    read_cluster_info,
)
from mooring.trust.doctor import (
    Judgement,
    failed,
    failed_by,
    ok,
    skipped,
    warning,
)
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.k3s.token import K3sToken

REVIEW_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ACCESS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def check_cluster_info(exam: Examination, target: ProbedAddress) -> Judgement:
    """Fetch the public part of the cluster, which nothing has proved yet."""
    options, k3s_token = exam.options, exam.options.k3s_token
    if exam.joins_k3s_way_alone:
        return await _published_by_supervisor(exam, target, k3s_token or NO_TOKEN)
    is_asked = options.token is not None or options.pins or options.ca_hash or options.document is not None
    if not is_asked and target.way.ca_pem:
        return skipped("the files of this machine hold the CA of the cluster")
    target.data = read_cluster_info(
        f"fetching cluster-info from {target.address}", await exam.fetch_cluster_info(target)
    )
    if not target.data.get(clusterinfo.KUBECONFIG_KEY):
        return failed(
            'the ConfigMap cluster-info has no key "kubeconfig"',
            "the cluster is not set up for token discovery: ask its administrator, or join with --discovery-file",
        )
    signers = _signers(target)
    return ok(f"cluster-info is there; tokens that sign it: {len(signers)}", signers=signers)


async def _published_by_supervisor(exam: Examination, target: ProbedAddress, token: K3sToken) -> Judgement:
    supervisor = exam.supervisor(target, token)
    await supervisor.published_cas()
    target.supervisor = supervisor
    return ok("a supervisor of k3s publishes its CA (/cacerts)", signers=[])


def _signers(target: ProbedAddress) -> list[str]:
    return sorted(one.removeprefix(SIGNATURE_PREFIX) for one in target.data if one.startswith(SIGNATURE_PREFIX))


async def check_signature(exam: Examination, target: ProbedAddress) -> Judgement:
    """Verify the signature of cluster-info by the token."""
    token = exam.options.token
    if target.supervisor is not None:
        return skipped("k3s's way has no signature: the hash in the token vouches for the CA")
    if token is None:
        return skipped("no token is given")
    if exam.options.document is not None:
        return skipped("the discovery document vouches for the cluster")
    signers = _signers(target)
    try:
        clusterinfo.verify(target.data, token, "cluster-info")
    except SignatureMissingError as error:
        listed = ", ".join(signers) or "none"
        judgement = failed_by(str(error), tokenId=token.id, signers=signers)
        return replace(judgement, message=f"{judgement.message} (tokens that sign: {listed})")
    except MooringError as error:
        return failed_by(str(error), tokenId=token.id, signers=signers)
    if not exam.is_pinned:
        target.trusted = exam.published(target)
    return ok(f"cluster-info is signed by token {token.id}", tokenId=token.id, signers=signers)


async def check_pin(exam: Examination, target: ProbedAddress) -> Judgement:
    """Compare the CA with the pins, and prove that it verifies the server. Decide by which way credentials may be sent."""
    options = exam.options
    if target.supervisor is not None:
        target.trusted_ca, judgement = await target.supervisor.prove()
        target.trusted = replace(target.way, ca_pem=target.trusted_ca.ca_pem)
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
    found = exam.published(target)
    anchors = exam.vouched(found.ca_pem)
    exchange: DiscoveryExchange[object]
    if options.token is not None:
        exchange = discover_by_token(
            (target.address,),
            options.token,
            options.pins,
            vouched=partial(check_ca_hash, wanted=options.ca_hash) if options.ca_hash else None,
            polling=Polling(attempts=1, total=options.timeout),
        )
    else:
        exchange = pinned_ca(target.way.server, options.pins)
    await drive_notifying(exchange, exam.send, exam.clock.sleep)
    target.trusted = replace(found, ca_pem=anchors)
    if exam.files.is_member and exam.files.clusters and not exam.has_ca_of_files(found):
        return failed(
            f"the CA of the cluster is pinned, and the files here are of another cluster ({exam.files.clusters[0].server})",
            "if this machine shall leave that cluster, run mooring leave first",
        )
    return ok("the CA of the cluster is pinned, and verifies the server")


async def check_token(exam: Examination, target: ProbedAddress) -> Judgement:
    """Send the token, and ask the server for its user and whether it may request certificates."""
    token, user = exam.options.token, exam.token_user()
    if target.supervisor is not None and target.trusted_ca is not None:
        if target.supervisor.token == NO_TOKEN:
            return skipped("no token is given")
        if target.trusted_ca.ca_pem and not target.supervisor.token.ca_hash:
            return skipped("nothing vouches for the CA of the server, so that the token is not sent to it")
        return await target.supervisor.judge_token(target.trusted_ca)
    if token is None or user is None:
        return skipped("no token is given")
    if target.trusted is None:
        return skipped("no CA is known with which the server could be verified")
    async with asyncio.timeout(exam.options.timeout), exam.client(target, user) as client:
        try:
            name, groups = await _whoami(client)
            may = await _may_request(client)
        except UnauthorizedError as error:
            return failed(
                f'the server does not accept token id "{token.id}": it is unknown, was deleted or revoked, has expired, its '
                "secret is wrong, it lacks the usage authentication, or it is not for the network of this machine",
                "list tokens on the server with `mooring token list`, make one with `mooring token create`"
                + explained_by(error.audit_id),
                tokenId=token.id,
            )
    facts = {"tokenId": token.id, "username": name, "groups": groups}
    if not may:
        return failed(
            f"the server accepts token {token.id} as {name}, and does not let it request certificates",
            "bind its groups to the ClusterRole system:node-bootstrapper",
            **facts,
        )
    return ok(f"the server accepts token {token.id}{f' as {name}' if name else ''}", **facts)


async def _whoami(client: ClusterClient) -> tuple[str, list[str]]:
    """Return name and groups of the caller; "" from a server without SelfSubjectReview. Raises ApiError, PeerError."""
    review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {}}
    try:
        found = await client.post_path(REVIEW_PATH, review)
    except (NotFoundError, ForbiddenError):
        return "", []
    info = (found.get("status") or {}).get("userInfo") or {}
    return str(info.get("username", "")), [str(one) for one in info.get("groups") or ()]


async def _may_request(client: ClusterClient) -> bool:
    """Return whether the caller may create certificate requests. Raises ApiError, PeerError."""
    wanted = {"group": "certificates.k8s.io", "resource": "certificatesigningrequests", "verb": "create"}
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": wanted},
    }
    try:
        found = await client.post_path(ACCESS_PATH, review)
    except (NotFoundError, ForbiddenError):
        return True
    return bool((found.get("status") or {}).get("allowed"))
