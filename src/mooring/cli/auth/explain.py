"""`mooring auth explain`: why a request was refused, or what would become of a credential (docs/authentication/explain.md).

Rules kept here:
* A refusal is looked up under the Audit-Id that the caller got; a credential is judged in a dry run, which is no request in its
  name, counts as no guess and is kept nowhere. Exactly one of them is asked.
* A credential comes from a file, from standard input, or from a prompt without echo: never from the command line, where every user
  of the machine could read it. What is given as an id and looks like a token is not sent: it would stand in the server's audit log.
* Exit codes: a refusal that was found is 0, one that was not 1, with one line. A dry run that accepts is 0, one that refuses
  1: scripts may ask.
* What a code means and what to do is this program's table (`mooring.authn.reasons`); a newer server may give codes that it does not
  know, which are printed alone. `-o json|yaml` prints what the server said, with both added where they are known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from mooring.apimachinery.schema import Obj
from mooring.authn.chain import UNKNOWN_CA
from mooring.authn.reasons import reason_of
from mooring.cli import cluster
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.cli.printing.redaction import redacted
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.serverversion import NotMooringError, check_is_mooring
from mooring.clock import SystemClock
from mooring.errors import ConfigError, ForbiddenError, NotFoundError
from mooring.trust.discovery.errors import NotKubernetesError

PREFIX = "/debug/authentication"
STDIN = "-"
MAX_CREDENTIAL = 256 << 10
"""Bytes: what the server reads at most."""
MAX_AUDIT_ID = 64
"""Characters: a server keeps no longer one."""
HEADERS = ("AUTHENTICATOR", "VERDICT", "REASON", "DETAIL")
FORBIDDEN, TOO_MANY = 403, 429
_OF_CERTIFICATES = ("request-header", "client-certificate")  # authenticators that verify the peer's chain
_WORDS = {"not-mine": "not mine"}
_MAY = (
    "The caller is who it claims to be, and may not do this. What it may: kubectl auth can-i --list --as USER; to grant more, bind "
    "a role to the user or to one of its groups."
)
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
    help="Dry run with the certificate in FILE, and the intermediates behind it; - reads standard input.",
)
@click.option(
    "--username", default="", metavar="USER", help="Dry run with this user; the password is read or asked for."
)
@output_option("table", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def explain(
    audit_id: str,
    token_file: str,
    certificate_file: str,
    username: str,
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> int:
    """Tell why a request was refused, by the Audit-Id of its answer, or what would become of a credential.

    Each authenticator is listed in the order in which it is asked, with its reason. Only who may read
    /debug/authentication/ at the server can ask; cluster administrators can.
    """
    if [bool(audit_id), bool(token_file), bool(certificate_file), bool(username)].count(True) != 1:
        raise click.UsageError("give an audit id, or one of --token-file, --certificate-file and --username")
    if len(audit_id) > MAX_AUDIT_ID or redacted(audit_id) != audit_id:
        raise click.UsageError("what was given is no audit id; a token is read from a file: --token-file")
    clock = SystemClock()
    chosen = cluster.selected(kubeconfig, context_name)
    offered = {} if audit_id else _credential(token_file, certificate_file, username)

    async def patiently(client: ClusterClient) -> Obj:
        return await cluster.retry(lambda: ask(client, audit_id, offered), clock, timeout)

    told = checked(cluster.run(chosen, clock, patiently))
    _print(told, output)
    return 0 if audit_id or told.get("authenticated") is True else 1


async def ask(client: ClusterClient, audit_id: str, offered: Obj) -> Obj:
    """The record under `audit_id`, or without one what would become of `offered`. Raises NotMooringError, ApiError, PeerError."""
    try:
        if audit_id:
            return await client.get_path(f"{PREFIX}/refusals/{quote(audit_id, safe='')}")
        return await client.post_path(f"{PREFIX}/explain", offered)
    except (NotFoundError, ForbiddenError, NotKubernetesError) as error:
        if isinstance(error, NotFoundError) and "refusal" in error.message:
            raise
        await check_is_mooring(client, "explains refusals; elsewhere the log of kube-apiserver tells the reason")
        if isinstance(error, NotFoundError):
            raise NotMooringError(_ANOTHER) from None
        raise


def _credential(token_file: str, certificate_file: str, username: str) -> Obj:
    """What is to be judged, as the server wants it. Raises ConfigError."""
    if token_file:
        return {"token": _text(token_file, "token")}
    if certificate_file:
        return {"certificate": _text(certificate_file, "certificate")}
    return {"user": username, "password": _password()}


def _text(file: str, what: str) -> str:
    """The content of a file without the line break at its end."""
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


def _password() -> str:
    """From a prompt on a terminal; else the first line of standard input."""
    if sys.stdin.isatty():
        found = click.prompt("Password", hide_input=True, err=True, type=str)
        return str(found)
    line = sys.stdin.buffer.readline(MAX_CREDENTIAL).decode("utf-8", "replace").rstrip("\r\n")
    if not line:
        raise ConfigError("standard input is empty; it should hold the password")
    return line


def checked(told: Obj) -> Obj:
    """What the server said, with what is known of the codes. Raises NotMooringError when it is nothing of the kind."""
    steps, user = told.get("authenticators"), told.get("user", {})
    if told.get("kind") not in ("Refusal", "Explanation") or not isinstance(steps, list) or not isinstance(user, dict):
        raise NotMooringError(_ANOTHER)
    known = [step | _row(step.get("reason")) for step in steps if isinstance(step, dict)]
    return told | {"authenticators": known} | _row(told.get("why"))


def _row(code: Any) -> Obj:
    row = reason_of(code) if isinstance(code, str) else None
    if row is None:
        return {}
    return {"meaning": row.meaning} | ({"remedy": row.remedy} if row.remedy else {})


def _print(told: Obj, form: str) -> None:
    if form == "table":
        print_explanation(told)
    else:
        output.print_document(told, form)


def print_explanation(told: Obj) -> None:
    """What was `checked`, for people."""
    for label, value in _lines(told):
        echo(f"{label + ':':<10}{value}")
    steps = told["authenticators"]
    if steps:
        echo()
        output.print_table(HEADERS, (_cells(step) for step in steps))
    for title, lines in _hints(told):
        echo("", title)
        for line in lines:
            echo(f"  {line}")


def _lines(told: Obj) -> Iterator[tuple[str, str]]:
    user = told.get("user") or {}
    if told["kind"] == "Refusal":
        yield "Request", f"{told.get('method')} {told.get('path')}, from {told.get('source')}, at {told.get('time')}"
        yield "Answer", f"{told.get('code')} {told.get('reason')}"
        yield "Because", str(told.get("why") or "no reason was given")
    elif told.get("authenticated") is True:
        yield "Decision", "accepted"
    else:
        yield "Decision", f"refused: {told['why']}" if told.get("why") else "refused"
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


def _hints(told: Obj) -> Iterator[tuple[str, list[str]]]:
    """Yield a paragraph for what heads the record, then one for each other reason that refused, none twice."""
    if told.get("authenticated") is True:
        return
    if told.get("code") == FORBIDDEN:
        yield "What to do", [_MAY]
        return
    steps = [step for step in told["authenticators"] if isinstance(step.get("reason"), str)]
    judged = {step["reason"] for step in steps if step["reason"] and step.get("name") in _OF_CERTIFICATES}
    known = judged - {UNKNOWN_CA}  # an authenticator knew the CA: to add it for the other one would be wrong advice
    refused = (step["reason"] for step in steps if step.get("verdict") == "refused")
    for code in dict.fromkeys(one for one in (told.get("why"), *refused) if isinstance(one, str)):
        row = reason_of(code)
        if row is not None and not (known and code == UNKNOWN_CA):
            yield code, [line for line in (row.meaning, row.remedy) if line]
    if told.get("code") == TOO_MANY:
        yield "What to do", [_LIMITED]
