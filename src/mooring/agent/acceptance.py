"""Checks of a client certificate with the server: is it accepted, and does the membership still exist?"""

from __future__ import annotations

from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.registration import CertificateRefusedError, check_registered
from mooring.agent.steps import retry
from mooring.apimachinery.schema import Obj
from mooring.client.cluster import ClusterClient
from mooring.clock import Clock
from mooring.errors import MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.trust.answertext import explained_by
from mooring.trust.kubeconfig import Cluster, KubeconfigUser

REFUSED_SECONDS = 5.0
"""Seconds for which 401 is retried."""


async def check_membership(
    pair: Pair,
    node_name: str,
    uid: str,
    clusters: tuple[Cluster, ...],
    clock: Clock,
    *,
    answer_needed: bool = False,
) -> None:
    """Raise MembershipEndedError when the server rejects the certificate, or the Node with `uid` was deleted.

    `answer_needed`: raise the error of a server that does not answer, too.
    """
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
