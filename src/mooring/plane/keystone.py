"""Keystone at work: whom to ask, under which trust, and what is remembered of it.

Rules kept here (docs/protocol/authentication.md#removed-authenticators): TLS is verified always, under `--keystone-ca-file` or the
machine's roots; the file is followed. A new CA forgets who was accepted under the one before, and who still waits for an answer
gets it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, MutableMapping
from datetime import timedelta

from mooring.authn.keystone.authenticator import DEADLINE, TARGET, KeystoneAuthenticator, tokens_url
from mooring.authn.verdictcache import KEY_BYTES, VerdictCache
from mooring.client.http.tls import trusting, trusting_system_roots
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.plane.reloading import Reloading
from mooring.server.authentication.httptarget import HttpTarget
from mooring.server.authentication.secondstage import Target
from mooring.settings.authentication import Keystone


class KeystoneService:
    """The Keystone of one server. Raises ConfigError for a CA that cannot be used."""

    def __init__(
        self,
        options: Keystone,
        cache_ttl: timedelta,
        reloading: Reloading,
        targets: MutableMapping[str, Target],
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.authenticator = KeystoneAuthenticator(options.user_domain, VerdictCache(entropy(KEY_BYTES), cache_ttl))
        self._url = tokens_url(options.url)
        self._targets = targets
        self._clock = clock
        self._target: HttpTarget | None = None
        self._retiring: dict[asyncio.Task[None], HttpTarget] = {}
        if options.ca_file:
            reloading.add(options.ca_file, self._trust)
        else:
            self._ask_under(trusting_system_roots())

    async def close(self) -> None:
        """End the connections of targets that are no longer asked; the present one is closed by who gave the targets."""
        retiring = dict(self._retiring)
        for task, target in retiring.items():
            task.cancel()
            await target.close()
        await asyncio.gather(*retiring, return_exceptions=True)

    def _trust(self, ca_pem: bytes) -> None:
        try:
            context = trusting(ca_pem)
        except ConfigError as error:
            raise ConfigError(f"keystone-ca-file: {error}") from None
        self._ask_under(context)

    def _ask_under(self, context: ssl.SSLContext) -> None:
        old, self._target = self._target, HttpTarget(self._url, context, self._clock)
        self._targets[TARGET] = self._target
        self.authenticator.forget()
        if old is not None:
            task = asyncio.get_running_loop().create_task(self._retire(old), name="keystone-retire")
            self._retiring[task] = old
            task.add_done_callback(lambda done: self._retiring.pop(done, None))

    async def _retire(self, target: HttpTarget) -> None:
        await self._clock.sleep(DEADLINE)
        await target.close()
