"""The token webhook at work: its kubeconfig and the files that names are followed, and what becomes of it is told.

Rules kept here:
* What is wrong at start stops the start; the error names the flag, the file, and the cluster or the user in it with the field.
* The kubeconfig, the CA, the client certificate and its key are read again when they change (`mooring.plane.reloading`); a pair
  that does not fit together yet is not used until it does. A change of the kubeconfig forgets the verdicts of who was asked before.
* A webhook that does not answer refuses everybody whom it is asked about. The log says why, at once and then every SAY_SECONDS
  with how often, and that it answers again; every finding is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path

from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.authn.verdictcache import KEY_BYTES
from mooring.authn.webhook.authenticator import BAD_ANSWER, ERROR, TARGET, UNREACHABLE, WebhookAuthenticator
from mooring.client.files import read_limited
from mooring.clock import Clock
from mooring.errors import ConfigError
from mooring.plane.exposed import warn_if_exposed
from mooring.plane.reloading import Apply, Reloading
from mooring.server.authentication.kubeconfigtarget import KubeconfigTarget, inlined, named_files
from mooring.server.authentication.secondstage import FAILED, TIMED_OUT, Target
from mooring.settings.authentication import Webhook
from mooring.trust.kubeconfig.model import KubeconfigError, Selected, resolve_paths, select_context
from mooring.trust.kubeconfig.text import parse_kubeconfig

log = logging.getLogger("mooring.authentication")

KEY = "authentication-token-webhook-config-file"
SAY_SECONDS = 60.0
"""A webhook that is down is asked about every request: one line a minute says as much as a thousand."""
FAILURES = frozenset({UNREACHABLE, ERROR, BAD_ANSWER, TIMED_OUT, FAILED})


class TokenWebhook:
    """The webhook of one server. Raises ConfigError for whatever cannot be used."""

    def __init__(
        self,
        options: Webhook,
        audiences: Sequence[str],
        reloading: Reloading,
        targets: MutableMapping[str, Target],
        clock: Clock,
        entropy: Callable[[int], bytes],
        count: Callable[[str], None],
    ) -> None:
        """`count` is called with the result of each review: `accepted`, `not-mine`, or the reason of a refusal."""
        self.authenticator = WebhookAuthenticator(
            options.version, audiences, options.cache_ttl, entropy(KEY_BYTES), self._told
        )
        self._count = count
        self._path = Path(options.config_file)
        self._reloading = reloading
        self._targets = targets
        self._clock = clock
        self._followed: set[str] = set()
        self._selected: Selected | None = None
        self._target: KubeconfigTarget | None = None
        self._failing = False
        self._said: float | None = None
        self._unsaid = 0
        reloading.add(options.config_file, self._apply)

    async def close(self) -> None:
        if self._target is not None:
            await self._target.close()

    def _apply(self, data: bytes) -> None:
        """The kubeconfig, at start and after each change."""
        try:
            config = resolve_paths(parse_kubeconfig(data), str(self._path.absolute().parent))
            selected = select_context(config)
        except KubeconfigError as error:
            raise ConfigError(f"{KEY}: {self._path}: {error}") from None
        self._take(selected)
        self._selected = selected
        self.authenticator.forget()
        for path in named_files(selected):
            if path not in self._followed:
                self._followed.add(path)
                self._reloading.add(path, self._again())

    def _again(self) -> Apply:
        """For a file that was read with the kubeconfig just now, and is read again when it changes."""
        known = False

        def apply(data: bytes) -> None:
            nonlocal known
            if known and self._selected is not None:
                self._take(self._selected)
            known = True

        return apply

    def _take(self, selected: Selected) -> None:
        try:
            target = KubeconfigTarget(inlined(selected, lambda path: read_limited(Path(path))), self._clock)
        except ConfigError as error:
            raise ConfigError(f"{KEY}: {self._path}: {error}") from None
        if selected.user.key or selected.user.token or selected.user.password:
            warn_if_exposed(Path(self._path))
        old, self._target = self._target, target
        self._targets[TARGET] = target
        if old is not None:
            old.retire()

    def _told(self, verdict: Verdict, now: datetime) -> None:
        if isinstance(verdict, Accepted):
            self._count("accepted")
        else:
            self._count("not-mine" if isinstance(verdict, NotMine) else verdict.reason)
        if isinstance(verdict, Accepted | NotMine) or verdict.reason not in FAILURES:
            if self._failing:
                log.warning("the token webhook %s answers again", self._url)
            self._failing, self._said, self._unsaid = False, None, 0
            return
        self._failing = True
        moment = self._clock.monotonic()
        if self._said is not None and moment - self._said < SAY_SECONDS:
            self._unsaid += 1
            return
        more = f"; {self._unsaid} more askings failed since the last such line" if self._unsaid else ""
        self._said, self._unsaid = moment, 0
        log.error(
            "the token webhook %s gives no verdict, and tokens that only it knows are refused: %s: %s%s",
            self._url, verdict.reason, verdict.detail, more,
        )  # fmt: skip

    @property
    def _url(self) -> str:
        return "" if self._target is None else self._target.told_url


def _nobody(result: str) -> None:
    pass
