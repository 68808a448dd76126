"""`mooring auth explain` and `mooring auth whoami`: refused requests, and the identity of the caller."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from mooring.apimachinery.schema import Obj
from mooring.authn.reasons import UNKNOWN_CA, reasons
from mooring.cli import cluster, printing
from mooring.cli.cluster import ChosenCluster, cluster_options
from mooring.cli.options.flags import REPORTED, output_option
from mooring.cli.printing import echo, redacted
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.serverversion import NotMooringError, check_is_mooring
from mooring.errors import ConfigError, ForbiddenError, NotFoundError, PeerError
from mooring.pki.errors import PkiError
from mooring.pki.x509.bundles import certificates_among, certificates_pem
from mooring.trust.discovery.errors import NotKubernetesError

# `mooring auth explain`: explain a refused request, or judge a credential in a dry run (docs/authentication/explain.md).
#
# Rules kept here:
# * A refusal is found by the Audit-Id that the client received. A dry run of a credential is not a request as its user, does not
#   count as a guess, and is not stored. Exactly one of the two is requested.
# * A credential comes from a file, from standard input, or from a prompt without echo, never from the command line, which every
#   user of the machine can read. An audit id that looks like a token is not sent, because the server's audit log would contain
#   it.
# * Exit codes: 0 for a refusal that was found and for a dry run that accepts, 1 for a refusal that was not found and for a dry
#   run that refuses.
# * The meaning and the remedy of a reason code come from the table of this program (`mooring.authn.reasons`). A newer server may
#   send codes that the table lacks; they are printed alone. `-o json|yaml` prints the server's response, with meaning and remedy
#   added.

PREFIX = "/debug/authentication"
STDIN = "-"
MAX_CREDENTIAL = 256 << 10
"""Bytes: the limit of the server."""
MAX_AUDIT_ID = 64
"""Characters: the limit of the server."""
HEADERS = ("AUTHENTICATOR", "VERDICT", "REASON", "DETAIL")
FORBIDDEN, TOO_MANY = 403, 429
_OF_CERTIFICATES = (
    "request-header",
    "client-certificate",
)  # authenticators that verify the certificate chain of the client
_WORDS = {"not-mine": "not mine"}
_MAY = (
    "The caller is who it claims to be, and may not do this. What it may: kubectl auth can-i --list --as USER; to grant more, bind "
    "a role to the user or to one of its groups."
)
_IS_FORBIDDEN = " is forbidden: User "
"""Part of the reason of every 403 of the authorizers. Other reasons, such as those of admission, say what to do themselves."""
_LIMITED = (
    "So many wrong credentials came from this address that it is answered late and with 429 for a while, whatever it sends that is "
    "wrong. Find out who guesses there; a right credential is let in at once."
)
_ANOTHER = "the server does not explain refusals; is it a Mooring server?"


@click.command("explain")
@click.argument("audit_id", default="", metavar="[AUDIT-ID]")
@click.option(
    "--token-file", default="", metavar="FILE", help="Dry run with the token in FILE; - reads standard input."
)
@click.option(
    "--certificate-file",
    default="",
    metavar="FILE",
    help="Dry run with the certificate in FILE, followed by its intermediates; - reads standard input.",
)
@click.option(
    "--username",
    default="",
    metavar="USER",
    help="Dry run with this user; the password is prompted for, or read from standard input.",
)
@output_option(*REPORTED)
@cluster_options
def explain(
    audit_id: str,
    token_file: str,
    certificate_file: str,
    username: str,
    output: str,
    chosen: ChosenCluster,
) -> int:
    """Explain a refused request, by the Audit-Id of its response, or judge a credential in a dry run.

    Each authenticator is listed in the order of the chain, with its reason. The user must be allowed to read
    /debug/authentication/ at the server, as cluster administrators are.
    """
    if [bool(audit_id), bool(token_file), bool(certificate_file), bool(username)].count(True) != 1:
        raise click.UsageError("give an audit id, or one of --token-file, --certificate-file and --username")
    if len(audit_id) > MAX_AUDIT_ID or redacted(audit_id) != audit_id:
        raise click.UsageError("what was given is no audit id; a token is read from a file: --token-file")
    # A bad kubeconfig is reported before a password is asked for.
    selected = chosen.selected
    credential = {} if audit_id else _read_credential(token_file, certificate_file, username)

    async def request_with_retries(client: ClusterClient) -> Obj:
        return await chosen.retry(lambda: request_explanation(client, audit_id, credential))

    response = add_meanings(cluster.run(selected, chosen.clock, request_with_retries))
    _print_explanation(response, output)
    return 0 if audit_id or response.get("authenticated") is True else 1


async def request_explanation(client: ClusterClient, audit_id: str, credential: Obj) -> Obj:
    """Return the record of a refusal, or without an id the dry run of `credential`. Raises NotMooringError, ApiError, PeerError."""
    try:
        if audit_id:
            return await client.get_path(f"{PREFIX}/refusals/{quote(audit_id, safe='')}")
        return await client.post_path(f"{PREFIX}/explain", credential)
    except (NotFoundError, ForbiddenError, NotKubernetesError) as error:
        if isinstance(error, NotFoundError) and "refusal" in error.message:
            raise
        await check_is_mooring(client, "explains refusals; elsewhere the log of kube-apiserver tells the reason")
        if isinstance(error, NotFoundError):
            raise NotMooringError(_ANOTHER) from None
        raise


def _read_credential(token_file: str, certificate_file: str, username: str) -> Obj:
    """Return the credential as the server expects it. Raises ConfigError."""
    if token_file:
        return {"token": _read_text(token_file, "token")}
    if certificate_file:
        return {"certificate": _read_certificates(certificate_file)}
    return {"user": username, "password": _read_password()}


def _read_certificates(file: str) -> str:
    """Return the certificates of a file without a key that stands beside them. Raises ConfigError."""
    try:
        return certificates_pem(certificates_among(_read_text(file, "certificate").encode())).decode()
    except PkiError as error:
        raise ConfigError(f"{file}: {error}") from None


def _read_text(file: str, what: str) -> str:
    """Return the content of a file without white space around it. Raises ConfigError."""
    if file == STDIN:
        data, name = sys.stdin.buffer.read(MAX_CREDENTIAL + 1), "standard input"
        if len(data) > MAX_CREDENTIAL:
            raise ConfigError(f"{name} is longer than {MAX_CREDENTIAL} bytes; is it the {what}?")
    else:
        data, name = read_limited(Path(file), MAX_CREDENTIAL), file
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not text; is it the {what}?") from None
    if not text:
        raise ConfigError(f"{name} is empty; it should hold the {what}")
    return text


def _read_password() -> str:
    """Return the password from a prompt on a terminal, else from the first line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, err=True, type=str))
    try:
        line = sys.stdin.buffer.readline(MAX_CREDENTIAL).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(
            "the password on standard input is not UTF-8; no password in another encoding is accepted"
        ) from None
    if not line:
        raise ConfigError("standard input is empty; it should hold the password")
    return line


def add_meanings(response: Obj) -> Obj:
    """Return the server's response with meaning and remedy of each code. Raises NotMooringError for another response."""
    steps, user = response.get("authenticators"), response.get("user", {})
    if (
        response.get("kind") not in ("Refusal", "Explanation")
        or not isinstance(steps, list)
        or not isinstance(user, dict)
    ):
        raise NotMooringError(_ANOTHER)
    known = [step | _meaning_of(step.get("reason")) for step in steps if isinstance(step, dict)]
    return response | {"authenticators": known} | _meaning_of(response.get("why"))


def _meaning_of(code: Any) -> Obj:
    row = reasons().get(code) if isinstance(code, str) else None
    if row is None:
        return {}
    return {"meaning": row.meaning} | ({"remedy": row.remedy} if row.remedy else {})


def _print_explanation(response: Obj, form: str) -> None:
    if form == "text":
        print_explanation(response)
    else:
        printing.print_document(response, form)


def print_explanation(response: Obj) -> None:
    """Print a response with meanings as text."""
    for label, value in _lines(response):
        echo(f"{label + ':':<10}{value}")
    steps = response["authenticators"]
    if steps:
        echo()
        printing.print_table(HEADERS, (_cells(step) for step in steps))
    for title, lines in _hints(response):
        echo("", title)
        for line in lines:
            echo(f"  {line}")


def _lines(response: Obj) -> Iterator[tuple[str, str]]:
    user = response.get("user") or {}
    if response["kind"] == "Refusal":
        yield (
            "Request",
            f"{response.get('method')} {response.get('path')}, from {response.get('source')}, at {response.get('time')}",
        )
        yield "Answer", f"{response.get('code')} {response.get('reason')}"
        yield "Because", str(response.get("why") or "no reason was given")
    elif response.get("authenticated") is True:
        yield "Decision", "accepted"
    else:
        yield "Decision", f"refused: {response['why']}" if response.get("why") else "refused"
    if user.get("username"):
        yield "User", str(user["username"])
        groups = user.get("groups")
        yield "Groups", ", ".join(map(str, groups if isinstance(groups, list) else ())) or "none"


def _cells(step: Obj) -> tuple[str, ...]:
    verdict = str(step.get("verdict", ""))
    return (
        str(step.get("name", "")),
        _WORDS.get(verdict, verdict),
        str(step.get("reason", "")),
        str(step.get("detail", "")),
    )


def _hints(response: Obj) -> Iterator[tuple[str, list[str]]]:
    """Yield a paragraph for what heads the record, then one for each other reason that refused, none twice."""
    if response.get("authenticated") is True:
        return
    if response.get("code") == FORBIDDEN:
        if _IS_FORBIDDEN in str(response.get("why", "")):
            yield "What to do", [_MAY]
        return
    steps = [step for step in response["authenticators"] if isinstance(step.get("reason"), str)]
    judged = {step["reason"] for step in steps if step["reason"] and step.get("name") in _OF_CERTIFICATES}
    # An authenticator knew the CA: to add it for the other one would be wrong advice.
    known = judged - {UNKNOWN_CA}
    refused = (step["reason"] for step in steps if step.get("verdict") == "refused")
    for code in dict.fromkeys(one for one in (response.get("why"), *refused) if isinstance(one, str)):
        row = reasons().get(code)
        if row is not None and not (known and code == UNKNOWN_CA):
            yield code, [line for line in (row.meaning, row.remedy) if line]
    if response.get("code") == TOO_MANY:
        yield "What to do", [_LIMITED]


# `mooring auth whoami`: print the identity of the user, as the server sees it.
#
# Rules kept here (docs/protocol/authentication-reviews.md): a SelfSubjectReview is sent in v1, then v1beta1, then v1alpha1, as
# kubectl does: each only when the server does not serve the one before. The table is kubectl's.

GROUP = "authentication.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1alpha1")
"""Kubernetes serves v1 since 1.28, v1beta1 since 1.27 and v1alpha1 since 1.26."""


@click.command("whoami")
@output_option(*REPORTED)
@cluster_options
def whoami(output: str, chosen: ChosenCluster) -> None:
    """Print the user name, uid, groups and extra attributes that the server sees."""
    _print_identity(chosen.run_with_retries(review), output)


async def review(client: ClusterClient) -> Obj:
    """Return a SelfSubjectReview in the newest version that the server has. Raises ApiError, PeerError."""
    for version in VERSIONS:
        request = {"kind": "SelfSubjectReview", "apiVersion": f"{GROUP}/{version}", "metadata": {}}
        try:
            return await client.post_path(f"/apis/{GROUP}/{version}/selfsubjectreviews", request)
        except NotFoundError:
            continue
    raise PeerError("the server does not tell callers who they are: it serves no SelfSubjectReview (Kubernetes 1.26)")


def _print_identity(found: Obj, form: str) -> None:
    if form == "text":
        printing.print_table(("ATTRIBUTE", "VALUE"), rows(user_of(found)))
    else:
        printing.print_document(found, form)


def user_of(found: Obj) -> Obj:
    """Return the user in a review. Raises PeerError when there is none."""
    status = found.get("status")
    user = status.get("userInfo") if isinstance(status, dict) else None
    if not isinstance(user, dict):
        raise PeerError("the server did not say who the caller is")
    return user


def rows(user: Obj) -> Iterator[tuple[str, str]]:
    """Yield attributes and values, as kubectl prints them."""
    yield "Username", str(user.get("username", ""))
    if user.get("uid"):
        yield "UID", str(user["uid"])
    if user.get("groups"):
        yield "Groups", _joined(user["groups"])
    extra = user.get("extra")
    for key, values in sorted(extra.items()) if isinstance(extra, dict) else ():
        yield f"Extra: {key}", _joined(values)


def _joined(values: Any) -> str:
    return f"[{' '.join(map(str, values))}]" if isinstance(values, list) else str(values)
