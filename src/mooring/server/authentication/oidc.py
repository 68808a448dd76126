"""Runs the authenticator of OpenID Connect: it fetches and renews the keys of issuers, and follows their configuration.

Rules kept here (docs/protocol/openid-connect.md#flags, docs/protocol/openid-connect.md#authenticationconfiguration):
* At start the configuration is in force at once. Each provider is asked for its keys every RETRY_SECONDS until it gives them, and
  again when their life has ended.
* A changed configuration comes into force when every issuer of it has given its keys. Until then the old one stays in force, and
  after HEALTHY_SECONDS the log names the issuers that are missing. A newer change replaces one that still waits. kube-apiserver
  also tries again every minute until a changed file works.
* Connections of the old configuration stay open for LINGER_SECONDS, for requests under way.
* Each provider is verified under its own CA, or under the machine's roots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from mooring.authn.anonymous import AnonymousAccess, AnonymousSettings
from mooring.authn.host import Configured, Files, Gauge, Host, Running, Target
from mooring.authn.oidc.authenticationconfig import AuthenticationConfiguration, from_flags, parse
from mooring.authn.oidc.authenticator import IssuerConfig, JwtIssuer, OidcAuthenticator, discover
from mooring.authn.oidc.settings import OidcSettings
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.clock import wait_until
from mooring.errors import ConfigError
from mooring.observed import Observed
from mooring.trust.oidc.discovery import ProviderError

log = logging.getLogger("mooring.authentication")

RETRY_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
LINGER_SECONDS = 60.0
TARGETS = "oidc/"
"""Prefix of the names of targets."""


def build(config: Configured, host: Host) -> Running:
    """Return the authenticator, or none without issuers in flags and without a file. Raises ConfigError."""
    settings = config[OidcSettings]
    if not settings.oidc_issuer_url and not settings.authentication_config:
        return Running(authenticators=(), gauges=(_unready(lambda: 0),))
    authenticator = OidcAuthenticator()
    issuers = Issuers(authenticator, host.configuration.issuers, host)
    host.configuration.subscribe(issuers.change)
    return Running(
        authenticators=(authenticator,),
        turned_on_by="authentication-config" if settings.authentication_config else "oidc-issuer-url",
        gauges=(_unready(lambda: issuers.unready),),
        start=issuers.start,
        close=issuers.close,
    )


def _unready(read: Callable[[], float]) -> Gauge:
    return Gauge("mooring_oidc_issuers_unready", "Issuers whose keys are not known.", read)


class FollowedConfiguration(Observed[[tuple[IssuerConfig, ...]]]):
    """The AuthenticationConfiguration of one server, followed in its file or with the CA that the flags name."""

    def __init__(self, config: Configured, files: Files) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._settings = config[OidcSettings]
        self._own_issuers = config[ServiceAccountSettings].service_account_issuer
        self._anonymous_given = config[AnonymousSettings].anonymous_auth is not None
        super().__init__()
        self.issuers: tuple[IssuerConfig, ...] = ()
        self.anonymous: AnonymousAccess | None = None
        settings = self._settings
        if settings.oidc_issuer_url:
            if settings.oidc_issuer_url in self._own_issuers:
                raise ConfigError(
                    f"oidc-issuer-url: {settings.oidc_issuer_url} is the issuer of this server's own tokens"
                )
            path = settings.oidc_ca_file
            self.issuers = (from_flags(settings, files.follow(path, self._change_ca) if path else b""),)
        elif settings.authentication_config:
            first = self._parse(files.follow(settings.authentication_config, self._change_file))
            self.issuers, self.anonymous = first.issuers, first.anonymous

    def _parse(self, data: bytes) -> AuthenticationConfiguration:
        path = self._settings.authentication_config
        return parse(data, path, own_issuers=self._own_issuers, anonymous_given=self._anonymous_given)

    def _change_ca(self, ca_pem: bytes) -> None:
        self.notify((from_flags(self._settings, ca_pem),))

    def _change_file(self, data: bytes) -> None:
        changed = self._parse(data)
        if changed.anonymous != self.anonymous:
            raise ConfigError(
                f"{self._settings.authentication_config}: anonymous: it cannot change while the server runs; restart the server"
            )
        self.notify(changed.issuers)


@dataclass(slots=True)
class _Keeper:
    """One issuer and the task that renews its keys. `ready` is set when its keys were fetched once."""

    issuer: JwtIssuer
    target: Target
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Issuers:
    """The issuers of one server. Call `start` in the event loop, `change` at any time after it, and `close` at the end."""

    def __init__(self, authenticator: OidcAuthenticator, configs: Sequence[IssuerConfig], host: Host) -> None:
        """`configs` are in force at once. Raises ConfigError."""
        self._authenticator = authenticator
        self._host = host
        self._made = 0
        self._waiting: list[_Keeper] = []
        self._changing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._configs = tuple(configs)
        self._keepers = self._make_keepers(configs)
        authenticator.replace(keeper.issuer for keeper in self._keepers)

    @property
    def unready(self) -> int:
        """Issuers in force whose keys are not known."""
        return sum(issuer.known(self._host.clock.now()) is None for issuer in self._authenticator.issuers)

    def start(self) -> None:
        """Begin to fetch keys."""
        self._renew(self._keepers)

    def change(self, configs: Sequence[IssuerConfig]) -> None:
        """Put these issuers in force as soon as all have given their keys. Raises ConfigError."""
        if self._changing is not None:
            self._changing.cancel()
            self._changing = None
            self._begin(self._end(self._waiting), "oidc-end")
        if tuple(configs) == self._configs:
            return
        self._waiting = self._make_keepers(configs)
        self._renew(self._waiting)
        self._changing = self._begin(self._take_over(tuple(configs), self._waiting), "oidc-change")

    async def close(self) -> None:
        """Stop fetching, and close all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in [name for name in self._host.targets if name.startswith(TARGETS)]:
            await self._host.targets[name].close()

    def _make_keepers(self, configs: Sequence[IssuerConfig]) -> list[_Keeper]:
        targets = [self._host.connect.https(config.url, config.ca_pem) for config in configs]
        keepers = []
        for config, target in zip(configs, targets, strict=True):
            self._made += 1
            name = f"{TARGETS}{self._made}"
            self._host.targets[name] = target
            keepers.append(_Keeper(JwtIssuer(config, name, self._host.credentials_changed), target))
        return keepers

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _renew(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            keeper.task = self._begin(self._renew_forever(keeper), f"{keeper.issuer.provider.target} keys")

    async def _renew_forever(self, keeper: _Keeper) -> None:
        issuer = keeper.issuer
        while True:
            before = issuer.problem
            await self._fetch(issuer)
            if issuer.published is not None:
                keeper.ready.set()
            if not issuer.problem and issuer.published is not None:
                if before:
                    log.info("the keys of the issuer %s are known", issuer.config.url)
                await wait_until(self._host.clock, self._host.clock.now() + issuer.published.life)
            else:
                if issuer.problem != before:
                    log.warning("the issuer %s does not give its keys: %s", issuer.config.url, issuer.problem)
                await self._host.clock.sleep(RETRY_SECONDS)

    async def _fetch(self, issuer: JwtIssuer) -> None:
        try:
            issuer.learn(await self._host.exchanges.drive(discover(issuer.provider)), self._host.clock.now())
        except ProviderError as error:
            issuer.fail(str(error))

    async def _take_over(self, configs: tuple[IssuerConfig, ...], keepers: list[_Keeper]) -> None:
        late = asyncio.create_task(self._log_missing(keepers))
        try:
            for keeper in keepers:
                await keeper.ready.wait()
        finally:
            late.cancel()
        self._changing = None
        old, self._keepers, self._configs = self._keepers, keepers, configs
        self._authenticator.replace(keeper.issuer for keeper in keepers)
        self._host.credentials_changed()
        log.info("the changed authentication configuration is in force: %d issuers", len(keepers))
        self._begin(self._linger(old), "oidc-linger")

    async def _log_missing(self, keepers: Sequence[_Keeper]) -> None:
        await self._host.clock.sleep(HEALTHY_SECONDS)
        missing = [keeper.issuer for keeper in keepers if not keeper.ready.is_set()]
        log.error(
            "the changed authentication configuration is not used and the old one stays in force, until every issuer has given "
            "its keys: %s", "; ".join(f"{issuer.config.url}: {issuer.problem}" for issuer in missing),
        )  # fmt: skip

    async def _linger(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            if keeper.task is not None:
                keeper.task.cancel()
        await self._host.clock.sleep(LINGER_SECONDS)
        await self._end(keepers)

    async def _end(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            if keeper.task is not None:
                keeper.task.cancel()
            await keeper.target.close()
            self._host.targets.pop(keeper.issuer.provider.target, None)
