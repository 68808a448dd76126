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

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of a command (`module:function`) and its line of help."""

    target: str
    help: str

    def load(self) -> click.Command:
        """Import the module and return the command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "init": Entry(
            "mooring.cli.server.init:init", "Create a control plane: keys, certificates, first objects and a token."
        ),
        "up": Entry("mooring.cli.server.serve:up", "Serve a control plane, which the first start creates."),
        "server": Entry("mooring.cli.server.serve:server", "Serve a control plane."),
        "join": Entry("mooring.cli.join.join:join", "Make this machine a member of a cluster."),
        "agent": Entry("mooring.cli.join.agent:agent", "Join if needed, then send heartbeats of this machine's node."),
        "token create": Entry("mooring.cli.token.create:create", "Create a bootstrap token."),
        "token list": Entry("mooring.cli.token.list:list_tokens", "List bootstrap tokens."),
        "token delete": Entry("mooring.cli.token.delete:delete", "Delete bootstrap tokens."),
        "token generate": Entry("mooring.cli.token.generate:generate", "Print a new token, without a server."),
        "csr list": Entry("mooring.cli.csr.list:list_requests", "List certificate signing requests."),
        "csr show": Entry("mooring.cli.csr.show:show", "Show the details of certificate signing requests."),
        "csr approve": Entry("mooring.cli.csr.approve:approve", "Approve certificate signing requests."),
        "csr deny": Entry("mooring.cli.csr.deny:deny", "Deny certificate signing requests."),
        "kubeconfig user": Entry("mooring.cli.kubeconfig:user", "Issue a client certificate, as a kubeconfig."),
        "serviceaccount token": Entry(
            "mooring.cli.serviceaccount:token", "Issue a token for a ServiceAccount, as kubectl create token does."
        ),
        "login": Entry(
            "mooring.cli.login.login:login", "Log in with a password or a token of an identity provider, for kubectl."
        ),
        "logout": Entry("mooring.cli.login.logout:logout", "Remove a login."),
        "credential": Entry("mooring.cli.login.credential:credential", "Print the credential of a login for kubectl."),
        "auth explain": Entry(
            "mooring.cli.auth.explain:explain", "Explain a refused request, or judge a credential in a dry run."
        ),
        "auth whoami": Entry("mooring.cli.auth.whoami:whoami", "Print your identity as the server sees it."),
        "auth hash-password": Entry(
            "mooring.cli.auth.hashpassword:hash_password_command",
            "Print the hash of a password for --basic-auth-file.",
        ),
        "certs ca": Entry("mooring.cli.certs.ca:ca", "Create a root CA or an intermediate CA, without a server."),
        "certs server": Entry("mooring.cli.certs.server:server", "Create a serving certificate."),
        "certs client": Entry("mooring.cli.certs.client:client", "Create a client certificate."),
        "config check": Entry(
            "mooring.cli.server.configcheck:check", "Check a configuration file as a server does at its start."
        ),
        "completion": Entry("mooring.cli.completion:completion", "Print a completion script for bash, zsh or fish."),
    }
)
"""Every command by its full name."""

GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "token": "Bootstrap tokens, with which machines join.",
        "csr": "Certificate signing requests.",
        "kubeconfig": "Kubeconfig files for people and programs.",
        "certs": "Keys and certificates without a cluster.",
        "config": "The configuration file of a server.",
        "serviceaccount": "ServiceAccounts: identities for programs.",
        "auth": "Identity of callers, and refused requests.",
    }
)
"""Every group, with its line of help."""


class TableGroup(click.Group):
    """A group whose commands are the rows of `COMMANDS` below `prefix`."""

    def __init__(self, name: str, prefix: str = "", text: str = "") -> None:
        super().__init__(name, help=text, no_args_is_help=True)
        self._prefix = prefix

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
        if path in GROUPS:
            return TableGroup(cmd_name, f"{path} ", GROUPS[path])
        entry = COMMANDS.get(path)
        return entry.load() if entry else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.rows() and not name.startswith("-") and not ctx.resilient_parsing:
            similar = get_close_matches(name, self.rows(), n=1)
            hint = f'; did you mean "{similar[0]}"?' if similar else ""
            raise click.UsageError(f'there is no command "{name}"{hint}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.rows().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in self.rows().items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]
