"""`mooring joinrule`: rules by which machines join with an identity token of an issuer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import click

from mooring.api.mooring.joinrule import KIND, PLURAL, joins_of
from mooring.api.mooring.nodeidentity import PLURAL as NODE_IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.paths import API_VERSION
from mooring.apimachinery.schema import Obj
from mooring.authn.joinruleconfig import authentication_configuration
from mooring.cli import cluster
from mooring.cli import printing as printed
from mooring.cli.cluster import ChosenCluster, changing_options, cluster_options, ending_options, printed_deletions
from mooring.cli.options.flags import DURATION, JOIN_RULE, LISTED, SHOWN, Option, not_empty, output_option
from mooring.cli.printing import echo
from mooring.cli.token.list import machines
from mooring.cli.valuecompletion import complete_join_rule
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.serverversion import other_program
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.duration import format_duration
from mooring.errors import AlreadyExistsError, ConfigError, ForbiddenError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.settings.declaration import split_commas
from mooring.trust.bootstraptoken.restrictions import MOST_JOINS, join_record
from mooring.trust.joinrule import MAX_DOCUMENT, JoinRuleError, read_rule

# `mooring joinrule create`: create a join rule.
#
# Rules kept here: the server judges the rule, in its own words. A lost response makes no error: the rule of a retry is compared
# with the one that exists. What the rule lets in is said on stderr.

QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"
SYSTEM = "kube-system"
CONFIGURE = "mooring joinrule authentication-config prints the configuration with which it takes the tokens"
_NONE = "<none>"
HEADERS = ("NAME", "ISSUER", "CLAIMS", "JOINS", "ENDS")
WIDE = (*(column.name.upper() for column in KIND.resource.columns), "CLAIMS")
SHOWN_ISSUER = 24
"""Characters of an issuer in the table, without https://."""


def _text_option(flag: str, metavar: str, text: str) -> Option:
    return click.option(flag, default="", callback=not_empty, metavar=metavar, help=text)


def _texts_option(flag: str, metavar: str, text: str) -> Option:
    return click.option(flag, multiple=True, callback=not_empty, metavar=metavar, help=f"{text}; repeatable.")


@click.command("create")
@click.argument("name", type=JOIN_RULE)
@click.option(
    "--issuer", required=True, callback=not_empty, metavar="URL", help="The claim iss of the tokens, to the letter."
)
@_text_option(
    "--issuer-discovery-url", "URL", "URL of the discovery document. [default: ISSUER/.well-known/openid-configuration]"
)
@_text_option("--issuer-ca-file", "FILE", "CAs of the issuer's server, as PEM. [default: the roots of the server]")
@_text_option(
    "--issuer-jwks-file", "FILE", "JSON Web Key Set of the issuer, from which the server then fetches nothing."
)
@_texts_option("--audience", "AUDIENCE", "Audience that tokens may be for, by default the id of the cluster")
@_texts_option("--claim", "NAME=VALUE", "Claim that must be this text; a NAME that begins with / is a JSON pointer")
@_texts_option("--claim-pattern", "NAME=PATTERN", "Claim that must fit, where * stands for any characters but / and :")
@_texts_option("--claim-expression", "CEL", "Expression over claims that must be true")
@_text_option(
    "--node-name",
    "TEMPLATE",
    "Name of the node: {claim} stands for a claim, * for any characters but a dot. [default: any]",
)
@_text_option("--node-name-expression", "CEL", "Expression over claims that gives the name of the node.")
@_text_option("--unique-claim", "NAME", "Claim of whose value one machine joins. [default: jti, else sub]")
@_texts_option("--allow-cidr", "CIDR", "Network from which machines may join, such as 10.1.0.0/16")
@click.option(
    "--max-joins",
    type=click.IntRange(1, MOST_JOINS),
    metavar="N",
    help=f"Number of machines that may join by the rule, at most {MOST_JOINS}.",
)
@click.option("--ttl", type=DURATION, help="Time after which the rule ends, such as 90d. [default: never]")
@click.option("--require-approval", is_flag=True, help="Let no machine in without a person: mooring csr approve.")
@_text_option(
    "--ephemeral", "DURATION", "Silence after which the membership of a machine ends, such as 30m; at least 2m."
)
@click.option("--dry-run", is_flag=True, help="Let the server judge the rule, and create nothing.")
@output_option(*SHOWN)
@changing_options
def create(
    name: str,
    issuer: str,
    issuer_discovery_url: str,
    issuer_ca_file: str,
    issuer_jwks_file: str,
    audience: Sequence[str],
    claim: Sequence[str],
    claim_pattern: Sequence[str],
    claim_expression: Sequence[str],
    node_name: str,
    node_name_expression: str,
    unique_claim: str,
    allow_cidr: Sequence[str],
    max_joins: int | None,
    ttl: timedelta | None,
    require_approval: bool,
    ephemeral: str,
    dry_run: bool,
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Let machines with an identity token of an issuer join.

    All conditions must hold, and at least one is needed. stderr says what the rule lets in.
    """
    if ttl is not None and ttl <= timedelta():
        raise click.UsageError("--ttl must be longer than 0; leave the flag out for a rule that never ends")
    found = {
        "issuer": _without_empty(
            {
                "url": issuer,
                "discoveryURL": issuer_discovery_url,
                "certificateAuthority": _content(issuer_ca_file),
                "jwks": _content(issuer_jwks_file),
            }
        ),
        "audiences": list(audience),
        "claims": [
            *(_condition("--claim", one, "value") for one in claim),
            *(_condition("--claim-pattern", one, "pattern") for one in claim_pattern),
            *({"expression": one} for one in claim_expression),
        ],
        "nodeName": node_name,
        "nodeNameExpression": node_name_expression,
        "uniqueClaim": unique_claim,
        "allowedCIDRs": list(split_commas(allow_cidr)),
        "maxJoins": max_joins,
        "expirationTimestamp": rfc3339(chosen.clock.now() + ttl) if ttl else "",
        "requireApproval": require_approval,
        "ephemeral": ephemeral,
    }
    obj = {
        "apiVersion": API_VERSION,
        "kind": KIND.resource.kind,
        "metadata": {"name": name},
        "spec": _without_empty(found),
    }

    async def work(client: ClusterClient) -> tuple[Obj, str, str]:
        async def attempt() -> Obj:
            try:
                return await client.create(PLURAL, obj, dry_run=dry_run)
            except AlreadyExistsError:
                existing = await client.get(PLURAL, name)
                if existing.get("spec") != obj["spec"]:
                    raise
                return existing
            except NotFoundError:
                raise await cluster.not_served(client, PLURAL) from None

        created = await chosen.retry(attempt)
        program = await other_program(client)
        return created, "" if audience else await _cluster_id(client), program and f"{client.server} is {program}"

    created, cluster_id, other = chosen.run(work)
    if output in ("json", "yaml"):
        printed.print_document(created, output)
    else:
        echo(f"{QUALIFIED}/{name}" + ("" if output == "name" else " would be created" if dry_run else " created"))
    try:
        echo(what_it_lets_in(created, cluster_id, chosen.clock.now()), err=True)
    except JoinRuleError as error:
        # Another API server stores what this program refuses.
        raise ConfigError(f"join rule {name} lets no machine in: {error}") from None
    if other:
        echo(f"{other}, not Mooring: {CONFIGURE}", err=True)


def _without_empty(fields: Mapping[str, object]) -> Obj:
    return {name: value for name, value in fields.items() if value}


def _content(file: str) -> str:
    if not file:
        return ""
    try:
        return read_limited(Path(file), MAX_DOCUMENT).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: the file is not UTF-8 text") from None


def _condition(flag: str, text: str, field: str) -> Obj:
    name, equals, value = text.partition("=")
    if not name.strip() or not value:
        missing = "value" if equals else "="
        raise click.UsageError(f'{flag}: "{text}" has no {missing}: give NAME={field.upper()}')
    return {"claim": name, field: value}


async def _cluster_id(client: ClusterClient) -> str:
    """Return the id of the cluster, "" when the user may not read it."""
    try:
        return str((await client.get("namespaces", SYSTEM))["metadata"].get("uid", ""))
    except (ForbiddenError, NotFoundError):
        return ""


def what_it_lets_in(obj: Obj, cluster_id: str, now: datetime) -> str:
    """Return a sentence about the machines that a rule lets in, and until when. Raises JoinRuleError."""
    rule = read_rule(obj)
    claims = " and ".join(map(_condition_for_people, spec_of(obj)["claims"]))
    audiences = " or ".join(rule.audiences) or cluster_id or "the cluster's id"
    named = rule.node_name or rule.node_name_expression
    end = "until it is deleted"
    if rule.ends is not None:
        end = f"until {rfc3339(rule.ends)} (in {human_duration(rule.ends - now)})"
    text = (
        f"Join rule {rule.name} lets in {machines(replace(rule.restrictions, node_name=named))}, with a token of {rule.issuer} for "
        f"the audience {audiences} with {claims}, {end}."
    )
    if rule.restrictions.require_approval:
        text += " Each request waits for a person: mooring csr approve."
    if rule.restrictions.ephemeral is not None:
        text += f" The membership of a machine that is silent for {format_duration(rule.restrictions.ephemeral)} ends."
    return text


# `mooring joinrule list` and `mooring joinrule show`.


async def _fetch(client: ClusterClient) -> Sequence[Obj]:
    try:
        return (await client.list(PLURAL)).items
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None


@click.command("list")
@output_option(*LISTED)
@cluster_options
def list_rules(output: str, chosen: ChosenCluster) -> None:
    """List join rules."""
    print_list(chosen.run_with_retries(_fetch), output, chosen.clock.now())


def print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    """Print join rules in one of the forms of a list."""
    if form in ("json", "yaml"):
        printed.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No join rules found.", err=True)
    else:
        is_wide = form == "wide"
        rows = [_wide_cells(obj, now) if is_wide else _cells(obj, now) for obj in found]
        printed.print_table(WIDE if is_wide else HEADERS, rows)


def _cells(obj: Obj, now: datetime) -> Sequence[str]:
    """Return the cells of the table, which cuts the issuer, and names claims without their values."""
    spec = spec_of(obj)
    issuer = str((spec.get("issuer") or {}).get("url", "")).removeprefix("https://")
    claims = dict.fromkeys(one.get("claim") or "<expression>" for one in spec.get("claims") or ())
    joins = next(column for column in KIND.resource.columns if column.name == "Joins")
    ends = spec.get("expirationTimestamp")
    return (
        obj["metadata"]["name"],
        issuer if len(issuer) <= SHOWN_ISSUER else f"{issuer[:SHOWN_ISSUER]}...",
        ",".join(claims) or _NONE,
        str(joins.cell(obj, now)),
        _until(ends, now) if ends else "never",
    )


def _wide_cells(obj: Obj, now: datetime) -> Sequence[str]:
    claims = " and ".join(map(_condition_for_people, spec_of(obj).get("claims") or ()))
    return [*(str(column.cell(obj, now)) for column in KIND.resource.columns), claims or _NONE]


@click.command("show")
@click.argument("name", type=JOIN_RULE, shell_complete=complete_join_rule)
@output_option(*SHOWN)
@cluster_options
def show(name: str, output: str, chosen: ChosenCluster) -> None:
    """Show a join rule, and the machines that joined by it."""

    async def fetch(client: ClusterClient) -> tuple[Obj, Sequence[Obj], str]:
        try:
            obj = await client.get(PLURAL, name)
        except NotFoundError:
            await _fetch(client)
            raise ConfigError(f'there is no join rule "{name}": mooring joinrule list lists them') from None
        try:
            identities = (await client.list(NODE_IDENTITIES)).items
        except (ForbiddenError, NotFoundError):
            identities = ()
        return obj, identities, await _cluster_id(client)

    obj, identities, cluster_id = chosen.run_with_retries(fetch)
    if output in ("json", "yaml"):
        printed.print_document(obj, output)
    elif output == "name":
        echo(f"{QUALIFIED}/{name}")
    else:
        echo(*_lines(obj, _nodes_by_join(identities), cluster_id, chosen.clock.now()))


def _nodes_by_join(identities: Iterable[Obj]) -> Mapping[str, str]:
    """Return the names of nodes by the records of their joins, as far as their first keys are known."""
    return {
        join_record(key.get("publicKey", "").removeprefix("sha256:"), NODE_PREFIX + obj["metadata"]["name"]): obj[
            "metadata"
        ]["name"]
        for obj in identities
        for key in keys_of(obj)
    }


def _lines(obj: Obj, nodes: Mapping[str, str], cluster_id: str, now: datetime) -> Sequence[str]:
    spec = spec_of(obj)
    issuer, ends = spec.get("issuer") or {}, spec.get("expirationTimestamp", "")
    problem = ""
    try:
        read_rule(obj)
    except JoinRuleError as error:
        problem = f"it lets no machine in: {error}"
    keys = "of the rule itself" if issuer.get("jwks") else issuer.get("discoveryURL") or "of the issuer"
    labelled = [
        ("Name", obj["metadata"]["name"]),
        ("Problem", problem),
        ("Issuer", issuer.get("url", "")),
        ("Keys", keys + (", under a CA of the rule" if issuer.get("certificateAuthority") else "")),
        ("Audience", " or ".join(spec.get("audiences") or [f"{cluster_id or _NONE} (the id of the cluster)"])),
        *(("Claim", _condition_for_people(one)) for one in spec.get("claims") or []),
        ("Node", spec.get("nodeName") or spec.get("nodeNameExpression") or "any name"),
        ("Unique claim", spec.get("uniqueClaim", "")),
        ("Networks", ", ".join(spec.get("allowedCIDRs") or ())),
        ("Joins", f"at most {spec['maxJoins']}" if spec.get("maxJoins") is not None else "any number"),
        ("Ends", f"{ends} ({_until(ends, now)})" if ends else "never"),
        ("Approval", "by a person, of each request" if spec.get("requireApproval") else ""),
        ("Ephemeral", f"the membership ends after {spec['ephemeral']} of silence" if spec.get("ephemeral") else ""),
        *(
            ("Joined", f"{nodes.get(one['machine'], '<unknown node>')}, token ends {one['expires']}, use {one['use']}")
            for one in joins_of(obj)
        ),
    ]
    return [f"{label + ':':<14}{value}" for label, value in labelled if value]


def _until(end: str, now: datetime) -> str:
    left = parse_rfc3339(end) - now
    return f"in {human_duration(left)}" if left > timedelta() else "ended"


def _condition_for_people(one: Obj) -> str:
    if one.get("expression"):
        return str(one["expression"])
    return (
        f"{one.get('claim')} like {one['pattern']}"
        if one.get("pattern")
        else f"{one.get('claim')} = {one.get('value')}"
    )


# `mooring joinrule delete`: end join rules.


@click.command("delete")
@click.argument("name", nargs=-1, type=JOIN_RULE, required=True, shell_complete=complete_join_rule)
@output_option(*SHOWN)
@ending_options
def delete(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Delete join rules. Machines that have joined keep their certificates."""

    async def work(client: ClusterClient) -> None:
        with printed_deletions(output) as report:
            for one in name:
                try:
                    await chosen.retry(partial(client.delete, PLURAL, one))
                except NotFoundError:
                    await _fetch(client)
                    raise
                report(f"{QUALIFIED}/{one}", f"{QUALIFIED}/{one} deleted")

    chosen.run(work)


# `mooring joinrule authentication-config`: print the configuration with which kube-apiserver takes the tokens.


@click.command("authentication-config")
@click.argument("name", nargs=-1, type=JOIN_RULE, shell_complete=complete_join_rule)
@cluster_options
def authentication_config(name: Sequence[str], chosen: ChosenCluster) -> None:
    """Print an AuthenticationConfiguration for kube-apiserver, by default for all join rules.

    kube-apiserver reads it with --authentication-config. Print it again after each change of a rule. A token that outlives its
    rule is rejected there.
    """

    async def fetch(client: ClusterClient) -> tuple[Sequence[Obj], str]:
        return await _fetch(client), str((await client.get("namespaces", SYSTEM))["metadata"]["uid"])

    found, cluster_id = chosen.run_with_retries(fetch)
    by_name = {obj["metadata"]["name"]: obj for obj in found}
    if missing := [one for one in name if one not in by_name]:
        raise ConfigError(f'there is no join rule "{missing[0]}": mooring joinrule list lists them')
    if not by_name:
        raise ConfigError("there is no join rule: mooring joinrule create makes one")
    rules = []
    for one in name or sorted(by_name):
        try:
            rules.append(read_rule(by_name[one]))
        except JoinRuleError as error:
            raise ConfigError(f"join rule {one}: {error}") from None
    try:
        document = authentication_configuration({rule.name: rule for rule in rules}.values(), cluster_id)
    except JoinRuleError as error:
        raise ConfigError(str(error)) from None
    printed.print_document(document, "yaml")
    for rule in rules:
        if rule.restrictions.networks:
            echo(
                f"Warning: join rule {rule.name} has networks, and kube-apiserver does not record where a request comes from: a "
                "person decides about each of its requests",
                err=True,
            )
