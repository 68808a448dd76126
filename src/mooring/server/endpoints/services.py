"""Parts that handlers of endpoints use, one field for each group of endpoints. The plane builds them once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mooring.pki.x509.revocationlist import SignedList
from mooring.server.endpoints.debugauthentication import Explanations
from mooring.server.endpoints.encryptionatrest import EncryptionReport
from mooring.server.endpoints.issuerdiscovery import TokenIssuer
from mooring.server.endpoints.leave import Departures
from mooring.server.endpoints.login import LoginParts
from mooring.server.endpoints.reviews import Reviewers
from mooring.server.endpoints.servedapi import ServedApi
from mooring.server.endpoints.status import StatusReport
from mooring.server.endpoints.tokenrequest import TokenRequests
from mooring.server.healthchecks import HealthChecks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Services:
    """Parts of one server process. A handler gets one field, and not the whole."""

    api: ServedApi
    health: HealthChecks
    metrics: Callable[[], Awaitable[bytes]]
    """Returns the metrics in the Prometheus text format."""
    reviewers: Reviewers
    token_requests: TokenRequests
    issuer: TokenIssuer
    logins: LoginParts
    departures: Departures
    explanations: Explanations
    encryption: EncryptionReport
    revocation_list: Callable[[], SignedList | None]
    """Returns the newest CRL."""
    status: StatusReport
