"""One issuer of tokens: what the configuration says of it, and what was learnt of it since.

Rules kept here (docs/protocol/openid-connect.md):
* Before its keys are known for the first time every token of the issuer is refused, as `provider-not-ready`.
* Keys are kept while the provider cannot be reached, but not for ever: after KEEP beyond their life they are not believed.
* A signature that no known key verifies is a reason to ask for the keys again: a rotation. At most once in HOLD per issuer,
  whoever sends how many tokens with whatever key ids. Who comes while somebody asks waits for the same answer; who comes
  after it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.authn.claims.mapping import Identification
from mooring.authn.oidc.idtoken import Expected
from mooring.authn.oidc.provider import Provider, Published
from mooring.authn.oidc.settings import SIGNING_ALGORITHMS

KEEP = timedelta(hours=24)
"""ID tokens rarely live longer: an outage locks nobody out who could still come in, and a withdrawn key ends."""
HOLD = timedelta(seconds=10)
"""Longer than one finding-out may take (REFRESH_SECONDS), so that who waited for it is told what it found."""
REFRESH_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerConfig:
    """What the operator says of an issuer. `ca_pem` empty: the machine's own roots verify it."""

    url: str
    audiences: tuple[str, ...]
    identification: Identification
    discovery_url: str = ""
    ca_pem: bytes = b""
    algorithms: tuple[str, ...] = SIGNING_ALGORITHMS

    @property
    def expected(self) -> Expected:
        return Expected(self.audiences, self.algorithms)


class JwtIssuer:
    """One issuer at work. Whoever asks the provider tells it what came of that."""

    def __init__(self, config: IssuerConfig, target: str) -> None:
        self.config = config
        self.provider = Provider(config.url, target, config.discovery_url)
        self.published: Published | None = None
        self.problem = "its keys have not been asked for yet"
        self.changes = 0
        """How often its keys became others: what was verified before is not known to hold."""
        self._learnt: datetime | None = None
        self._asked: datetime | None = None
        self._asking = False

    def learn(self, published: Published, now: datetime) -> None:
        """Its keys, as of now."""
        if self.published is None or self.published.keys.digest != published.keys.digest:
            self.changes += 1
        self.published = published
        self.problem = ""
        self._learnt = now

    def fail(self, problem: str) -> None:
        """It could not be asked; what is known stays in force."""
        self.problem = problem

    def known(self, now: datetime) -> Published | None:
        """What it published, unless that is too old to be believed."""
        if self.published is None or self._learnt is None or now - self._learnt > self.published.life + KEEP:
            return None
        return self.published

    def may_ask(self, now: datetime) -> bool:
        """Whether its keys are asked for because of a token, by this one or by somebody who can be waited for."""
        if not self._asking and (self._asked is None or not timedelta(0) <= now - self._asked < HOLD):
            self._asked = now
            self._asking = True
        return self._asking

    def asked(self) -> None:
        """The asking has ended, however it did."""
        self._asking = False
