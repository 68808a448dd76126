"""Steps of a join k3s's way: the CA that a supervisor publishes, its proof, and the token (docs/protocol/k3s.md#join-of-an-agent).

Rules kept here: nothing secret is sent before the CA has verified the server. Each exchange makes one attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from mooring.client.http.requests import drive_notifying
from mooring.clock import Clock
from mooring.errors import MooringError, PeerError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.trust.discovery.fetch import DiscoveryExchange, Polling, connection_error
from mooring.trust.doctor import Judgement, failed_by, ok, warning
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.k3s.exchanges import UNPROVEN, SupervisorClient, TrustedCa, establish_trust
from mooring.trust.k3s.identity import CACERTS
from mooring.trust.k3s.token import NODE, K3sToken

R = TypeVar("R")
Send = Callable[[HttpRequest], Awaitable[HttpResponse | HttpFailure]]


@dataclass(frozen=True, slots=True)
class ProbedSupervisor:
    """A supervisor at a URL, and the token of the join."""

    url: str
    token: K3sToken
    seconds: float
    send: Send
    clock: Clock

    async def published_cas(self) -> bytes:
        """Return the bundle of CAs, which nothing has proved. Raises PeerError."""
        step = f"fetching {self.url}{CACERTS}"
        reply = await self.send(HttpRequest(UNPROVEN, url=self.url + CACERTS))
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

    async def vouched_cas(self) -> bytes:
        """Return the CAs that the hash in the token vouches for; empty when it has none, or they are others."""
        if not self.token.ca_hash:
            return b""
        try:
            return check_ca_hash(await self.published_cas(), self.token.ca_hash)
        except MooringError:
            return b""

    async def prove(self) -> tuple[TrustedCa, Judgement]:
        """Return the CA with which the server is verified, and the judgement of the step `pin`. Raises DiscoveryError."""
        found = await self._drive(establish_trust((self.url,), self.token.ca_hash, self._polling))
        if self.token.ca_hash:
            return found, ok("the CA of the server is the one that the token names")
        if not found.ca_pem:
            return found, ok("the CAs of this machine verify the server, and the token names no other")
        return found, warning(
            "the token carries no hash of the CA: a join trusts the CA that answers first",
            "use the whole token of the server (K10<hash>::…)",
        )

    async def judge_token(self, trusted: TrustedCa) -> Judgement:
        """Return the judgement of the token, by the configuration that the supervisor gives to agents."""
        token = self.token.as_user(NODE)
        client = SupervisorClient((self.url,), trusted.trust, token=token, polling=self._polling)
        try:
            await self._drive(client.fetch_configuration())
        except PeerError as error:
            return failed_by(str(error))
        return ok("the supervisor accepts the token")

    @property
    def _polling(self) -> Polling:
        return Polling(attempts=1, total=self.seconds)

    async def _drive(self, exchange: DiscoveryExchange[R]) -> R:
        return await drive_notifying(exchange, self.send, self.clock.sleep)
