"""`mooring controllers` and its manifests: command lines, output, and what starts nothing."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]

BAD_INPUT = {
    "an unknown controller gets the nearest one": (
        ["controllers", "--controllers=tokencleanr"],
        'did you mean "tokencleaner"?',
    ),
    "a controller that runs in a server only": (
        ["controllers", "--controllers=namespace"],
        '"namespace-controller" runs only in a Mooring server',
    ),
    "a signer without a CA": (
        ["controllers", "--controllers=csrsigner"],
        "cluster-signing-cert-file: csrsigner needs it, and cluster-signing-key-file",
    ),
    "half of a CA": (
        ["controllers", "--cluster-signing-cert-file=ca.crt"],
        "cluster-signing-key-file: it is needed with cluster-signing-cert-file",
    ),
    "times of the Lease in the wrong order": (
        ["controllers", "--leader-elect-lease-duration=5s"],
        "leader-elect-renew-deadline: it must be shorter than leader-elect-lease-duration",
    ),
    "flags before the name of the command": (
        ["controllers", "--controllers=*", "manifests"],
        "give the flags behind manifests, the name of the command",
    ),
    "a command that does not exist": (["controllers", "manifest"], 'there is no command "manifest"; did you mean "manifests"?'),
    "an unknown controller in the manifests": (["controllers", "manifests", "--controllers=x"], 'controllers: "x" is not one of'),
    "a namespace that is no name": (
        ["controllers", "manifests", "--namespace=A_b"],
        '--namespace: "A_b" is no name of a namespace',
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_a_wrong_command_line_says_what_to_give(arguments: list[str], message: str, mooring: CommandLine) -> None:
    outcome = mooring(*arguments)
    assert outcome.code == 2, outcome.all
    assert message in outcome.err


def test_help_names_the_controllers_and_the_commands_below(mooring: CommandLine) -> None:
    text = "".join(mooring.done("controllers", "--help").split())  # its width is the terminal's
    assert "bootstrapsigner,serving-approver,inventory-approverandnode-identity-controller" in text
    assert "manifests" in text


def test_manifests_in_every_form(mooring: CommandLine) -> None:
    arguments = ("controllers", "manifests", "--controllers=*,csrapprover", "--namespace", "trust", "--image", "img:1")
    documents = list(yaml.safe_load_all(mooring.done(*arguments)))
    listed = json.loads(mooring.done(*arguments, "-o", "json"))
    names = mooring.done(*arguments, "-o", "name").splitlines()
    assert listed["items"] == documents
    assert len(names) == len(documents)
    assert "customresourcedefinition.apiextensions.k8s.io/certificaterevocations.mooring.dev" in names
    assert "namespace/trust" in names
    assert documents[-1]["spec"]["template"]["spec"]["containers"][0]["image"] == "img:1"
