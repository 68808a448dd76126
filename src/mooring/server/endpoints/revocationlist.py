"""Serve GET `/mooring/v1/crl`: the CRL of the cluster's CA, as PEM or DER.

Rules kept here:
* `Accept: application/pkix-crl` gets DER (RFC 2585); any other request gets PEM.
* The list is signed beforehand. A request costs no more than its bytes, which all replies share.
* RBAC decides which users may read it (ClusterRole `mooring:certificate-revocation-list`).
"""

from __future__ import annotations

from collections.abc import Callable

from mooring.apimachinery.negotiation import parse_accept
from mooring.errors import ServiceUnavailableError
from mooring.pki.x509.revocationlist import SignedList
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Response

DER = "application/pkix-crl"
PEM = "application/x-pem-file"


async def revocation_list(context: RequestContext, current: Callable[[], SignedList | None]) -> Response:
    """Answer with the newest list. Raises ServiceUnavailableError when this server has none."""
    signed = current()
    if signed is None:
        raise ServiceUnavailableError(
            "this server has no CRL: it has just started, or its CA may not sign one (cRLSign); its log says which"
        )
    clauses = parse_accept(context.request.header(b"accept"))
    wants_der = bool(clauses) and f"{clauses[0].type}/{clauses[0].subtype}" == DER
    body, media = (signed.der, DER) if wants_der else (signed.pem, PEM)
    return Response(200, body, (content_type(media),))
