"""Follows the files of the cluster's CA, and renews what depends on them: the serving pair, the kubeconfigs, published bundles.

Rules kept here: the serving certificate and those of the kubeconfigs are also renewed while a server runs for months, when a third
of their life is left (`keystore.RENEW_LEFT`), and when the clock was set back to before their begin. A failed look is logged and
repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from mooring.clock import Clock, wait_until
from mooring.errors import MooringError
from mooring.plane.configuration import ServerConfig
from mooring.plane.files.reloading import Reloading
from mooring.plane.keys.cafiles import ca_files
from mooring.plane.keys.keystore import KeyStore, renew
from mooring.plane.serving.pair import ServingPair

log = logging.getLogger("mooring.plane")

LOOK = timedelta(hours=12)
"""Between two looks at the ends of the certificates, which are renewed months before."""


class CaRenewal:
    """Brings the CA of the data directory into force in one server."""

    def __init__(
        self,
        config: ServerConfig,
        key_store: KeyStore,
        serving: ServingPair,
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._config = config
        self._key_store = key_store
        self._serving = serving
        self._clock = clock
        self._entropy = entropy

    def follow(self, reloading: Reloading) -> None:
        """Bring each later change of the files into force, unless the CA is in memory only."""
        if self._key_store.pki is not None:
            reloading.follow_files(ca_files(self._key_store.pki), self.prepare)

    def prepare(self) -> Callable[[], None]:
        """Read the CA, write the files that depend on it, and return the function that brings both into force.

        Raises ConfigError for files that do not belong together.
        """
        renewed = renew(self._config, self._clock.now(), self._entropy)

        def use() -> None:
            self._key_store.ca.replace(renewed.state)
            self._serving.follow_ca(renewed.serving)

        return use

    async def run(self) -> None:
        """Renew the certificates that need it twice a day, and after a jump of the wall clock, until cancelled."""
        while True:
            await wait_until(self._clock, self._clock.now() + LOOK)
            try:
                use = await asyncio.to_thread(self.prepare)
                use()
            except (MooringError, OSError) as error:
                log.error("the certificates of this server could not be renewed: %s", error)
