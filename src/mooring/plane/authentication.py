"""Who may call: options, files and keys become the authenticators of one server.

Rules kept here: what is wrong at start stops the start, with the file's name; what changes later is followed by `Reloading`.
Each way of authenticating that needs a file, a key or somebody to ask has one function here, which reads in the order in which
the authenticators are asked.
"""

from __future__ import annotations

from collections.abc import Callable

from mooring.authn import table
from mooring.authn.anonymous.authenticator import AnonymousAccess
from mooring.authn.authenticator import Authenticator
from mooring.authn.chain import BASIC
from mooring.authn.oidc.authenticator import OidcAuthenticator
from mooring.authn.serviceaccount.lastuses import LastUses
from mooring.clock import Clock
from mooring.pki.x509.verify import ClientTrust
from mooring.plane.clientbundles import ClientBundles
from mooring.plane.configuration import ServerConfig
from mooring.plane.keystone import KeystoneService
from mooring.plane.keystore import KeyStore
from mooring.plane.openid import OpenIdIssuers, configure
from mooring.plane.ownauthenticators import OwnAuthenticators
from mooring.plane.reloading import Reloading
from mooring.plane.tokenkeys import FollowedTokenKeys
from mooring.plane.userfiles import password_file, token_file
from mooring.plane.webhook import TokenWebhook
from mooring.server.authentication.httptarget import HttpTarget
from mooring.server.authentication.secondstage import SecondStage, Target
from mooring.settings.authorization import AuthorizationSettings


class Authentication:
    """The authenticators of one server, and what they need to live. `start` once, then `stop`."""

    def __init__(
        self,
        config: ServerConfig,
        key_store: KeyStore,
        clock: Clock,
        entropy: Callable[[int], bytes],
        *,
        client_cas_changed: Callable[[], None],
        count_review: Callable[[str], None],
    ) -> None:
        """Raises ConfigError for whatever the options name that cannot be used."""
        self._clock = clock
        self._entropy = entropy
        self.reloading = Reloading()
        self._targets: dict[str, Target] = {}
        self.tokens = FollowedTokenKeys(key_store, config.service_accounts.issuer, self.reloading)
        self.verification_keys = self.tokens.keys.verifying
        self.last_uses = LastUses()
        self.second_stage = SecondStage(clock, entropy, self._targets)
        options = config.authentication
        self.bundles = ClientBundles(options, key_store.authority.certificate, self.reloading, client_cas_changed)
        oidc = OidcAuthenticator() if options.oidc or options.config_file else None
        self.openid = OpenIdIssuers(oidc or OidcAuthenticator(), self.second_stage, self._targets, clock)
        said = configure(options, self.openid, self.reloading, config.service_accounts.issuers)
        audiences = config.service_accounts.audiences
        self.webhook = (
            TokenWebhook(options.webhook, audiences, self.reloading, self._targets, clock, entropy, count_review)
            if options.webhook
            else None
        )
        self.keystone = (
            KeystoneService(options.keystone, options.cache_ttl, self.reloading, self._targets, clock, entropy)
            if options.keystone
            else None
        )
        self.own = OwnAuthenticators(options.own, entropy)
        anonymous = said or AnonymousAccess(config.anonymous_auth)
        self.authenticators: tuple[Authenticator, ...] = table.build(
            table.Settings(
                request_header=self.bundles.request_header,
                client_trust=ClientTrust(self.bundles.clients),
                token_file=token_file(options, self.reloading, entropy),
                issuers=config.service_accounts.issuers,
                service_account_keys=self.verification_keys,
                service_account_lookup=config.service_accounts.lookup,
                api_audiences=config.service_accounts.audiences,
                last_uses=self.last_uses,
                bootstrap_tokens=True,
                user_token_keys=self.verification_keys if options.login_ttl else None,
                oidc=oidc,
                webhook=self.webhook.authenticator if self.webhook else None,
                password_file=password_file(options, self.reloading, entropy),
                keystone=self.keystone.authenticator if self.keystone else None,
                own=self.own.authenticators,
                anonymous=anonymous.enabled and not config[AuthorizationSettings].always_allow,
                anonymous_paths=anonymous.paths,
            )
        )
        self.schemes = self.own.schemes | ({BASIC: "Basic"} if options.passwords else {})
        """The schemes beside Bearer that an authenticator judges: by their names in lower case, as a challenge spells them."""
        self.bundles.follow_with(self.authenticators)
        self.tokens.follow_with(self.authenticators)

    def start(self) -> None:
        """Ask for what must be asked for before anybody comes."""
        self.openid.start()

    async def close(self) -> None:
        """Stop asking, and end connections."""
        await self.openid.close()
        await self.second_stage.close()
        await self.own.close()
        if self.webhook:
            await self.webhook.close()
        if self.keystone:
            await self.keystone.close()
        for target in self._targets.values():
            if isinstance(target, HttpTarget):
                await target.close()
