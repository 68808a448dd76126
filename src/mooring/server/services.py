"""What endpoints may use, assembled once by the plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mooring.apimachinery.resource import Resource
from mooring.authn.authenticator import Authenticator
from mooring.authz.attributes import Attributes
from mooring.authz.decision import Decision
from mooring.authz.rbac.authorizer import Rbac
from mooring.clock import Clock
from mooring.pki.jwt.token import TokenKeys, TokenSigner
from mooring.pki.keys import PublicKey
from mooring.pki.x509.authority import Authority
from mooring.registry.store import Registry
from mooring.server.authentication.secondstage import SecondStage
from mooring.server.healthchecks import HealthChecks
from mooring.server.metrics import Metrics
from mooring.server.refusedrequests import Refusals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Services:
    """The parts of one server process."""

    registry: Registry
    clock: Clock
    entropy: Callable[[int], bytes]
    authorize: Callable[[Attributes], Decision]
    authenticators: Sequence[Authenticator]
    second_stage: SecondStage
    refusals: Refusals
    rbac: Rbac
    audiences: Sequence[str]
    tokens: TokenKeys
    issuer: str
    jwks_uri: str
    max_token_seconds: int
    extend_tokens: bool
    login_ttl: timedelta
    """The life of what a login gets; zero: there is none."""
    login_from_request_header: bool
    """Whether whom an authenticating proxy names may get one."""
    authority: Authority
    own_ca_believed: Callable[[], bool]
    """Whether a certificate of `authority` is one that clients may show here, now."""
    health: HealthChecks
    metrics: Metrics
    resources: Sequence[Resource]
    server_address: str
    """`host:port` under which clients reach this server, as discovery documents name it."""

    @property
    def token_signer(self) -> TokenSigner:
        """Who signs tokens now."""
        return self.tokens.signer

    @property
    def token_keys(self) -> Sequence[PublicKey]:
        """What verifies tokens now."""
        return self.tokens.public_keys
