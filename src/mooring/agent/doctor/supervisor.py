"""Exchanges with the supervisor of k3s that may be at an address (docs/protocol/k3s.md#join-of-an-agent).

Rules kept here: nothing secret is sent before the CA has verified the server. Each exchange makes one attempt.
"""

from __future__ import annotations

from mooring.agent.doctor.examination import Examination, ProbedAddress
from mooring.errors import MooringError, PeerError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.trust.discovery.fetch import connection_error
from mooring.trust.doctor import Judgement, ok, skipped, warning
from mooring.trust.httpexchange import HttpFailure, HttpRequest, Trust
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.k3s.exchanges import UNPROVEN, SupervisorClient, establish_trust
from mooring.trust.k3s.identity import CACERTS
from mooring.trust.k3s.token import NODE


async def published_cas(exam: Examination, target: ProbedAddress) -> bytes:
    """Return the bundle of CAs, which nothing has proved. Raises PeerError."""
    step = f"fetching {target.url}{CACERTS}"
    reply = await exam.send(HttpRequest(UNPROVEN, url=target.url + CACERTS))
    if isinstance(reply, HttpFailure):
        raise connection_error(step, reply)
    try:
        if reply.status == 200:
            bundles.certificates(reply.body)
            return reply.body
        reason = f"the status is {reply.status}"
    except PkiError as error:
        reason = f"the response is not a bundle of CAs: {error}"
    raise PeerError(
        f"{step}: {reason}; no supervisor of k3s answers there: check the address and the port, or use a bootstrap token"
    )


async def vouched_cas(exam: Examination, target: ProbedAddress) -> bytes:
    """Return the CAs that the hash in the token vouches for; empty when it has none, or they are others."""
    if not exam.ca_hash_of_k3s:
        return b""
    try:
        return check_ca_hash(await published_cas(exam, target), exam.ca_hash_of_k3s)
    except MooringError:
        return b""


async def prove(exam: Examination, target: ProbedAddress) -> tuple[bytes, Judgement]:
    """Return the CAs with which the server is verified, and the judgement of the step `pin`. Raises DiscoveryError."""
    found = await exam.drive(establish_trust((target.url,), exam.ca_hash_of_k3s, exam.polling))
    if exam.ca_hash_of_k3s:
        return found.ca_pem, ok("the CA of the server is the one that the token names")
    if not found.ca_pem:
        return b"", ok("the CAs of this machine verify the server, and the token names no other")
    if exam.options.k3s_token is None:
        return found.ca_pem, warning(
            "no token is given, which would name the CA: a join trusts the CA that answers first"
        )
    return found.ca_pem, warning(
        "the token carries no hash of the CA: a join trusts the CA that answers first",
        "use the whole token of the server (K10<hash>::…)",
    )


async def judge_token(exam: Examination, target: ProbedAddress, ca_pem: bytes) -> Judgement:
    """Return the judgement of the token, by the configuration that the supervisor gives to agents. Raises DiscoveryError."""
    token = exam.options.k3s_token
    if token is None:
        return skipped("no token is given")
    if ca_pem and not token.ca_hash:
        return skipped("nothing vouches for the CA of the server, so that the token is not sent to it")
    trust = Trust(ca_pem, is_k3s=True)
    client = SupervisorClient((target.url,), trust, token=token.as_user(NODE), polling=exam.polling)
    await exam.drive(client.fetch_configuration())
    return ok("the supervisor accepts the token")
