"""`mooring init`: the first boot, without serving; and what a first start prints."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.authn.bootstraptoken import BootstrapTokenSettings
from mooring.cli.joinline import WITHHELD, agent_line, join_line
from mooring.cli.options.configfile import ConfigFile, default_path
from mooring.cli.options.declared import CommandBySubject
from mooring.cli.options.flags import DURATION, options_of
from mooring.cli.options.server import server_configuration, server_options, server_usage
from mooring.cli.printing import echo
from mooring.cli.systemd import arguments_of
from mooring.cli.token.list import NEVER_EXPIRES, machines
from mooring.clock import Clock, SystemClock
from mooring.controlplane.configuration import ServerConfig, declared_settings
from mooring.controlplane.datadirectory import Reloading, only_server
from mooring.controlplane.keystore import KeyStore
from mooring.controlplane.parts.foundation import check_names, open_registry
from mooring.controlplane.publishing.firstboot import FirstBoot, create_first_token
from mooring.controlplane.servingcertificate import verifiable
from mooring.controlplane.sharedkeys.joining import joined_configuration
from mooring.controlplane.sharedkeys.start import prepare_keys
from mooring.controlplane.signingkeys import SignerAuthorities
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.pki.pem import RootCa
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clusterca import CombinedIssuers
from mooring.settings.signing import SigningSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.bootstraptoken.restrictions import NO_RESTRICTIONS
from mooring.trust.bootstraptoken.token import BootstrapToken, generate_token, parse_token
from mooring.trust.bootstraptoken.tokensecret import NOT_ACCEPTED, new_record
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.pins import pins_of
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.settings import K3sSettings
from mooring.trust.k3s.token import PREFIX

# Flags about the token of a first start, and the lines that a first start prints.
#
# Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands): a given token is checked before any file is
# created. The empty string means no token. Without the flag the first start creates a fresh token, and later starts create none, so
# that a join line which was printed once expires. No join line is printed that no machine could use.

first_token_options = options_of(
    click.option(
        "--token", default=None, metavar="TOKEN", envvar="MOORING_TOKEN", show_envvar=True,
        help='Token to create; "" creates none. [default: a fresh one on the first start, none later]',
    ),
    click.option("--token-ttl", type=DURATION, default="24h0m0s", show_default=True,
                 help="How long the token lives; 0 means for ever."),
    click.option("--skip-token-print", is_flag=True, help="Print <value withheld> instead of the token."),
)  # fmt: skip
"""Flags about the token of the first start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenFlags:
    """Values of the flags about the token. `text` None: a fresh token on the first start; empty: none."""

    text: str | None
    ttl: timedelta
    withheld: bool

    def token(self, first_start: bool) -> BootstrapToken | None:
        """Return the token to create, or None. Raises TokenError."""
        if self.text is None:
            return generate_token(secrets.token_bytes) if first_start else None
        return parse_token(self.text) if self.text else None

    def check(self, clock: Clock) -> None:
        """Raise TokenError for a token or a ttl that is not valid."""
        new_record(self.token(True) or generate_token(secrets.token_bytes), clock.now(), ttl=self.ttl)

    def check_accepted(self, config: ServerConfig) -> None:
        """Raise ConfigError for a token that the server would not accept."""
        if self.text and not accepts_tokens(config):
            raise ConfigError(f"token: {NOT_ACCEPTED}")


@dataclass(frozen=True, slots=True)
class Serving:
    """The serving certificate with its chain, and the published CAs that verify it."""

    chain: Sequence[Certificate]
    ca_pem: bytes


def accepts_tokens(config: ServerConfig) -> bool:
    """Return True when the server accepts bootstrap tokens."""
    return config[BootstrapTokenSettings].enable_bootstrap_token_auth


def print_next_steps(
    config: ServerConfig,
    serving: Serving,
    token: BootstrapToken | None,
    flags: FirstTokenFlags,
) -> None:
    """Print the join line, with the pins of the CAs that verify the server, and how to administrate.

    A join line that no machine could use is not printed: its addresses are those that the serving certificate names.
    """
    serving_ca_pem = serving.ca_pem
    usable = verifiable(config.endpoints, serving.chain, serving_ca_pem, SystemClock().now())
    admin = shlex.quote(str(Path(config.data_dir) / "admin.conf"))
    if not accepts_tokens(config):
        echo("Bootstrap tokens are turned off: no machine joins with a token.")
    elif token is None:
        echo("No token was made. To let a machine join, make one:")
        echo(f"  mooring token create --print-join-command --kubeconfig {admin}")
    elif not usable:
        echo(
            f"A token was made (id {token.id}), but no machine can join: the serving certificate names no published address, or no "
            "published CA verifies it. The log says which.",
            "Once that is mended, print the join line:",
            f"  mooring token create --print-join-command --kubeconfig {admin}",
        )
    else:
        endpoints = [str(endpoint) for endpoint in usable]
        pins = [str(pin) for pin in pins_of(serving_ca_pem)]
        shown = WITHHELD if flags.withheld else token.reveal()
        life = f"for {format_duration(flags.ttl)}" if flags.ttl else "until it is deleted"
        echo(f"To let a machine join (the token lets in {machines(NO_RESTRICTIONS)}, {life}), run on it as root:")
        if not flags.ttl:
            echo(NEVER_EXPIRES.format(id=token.id), err=True)
        echo("  " + join_line("mooring", endpoints, shown, pins))
        echo("or, where kubeadm is to do it:")
        echo("  " + join_line("kubeadm", endpoints[:1], shown, pins))
        if config[K3sSettings].k3s_supervisor:
            echo("or, k3s's way:")
            echo("  " + agent_line("mooring", endpoints, f"{PREFIX}{ca_hash(serving_ca_pem)}::{shown}"))
    echo("To administrate:")
    echo(f"  export KUBECONFIG={admin}")
    echo("  kubectl get nodes,csr")


# `mooring init`: the first boot, without serving (docs/protocol/kubeadm-init.md).
#
# Rules kept here: running it again changes nothing that is in order and never creates a second CA. Objects are written through
# the registry like those of clients (law 6), so that it works beside a running server, too. Every created file is listed.


@click.command("init", cls=CommandBySubject)
@server_options
@first_token_options
@click.option(
    "--new-cluster-keys",
    is_flag=True,
    help="Make new keys for a cluster whose keys (pki/ca.key, sa.key, lineage.key) are lost. What depends on them is locked out.",
)
def init(token: str | None, token_ttl: timedelta, skip_token_print: bool, new_cluster_keys: bool, **flags: Any) -> None:
    """Make a new control plane: CA, keys, admin kubeconfig, the first objects and a token.

    Running it again repairs what is missing, keeps what is there, never overwrites a CA, and makes no second token unless
    --token is given.
    """
    clock = SystemClock()
    token_flags = FirstTokenFlags(text=token, ttl=token_ttl, withheld=skip_token_print)
    with server_usage():
        token_flags.check(clock)
        config = server_configuration(**flags)
        if config[StorageSettings].in_memory:
            raise ConfigError("storage: memory: forgets everything when init ends; use mooring up with it")
        token_flags.check_accepted(config)
        # Before any file is created.
        check_names(config, clock)
    # Outside of the check of usage: it asks another server, and writes its answer.
    config = joined_configuration(config, flags["server_token"], clock)
    with only_server(Path(config.data_dir)):
        prepared = prepare_keys(config, clock, secrets.token_bytes, new_keys=new_cluster_keys)
        created_token = asyncio.run(_first_boot(config, prepared.key_store, clock, token_flags))
    if prepared.created:
        echo(f"Made in {config.data_dir}:")
        for path in prepared.created:
            echo(f"  {Path(path).relative_to(config.data_dir)}")
    else:
        echo(f"The keys and certificates in {config.data_dir} are kept as they are.")
    if new_cluster_keys:
        echo(*_locked_out({Path(path).name for path in prepared.created}))
    echo("To serve, with the same flags:", *_serving_lines(flags["config"], config.data_dir))
    serving = Serving(prepared.key_store.serving_chain, prepared.key_store.serving_ca_pem)
    print_next_steps(config, serving, created_token, token_flags)


def _serving_lines(file: ConfigFile | None, data_dir: str) -> list[str]:
    """Return the command that serves with the flags and variables of this one, and where its secrets are to be given."""
    context = click.get_current_context()
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    settings = [one for one in declared_settings() if one.flag and context.get_parameter_source(one.field) in sources]
    # No secret is printed, nor put into a command line, which other users see.
    values = {one.field: context.params[one.field] for one in settings if not one.secret}
    if file is None or "data_dir" not in file.values or "data_dir" in values:
        values["data_dir"] = data_dir
    arguments = ["mooring", "server"]
    if file is not None:
        arguments += ["--config", str(Path(file.path).absolute())]
    elif default_path():
        # This command did not read the file in the default place.
        arguments += ["--config", ""]
    arguments += arguments_of(declared_settings(), values)
    return [
        f"  {shlex.join(arguments)}",
        *(
            f"--{one.name} is a secret and not repeated: set {one.variable}, or name its file with --{one.name}-file."
            for one in settings
            if one.secret and context.params[one.field]
        ),
    ]


def _locked_out(made: set[str]) -> list[str]:
    """Return lines that say who is locked out by new keys, and what to do."""
    lines = []
    if "ca.key" in made:
        lines += [
            "Machines, pins and kubeconfigs of the old CA do not trust this server, and their certificates are refused:",
            "  join each machine again with a new pin, and give administrators the new admin.conf.",
            "  With several servers, copy pki/ to each of them.",
        ]
    if "sa.pub" in made:
        lines += ["Tokens of service accounts that the old key signed are refused: restart what uses them."]
    if "lineage.pub" in made:
        lines += ["`mooring issuance verify` needs --key with a copy of the old lineage.pub for records from before."]
    return lines or ["No key was missing, and none was made."]


async def _first_boot(
    config: ServerConfig, key_store: KeyStore, clock: Clock, token_flags: FirstTokenFlags
) -> BootstrapToken | None:
    """Create the objects that are missing, and return the token that was created."""
    async with open_registry(config, clock, secrets.token_bytes) as parts:
        registry = parts.registry
        is_first = registry.views["configmaps"].get(clusterinfo.NAME, clusterinfo.NAMESPACE) is None
        signing = SignerAuthorities(config[SigningSettings], key_store.ca.for_signer, Reloading())
        issuers = CombinedIssuers(key_store.ca, signing.client_cas)
        first_boot = FirstBoot(registry, clock, config, RootCa(key_store.serving_ca_pem), issuers)
        await first_boot.run()
        token = token_flags.token(is_first and accepts_tokens(config))
        if token is not None:
            await create_first_token(registry, clock, first_boot, token, token_flags.ttl)
        return token
