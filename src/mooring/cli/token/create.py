"""`mooring token create`: create bootstrap tokens, from flags or a kubeadm InitConfiguration."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from mooring.apimachinery.codec.fieldreader import FieldReader
from mooring.apimachinery.codec.yaml import decode_yaml, decoded
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.joinline import agent_line, join_line
from mooring.cli.options.flags import DURATION, not_empty, usage
from mooring.cli.printing import echo
from mooring.cli.token.generate import K3S, KUBEADM, format_option
from mooring.cli.token.list import print_allowance
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.serverversion import NotMooringError, other_program
from mooring.clock import Clock, parse_rfc3339
from mooring.duration import parse_long_duration
from mooring.errors import AlreadyExistsError, ConfigError, ForbiddenError, MooringError, NotFoundError
from mooring.settings.declaration import split_commas
from mooring.trust.bootstraptoken.restrictions import (
    MOST_JOINS,
    Restrictions,
    parse_ephemeral,
    parse_max_joins,
    parse_networks,
    parse_node_name,
)
from mooring.trust.bootstraptoken.token import (
    DEFAULT_GROUPS,
    USAGES,
    TokenError,
    default_groups,
    generate_token,
    parse_token,
)
from mooring.trust.bootstraptoken.tokensecret import (
    NAMESPACE,
    NOT_ACCEPTED,
    TokenRecord,
    new_record,
    parse_expiration,
    secret_name,
    to_secret,
)
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.discovery.editedclusterinfo import join_problem
from mooring.trust.discovery.errors import NotKubernetesError
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.token import DEFAULT_GROUPS as K3S_GROUPS
from mooring.trust.k3s.token import format_token
from mooring.trust.kubeconfig import KubeconfigError, Selected, discovery_cluster
from mooring.trust.kubeconfigtext import parse_kubeconfig

# kubeadm InitConfiguration for `token create --config`: reads its `bootstrapTokens` (v1beta4 and v1beta3).
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): other documents in the file are ignored. Missing
# fields get kubeadm's defaults. A file without the list means one token with all defaults. `ttl` and `expires` exclude each other.
# Messages name the field, never a token.

API_VERSIONS = ("kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1beta3")
MAX_TOKENS = 1000
"""Tokens in one file: each is a request to the server."""
_SEPARATOR = re.compile(r"^---(?=[ \t\r\n#]|$).*$", re.MULTILINE)


def token_records(data: bytes, source: str, now: datetime) -> tuple[TokenRecord, ...]:
    """Return the tokens in the file, at least one. Raises ConfigError that names the file and the field."""
    configuration = _init_configuration(data, source)
    wanted = configuration.get("bootstrapTokens") or [{}]
    if not isinstance(wanted, list) or len(wanted) > MAX_TOKENS:
        raise ConfigError(f"{source}: bootstrapTokens must be a list of at most {MAX_TOKENS} tokens")
    return tuple(_record(entry, f"{source}: bootstrapTokens[{index}]", now) for index, entry in enumerate(wanted))


def _init_configuration(data: bytes, source: str) -> dict[str, Any]:
    found = []
    try:
        for text in _SEPARATOR.split(decoded(data)):
            document = decode_yaml(text)[0] if text.strip() else None
            if isinstance(document, dict) and document.get("kind") == "InitConfiguration":
                found.append(document)
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: the file is not UTF-8 text") from None
    except MooringError as error:
        raise ConfigError(f"{source}: {error}") from None
    if len(found) != 1:
        raise ConfigError(f"{source}: one InitConfiguration is expected, the file has {len(found)}")
    if found[0].get("apiVersion") not in API_VERSIONS:
        raise ConfigError(f"{source}: the apiVersion of InitConfiguration must be {' or '.join(API_VERSIONS)}")
    return found[0]


def _record(entry: Any, where: str, now: datetime) -> TokenRecord:
    fields = FieldReader(entry, where, ConfigError)
    token, expires, ttl = (fields.text(key) for key in ("token", "expires", "ttl"))
    try:
        return new_record(
            parse_token(token) if token else generate_token(secrets.token_bytes),
            now,
            ttl=_ttl(ttl, where) if ttl else None,
            expires=parse_expiration(expires) if expires else None,
            usages=fields.texts("usages") or USAGES,
            groups=fields.texts("groups") or None,
            description=fields.text("description"),
        )
    except TokenError as error:
        raise ConfigError(f"{where}: {error}") from None


def _ttl(text: str, where: str) -> timedelta:
    try:
        return parse_long_duration(text)
    except ValueError:
        raise ConfigError(f"{where}.ttl: {DURATION.problem(text)}") from None


# `mooring token create`: create bootstrap tokens.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands):
# * A token whose id exists is refused: GET first, then POST. One that was created in between is replaced by PUT, as in kubeadm.
# * All arguments are checked before a request is sent. Unlike kubeadm, `--certificate-key` without `--print-join-command` is
#   refused before a token is created, and so is a token beside `--config`.
# * With `--format k3s` the token is printed with the hash of the CA, as `k3s token create` does
#   (docs/protocol/k3s.md#token-commands). The hash covers the bundle that the server serves at `/cacerts`; a server without that
#   path gets the CA of the kubeconfig hashed, with a warning. The hash is known before a token is created.
# * Each token, or its join command, is printed as soon as it exists, so that a failure hides none. What it allows is said on
#   stderr. kubeadm's line keeps the trailing space that scripts know.

PROGRAMS = {KUBEADM: ("mooring", "kubeadm"), K3S: ("mooring", "k3s")}
"""Programs that join a machine with a token of each format."""
JOIN_TOKENS = "jointokens"
CACERTS = "/cacerts"
"""Path of the bundle whose hash stands in a token of k3s's format."""
_CERTIFICATE_KEY = re.compile(r"[0-9a-fA-F]{64}")
_NOT_WITH_CONFIG = (
    "allow_cidr",
    "certificate_key",
    "description",
    "ephemeral",
    "groups",
    "max_joins",
    "node_name",
    "require_approval",
    "token_format",
    "ttl",
    "usages",
)
"""Flags that are not allowed beside `--config`, sorted: kubeadm's, and those of restrictions, which the file cannot hold."""
_NOT_WITH_LIMITED = ("config_file", "groups", "usages")


@click.command("create")
@click.argument("token", required=False, envvar="MOORING_TOKEN")
@click.option(
    "--config",
    "config_file",
    default="",
    callback=not_empty,
    metavar="FILE",
    help="kubeadm InitConfiguration (v1beta4 or v1beta3) whose bootstrapTokens are created.",
)
@click.option(
    "--ttl",
    type=DURATION,
    default="24h0m0s",
    show_default=True,
    help="Lifetime of the token; 0 means that it never expires.",
)
@click.option(
    "--usages",
    multiple=True,
    default=USAGES,
    show_default=True,
    metavar="USAGE,...",
    help="Uses of the token: signing, authentication; repeatable, or with commas.",
)
@click.option(
    "--groups",
    multiple=True,
    default=DEFAULT_GROUPS,
    show_default=f"{DEFAULT_GROUPS[0]}; with --format k3s: {K3S_GROUPS[0]}; none without the usage authentication",
    metavar="GROUP,...",
    help="Additional groups of a client with the token; repeatable, or with commas.",
)
@click.option("--description", default="", help="Purpose of the token, for people.")
@click.option(
    "--max-joins",
    default="",
    callback=not_empty,
    metavar="N",
    help=f"Number of machines that may join with the token, at most {MOST_JOINS}; a machine that retries counts once.",
)
@click.option(
    "--allow-cidr",
    multiple=True,
    callback=not_empty,
    metavar="CIDR",
    help="Network from which the token may be used, such as 10.1.0.0/16; repeatable.",
)
@click.option(
    "--node-name",
    default="",
    callback=not_empty,
    metavar="PATTERN",
    help="Name that machines may join under; * stands for any characters but a dot, such as worker-*.",
)
@click.option(
    "--ephemeral",
    default="",
    callback=not_empty,
    metavar="DURATION",
    help="Silence after which the server ends the membership of a machine that joined with the token, such as 30m or 7d; at least "
    "2m. For machines that are thrown away.",
)
@click.option(
    "--require-approval",
    is_flag=True,
    help="Let no machine in without a person: each request that is made with the token waits for mooring csr approve.",
)
@click.option(
    "--limited",
    "is_limited",
    is_flag=True,
    help="Let the server make the token, which expires within 24h and lets in --max-joins machines, by default 1: the right to "
    "create jointokens.mooring.dev is enough, and no right to Secrets is needed.",
)
@click.option("--print-join-command", is_flag=True, help="Print the join command of a machine instead of the token.")
@click.option(
    "--join-program",
    type=click.Choice(("mooring", "kubeadm", "k3s")),
    default="mooring",
    show_default=True,
    help="Program of the join command.",
)
@click.option(
    "--certificate-key",
    default="",
    metavar="HEX",
    help="With --print-join-command: print kubeadm's command for a control plane that fetches certificates with this key.",
)
@click.option("--dry-run", is_flag=True, help="Print the output without creating a token.")
@format_option
@changing_options
@click.pass_context
def create(
    ctx: click.Context,
    token: str | None,
    config_file: str,
    ttl: timedelta,
    usages: Sequence[str],
    groups: Sequence[str],
    description: str,
    max_joins: str,
    allow_cidr: Sequence[str],
    node_name: str,
    ephemeral: str,
    require_approval: bool,
    is_limited: bool,
    print_join_command: bool,
    join_program: str,
    certificate_key: str,
    dry_run: bool,
    token_format: str,
    chosen: ChosenCluster,
) -> None:
    """Create a bootstrap token and print it.

    Without TOKEN a new one is generated. It can also be given as $MOORING_TOKEN, which other users do not see. A machine with
    the token can request its certificate. stderr says what the token allows. --max-joins, --allow-cidr, --node-name,
    --ephemeral and --require-approval are kept in annotations of the Secret: Mooring enforces them, kube-apiserver does not, and
    stderr says so.
    Machines join with the token kubeadm's way and k3s's way, in whichever format it was printed. With --limited the server makes
    the token, for a caller that may create no Secrets.
    """
    clock = chosen.clock
    is_k3s = token_format == K3S
    _check_certificate_key(certificate_key, print_join_command)
    _check_program(join_program, token_format, certificate_key)
    if ctx.get_parameter_source("groups") is ParameterSource.DEFAULT:
        groups = default_groups(split_commas(usages), K3S_GROUPS if is_k3s else DEFAULT_GROUPS)
    if is_limited:
        _refuse_flags(ctx, token, _NOT_WITH_LIMITED, "--limited cannot be mixed with {}: the server chooses it")
        max_joins = max_joins or "1"
    if config_file:
        _refuse_flags(ctx, token, _NOT_WITH_CONFIG, "--config cannot be mixed with {}: write it into the file")
        records = token_records(read_limited(Path(config_file)), config_file, clock.now())
    else:
        with usage():
            records = (
                new_record(
                    parse_token(token) if token is not None else generate_token(secrets.token_bytes),
                    clock.now(),
                    ttl=ttl,
                    usages=split_commas(usages),
                    groups=split_commas(groups),
                    description=description,
                    restrictions=_restrictions(max_joins, allow_cidr, node_name, ephemeral, require_approval),
                ),
            )
    program = "kubeadm" if certificate_key else join_program
    if print_join_command:
        _warn_of_way(chosen.selected)
    known_ca = b""
    # What the lines need is read before a token exists.
    if is_k3s:
        digest = ca_hash(_served_ca(chosen), clock.now())
    elif print_join_command:
        known_ca = _known_ca(chosen)
        pins = [str(pin) for pin in pins_of(known_ca)]

    def line_of(record: TokenRecord) -> str:
        if is_k3s:
            text = format_token(digest, record.token).reveal().decode()
            return _agent_command(chosen.selected, program, text) if print_join_command else text
        if print_join_command:
            return _join_command(chosen.selected, record, program, pins, certificate_key)
        return record.token.reveal()

    if is_limited:
        request = _join_token(records[0], ttl, token_format)
        _create_limited(chosen, request, records[0], line_of, dry_run)
    elif dry_run:
        limits = next((record.restrictions for record in records if record.restrictions), Restrictions())
        unenforced_by = chosen.run(lambda client: _unenforced_by(client, limits))
        for record in records:
            echo(f"[dry-run] would create the Secret {NAMESPACE}/{secret_name(record.token.id)}", err=True)
            echo(line_of(record))
            print_allowance(record, clock.now(), unenforced_by)
    else:
        chosen.run(lambda client: create_all(client, records, line_of, clock, chosen.timeout))
    if (
        not dry_run
        and print_join_command
        and not is_k3s
        and (problem := chosen.run(lambda client: _join_problem(client, known_ca)))
    ):
        echo(f"Warning: machines read cluster-info of {chosen.selected.cluster.server}: {problem}", err=True)


def _join_token(record: TokenRecord, ttl: timedelta, token_format: str) -> Obj:
    """Return the JoinToken that requests a token like `record`."""
    spec: Obj = {
        "expirationSeconds": int(ttl.total_seconds()),
        "format": token_format,
        **record.restrictions.fields(),
    }
    if record.description:
        spec["description"] = record.description
    return {"spec": spec}


def _create_limited(
    chosen: ChosenCluster, request: Obj, wanted: TokenRecord, line_of: Callable[[TokenRecord], str], dry_run: bool
) -> None:
    """Let the server make a token, and print it. Not repeated after a lost response: the token of the first try would be left."""

    async def create(client: ClusterClient) -> tuple[Obj, bool]:
        try:
            status: Obj = (await client.create(JOIN_TOKENS, request, dry_run=dry_run))["status"]
            return status, _is_accepted(client)
        except NotFoundError:
            program = await other_program(client)
            reason = f"is {program}, not Mooring" if program else "has an older version"
            raise NotMooringError(
                f"{client.server} {reason}, and makes no limited tokens: leave out --limited, as a user who may create Secrets in "
                "kube-system"
            ) from None

    status, accepted = chosen.run(create)
    if dry_run:
        echo("[dry-run] the server would make a token", err=True)
        return
    made = replace(wanted, token=parse_token(status["token"]), expires=parse_rfc3339(status["expirationTimestamp"]))
    echo(line_of(made))
    print_allowance(made, chosen.clock.now(), accepted=accepted)


def _restrictions(
    max_joins: str, networks: Sequence[str], node_name: str, ephemeral: str, require_approval: bool
) -> Restrictions:
    """Return the restrictions that the flags give. Raises TokenError."""
    return Restrictions(
        parse_max_joins(max_joins) if max_joins else None,
        parse_networks(",".join(networks)) if networks else (),
        parse_node_name(node_name) if node_name else "",
        parse_ephemeral(ephemeral) if ephemeral else None,
        require_approval,
    )


def _check_certificate_key(key: str, print_join_command: bool) -> None:
    if key and not print_join_command:
        raise click.UsageError("--certificate-key is only of use with --print-join-command")
    if key and _CERTIFICATE_KEY.fullmatch(key) is None:
        raise click.UsageError("--certificate-key must be 64 hexadecimal digits: a key of 32 bytes")


def _check_program(program: str, token_format: str, certificate_key: str) -> None:
    if program not in PROGRAMS[token_format]:
        raise click.UsageError(
            f"--join-program {program} does not join with a token of the format {token_format}: give "
            f"{' or '.join(PROGRAMS[token_format])}"
        )
    if certificate_key and token_format == K3S:
        raise click.UsageError("--certificate-key is kubeadm's, and --format k3s is not")


def _refuse_flags(ctx: click.Context, token: str | None, names: Sequence[str], refusal: str) -> None:
    """Raise UsageError when the command line has one of these flags, or it or the environment a token."""
    mixed = [
        "--" + name.removeprefix("token_").removesuffix("_file").replace("_", "-")
        for name in names
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if token:
        mixed.append(
            "a token" if ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE else "$MOORING_TOKEN"
        )
    if mixed:
        raise click.UsageError(refusal.format(", ".join(mixed)))


def _known_ca(chosen: ChosenCluster) -> bytes:
    """Return the CAs that verify the server, from the kubeconfig, else from cluster-info. Raises ConfigError."""
    named = chosen.selected.cluster
    ca_pem = named.ca_pem or (read_limited(Path(named.ca_file)) if named.ca_file else b"")
    if not ca_pem:
        ca_pem = chosen.run_with_retries(_published_ca)
    if not ca_pem:
        raise ConfigError(
            "neither the kubeconfig nor cluster-info names a CA that verifies the server, so there is no hash to print; let "
            "machines join with --discovery-file"
        )
    return ca_pem


async def _join_problem(client: ClusterClient, known_ca: bytes) -> str:
    try:
        return join_problem(await client.get("configmaps", clusterinfo.NAME, clusterinfo.NAMESPACE), known_ca)
    except NotFoundError:
        return join_problem(None)
    except MooringError:
        # The token is created; machines may read what this user may not.
        return ""


def _served_ca(chosen: ChosenCluster) -> bytes:
    """Return the CA bundle as the server serves it to machines that join k3s's way, else as the kubeconfig has it."""
    try:
        return chosen.run_with_retries(lambda client: client.read(CACERTS))
    except (NotFoundError, ForbiddenError, NotKubernetesError):
        # The last for a 404 that is not a Status.
        echo(
            f"Warning: {chosen.selected.cluster.server} does not serve {CACERTS}, so machines cannot join it k3s's way; a Mooring "
            "server serves it with --k3s-supervisor. The hash is that of the CA in the kubeconfig",
            err=True,
        )
        return _known_ca(chosen)


async def _published_ca(client: ClusterClient) -> bytes:
    """Return the CAs of the servers in cluster-info; empty without cluster-info."""
    try:
        info = await client.get("configmaps", clusterinfo.NAME, clusterinfo.NAMESPACE)
        text: str = (info.get("data") or {}).get(KUBECONFIG_KEY, "")
        return discovery_cluster(parse_kubeconfig(text)).ca_pem
    except (NotFoundError, ForbiddenError, KubeconfigError):
        return b""


def _join_command(
    chosen: Selected, record: TokenRecord, program: str, pins: Sequence[str], certificate_key: str
) -> str:
    """Return the join command for the addresses in the kubeconfig. kubeadm takes one address."""
    servers = [_endpoint(one.server) for one in (chosen.cluster, *chosen.others)]
    line = join_line(program, servers[:1] if program == "kubeadm" else servers, record.token.reveal(), pins)
    if program == "kubeadm":
        line += " "
    return f"{line}--control-plane --certificate-key {certificate_key}" if certificate_key else line


def _agent_command(chosen: Selected, program: str, token: str) -> str:
    """Return the command of an agent for the addresses in the kubeconfig. k3s takes one address."""
    servers = [_endpoint(one.server) for one in (chosen.cluster, *chosen.others)]
    return agent_line(program, servers[:1] if program == "k3s" else servers, token)


def _warn_of_way(chosen: Selected) -> None:
    """Warn where the kubeconfig has more of the way to a server than a line holds."""
    for one in (chosen.cluster, *chosen.others):
        named = (("tls-server-name", one.tls_server_name), ("proxy-url", one.proxy_url))
        if fields := " and ".join(field for field, value in named if value):
            echo(
                f"Warning: the kubeconfig reaches {one.server} by {fields}, which a join line cannot carry. Give a machine that "
                "needs the same way a kubeconfig with the server and its CA, and join with --discovery-file",
                err=True,
            )


def _endpoint(server: str) -> str:
    """Return `host:port` of an https URL, with port 443 for a URL without one, because kubeadm needs the port."""
    try:
        parts = urlsplit(server)
        endpoint = parts.netloc if parts.port else f"{parts.netloc}:443"
    except ValueError:
        raise ConfigError(f'the server "{server}" of the kubeconfig is not a URL') from None
    if parts.path.strip("/"):
        raise ConfigError(
            f'the server "{server}" of the kubeconfig has a path, which a join line cannot carry: give the machine a kubeconfig '
            "with the server and its CA, and join with --discovery-file"
        )
    return endpoint


async def create_all(
    client: ClusterClient,
    records: Sequence[TokenRecord],
    line_of: Callable[[TokenRecord], str],
    clock: Clock,
    limit: timedelta,
) -> None:
    """Create every token and print its line as soon as it exists. Raises ConfigError, ApiError, PeerError."""
    for record in records:
        await cluster.retry(partial(_refuse_existing, client, record), clock, limit)
        # The check is not repeated: after a lost response the token exists, created by this command.
        accepted = await cluster.retry(partial(_store, client, record), clock, limit)
        echo(line_of(record))
        unenforced_by = await cluster.retry(partial(_unenforced_by, client, record.restrictions), clock, limit)
        print_allowance(record, clock.now(), unenforced_by, accepted=accepted)


async def _unenforced_by(client: ClusterClient, limits: Restrictions) -> str:
    """Return the name of a server that does not enforce the limits of a token; "" for a Mooring server, and without limits."""
    if not limits:
        return ""
    program = await other_program(client)
    return program and f"{client.server} is {program}, not Mooring, and"


async def _refuse_existing(client: ClusterClient, record: TokenRecord) -> None:
    try:
        await client.get("secrets", secret_name(record.token.id), NAMESPACE)
    except (NotFoundError, ForbiddenError):
        # A user may be allowed to create but not to read.
        return
    raise ConfigError(f'a token with id "{record.token.id}" already exists; delete it, or choose another')


async def _store(client: ClusterClient, record: TokenRecord) -> bool:
    """Store the Secret of a token, and return whether the server accepts the token."""
    secret = to_secret(record)
    try:
        await client.create("secrets", secret)
    except AlreadyExistsError:
        await client.update("secrets", secret)
    return _is_accepted(client)


def _is_accepted(client: ClusterClient) -> bool:
    """Return false when the server has warned that it does not accept the token that it stored."""
    return NOT_ACCEPTED not in client.warning
