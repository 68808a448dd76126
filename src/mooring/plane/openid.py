"""Issuers of tokens at work: their keys are fetched and kept fresh, and a new configuration takes over when it works.

Rules kept here (docs/protocol/openid-connect.md):
* At start the configuration is in force at once; each provider is asked every RETRY_SECONDS until it gives its keys, and then
  again when what it gave has lived its time.
* A configuration that comes later takes over when every one of its issuers has given its keys; until then the old one judges,
  and after HEALTHY_SECONDS the log says who is late. Like kube-apiserver, which tries a file again that did not work within a
  minute, this goes on until it works. A configuration that comes while another waits takes its place.
* Connections of the old one stay for LINGER_SECONDS: requests that wait for an answer get it.
* Every provider is asked under its own trust: the CA that is named, or the machine's roots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mooring.authn.anonymous.authenticator import AnonymousAccess
from mooring.authn.oidc.authenticationconfig import AuthenticationConfiguration, from_flags, parse
from mooring.authn.oidc.authenticator import OidcAuthenticator
from mooring.authn.oidc.issuer import IssuerConfig, JwtIssuer
from mooring.authn.oidc.provider import ProviderError, discover
from mooring.client.http.tls import trusting, trusting_system_roots
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.plane.reloading import Reloading
from mooring.server.authentication.httptarget import HttpTarget
from mooring.server.authentication.secondstage import SecondStage, Target
from mooring.settings.authentication import AuthenticationOptions, OidcFlags

log = logging.getLogger("mooring.authentication")

RETRY_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
LINGER_SECONDS = 60.0


@dataclass(slots=True)
class _Keeper:
    """One issuer, whoever keeps its keys fresh, and whether it was ever ready."""

    issuer: JwtIssuer
    target: HttpTarget
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class OpenIdIssuers:
    """The issuers of one server. `begin`, then `start` in the event loop, `change` whenever, then `close`."""

    def __init__(
        self,
        authenticator: OidcAuthenticator,
        second_stage: SecondStage,
        targets: MutableMapping[str, Target],
        clock: Clock,
    ) -> None:
        self._authenticator = authenticator
        self._second_stage = second_stage
        self._targets = targets
        self._clock = clock
        self._configs: tuple[IssuerConfig, ...] = ()
        self._keepers: list[_Keeper] = []
        self._made = 0
        self._waiting: list[_Keeper] = []
        self._changing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unready(self) -> int:
        """Issuers in force whose keys are not known."""
        return sum(issuer.known(self._clock.now()) is None for issuer in self._authenticator.issuers)

    def begin(self, configs: Sequence[IssuerConfig]) -> None:
        """These are in force at once. Raises ConfigError."""
        self._configs = tuple(configs)
        self._keepers = self._keepers_of(configs)
        self._authenticator.replace(keeper.issuer for keeper in self._keepers)

    def start(self) -> None:
        """Ask for keys from now on."""
        self._keep(self._keepers)

    def change(self, configs: Sequence[IssuerConfig]) -> None:
        """Let these take over once they work. Raises ConfigError."""
        if self._changing is not None:
            self._changing.cancel()
            self._changing = None
            self._begun(self._end(self._waiting), "oidc-end")
        if tuple(configs) == self._configs:
            return
        self._waiting = self._keepers_of(configs)
        self._keep(self._waiting)
        self._changing = self._begun(self._take_over(tuple(configs), self._waiting), "oidc-change")

    async def close(self) -> None:
        """Stop asking. The targets are closed by who gave them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keepers_of(self, configs: Sequence[IssuerConfig]) -> list[_Keeper]:
        bundles = dict.fromkeys(one.ca_pem for one in configs)  # the machine's roots are 2 MB: once is enough
        contexts = {pem: trusting(pem) if pem else trusting_system_roots() for pem in bundles}
        keepers = []
        for config in configs:
            self._made += 1
            name = f"oidc/{self._made}"
            target = HttpTarget(config.url, contexts[config.ca_pem], self._clock)
            self._targets[name] = target
            keepers.append(_Keeper(JwtIssuer(config, name), target))
        return keepers

    def _begun(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            keeper.task = self._begun(self._kept_fresh(keeper), f"{keeper.issuer.provider.target} keys")

    async def _kept_fresh(self, keeper: _Keeper) -> None:
        """Ask for ever."""
        issuer = keeper.issuer
        while True:
            told = issuer.problem
            await self._ask(issuer)
            if issuer.published is not None:
                keeper.ready.set()
            if not issuer.problem and issuer.published is not None:
                if told:
                    log.info("the keys of the issuer %s are known", issuer.config.url)
                await self._clock.sleep(issuer.published.life.total_seconds())
            else:
                if issuer.problem != told:
                    log.warning("the issuer %s does not give its keys: %s", issuer.config.url, issuer.problem)
                await self._clock.sleep(RETRY_SECONDS)

    async def _ask(self, issuer: JwtIssuer) -> None:
        try:
            issuer.learn(await self._second_stage.drive(discover(issuer.provider)), self._clock.now())
        except ProviderError as error:
            issuer.fail(str(error))

    async def _take_over(self, configs: tuple[IssuerConfig, ...], keepers: list[_Keeper]) -> None:
        late = asyncio.create_task(self._tell_who_is_late(keepers))
        try:
            for keeper in keepers:
                await keeper.ready.wait()
        finally:
            late.cancel()
        self._changing = None
        old, self._keepers, self._configs = self._keepers, keepers, configs
        self._authenticator.replace(keeper.issuer for keeper in keepers)
        log.info("the changed authentication configuration is in force: %d issuers", len(keepers))
        self._begun(self._lingering(old), "oidc-linger")

    async def _tell_who_is_late(self, keepers: Sequence[_Keeper]) -> None:
        await self._clock.sleep(HEALTHY_SECONDS)
        late = [keeper.issuer for keeper in keepers if not keeper.ready.is_set()]
        log.error(
            "the changed authentication configuration is not used and the old one stays in force, until every issuer has given "
            "its keys: %s", "; ".join(f"{issuer.config.url}: {issuer.problem}" for issuer in late),
        )  # fmt: skip

    async def _lingering(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            if keeper.task is not None:
                keeper.task.cancel()
        await self._clock.sleep(LINGER_SECONDS)
        await self._end(keepers)

    async def _end(self, keepers: Sequence[_Keeper]) -> None:
        for keeper in keepers:
            if keeper.task is not None:
                keeper.task.cancel()
            await keeper.target.close()
            self._targets.pop(keeper.issuer.provider.target, None)


def configure(
    options: AuthenticationOptions, issuers: OpenIdIssuers, reloading: Reloading, own_issuers: Collection[str]
) -> AnonymousAccess | None:
    """Begin with the issuers that flags or a file name, and follow the files. What the file says of anonymous access.

    Raises ConfigError.
    """
    if options.oidc is not None:
        if options.oidc.issuer_url in own_issuers:
            raise ConfigError(f"oidc-issuer-url: {options.oidc.issuer_url} is the issuer of this server's own tokens")
        _follow_flags(options.oidc, issuers, reloading)
    return _follow_file(options, issuers, reloading, own_issuers) if options.config_file else None


def _follow_flags(flags: OidcFlags, issuers: OpenIdIssuers, reloading: Reloading) -> None:
    take = issuers.begin

    def apply(ca_pem: bytes) -> None:
        nonlocal take
        take((from_flags(flags, ca_pem),))
        take = issuers.change

    if flags.ca_file:
        reloading.add(flags.ca_file, apply)
    else:
        apply(b"")


def _follow_file(
    options: AuthenticationOptions, issuers: OpenIdIssuers, reloading: Reloading, own_issuers: Collection[str]
) -> AnonymousAccess | None:
    path = options.config_file
    first: list[AuthenticationConfiguration] = []

    def apply(data: bytes) -> None:
        found = parse(data, path, own_issuers=own_issuers, anonymous_said=options.anonymous_said)
        if not first:
            issuers.begin(found.issuers)
            first.append(found)
        elif found.anonymous != first[0].anonymous:
            raise ConfigError(f"{path}: anonymous: it cannot change while the server runs; restart the server")
        else:
            issuers.change(found.issuers)

    reloading.add(path, apply)
    return first[0].anonymous
