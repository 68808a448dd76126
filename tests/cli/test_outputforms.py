"""Forms of output (`-o`): one set for lists, one for objects, one for reports; tables of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli import issuance as issuancelist
from mooring.cli import joinrule, machine
from mooring.cli.certs import ending as certscheck
from mooring.cli.certs import show as certslist
from mooring.cli.certs.inventory import KnownCertificate
from mooring.cli.commands import COMMANDS
from mooring.cli.csr import show
from mooring.cli.node import machines as nodelist
from mooring.cli.node.machines import KnownMachine
from mooring.cli.options.flags import LISTED, REPORTED, SHOWN
from mooring.cli.printing import echo, print_table, table
from mooring.cli.restorecheck import REMEDIES
from mooring.cli.token import impact
from mooring.cli.token import list as tokenlist
from mooring.controlplane.snapshots import ON_DEMAND, snapshot_path
from tests.support.rows import each_row

SETS: Mapping[str, frozenset[str]] = {
    "list": frozenset(LISTED),
    "object": frozenset(SHOWN),
    "report": frozenset(REPORTED),
}
OTHERS: Mapping[str, str] = {
    "token list": "kubeadm's table, to the byte, is `text`",
    "csr show": "`wide` has the whole of each request",
    "serviceaccount token": "the token alone is what kubectl prints",
    "controllers manifests": "YAML for kubectl apply comes first, and a text would be nothing to apply",
}
"""Commands with a set of their own, each with its reason."""


def forms_of(command: click.Command) -> frozenset[str]:
    for parameter in command.params:
        if "-o" in parameter.opts and isinstance(parameter.type, click.Choice):
            return frozenset(map(str, parameter.type.choices))
    return frozenset()


@each_row("path", COMMANDS)
def test_every_command_has_the_forms_of_its_kind(path: str) -> None:
    forms = forms_of(COMMANDS[path].load())
    if path in OTHERS:
        assert forms not in SETS.values()
        return
    assert not forms or forms in SETS.values()
    if path.endswith(" list"):
        assert forms == SETS["list"]


NOW = datetime(2026, 11, 26, 15, 0, tzinfo=UTC)
HOST = "worker-12.example"
SERIAL = "5d2f6a0c9be14d0f8a3c7e6b5a4d3c2b1a0f9e8d"
PIN = "sha256:" + "0" * 64
CREATED = "2026-11-01T00:00:00Z"
REQUEST: Obj = {
    "metadata": {"name": "node-csr-0PqxRtyuIopAsdfghJklZxcvbnmQwertyuiopasdf1k", "creationTimestamp": CREATED},
    "spec": {
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "username": "system:bootstrap:abcdef",
        "request": "",
    },
    "status": {"conditions": [{"type": "Approved"}], "certificate": "eA=="},
}
ENTRY: Obj = {
    "time": "2026-11-26T15:00:00Z", "notAfter": "2027-11-26T15:00:00Z", "node": HOST, "subject": f"system:node:{HOST}",
    "serialNumber": SERIAL, "token": "abcdef", "requester": "system:bootstrap:abcdef", "publicKey": PIN,
    "sourceAddress": "192.0.2.110",
}  # fmt: skip
CERTIFICATE = KnownCertificate(HOST, SERIAL[:32], PIN, ENTRY["notAfter"], "valid", user=f"system:node:{HOST}")
MACHINE = KnownMachine(HOST, {"metadata": {"creationTimestamp": CREATED}}, None, (CERTIFICATE,))
AUTHORIZED: Obj = {
    "metadata": {"name": HOST, "creationTimestamp": CREATED},
    "spec": {"nodeName": HOST, "keyFingerprint": PIN},
    "status": {"usedBy": {"publicKey": PIN}},
}
TOKEN_CELLS = (
    "abcdef.(redacted)", "<forever>", "2026-11-27T15:00:00Z", "authentication,signing", "rack 7, third floor",
    "system:bootstrappers:kubeadm:default-node-token", "12/1000", "12m ago", "nodes worker-*; from 10.1.0.0/16",
)  # fmt: skip


JOIN_RULE: Obj = {
    "metadata": {"name": "github-ci", "creationTimestamp": CREATED},
    "spec": {
        "issuer": {"url": "https://token.actions.githubusercontent.com"},
        "claims": [{"claim": "repository_id", "value": "1296269"}, {"claim": "ref", "value": "refs/heads/main"}],
        "nodeName": "ci-{run_id}",
        "expirationTimestamp": "2027-01-26T15:00:00Z",
    },
}


def _snapshot() -> str:
    name = snapshot_path(Path(), ON_DEMAND, NOW).name
    return table(("NAME", "REVISION", "BYTES", "PROBLEM"), [(name, "12345678", "123456789", "")])


def _tombstones() -> str:
    return table(
        ["TOMBSTONE", "REMEDY"], [[f"{kind}.worker-12", text] for kind, text in REMEDIES.items() if len(text) < 50]
    )


def printed(capsys: pytest.CaptureFixture[str], call: Any, *arguments: Any, **more: Any) -> str:
    call(*arguments, **more)
    return capsys.readouterr().out


TABLES: Mapping[str, Sequence[Any]] = {
    "csr list": (show.print_list, [REQUEST], "table", NOW),
    "machine list": (machine.print_list, [AUTHORIZED], "table", NOW),
    "joinrule list": (joinrule.print_list, [JOIN_RULE], "table", NOW),
    "issuance list": (issuancelist.print_list, [ENTRY], "table"),
    "token impact": (impact.print_impact, [ENTRY], "abcdef", "table", NOW),
    "certs list": (certslist.print_list, [CERTIFICATE], "table", NOW),
    "certs check": (lambda: print_table(certscheck.HEADERS, [certscheck.cells(CERTIFICATE, NOW)]),),
    "node list": (lambda: nodelist.print_table([MACHINE], NOW, is_wide=False),),
    "token list": (tokenlist.print_narrow, [TOKEN_CELLS]),
    "snapshot list": (lambda: echo(*_snapshot().splitlines()),),
    "restore-check list": (lambda: echo(*_tombstones().splitlines()),),
}


def test_every_table_is_measured() -> None:
    lists = {path for path in COMMANDS if "table" in forms_of(COMMANDS[path].load())}
    assert lists == TABLES.keys()


@pytest.mark.parametrize("path", TABLES)
def test_a_table_with_usual_rows_fits_a_terminal(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    call, *arguments = TABLES[path]
    lines = printed(capsys, call, *arguments).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80, lines


# nouns whose lists print TYPE/NAME, with every other spelling that kubectl takes for the type
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "csr": (
        f"{show.QUALIFIED}/x",
        "certificatesigningrequests/x",
        "csr/x",
        "CSR/x",
        "certificatesigningrequests.v1.certificates.k8s.io/x",
    ),
    "node": ("node/x", "nodes/x", "no/x"),
    "machine": (f"{machine.QUALIFIED}/x", "authorizedmachines/x", "machine/x", "machines.v1alpha1.mooring.dev/x"),
    "joinrule": (f"{joinrule.QUALIFIED}/x", "joinrules/x", "joinrules.v1alpha1.mooring.dev/x"),
    "token": ("secret/bootstrap-token-x", "secrets/bootstrap-token-x"),
}
NOUN_OF_FLAG = {"--node": "node", "--token": "token"}
"""Flags of other nouns that take such a name."""
WITHOUT_TYPE = {
    "machine approve": "takes the name of a node that asks",
    "machine deny": "takes the name of a node that asks",
    "token create": "takes the secret of a token, too",
    "token generate": "prints a token",
    "certs ca": "takes the secret of a token, too",
}


def named_parameters() -> list[tuple[str, str]]:
    """Return each command with the parameter that takes the name of an object which a list prints, and its noun."""
    found = []
    for path, entry in COMMANDS.items():
        noun = path.split()[0]
        for param in entry.load().params:
            is_argument = isinstance(param, click.Argument) and f"{noun} list" in COMMANDS and noun in SPELLINGS
            if path in WITHOUT_TYPE:
                continue
            if is_argument:
                found.append((path, noun))
            elif path.split()[0] in ("certs", "issuance") and param.opts[0] in NOUN_OF_FLAG and not is_argument:
                found.append((path, NOUN_OF_FLAG[param.opts[0]]))
    return found


@pytest.mark.parametrize(("path", "noun"), named_parameters())
def test_what_a_list_prints_as_names_every_verb_of_its_noun_takes(path: str, noun: str) -> None:
    (param,) = (
        param
        for param in COMMANDS[path].load().params
        if (isinstance(param, click.Argument) and path.startswith(noun)) or NOUN_OF_FLAG.get(param.opts[0]) == noun
    )
    context = click.Context(COMMANDS[path].load())
    for text in ("x", *SPELLINGS[noun]):
        assert param.type.convert(text, param, context) == "x", text
    others = [printed for other, printed in SPELLINGS.items() if other != noun]
    for text in [*(printed[0] for printed in others), "certificatesigningrequests.example.com/x", "lease/x"]:
        with pytest.raises(click.BadParameter, match=text.partition("/")[0]):
            param.type.convert(text, param, context)
    assert param.type.convert("../x", param, context) == "../x", "the client refuses what no object can be called"


def test_every_noun_with_a_list_has_verbs_that_take_its_names() -> None:
    assert {"csr approve", "csr deny", "csr show", "node show", "node delete", "machine remove", "token delete"} <= {
        path for path, _ in named_parameters()
    }
