"""Runs the authenticator of the token webhook: it follows the kubeconfig and the files that it names, and logs failures.

Rules kept here:
* A kubeconfig that is wrong stops the start. The error names the flag, the file, and the cluster or the user in it with the field.
* The kubeconfig, the CA, the client certificate and its key are read again when they change. A certificate and a key that do not
  belong together are not used until both files fit. A change of the kubeconfig clears the remembered verdicts.
* A webhook that does not answer rejects every token that it is asked about. The log gives the reason at once and then every
  LOG_SECONDS with the number of failures, and says when the webhook answers again. Every answer is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from mooring.authn.host import Configured, DescribedTarget, Host, Running
from mooring.authn.reasons import FAILED, TIMED_OUT
from mooring.authn.serviceaccountsettings import ServiceAccountSettings
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.authn.verdictcache import KEY_BYTES
from mooring.authn.webhook import BAD_ANSWER, ERROR, TARGET, UNREACHABLE, WebhookAuthenticator, WebhookSettings
from mooring.errors import ConfigError
from mooring.trust.kubeconfig import KubeconfigError, Selected, resolve_paths, select_context
from mooring.trust.kubeconfigtext import parse_kubeconfig

log = logging.getLogger("mooring.authentication")

KEY = "authentication-token-webhook-config-file"
LOG_SECONDS = 60.0
"""Between two lines about a webhook that is down, which fails with every request."""
FAILURES = frozenset({UNREACHABLE, ERROR, BAD_ANSWER, TIMED_OUT, FAILED})


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticator; None without a kubeconfig. Raises ConfigError for one that cannot be used."""
    if not config[WebhookSettings].authentication_token_webhook_config_file:
        return None
    webhook = _Webhook(config, host)
    return Running(authenticators=(webhook.authenticator,), turned_on_by=KEY, close=webhook.close)


class _Webhook:
    """The authenticator, and the connection to the webhook as its kubeconfig describes it."""

    def __init__(self, config: Configured, host: Host) -> None:
        settings = config[WebhookSettings]
        self._path = path = Path(settings.authentication_token_webhook_config_file)
        self._host = host
        self.authenticator = WebhookAuthenticator(
            settings.authentication_token_webhook_version,
            config[ServiceAccountSettings].audiences,
            settings.authentication_token_webhook_cache_ttl,
            host.entropy(KEY_BYTES),
            _Verdicts(host, self._shown_url).note,
        )
        self._followed: set[str] = set()
        self._target: DescribedTarget | None = None
        self._selected = self._parse(host.files.follow(str(path), self._change_kubeconfig))
        self._connect(self._selected)
        self._follow_named_files()

    def _shown_url(self) -> str:
        return "" if self._target is None else self._target.shown_url

    async def close(self) -> None:
        """Close the connections."""
        if self._target is not None:
            await self._target.close()

    def _parse(self, data: bytes) -> Selected:
        try:
            config = resolve_paths(parse_kubeconfig(data), str(self._path.absolute().parent))
            return select_context(config)
        except KubeconfigError as error:
            raise ConfigError(f"{KEY}: {self._path}: {error}") from None

    def _change_kubeconfig(self, data: bytes) -> None:
        selected = self._parse(data)
        self._connect(selected)
        self._selected = selected
        self.authenticator.forget()
        self._follow_named_files()

    def _follow_named_files(self) -> None:
        """Follow the CA, the certificate and the key of the kubeconfig, which were read with it."""
        cluster, user = self._selected.cluster, self._selected.user
        for path in (cluster.ca_file, user.certificate_file, user.key_file):
            if path and path not in self._followed:
                self._followed.add(path)
                self._host.files.follow(path, self._change_named_file)

    def _change_named_file(self, data: bytes) -> None:
        self._connect(self._selected)

    def _connect(self, selected: Selected) -> None:
        try:
            target = self._host.connect.kubeconfig(selected)
        except ConfigError as error:
            raise ConfigError(f"{KEY}: {self._path}: {error}") from None
        if selected.user.key or selected.user.token or selected.user.password:
            self._host.files.warn_if_exposed(str(self._path))
        old, self._target = self._target, target
        self._host.targets[TARGET] = target
        if old is not None:
            old.retire()


class _Verdicts:
    """Counts the verdicts of the webhook, and logs when it fails and when it answers again."""

    def __init__(self, host: Host, url: Callable[[], str]) -> None:
        self._host = host
        self._url = url
        self._failing = False
        self._logged_at: float | None = None
        self._unlogged = 0

    def note(self, verdict: Verdict, now: datetime) -> None:
        """Count one verdict, and log what has changed with it."""
        if isinstance(verdict, Accepted):
            self._host.count_review("accepted")
        else:
            self._host.count_review("not-mine" if isinstance(verdict, NotMine) else verdict.reason)
        if isinstance(verdict, Accepted | NotMine) or verdict.reason not in FAILURES:
            if self._failing:
                log.warning("the token webhook %s answers again", self._url())
            self._failing, self._logged_at, self._unlogged = False, None, 0
            return
        self._failing = True
        moment = self._host.clock.monotonic()
        if self._logged_at is not None and moment - self._logged_at < LOG_SECONDS:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more reviews failed since the last such line" if self._unlogged else ""
        self._logged_at, self._unlogged = moment, 0
        log.error(
            "the token webhook %s gives no verdict, and tokens that only it knows are refused: %s: %s%s",
            self._url(), verdict.reason, verdict.detail, more,
        )  # fmt: skip
