"""Renewal of a login: get the user's credential from its source, and request a new credential of the cluster.

Rules kept here:
* A password is prompted for every time and never stored. A token file and a kubeconfig are read again every time.
* An OpenID provider gives new tokens for the refresh token. When it refuses that for good, when the cluster refuses the new
  ID token (401, 403), or when there is no refresh token, a person has to log in.
* A refresh token that the provider has replaced is dead. The new one is saved before anything else can fail.
* `renew` never waits for a person: its error says to run mooring login, and `log_in` prompts. Callers hold the lock of the login
  for the first alone, so that programs and mooring logout do not wait for as long as a prompt is open.
* Text for the person goes to stderr: kubectl reads stdout.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click

from mooring.cli.printing import clean, echo
from mooring.client import kubeconfigfiles
from mooring.client.files import read_limited
from mooring.client.http.requests import drive_notifying, send_over
from mooring.client.login.loginrequest import LoginRefusedError, listening, provider_connection, request_credential
from mooring.clock import Clock
from mooring.errors import ConfigError, ForbiddenError
from mooring.secret import Secret
from mooring.trust import loginrecord
from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse
from mooring.trust.httpsurl import named_cas
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.loginrecord import Login
from mooring.trust.oidc.client import Client, GrantEndedError, ProviderEndpoints, Tokens, discover, wanted_scopes
from mooring.trust.oidc.grants import (
    DevicePrompt,
    authorization_url,
    code_grant,
    device_grant,
    new_authorization_request,
    read_redirect,
    refresh_grant,
)

MAX_SECRET = 64 << 10
"""Bytes of a password, a token or a client secret in a file or on standard input."""
BROWSER_SECONDS = 300.0
"""Seconds for a person to log in with a browser."""
CALLBACK = "/callback"
LOOPBACK = "127.0.0.1"
SECRET_IN_FORM = "secretInForm"  # noqa: S105 - the name of a setting


class LoginNeededError(ConfigError):
    """A person has to log in again. A token that was given on standard input is not stored and has to be given again.

    `login` has the newest refresh token. `reason` is for the person.
    """

    def __init__(self, login: Login, reason: str = "") -> None:
        self.login, self.reason = login, reason
        again = " --token-file -" if login.source.kind == loginrecord.TOKEN_GIVEN else ""
        cause = f" ({reason})" if reason else ""
        super().__init__(
            f"the login at {login.place.server} has ended{cause}; run: mooring login --name {shlex.quote(login.name)}{again}"
        )


Save = Callable[[Login], None]
Send = Callable[[HttpRequest], Awaitable[HttpResponse | HttpFailure]]


def renew(login: Login, clock: Clock, save: Save, *, secret: Secret | None = None) -> Login:
    """Return `login` with a new credential, without a person. `secret` is the password or token when it came with the command.

    `save` is called as soon as the provider has replaced the refresh token of a login that has a credential, because the old one is
    invalid from then on. Raises LoginNeededError, ApiError, PeerError, ConfigError.
    """
    if login.source.kind == loginrecord.OIDC:
        return asyncio.run(_refresh_at_provider(login, clock, save))
    return asyncio.run(_with_new_credential(login, _user(login, secret), clock))


def log_in(needed: LoginNeededError, clock: Clock) -> Login:
    """Return the login with a new credential for which a person is prompted. Raises as `renew`."""
    login = needed.login
    if needed.reason:
        echo(f"The login has to be repeated: {needed.reason}.", err=True)
    if login.source.kind == loginrecord.OIDC:
        return asyncio.run(_log_in_at_provider(login, clock))
    if login.source.kind == loginrecord.PASSWORD:
        user = _user(login, _prompt_password(login, login.source.settings["username"]))
        return asyncio.run(_with_new_credential(login, user, clock))
    raise needed


def _user(login: Login, secret: Secret | None) -> KubeconfigUser:
    source, settings = login.source, login.source.settings
    if source.kind == loginrecord.PASSWORD and secret is not None:
        return KubeconfigUser("", username=settings["username"], password=secret)
    if source.kind == loginrecord.TOKEN_FILE:
        return KubeconfigUser("", token_file=settings["file"])
    if source.kind == loginrecord.KUBECONFIG:
        environ = {"KUBECONFIG": settings["files"]}
        return kubeconfigfiles.load("", settings["context"], environ=environ).user
    if secret is None:
        raise LoginNeededError(login)
    return KubeconfigUser("", token=secret)


def _prompt_password(login: Login, name: str) -> Secret:
    if not _has_terminal():
        raise ConfigError(f"there is no terminal to ask for the password of {name}; give it with --password-stdin")
    text = click.prompt(f"Password of {clean(name)} for {clean(login.place.server)}", hide_input=True, err=True)
    return Secret(str(text))


def _has_terminal() -> bool:
    """Return True when a password can be prompted for: it is read from the terminal, whatever standard input is."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin.isatty()
    return True


@asynccontextmanager
async def _provider(login: Login, clock: Clock) -> AsyncIterator[tuple[Client, ProviderEndpoints, Send]]:
    settings = login.source.settings
    client = Client(
        settings["issuer"],
        settings["clientID"],
        read_client_secret(settings["clientSecretFile"]),
        tuple(filter(None, settings["scopes"].split(" "))),
        secret_in_form=bool(settings.get(SECRET_IN_FORM)),
    )
    ca_pem = named_cas(read_limited(Path(file)), file) if (file := settings["caFile"]) else b""
    async with provider_connection(client.issuer, ca_pem) as connection:
        send = partial(send_over, connection, clock=clock)
        provider = await drive_notifying(discover(client), send, clock.sleep)
        yield client, provider, send


async def _refresh_at_provider(login: Login, clock: Clock, save: Save) -> Login:
    if (refresh_token := login.source.refresh_token) is None:
        raise LoginNeededError(login)
    async with _provider(login, clock) as (client, provider, send):
        try:
            tokens = await drive_notifying(refresh_grant(client, provider, refresh_token), send, clock.sleep)
            login = login.with_settings(_learned(provider))
            # Saved before the cluster is asked: the old refresh token is dead, whatever the cluster answers.
            login = _with_replaced(login, tokens.refresh_token, save)
            return await _with_new_credential(login, KubeconfigUser("", token=tokens.id_token), clock)
        except GrantEndedError as error:
            # Also with an error: providers may replace the refresh token and give no ID token.
            login, reason = _with_replaced(login, error.refresh_token, save), error.reason
        except LoginRefusedError as error:
            reason = f"the cluster does not accept the ID token that the provider refreshed{error.explained}"
        except ForbiddenError as error:
            # A person may log in as another user.
            reason = str(error)
    raise LoginNeededError(login, reason)


async def _log_in_at_provider(login: Login, clock: Clock) -> Login:
    async with _provider(login, clock) as (client, provider, send):
        tokens = await _log_in_person(login.source.settings, client, provider, send, clock)
        # What is left of an earlier login is not valid beside a new one: without offline_access there is no refresh token.
        login = login.with_settings(_learned(provider)).with_refresh_token(tokens.refresh_token)
        return await _with_new_credential(login, KubeconfigUser("", token=tokens.id_token), clock)


def _learned(provider: ProviderEndpoints) -> dict[str, str]:
    """Return what a later renewal need not find out again."""
    return {SECRET_IN_FORM: "true" if provider.secret_in_form else ""}


def _with_replaced(login: Login, refresh_token: Secret | None, save: Save) -> Login:
    """Return the login with the refresh token of a response, saved; unchanged for None, because the old one stays valid."""
    if refresh_token is None or refresh_token == login.source.refresh_token:
        return login
    login = login.with_refresh_token(refresh_token)
    if login.credential is not None:
        save(login)
    return login


async def _with_new_credential(login: Login, user: KubeconfigUser, clock: Clock) -> Login:
    return login.with_credential(await request_credential(login.place, user, login.kind, clock))


async def _log_in_person(
    settings: Mapping[str, str], client: Client, provider: ProviderEndpoints, send: Send, clock: Clock
) -> Tokens:
    grant = settings["grant"] or ("device" if provider.device else "code")
    if grant == "device":
        return await drive_notifying(device_grant(client, provider), send, clock.sleep, _print_prompt)
    # Before the URL is printed: the browser may come back at once.
    async with listening(int(settings["port"])) as loopback:
        redirect_uri = f"http://{settings.get('host') or LOOPBACK}:{loopback.port}{CALLBACK}"
        request = new_authorization_request(redirect_uri, secrets.token_bytes(64))
        # Checks the `state`, so that only the answer to this request counts.
        loopback.read = partial(read_redirect, request, scopes=wanted_scopes(client, provider))
        loopback.notify = lambda notice: echo(
            f"{notice}; still waiting. End this with Ctrl-C if the login has failed.", err=True
        )
        url = authorization_url(client, provider, request)
        echo("Open this in a browser on this machine:", url, err=True)
        try:
            code = await loopback.answer(BROWSER_SECONDS)
        except TimeoutError:
            raise ConfigError(f"the login was not completed in the browser within {BROWSER_SECONDS:.0f} s") from None
    return await drive_notifying(code_grant(client, provider, request, code), send, clock.sleep)


def read_client_secret(path: str) -> Secret | None:
    """Return the secret of the client in a file; None without a file. Raises ConfigError."""
    if not path:
        return None
    try:
        text = read_limited(Path(path), MAX_SECRET).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text:
        raise ConfigError(
            f"{path} does not hold a client secret, which is one line of UTF-8 text; is it the right file?"
        )
    return Secret(text)


def _print_prompt(prompt: DevicePrompt) -> None:
    echo(f"Open {prompt.verification_uri} with any browser and enter the code {prompt.user_code}", err=True)
    if prompt.verification_uri_complete:
        echo(f"or open {prompt.verification_uri_complete}", err=True)
