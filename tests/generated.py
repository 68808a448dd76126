"""Documentation generated from code: `python -m tests.generated --check` (or `--write`).

Rules kept here: the reference pages come from the declarations behind `--help`, README's table of clients from the matrix of the
compatibility tests, and the page of promises from `tests/promises`; a page that differs fails the build.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from mooring.authn.reasons import reasons
from mooring.cli.commands import COMMANDS, GROUPS
from mooring.cli.join.flags import SETTINGS
from mooring.cli.join.flags import SUBJECTS as AGENT_SUBJECTS
from mooring.cli.options.configfile import DEFAULT_PATH
from mooring.cli.options.declared import shown_default
from mooring.controlplane.configuration import SUBJECTS
from mooring.settings.declaration import Setting
from tests.compat.matrix import AREAS, CLIENTS, KOPF, KUBECTL, LIGHTKUBE, NODE, PYTHON, ROWS, Row, shown
from tests.promises.page import promises_page

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Made by `python -m tests.generated --write` from the command table. Do not edit. -->"


def pages() -> dict[Path, str]:
    """Return path → text of every generated page."""
    reference = ROOT / "docs" / "reference"
    return {
        reference / "cli.md": cli_page(),
        reference / "configuration.md": configuration_page(),
        reference / "agent-configuration.md": agent_configuration_page(),
        reference / "refusals.md": refusals_page(),
        reference / "compatibility.md": compatibility_page(),
        ROOT / "docs" / "promises.md": promises_page(),
        ROOT / "README.md": readme(),
    }


def cli_page() -> str:
    lines = [
        "# Command line",
        "",
        NOTE,
        "",
        "Exit codes: 0 done; 1 it could not be done, with one line `Error: …` on stderr; 2 the command line is wrong; 70 a fault",
        "of Mooring itself (`MOORING_DEBUG=1` shows the traceback); 78 `mooring agent` has the files of "
        "another machine; 130 interrupted; 141 the reader of the output has closed it.",
        "",
        "| Command | What it does |",
        "|---|---|",
        *(f"| [`mooring {path}`](#{_anchor(path)}) | {entry.help} |" for path, entry in COMMANDS.items()),
        "",
    ]
    for path, entry in COMMANDS.items():
        command = entry.load()
        with click.Context(command, info_name=f"mooring {path}") as ctx:
            lines += [f"## mooring {path}", "", f"`{_usage(command, ctx)}`", "", _paragraphs(command.help or ""), ""]
            options = list(_options(command, ctx))
            if options:
                lines += ["| Flag | Meaning |", "|---|---|", *options, ""]
    lines += ["## Groups", "", *(f"- `mooring {name}`: {text}" for name, text in GROUPS.items()), ""]
    return "\n".join(lines)


def configuration_page() -> str:
    lines = [
        "# Configuration of a server",
        "",
        NOTE.replace("the command table", "the declarations of settings"),
        "",
        "`mooring init`, `mooring up` and `mooring server` take the same flags. Each can also be given as an environment variable,",
        "and as a key of the [configuration file](../operate.md#the-configuration-file): the flag without its dashes in front.",
        "The command line wins over the environment, the environment over the file. A variable of a repeatable flag takes several",
        "values with blanks or commas between.",
        "",
        "The file itself is named by `--config` or `MOORING_CONFIG`, which are no keys of it. Without either it is",
        f"`{DEFAULT_PATH}`, if it is there.",
    ]
    for subject in SUBJECTS:
        lines += _setting_table(subject.heading, subject.declared())
    return "\n".join([*lines, ""])


def agent_configuration_page() -> str:
    secrets = [f"`{one.variable}`" for one in SETTINGS if one.secret]
    lines = [
        "# Configuration of a machine that joins",
        "",
        NOTE.replace("the command table", "the declarations of settings"),
        "",
        "Flags of `mooring join` and `mooring agent`. Each can also be given as an environment variable, and as a key of the",
        "[configuration file](../join-a-machine.md#variables-and-a-file), which serves both commands. The command line wins over",
        "the environment, the environment over the file. In a join the k3s way the file wins over the environment, as in k3s.",
        "`join` takes the flags of every way and of kubeadm's way.",
        "",
        "The file itself is named by `--config` or `MOORING_AGENT_CONFIG`, in a join the k3s way by `K3S_CONFIG_FILE`, too. There",
        "`K3S_TOKEN` and `K3S_NODE_NAME` count before the variables of the table.",
        "",
        f"{', '.join(secrets)} and `K3S_TOKEN` hold secrets.",
    ]
    for subject, settings in AGENT_SUBJECTS.items():
        lines += _setting_table(subject.heading, settings)
    return "\n".join([*lines, ""])


def _setting_table(heading: str, settings: Iterable[Setting]) -> list[str]:
    columns = "| Flag | Key | Environment | Type | Default | Meaning |"
    return ["", f"## {heading}", "", columns, "|---|---|---|---|---|---|", *map(_setting_row, settings)]


def _setting_row(one: Setting) -> str:
    flag, variable = (f"`--{one.name}`", f"`{one.variable}`") if one.flag else ("none", "none")
    if one.positional:
        flag = f"`{one.name.upper()}`"
    default = _cell(one.default_note) or _default(shown_default(one))
    return f"| {flag} | `{one.name}` | {variable} | {one.value_type.name} | {default} | {_cell(one.meaning)} |"


def refusals_page() -> str:
    lines = [
        "# Refusals",
        "",
        NOTE.replace("the command table", "the table of reason codes"),
        "",
        "Reason codes of [`mooring auth explain`](../authentication/explain.md) and of the audit log. Responses to clients have no",
        "reason.",
        "",
        "| Code | Meaning | Remedy |",
        "|---|---|---|",
        *(f"| `{code}` | {_cell(row.meaning)} | {_cell(row.remedy)} |" for code, row in reasons().items()),
    ]
    return "\n".join([*lines, ""])


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple) and value:
        return f"`{','.join(value)}`"
    return f"`{value}`" if isinstance(value, str | int | float) and value != "" else "none"


def _anchor(path: str) -> str:
    return "mooring-" + path.replace(" ", "-")


def _usage(command: click.Command, ctx: click.Context) -> str:
    return " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and "--help" not in record[0]:
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


BEGIN, END = "<!-- compatibility:begin -->", "<!-- compatibility:end -->"


def readme() -> str:
    """Return README.md with the current table of clients."""
    text = (ROOT / "README.md").read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{clients_table()}\n{END}{tail}"


def clients_table() -> str:
    """Return the table with a row for each client and version: the number of tested features of each area."""
    lines = [f"| Client | {' | '.join(AREAS)} |", "|---" * (1 + len(AREAS)) + "|"]
    versions = _locked_versions()
    for client in CLIENTS:
        name = f"{client} {versions[client]}" if client in versions else client
        cells = [_count(*shown(area, client), whole=client.startswith("kubectl ")) for area in AREAS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(works: int, of: int, *, whole: bool) -> str:
    """Return one cell; a library (not `whole`) has no total, because rows cover commands of kubectl."""
    if not whole:
        return str(works or "")
    return f"all {of}" if works == of else f"{works} of {of}"


def _locked_versions() -> dict[str, str]:
    """Return the locked versions of the client libraries."""
    locked = dict(re.findall(r"^([a-z-]+)==(\S+)", (ROOT / "requirements/dev.lock").read_text(), re.M))
    packages = json.loads((ROOT / "tests/support/npmclients/package.json").read_text())["dependencies"]
    return {
        PYTHON: locked["kubernetes"],
        LIGHTKUBE: locked["lightkube"],
        KOPF: locked["kopf"],
        NODE: packages[NODE],
    }


def compatibility_page() -> str:
    """Return the page with a row for each feature and a column for each client; an empty cell was not tested."""
    others = [client for client in CLIENTS if not client.startswith("kubectl ")]
    lines = [
        "# What works with what",
        "",
        NOTE.replace("the command table", "the table behind the compatibility tests"),
        "",
        "Every filled cell is shown by a test in `tests/compat` that drives the unmodified program against a real server process.",
        "An empty cell was not tried. README counts the same things, a line for each client.",
    ]
    for area in AREAS:
        lines += [
            "",
            f"## {area[0].upper()}{area[1:]}",
            "",
            f"| | kubectl {KUBECTL[0]} to {KUBECTL[-1]} | {' | '.join(others)} |",
            "|---" * (2 + len(others)) + "|",
            *(
                f"| {row.what} | {_kubectl(row)} | {' | '.join('yes' if one in row.others else '' for one in others)} |"
                for row in ROWS
                if row.area == area
            ),
        ]
    return "\n".join([*lines, ""])


def _kubectl(row: Row) -> str:
    if row.kubectl is None:
        return ""
    since = f"from {row.kubectl[0]}.{row.kubectl[1]}: {row.why}" if row.why else "yes"
    return f"{since} ({row.limits})" if row.limits else since


def main(arguments: list[str]) -> int:
    if arguments not in (["--check"], ["--write"]):
        click.echo("usage: python -m tests.generated --check|--write", err=True)
        return 2
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if arguments == ["--write"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages()[path])
        click.echo(f"{'wrote' if arguments == ['--write'] else 'out of date'}: {path.relative_to(ROOT)}")
    return 1 if stale and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
