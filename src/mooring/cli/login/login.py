"""`mooring login`: exchange a password or a token of an identity provider for a short-lived credential of a cluster.

Rules kept here (docs/adr/0020):
* Contradictory flags are refused before anything is sent. The server is verified before it receives a credential: by a CA file,
  by a pin, by the kubeconfig, or by the system's roots.
* The first credential is requested here, so that an error appears here and not in kubectl. Only then files are written: the login
  in the user's cache, and its entries in the kubeconfig.
* A password or a token is never the value of a flag, because other users of the machine could see it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from mooring.cli import cluster
from mooring.cli.login.following import check_same, followed, remembered_id
from mooring.cli.login.kubeconfigentries import (
    KubeconfigFiles,
    new_login_command,
    plan_entries,
    plugin_login,
    share_ca,
)
from mooring.cli.login.renewal import LOOPBACK, MAX_SECRET, SECRET_IN_FORM, LoginNeededError, log_in, renew
from mooring.cli.options.flags import WholeNumber, kubeconfig_option, usage
from mooring.cli.printing import echo
from mooring.client import kubeconfigfiles
from mooring.client.files import check_writable, read_limited
from mooring.client.http.requests import drive_fetching
from mooring.client.login.loginfiles import LoginFiles, LostLoginError, directory
from mooring.client.serverversion import check_anonymously
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.errors import ApiError, ConfigError, PeerError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.secret import Secret
from mooring.settings.declaration import https_url, split_commas
from mooring.trust import loginrecord
from mooring.trust.bootstraptoken.token import ends_in_token
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import pinned_ca
from mooring.trust.discovery.pins import parse_pin
from mooring.trust.joinconfiguration import parse_endpoint
from mooring.trust.kubeconfig import Cluster, Kubeconfig, Selected, flatten_cluster
from mooring.trust.loginrecord import IdentitySource, Login, Place
from mooring.trust.oidc.client import OPENID_SCOPE, REFRESH_SCOPE

_FILE: dict[str, Any] = {"default": "", "metavar": "FILE"}


@click.command("login")
@kubeconfig_option
@click.option(
    "--server", default="", metavar="URL|HOST[:PORT]", help="Server to log in at, instead of that of the kubeconfig."
)
@click.option("--certificate-authority", help="CA to verify --server with. [default: the system's]", **_FILE)
@click.option(
    "--discovery-token-ca-cert-hash",
    "pins",
    multiple=True,
    metavar="sha256:HEX",
    help="Pin of the CA of --server, as for mooring join.",
)
@click.option("--username", default="", metavar="NAME", help="Log in with a password, which is prompted for.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--token-file",
    default="",
    metavar="FILE|-",
    help="Log in with the bearer token in this file, which is read again at each renewal; - is standard input.",
)
@click.option("--oidc-issuer-url", default="", metavar="URL", help="Log in at this OpenID provider.")
@click.option("--oidc-client-id", default="", metavar="ID", help="Client id of this program at the provider.")
@click.option("--oidc-client-secret-file", help="File with the client secret, if the provider needs one.", **_FILE)
@click.option("--oidc-ca-file", help="CA to verify the provider with. [default: the system's]", **_FILE)
@click.option(
    "--oidc-scope",
    multiple=True,
    metavar="SCOPE,...",
    help=f"Scopes to request. [default: {OPENID_SCOPE},{REFRESH_SCOPE}; {OPENID_SCOPE} where the provider lists no other]",
)
@click.option(
    "--oidc-grant",
    type=click.Choice(("device", "code")),
    default=None,
    help="device: with a code and any browser; code: with a browser on this machine. "
    "[default: device where the provider offers it]",
)
@click.option(
    "--oidc-redirect-port",
    type=WholeNumber(0, 65535),
    default=0,
    metavar="PORT",
    help="Port of http://127.0.0.1:PORT/callback, to which the provider redirects the browser. [default: a free one]",
)
@click.option(
    "--oidc-redirect-host",
    type=click.Choice((LOOPBACK, "localhost")),
    default=LOOPBACK,
    show_default=True,
    help="Host of that address, as it is registered at the provider: the portal of Entra ID allows localhost alone.",
)
@click.option(
    "--credential",
    "kind",
    type=click.Choice(loginrecord.KINDS),
    default=None,
    help="Credential to request from the cluster. Only a token carries extra attributes of the user. "
    f"[default: {loginrecord.CERTIFICATE}, or as before where a login is repeated]",
)
@click.option("--name", default="", metavar="NAME", help="Name of the kubeconfig entries. [default: mooring-HOST-PORT]")
@click.option(
    "--kubeconfig-out",
    help="Kubeconfig for the entries. [default: the one that kubectl config changes]",
    **_FILE,
)
@click.option(
    "--allow-clients-without-cluster/--no-allow-clients-without-cluster",
    "without_cluster",
    default=None,
    help="Give the credential also to clients that do not tell the plugin which cluster they mean, such as kubernetes_asyncio: a "
    "kubeconfig from elsewhere can then send it to another server. [default: no, or as before where a login is repeated]",
)
@click.option("--keep-context", is_flag=True, help="Do not change the current context.")
def login(
    kubeconfig: str,
    context_name: str,
    server: str,
    certificate_authority: str,
    pins: Sequence[str],
    kind: str | None,
    name: str,
    kubeconfig_out: str,
    without_cluster: bool | None,
    keep_context: bool,
    password_stdin: bool,
    **source_flags: object,
) -> None:
    """Log in with a password or a token, and let kubectl use the credential that the cluster issues.

    The credential is short-lived. It is renewed automatically with --token-file, with an OpenID provider, and with a kubeconfig
    that has a user of its own. A password is prompted for again.
    """
    clock = SystemClock()
    source = _source(source_flags, server)
    if kubeconfig_out == "-":
        raise click.UsageError("--kubeconfig-out changes a file: - is none")
    if password_stdin and source.kind not in (loginrecord.PASSWORD, loginrecord.KUBECONFIG):
        raise click.UsageError("--password-stdin needs --username")
    # Before anything is asked or locked: a pipe that ends late holds up no other process.
    secret = _read_stdin(source, password_stdin)
    logins = LoginFiles(directory())
    earlier: Login | None = None
    entries: tuple[Cluster, ...] = ()
    is_repeated = False
    if server:
        if kubeconfig or context_name:
            raise click.UsageError("--server cannot be combined with --kubeconfig and --context")
        place = _place_of_server(server, certificate_authority, split_commas(pins), clock)
    else:
        if certificate_authority or pins:
            raise click.UsageError("--certificate-authority and --discovery-token-ca-cert-hash need --server")
        if name and not context_name:
            earlier, context_name = _login_named(name, kubeconfig, source, logins)
        if earlier is not None and not context_name:
            # The kubeconfig has lost its entries.
            place = earlier.place
        else:
            chosen = cluster.selected(kubeconfig, context_name)
            place, entries = _place_of_context(chosen), (chosen.cluster,)
            earlier = _earlier_login(chosen, kubeconfig, logins, must_exist=source.kind == loginrecord.KUBECONFIG)
        if source.kind == loginrecord.KUBECONFIG:
            is_repeated = earlier is not None
            source = earlier.source if earlier is not None else _kubeconfig_source(kubeconfig, context_name)
        if is_repeated and earlier is not None:
            kind, name = kind or earlier.kind, name or earlier.name
            without_cluster = earlier.without_cluster if without_cluster is None else without_cluster
    # An earlier login may have been one by password.
    if password_stdin and source.kind != loginrecord.PASSWORD:
        raise click.UsageError("--password-stdin needs --username")
    name = name or _default_name(place)
    if is_repeated and earlier is not None:
        known_id = _known_id(place, entries, (earlier.place.cluster(),))
        place = followed(_as_remembered(place, earlier, known_id), clock, known_id)
        if earlier.name != name:
            # Two logins with one refresh token would end each other where it is replaced at each use.
            source = replace(source, refresh_token=None)
    files = KubeconfigFiles(kubeconfig_out or kubeconfig)
    found = Login(name, place, source, kind or loginrecord.CERTIFICATE, without_cluster=bool(without_cluster))
    moved = _moved_from(found, earlier, files.read(), logins)
    records = [*filter(None, map(logins.readable, [found.id, *moved]))]
    for before in records:
        allowed = before.without_cluster if without_cluster is None else without_cluster
        found = replace(found, kind=kind or before.kind, without_cluster=allowed)
    plan = partial(plan_entries, login=found, earlier=moved, use=not keep_context, preferred=context_name)
    present = plan(files.read()).cluster
    if server and present is not None:
        # kubectl goes to the server in the way of the entry, which stays: so does the login
        place = Place(
            place.server, place.ca_pem, present.tls_server_name, present.proxy_url, present.disable_compression
        )
        found = replace(found, place=place)
    # Before a credential is obtained, which would be lost.
    files.check(plan)
    if not is_repeated:
        known_id = _known_id(place, entries, (present, *(before.place.cluster() for before in records)))
        check_same(place, clock, known_id)
        for before in records:
            place = _as_remembered(place, before, known_id)
        found = replace(found, place=place)
    try:
        try:
            with logins.locked(found.id):
                # Before the credential is requested.
                check_writable(logins.path(found.id))
                stored = logins.readable(found.id) if is_repeated else None
                # Another process may have renewed it, and replaced its refresh token.
                if stored is not None:
                    found = replace(stored, place=place, kind=found.kind, without_cluster=found.without_cluster)
                # Under the lock: two renewals at a time would use one refresh token twice, which some providers take
                # for a theft.
                found = renew(found, clock, logins.write, secret=secret)
                logins.write(found)
        except LoginNeededError as needed:
            # Without the lock: a person may take minutes, and kubectl waits for it.
            found = log_in(needed, clock)
            with logins.locked(found.id):
                logins.write(found)
    except (ApiError, PeerError) as error:
        # The server did not respond, or is not Kubernetes.
        if isinstance(error, DiscoveryError):
            raise
        asyncio.run(
            check_anonymously(place.cluster(), clock, "gives credentials for a login; kubectl shows yours itself")
        )
        raise
    try:
        # After the record is written: an entry must not name a login that is not there.
        written, file = files.apply(plan)
    except ConfigError as error:
        again = f"mooring login --name {shlex.quote(name)}"
        # The token is not stored.
        if source.kind == loginrecord.TOKEN_GIVEN:
            again = "the same command"
        elif kubeconfig_out or kubeconfig:
            again += f" --kubeconfig-out {shlex.quote(kubeconfig_out or kubeconfig)}"
        raise ConfigError(f"{error}; the login is kept: {again} writes its entries") from None
    for login_id in moved:
        # Last: until the entries are written, kubectl uses the former one.
        logins.remove(login_id)
    credential = found.credential
    # A renewal sets one.
    assert credential is not None
    echo(f"Logged in at {place.server} as {credential.username} until {rfc3339(credential.expires)}.", err=True)
    echo(
        f"Wrote context {written.context} to {file}." if file else f"Context {written.context} has it already.",
        err=True,
    )
    if shutil.which("mooring") is None:
        echo("mooring is not on PATH: kubectl will not find it before it is.", err=True)


# ── cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _place_of_server(server: str, ca_file: str, pins: Sequence[str], clock: Clock) -> Place:
    with usage():
        url = _server_url(server)
        pinned = {parse_pin(text) for text in pins}
    if ca_file and pins:
        raise click.UsageError("--certificate-authority and --discovery-token-ca-cert-hash exclude each other")
    if pinned:
        return Place(url, asyncio.run(drive_fetching(pinned_ca(url, pinned), clock)))
    return Place(url, _certificates_only(read_limited(Path(ca_file)), ca_file) if ca_file else b"")


def _server_url(text: str) -> str:
    """Read an https URL, or an address as `mooring join` takes it. Raises ConfigError, which repeats no bootstrap token."""
    # First: an error about the URL would repeat the token, and a query of its name would send it.
    if ends_in_token(text):
        raise ConfigError("--server: a bootstrap token stands where the address of the server is expected")
    return https_url(text if "://" in text else f"https://{parse_endpoint(text)}", "--server").rstrip("/")


def _place_of_context(chosen: Selected) -> Place:
    flat = flatten_cluster(chosen.cluster, lambda path: read_limited(Path(path)))
    # The credential would go to whatever server is at this address.
    if flat.insecure_skip_tls_verify:
        raise ConfigError(
            f"{flat.server}: the kubeconfig skips verification; a login shows its credential to no such server"
        )
    url = https_url(flat.server, "server of the kubeconfig").rstrip("/")
    ca_pem = _certificates_only(flat.ca_pem, "the CA of the kubeconfig") if flat.ca_pem else b""
    return Place(url, ca_pem, flat.tls_server_name, flat.proxy_url, flat.disable_compression)


def _known_id(place: Place, entries: Sequence[Cluster], former: Sequence[Cluster | None]) -> str:
    """Return the id of the cluster that is remembered for a place, "" for none: in its entries, or where the login was before."""
    same_ca = (
        # Without any both have the CAs of the system. With another CA a person names another cluster.
        one
        for one in former
        if one is not None and (share_ca(one, place) or not (one.ca_pem or one.ca_file or place.ca_pem))
    )
    return remembered_id(*entries, *same_ca)


def _as_remembered(place: Place, before: Login, known_id: str) -> Place:
    """Return the place with what an earlier login remembers of its cluster, where it is the same place of the known cluster."""
    is_same = before.place == replace(place, published=before.place.published)
    return before.place if is_same and remembered_id(before.place.cluster()) == known_id else place


def _certificates_only(ca_pem: bytes, what: str) -> bytes:
    try:
        return bundles.certificates_pem(bundles.certificates_among(ca_pem))
    except PkiError as error:
        raise ConfigError(f"{what}: {error}") from None


def _default_name(place: Place) -> str:
    parts = urlsplit(place.server)
    host = "".join(one if one.isalnum() else "-" for one in parts.hostname or "")
    return f"mooring-{host}-{parts.port or 443}"


def _login_named(name: str, kubeconfig: str, source: IdentitySource, logins: LoginFiles) -> tuple[Login | None, str]:
    """Return the login of this name and a context of it, preferably the current one; None without one, and "" without a context.

    `source`: that of the flags. A login from another source is passed over, so that a password for the server of the current
    context goes to no other. Without flags, a user entry of this name whose login is lost gives its context.
    """
    named = {
        login.id: login
        for login in filter(None, map(logins.readable, logins.every()))
        if login.name == name and source in (IdentitySource(loginrecord.KUBECONFIG), login.source)
    }
    config = KubeconfigFiles(kubeconfig).read()
    users = {user.name: plugin_login(user.exec) for user in config.users}
    lost = users.get(name, "")
    if named or source.kind != loginrecord.KUBECONFIG or not lost or logins.readable(lost) is not None:
        lost = ""
    contexts = [one for one in config.contexts if users.get(one.user) in named or (lost and one.user == name)]
    contexts.sort(key=lambda one: (one.name != config.current_context, one.name != name))
    if contexts:
        return named.get(users[contexts[0].user]), contexts[0].name
    if not named or kubeconfig or source.kind != loginrecord.KUBECONFIG:
        return None, ""
    if len(named) > 1:
        raise ConfigError(f'there are several logins "{name}": say which with --server or --context')
    return next(iter(named.values())), ""


def _moved_from(found: Login, earlier: Login | None, config: Kubeconfig, logins: LoginFiles) -> set[str]:
    """Return the ids of the same login at other addresses: its user entry runs one, or the login that is repeated is one."""
    ids = {earlier.id} if earlier is not None and earlier.name == found.name else set()
    user = config.user(found.name)
    if user is not None and (login_id := plugin_login(user.exec)):
        stored = logins.readable(login_id)
        if stored is None or stored.name == found.name:
            ids.add(login_id)
    return ids - {found.id}


def _earlier_login(chosen: Selected, kubeconfig: str, logins: LoginFiles, *, must_exist: bool) -> Login | None:
    """Return the login of the chosen context; None when it is not a login, or its record is lost."""
    login_id = plugin_login(chosen.user.exec)
    if not login_id:
        return None
    try:
        return logins.existing(login_id)
    except LostLoginError as error:
        if must_exist:
            raise ConfigError(f"{error}; run: {new_login_command(login_id, kubeconfig)}") from None
        return None


# ── source ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _source(flags: Mapping[str, object], server: str) -> IdentitySource:
    """Return the source that the flags name. Raises UsageError."""
    username, token_file, issuer = (str(flags[key]) for key in ("username", "token_file", "oidc_issuer_url"))
    source_options = [
        flag
        for flag, value in (("--username", username), ("--token-file", token_file), ("--oidc-issuer-url", issuer))
        if value
    ]
    if len(source_options) > 1:
        raise click.UsageError(f"{source_options[0]} and {source_options[1]} exclude each other")
    if not issuer:
        for key in ("oidc_client_id", "oidc_client_secret_file", "oidc_ca_file", "oidc_scope", "oidc_grant"):
            if flags[key]:
                raise click.UsageError(f"--{key.replace('_', '-')} needs --oidc-issuer-url")
    if username:
        return IdentitySource(loginrecord.PASSWORD, {"username": username})
    if token_file == "-":  # noqa: S105 - standard input, not a token
        return IdentitySource(loginrecord.TOKEN_GIVEN)
    if token_file:
        return IdentitySource(loginrecord.TOKEN_FILE, {"file": str(Path(token_file).absolute())})
    if issuer:
        return _oidc_source(flags, issuer)
    if server:
        raise click.UsageError("with --server say how to log in: --username, --token-file, or --oidc-issuer-url")
    return IdentitySource(loginrecord.KUBECONFIG)


def _kubeconfig_source(kubeconfig: str, context_name: str) -> IdentitySource:
    """Return the user of a context as a source, by absolute paths and the name of the context."""
    listed_files = kubeconfig or os.environ.get("KUBECONFIG", "")
    if listed_files:
        files = [str(Path(part).absolute()) for part in listed_files.split(os.pathsep) if part]
    else:
        files = [str(next(path for path in cluster.default_kubeconfigs() if os.access(path, os.R_OK)))]
    config = kubeconfigfiles.load_config(environ={"KUBECONFIG": os.pathsep.join(files)})
    settings = {"files": os.pathsep.join(files), "context": context_name or config.current_context}
    return IdentitySource(loginrecord.KUBECONFIG, settings)


def _oidc_source(flags: Mapping[str, object], issuer: str) -> IdentitySource:
    client_id = str(flags["oidc_client_id"])
    if not client_id:
        raise click.UsageError("--oidc-issuer-url needs --oidc-client-id")
    scopes = flags["oidc_scope"]
    # The flag is a list.
    assert isinstance(scopes, tuple)
    wanted = split_commas(scopes)
    with usage():
        url = https_url(issuer, "--oidc-issuer-url")
    files = {
        key: str(Path(str(flags[flag])).absolute()) if flags[flag] else ""
        for key, flag in (("clientSecretFile", "oidc_client_secret_file"), ("caFile", "oidc_ca_file"))
    }
    return IdentitySource(
        loginrecord.OIDC,
        {
            "issuer": url,
            "clientID": client_id,
            "scopes": " ".join(dict.fromkeys((OPENID_SCOPE, *wanted))) if wanted else "",
            "grant": str(flags["oidc_grant"] or ""),
            SECRET_IN_FORM: "",
            "port": str(flags["oidc_redirect_port"]),
            "host": str(flags["oidc_redirect_host"]),
            **files,
        },
    )


def _read_stdin(source: IdentitySource, password_stdin: bool) -> Secret | None:
    """Return the password or token on standard input; None when the flags name neither."""
    if not password_stdin and source.kind != loginrecord.TOKEN_GIVEN:
        return None
    text = sys.stdin.buffer.read(MAX_SECRET + 1)
    if len(text) > MAX_SECRET:
        raise ConfigError(f"what is on standard input is longer than {MAX_SECRET} bytes")
    text = text.strip() if source.kind == loginrecord.TOKEN_GIVEN else text.removesuffix(b"\n").removesuffix(b"\r")
    if not text:
        raise ConfigError("standard input is empty")
    return Secret(text)
