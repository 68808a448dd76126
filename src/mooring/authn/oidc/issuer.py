"""One issuer of tokens: its configuration and the keys that it published.

Rules kept here (docs/protocol/openid-connect.md):
* Until its keys were fetched once, every token of the issuer is rejected as `provider-not-ready`.
* Keys stay in use while the provider cannot be reached, for KEEP beyond their life.
* A signature that no known key verifies makes the server fetch the keys again, because they may have been rotated: at most once
  in HOLD for an issuer, however many tokens arrive. Requests during the fetch wait for its result; later ones are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.authn.claims.mapping import Identification
from mooring.authn.oidc.idtoken import Expected
from mooring.authn.oidc.provider import OidcProvider, Published
from mooring.authn.oidc.settings import SIGNING_ALGORITHMS

KEEP = timedelta(hours=24)
"""ID tokens rarely live longer: an outage locks no user out, and a withdrawn key ends."""
HOLD = timedelta(seconds=10)
"""Longer than a fetch may take (REFRESH_SECONDS), so that every request that waited for it gets its result."""
REFRESH_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerConfig:
    """Configuration of an issuer. `ca_pem` empty: the machine's own roots verify it."""

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
    """One issuer in use. The runtime reports each fetch with `learn` or `fail`."""

    def __init__(self, config: IssuerConfig, target: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of the keys."""
        self.config = config
        self._changed = changed
        self.provider = OidcProvider(config.url, target, config.discovery_url)
        self.published: Published | None = None
        self.problem = "its keys have not been fetched yet"
        self.changes = 0
        """Number of changes of the keys. Verdicts from before the last change are not reused."""
        self._fetched_at: datetime | None = None
        self._fetch_began: datetime | None = None
        self._fetching = False

    def learn(self, published: Published, now: datetime) -> None:
        """Use these keys, fetched at `now`."""
        before, self.published = self.published, published
        self.problem = ""
        self._fetched_at = now
        if before is None or before.keys.digest != published.keys.digest:
            self.changes += 1
            self._changed()

    def fail(self, problem: str) -> None:
        """Note the reason of a failed fetch. The known keys stay in use."""
        self.problem = problem

    def known(self, now: datetime) -> Published | None:
        """Return the published keys; None when they are too old or unknown."""
        if self.published is None or self._fetched_at is None or now - self._fetched_at > self.published.life + KEEP:
            return None
        return self.published

    def may_fetch(self, now: datetime) -> bool:
        """Return whether a token may make the server fetch the keys: a fetch is under way, or the last one is HOLD ago."""
        if not self._fetching and (self._fetch_began is None or not timedelta(0) <= now - self._fetch_began < HOLD):
            self._fetch_began = now
            self._fetching = True
        return self._fetching

    def fetch_ended(self) -> None:
        """Clear the mark of the fetch under way, whether it succeeded or failed."""
        self._fetching = False
