"""`mooring init`: the first boot, without serving (docs/protocol/kubeadm-init.md).

Rules kept here: running it again changes nothing that is in order and never creates a second CA. Objects are written through the
registry like those of clients (law 6), so that it works beside a running server, too. Every created file is listed.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mooring.cli.options.bysubject import CommandBySubject
from mooring.cli.options.configfile import ConfigFile, default_path
from mooring.cli.options.server import server_configuration, server_options, server_usage
from mooring.cli.printing.output import echo
from mooring.cli.server.firsttoken import (
    FirstTokenFlags,
    Serving,
    accepts_tokens,
    first_token_options,
    print_next_steps,
)
from mooring.cli.systemd.unitfile import arguments_of
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError
from mooring.pki.pem import RootCa
from mooring.pki.x509.clientissuers import ClientIssuers
from mooring.plane.configuration import ServerConfig, declared_settings
from mooring.plane.files.datadirectory import only_server
from mooring.plane.files.reloading import Reloading
from mooring.plane.keys.keystore import KeyStore
from mooring.plane.parts.foundation import check_names, open_registry
from mooring.plane.publishing.firstboot import FirstBoot, create_first_token
from mooring.plane.sharedkeys.joining import joined_configuration
from mooring.plane.sharedkeys.start import prepare_keys
from mooring.plane.signing.authorities import SignerAuthorities
from mooring.settings.signing import SigningSettings
from mooring.settings.storage import StorageSettings
from mooring.trust.bootstraptoken.token import BootstrapToken
from mooring.trust.discovery import clusterinfo


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
        check_names(config, clock)  # before any file is created
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
    chosen = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = [one for one in declared_settings() if one.flag and context.get_parameter_source(one.field) in chosen]
    values = {one.field: context.params[one.field] for one in given if not one.secret}
    if file is None or "data_dir" not in file.values or "data_dir" in values:
        values["data_dir"] = data_dir
    arguments = ["mooring", "server"]
    if file is not None:
        arguments += ["--config", str(Path(file.path).absolute())]
    elif default_path():
        arguments += ["--config", ""]  # this command did not read the file in the default place
    arguments += arguments_of(declared_settings(), values)
    return [
        f"  {shlex.join(arguments)}",
        *(
            f"--{one.name} is a secret and not repeated: set {one.variable}, or name its file with --{one.name}-file."
            for one in given
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
        lines += ["`mooring audit verify` needs --key with a copy of the old lineage.pub for records from before."]
    return lines or ["No key was missing, and none was made."]


async def _first_boot(
    config: ServerConfig, key_store: KeyStore, clock: Clock, token_flags: FirstTokenFlags
) -> BootstrapToken | None:
    """Create the objects that are missing, and return the token that was created."""
    async with open_registry(config, clock, secrets.token_bytes) as parts:
        registry = parts.registry
        is_first = registry.views["configmaps"].get(clusterinfo.NAME, clusterinfo.NAMESPACE) is None
        signing = SignerAuthorities(config[SigningSettings], key_store.ca.for_signer, Reloading())
        issuers = ClientIssuers(key_store.ca, signing.client_cas)
        first_boot = FirstBoot(registry, clock, config, RootCa(key_store.serving_ca_pem), issuers)
        await first_boot.run()
        token = token_flags.token(is_first and accepts_tokens(config))
        if token is not None:
            await create_first_token(registry, clock, first_boot, token, token_flags.ttl)
        return token
