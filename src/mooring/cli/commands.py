"""Table of all commands (law 10), and the click group that imports the module of a command when it is used.

Rules kept here: a name with a space is a command of a group. The help line lives in the table, so that `--help`, completion and
the reference pages need no command's imports; `mooring token generate` must feel instant. A wrong name gets the nearest right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

_PATHS = {"FILE": "file", "PATH": "file", "DIR": "dir"}
"""Completion of a value by the shell, by its name in the help."""


class PathText(click.types.StringParamType):
    """A text that a shell completes as a path."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self._kind)]


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """Location of a command (`module:function`) and its line of help."""

    target: str
    help: str

    def load(self) -> click.Command:
        """Import the module and return the command, whose paths a shell completes."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        for one in command.params:
            if one.metavar in _PATHS and type(one.type) is click.types.StringParamType:
                one.type = PathText(_PATHS[one.metavar])
        return command


COMMANDS: Mapping[str, CommandEntry] = MappingProxyType(
    {
        "init": CommandEntry(
            "mooring.cli.server.init:init", "Create a control plane: keys, certificates, first objects and a token."
        ),
        "up": CommandEntry("mooring.cli.server.serve:up", "Serve a control plane, which the first start creates."),
        "server": CommandEntry("mooring.cli.server.serve:server", "Serve a control plane."),
        "server unit": CommandEntry("mooring.cli.server.unit:unit", "Print a systemd unit for a server."),
        "join": CommandEntry("mooring.cli.join.join:join", "Make this machine a member of a cluster."),
        "agent": CommandEntry(
            "mooring.cli.join.agent:agent", "Join if needed, then keep this machine's certificate and Node fresh."
        ),
        "agent unit": CommandEntry("mooring.cli.join.install:unit", "Print a systemd unit for the agent."),
        "agent install": CommandEntry(
            "mooring.cli.join.install:install", "Install the agent as a service of systemd, and start it."
        ),
        "agent uninstall": CommandEntry(
            "mooring.cli.join.install:uninstall", "Stop and remove the service of the agent."
        ),
        "leave": CommandEntry(
            "mooring.cli.join.leave:leave", "End this machine's membership, and remove its certificate and files."
        ),
        "token create": CommandEntry("mooring.cli.token.create:create", "Create a bootstrap token."),
        "token list": CommandEntry("mooring.cli.token.list:list_tokens", "List bootstrap tokens."),
        "token delete": CommandEntry("mooring.cli.token.list:delete", "Delete bootstrap tokens."),
        "token impact": CommandEntry("mooring.cli.token.impact:impact", "List what a token obtained, and withdraw it."),
        "token rotate": CommandEntry(
            "mooring.cli.token.rotate:rotate", "Replace the server token, with which servers join."
        ),
        "token generate": CommandEntry("mooring.cli.token.generate:generate", "Print a new token, without a server."),
        "machine authorize": CommandEntry("mooring.cli.machine:authorize", "Authorize a machine to join, once."),
        "machine list": CommandEntry("mooring.cli.machine:list_machines", "List authorized machines."),
        "machine remove": CommandEntry("mooring.cli.machine:remove", "Withdraw the authorization of machines."),
        "joinrule create": CommandEntry(
            "mooring.cli.joinrule:create", "Let machines with an identity token of an issuer join."
        ),
        "joinrule list": CommandEntry("mooring.cli.joinrule:list_rules", "List join rules."),
        "joinrule show": CommandEntry(
            "mooring.cli.joinrule:show", "Show a join rule, and the machines that joined by it."
        ),
        "joinrule delete": CommandEntry("mooring.cli.joinrule:delete", "Delete join rules."),
        "joinrule authentication-config": CommandEntry(
            "mooring.cli.joinrule:authentication_config",
            "Print the configuration with which kube-apiserver takes identity tokens.",
        ),
        "doctor": CommandEntry(
            "mooring.cli.doctor.doctor:doctor", "Find the first broken step between this machine and its cluster."
        ),
        "status": CommandEntry("mooring.cli.status.status:status", "Show a whole cluster on one screen."),
        "node list": CommandEntry("mooring.cli.node.machines:list_nodes", "List the machines of a cluster."),
        "node show": CommandEntry("mooring.cli.node.machines:show", "Show what a cluster knows of a machine."),
        "node delete": CommandEntry("mooring.cli.node.machines:delete", "Delete Nodes, and end their memberships."),
        "node prune": CommandEntry(
            "mooring.cli.node.prune:prune", "Delete the Nodes of machines that have been silent for long."
        ),
        "node revoke": CommandEntry("mooring.cli.node.revoke:revoke", "End all that a stolen machine can do."),
        "node split": CommandEntry("mooring.cli.node.split:split", "Keep one of two machines with one identity."),
        "csr list": CommandEntry("mooring.cli.csr.show:list_requests", "List certificate signing requests."),
        "csr show": CommandEntry("mooring.cli.csr.show:show", "Show the details of certificate signing requests."),
        "csr review": CommandEntry("mooring.cli.csr.decision:review", "Decide waiting requests one after the other."),
        "csr approve": CommandEntry("mooring.cli.csr.decision:approve", "Approve certificate signing requests."),
        "csr deny": CommandEntry("mooring.cli.csr.decision:deny", "Deny certificate signing requests."),
        "kubeconfig user": CommandEntry("mooring.cli.kubeconfig:user", "Issue a client certificate, as a kubeconfig."),
        "kubeconfig refresh": CommandEntry(
            "mooring.cli.kubeconfigrefresh:refresh", "Bring a kubeconfig up to date with its cluster."
        ),
        "kubeconfig discovery": CommandEntry(
            "mooring.cli.kubeconfig:discovery", "Print a discovery document that carries a bootstrap token."
        ),
        "serviceaccount token": CommandEntry(
            "mooring.cli.serviceaccount:token", "Issue a token for a ServiceAccount, as kubectl create token does."
        ),
        "login": CommandEntry(
            "mooring.cli.login.login:login", "Log in with a password or a token of an identity provider, for kubectl."
        ),
        "logout": CommandEntry("mooring.cli.login.logout:logout", "Remove a login."),
        "credential": CommandEntry(
            "mooring.cli.login.credential:credential", "Print the credential of a login for kubectl."
        ),
        "auth explain": CommandEntry(
            "mooring.cli.auth:explain", "Explain a refused request, or judge a credential in a dry run."
        ),
        "auth whoami": CommandEntry("mooring.cli.auth:whoami", "Print your identity as the server sees it."),
        "auth hash-password": CommandEntry(
            "mooring.cli.hashpassword:hash_password_command",
            "Print the hash of a password for --basic-auth-file.",
        ),
        "certs ca": CommandEntry(
            "mooring.cli.certs.byhand:ca", "Create a root CA or an intermediate CA, without a server."
        ),
        "certs server": CommandEntry("mooring.cli.certs.byhand:server", "Create a serving certificate."),
        "certs client": CommandEntry("mooring.cli.certs.byhand:client", "Create a client certificate."),
        "ca show": CommandEntry("mooring.cli.ca:show", "Show the CAs in the data directory of a server."),
        "ca rollover start": CommandEntry(
            "mooring.cli.carollover:start", "Make a new CA, and trust it beside the old one."
        ),
        "ca rollover status": CommandEntry(
            "mooring.cli.carollover:status",
            "Show the phase that was reached, and the machines that are behind.",
        ),
        "ca rollover advance": CommandEntry("mooring.cli.carollover:advance", "Go on to the next phase."),
        "ca rollover abort": CommandEntry("mooring.cli.carollover:abort", "Go back to the old CA."),
        "secrets-encryption status": CommandEntry(
            "mooring.cli.secretsencryption:status", "Show which keys have encrypted the stored objects."
        ),
        "secrets-encryption rotate": CommandEntry(
            "mooring.cli.secretsencryption:rotate", "Replace the keys that encrypt the stored objects."
        ),
        "certs revoke": CommandEntry("mooring.cli.certs.revoke:revoke", "Revoke client certificates of a cluster."),
        "certs list": CommandEntry(
            "mooring.cli.certs.show:list_certificates", "List the certificates that a cluster knows."
        ),
        "certs check": CommandEntry(
            "mooring.cli.certs.ending:check", "List what ends soon, with an exit code for cron."
        ),
        "certs show": CommandEntry("mooring.cli.certs.show:show", "Show a client certificate and its revocation."),
        "config check": CommandEntry(
            "mooring.cli.server.configcheck:check", "Check a configuration file as a server does at its start."
        ),
        "controllers": CommandEntry(
            "mooring.cli.controllers.run:controllers", "Run controllers against any Kubernetes API server."
        ),
        "controllers manifests": CommandEntry(
            "mooring.cli.controllers.manifests:manifests",
            "Print the Kubernetes objects that mooring controllers needs.",
        ),
        "snapshot save": CommandEntry("mooring.cli.snapshot:save", "Save every object of a store to a file."),
        "snapshot list": CommandEntry("mooring.cli.snapshot:list_files", "List snapshots."),
        "snapshot verify": CommandEntry("mooring.cli.snapshot:verify", "Verify that a snapshot is whole."),
        "snapshot restore": CommandEntry("mooring.cli.snapshot:restore", "Restore a snapshot into an empty store."),
        "store verify": CommandEntry(
            "mooring.cli.snapshot:verify_store", "Verify a database, and the snapshots beside it."
        ),
        "datastore migrate": CommandEntry(
            "mooring.cli.datastore:migrate", "Copy a cluster to another store, and compare both."
        ),
        "datastore k3s-bootstrap show": CommandEntry(
            "mooring.cli.datastore:show", "List the keys in a datastore of k3s, without their content."
        ),
        "datastore k3s-bootstrap import": CommandEntry(
            "mooring.cli.datastore:import_", "Take the keys of a k3s cluster into a data directory."
        ),
        "datastore k3s-bootstrap export": CommandEntry(
            "mooring.cli.datastore:export", "Write the keys of a data directory into a datastore of k3s."
        ),
        "restore-check list": CommandEntry(
            "mooring.cli.restorecheck:list_tombstones", "List what a restored store would bring back."
        ),
        "restore-check apply": CommandEntry(
            "mooring.cli.restorecheck:apply", "End again what a restored store brought back."
        ),
        "restore-check accept": CommandEntry(
            "mooring.cli.restorecheck:accept", "Let what a restored store brought back count again."
        ),
        "issuance verify": CommandEntry(
            "mooring.cli.issuanceverify:verify", "Verify the records of issued certificates."
        ),
        "issuance list": CommandEntry("mooring.cli.issuance:list_entries", "List the certificates that were issued."),
        "issuance checkpoint": CommandEntry(
            "mooring.cli.issuance:checkpoint", "Print the end of the records, to be kept elsewhere."
        ),
        "help": CommandEntry("mooring.cli.help:show_help", "Print the help of a command."),
        "version": CommandEntry("mooring.cli.help:version", "Print the version of this program."),
        "completion": CommandEntry("mooring.cli.help:completion", "Print a completion script for bash, zsh or fish."),
    }
)
"""Every command by its full name."""

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "token": "Bootstrap tokens, with which machines join, and the server token.",
        "machine": "Machines that an administrator has authorized to join.",
        "joinrule": "Join rules: which identity tokens let machines join.",
        "node": "Machines of a cluster.",
        "csr": "Certificate signing requests.",
        "kubeconfig": "Kubeconfig files for people and programs.",
        "ca": "The CA of a cluster.",
        "ca rollover": "Replacement of the CA, phase by phase.",
        "secrets-encryption": "Encryption of stored objects.",
        "certs": "Certificates: make them without a cluster, list and revoke those of one.",
        "config": "The configuration file of a server.",
        "serviceaccount": "ServiceAccounts: identities for programs.",
        "controllers": "Controllers against any Kubernetes API server.",
        "agent": "The agent of this machine.",
        "server": "A control plane, and the unit that runs it.",
        "snapshot": "Snapshots: every object of a store in a file.",
        "store": "The database of a server.",
        "datastore": "The store of a cluster.",
        "datastore k3s-bootstrap": "Keys of a cluster in the datastore of k3s: move from k3s, and back.",
        "issuance": "Issuance log: the records of issued certificates.",
        "restore-check": "Tombstones: what had ended, and would come back with a store that was restored.",
        "auth": "Identity of callers, and refused requests.",
    }
)
"""Every group, with its line of help. One that is also in `COMMANDS` is a command, and has more commands below it."""


class TableGroup(click.Group):
    """A group whose commands are the rows of `COMMANDS` below `prefix`."""

    def __init__(self, name: str, prefix: str = "", text: str = "") -> None:
        super().__init__(name, help=text, no_args_is_help=True)
        self._prefix = prefix

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if type(self) is not TableGroup or error.possibilities:
                raise
            raise click.UsageError(
                f"No such option '{error.option_name}' before the command: flags of a command stand behind it", ctx
            ) from None

    def rows(self) -> dict[str, str]:
        """Return names and help lines of the commands directly below, in the order of the table."""
        found: dict[str, str] = {}
        for path, entry in COMMANDS.items():
            if path.startswith(self._prefix):
                first, _, rest = path.removeprefix(self._prefix).partition(" ")
                found.setdefault(first, GROUPS[self._prefix + first] if rest else entry.help)
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.rows())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = self._prefix + cmd_name
        entry = COMMANDS.get(path)
        if path in GROUPS:
            if entry is not None:
                return CommandGroup(cmd_name, f"{path} ", entry.load())
            return TableGroup(cmd_name, f"{path} ", GROUPS[path])
        return entry.load() if entry else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.rows() and not name.startswith("-") and not ctx.resilient_parsing:
            raise self._unknown(name, ctx)
        return super().resolve_command(ctx, args)

    def _unknown(self, name: str, ctx: click.Context | None) -> click.UsageError:
        """Return the error about a name that no command has, with the nearest one."""
        similar = get_close_matches(name, self.rows(), n=1)
        hint = f'; did you mean "{similar[0]}"?' if similar else ""
        return click.UsageError(f'there is no command "{name}"{hint}', ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.rows().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in self.rows().items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


class CommandGroup(TableGroup):
    """A command that also has commands below it: it runs unless one of those is named.

    A command with arguments, or with a way of its own to read a command line, runs unless the first word names a command below it.
    """

    def __init__(self, name: str, prefix: str, command: click.Command) -> None:
        super().__init__(name, prefix, command.help or "")
        self._reads_itself = type(command) is not click.Command or any(
            isinstance(one, click.Argument) for one in command.params
        )
        self.params = [] if self._reads_itself else command.params
        self.no_args_is_help = False
        self.invoke_without_command = True
        self.subcommand_metavar = "[COMMAND]"
        self._command = command
        self.callback = self._run

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if self._reads_itself and (not args or args[0] not in self.rows()):
            width = max(map(len, self.rows()))
            self._command.epilog = "\n".join(
                ["\b", "Commands:", *(f"  {name.ljust(width)}  {text}" for name, text in self.rows().items())]
            )
            try:
                return self._command.make_context(info_name, list(args), parent, **extra)
            except click.UsageError as error:
                if any(isinstance(one, click.Argument) for one in self._command.params):
                    raise
                raise self._explained(error, args) from None
        return super().make_context(info_name, args, parent, **extra)

    def _explained(self, error: click.UsageError, args: list[str]) -> click.UsageError:
        """Return what is wrong with a command line that names a command below this one in the wrong way, else `error`."""
        if not error.message.startswith("Got unexpected extra argument"):
            return error
        if below := next((one for one in args if one in self.rows()), None):
            return click.UsageError(f"give the flags behind {below}, the name of the command", error.ctx)
        return error if args[0].startswith("-") else self._unknown(args[0], error.ctx)

    def _run(self, **values: Any) -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            assert self._command.callback is not None
            self._command.callback(**values)
        elif any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in values):
            raise click.UsageError(f"give the flags behind {ctx.invoked_subcommand}, the name of the command", ctx)
