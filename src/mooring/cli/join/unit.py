"""`mooring agent unit`: print a systemd unit for the agent.

Rules kept here:
* The unit holds no token: `mooring join`, or a first run of the agent with `--server`, makes the machine a member, and the unit
  starts only then. It names no address but that of `--server`.
* The sandbox leaves the agent its files and the network. Hooks run in it. With hooks the file system is not read-only, because a
  hook writes where its service reads.
* The unit does not use sd_notify: systemd takes the agent as started once the program runs (Type=exec).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mooring.agent import registration
from mooring.agent.k3s.files import DATA_DIR, AgentFiles
from mooring.agent.state import NodeState
from mooring.cli.join.agent import agent_flags
from mooring.cli.printing.output import echo

_UNIT = """\
[Unit]
Description=Mooring agent: heartbeat and certificates of this machine
Wants=network-online.target
After=network-online.target time-sync.target
ConditionPathExists={proof}
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Restart=always
RestartSec=10
UMask=0077
NoNewPrivileges=yes
{file_system}ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
"""


@click.command("unit")
@click.option(
    "--root", default="/", show_default=True, metavar="DIR", help="Directory that `mooring join --root` was given."
)
@click.option("--register-node", type=click.Choice(registration.CHOICES), default=None, help="As for the agent.")
@click.option("--node-deletion", type=click.Choice(registration.DELETIONS), default=None, help="As for the agent.")
@click.option(
    "--server",
    multiple=True,
    metavar="URL",
    help="For a machine that joined the k3s way: as for the agent; repeatable.",
)
@click.option("--data-dir", default=DATA_DIR, show_default=True, metavar="DIR", help="With --server: as for the agent.")
@click.option("--program", default="", metavar="PATH", help="Absolute path of mooring. [default: this program]")
@agent_flags
def unit(
    root: str,
    register_node: str | None,
    node_deletion: str | None,
    server: tuple[str, ...],
    data_dir: str,
    program: str,
    serving_certificates: bool,
    on_renew: tuple[str, ...],
) -> None:
    """Print a systemd unit that runs the agent of a machine that has joined.

    Write it to /etc/systemd/system/mooring-agent.service, then run `systemctl enable --now mooring-agent`.
    """
    path = Path(program or shutil.which(sys.argv[0]) or sys.argv[0])
    if program and not path.is_absolute():
        raise click.UsageError("--program must be an absolute path")
    arguments = [str(path.absolute()), "agent"]
    for url in server:
        arguments += ["--server", url]
    if root != "/":
        arguments += ["--root", str(Path(root).absolute())]
    if register_node:
        arguments += ["--register-node", register_node]
    if node_deletion:
        arguments += ["--node-deletion", node_deletion]
    if serving_certificates:
        arguments.append("--serving-certificates")
    for command in on_renew:
        arguments += ["--on-renew", command]
    if server:
        if serving_certificates:
            raise click.UsageError("--serving-certificates and --server belong to two ways of joining")
        if data_dir != DATA_DIR:
            arguments += ["--data-dir", data_dir]
        files = AgentFiles(Path(root), data_dir)
        proof = files.client.current
        writable: tuple[Path, ...] = (files.directory, files.node_password.parent)
    else:
        state = NodeState(Path(root))
        proof = state.kubeconfig
        writable = (state.kubeconfig.parent, state.certificates, state.record.path.parent)
    paths = " ".join(quote(f"-{path}") for path in writable)
    file_system = "" if on_renew else f"ProtectSystem=strict\nReadWritePaths={paths}\n"
    text = _UNIT.format(proof=specifiers(str(proof)), command=join(arguments), file_system=file_system)
    for line in text.splitlines():
        echo(line)


def join(arguments: Sequence[str]) -> str:
    """Return a command line for ExecStart. Raises UsageError for an argument with a line break, which no unit can hold."""
    return " ".join(quote(one).replace("$", "$$") for one in arguments)


def quote(argument: str) -> str:
    """Return one word of a unit, quoted where needed, without specifiers (systemd.syntax). Raises UsageError for a line break."""
    if not argument.isprintable():
        raise click.UsageError("a unit cannot hold line breaks or control characters: put the command into a script")
    escaped = specifiers(argument.replace("\\", "\\\\"))
    if argument and not any(one in argument for one in " \"';"):
        return escaped
    return '"' + escaped.replace('"', '\\"') + '"'


def specifiers(text: str) -> str:
    """Return `text` so that systemd reads no specifier in it."""
    return text.replace("%", "%%")
