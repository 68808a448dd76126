"""Help that can be read: the everyday flags, every flag by its subject, `mooring help` and `mooring version`."""

from __future__ import annotations

import json

import pytest

from mooring import __version__, build
from mooring.controlplane.configuration import SUBJECTS, declared_settings
from tests.support.commandline import CommandLine, mooring

__all__ = ["mooring"]


@pytest.mark.parametrize("command", ["up", "server", "init"])
def test_the_help_of_a_server_is_short_and_names_the_whole(command: str, mooring: CommandLine) -> None:
    text = mooring.done(command, "--help")
    assert len(text.splitlines()) < 75
    assert sum(f"  --{one.name} " in text for one in declared_settings()) == 10
    assert "Everyday options:" in text
    assert f"more flags, by subject: mooring {command} --help-all" in text
    assert "MOORING_DATA_DIR" not in text


def test_the_whole_help_has_every_flag_once_below_its_subject(mooring: CommandLine) -> None:
    lines = mooring.done("up", "--help-all").splitlines()
    for subject in SUBJECTS:
        if any(one.flag for one in subject.declared()):
            assert f"{subject.heading}:" in lines
    for one in declared_settings():
        if one.flag:
            assert sum(line.strip().split(" ")[0] == f"--{one.name}" for line in lines) == 1
    assert any("MOORING_DATA_DIR" in line for line in lines)


@pytest.mark.parametrize(
    ("command", "below"), [("server", "unit"), ("agent", "install"), ("controllers", "manifests")], ids=lambda one: one
)
def test_a_command_that_is_a_group_lists_its_commands(command: str, below: str, mooring: CommandLine) -> None:
    lines = mooring.done(command, "--help").splitlines()
    assert any(line.strip().startswith(below) for line in lines[lines.index("  Commands:") :])


@pytest.mark.parametrize("path", ["", "token", "token create", "agent install", "up"])
def test_help_prints_what_the_flag_prints(path: str, mooring: CommandLine) -> None:
    assert mooring.done("help", *path.split()) == mooring.done(*path.split(), "--help")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nothing", 'there is no command "nothing" (see: mooring --help)'),
        ("tokn", 'there is no command "tokn"; did you mean "token"? (see: mooring --help)'),
        ("token creat", 'there is no command "creat"; did you mean "create"? (see: mooring token --help)'),
        ("up nothing", 'there is no command "up nothing" (see: mooring help --help)'),
        ("--nothing", "No such option '--nothing' (see: mooring help --help)"),
    ],
)
def test_help_about_nothing_is_one_line(path: str, said: str, mooring: CommandLine) -> None:
    done = mooring("help", *path.split())
    assert done.all == f"Error: {said}\n"
    assert done.code == 2


def test_the_version_has_a_form_for_programs(mooring: CommandLine) -> None:
    assert mooring.done("version").startswith(f"mooring {build.with_commit(__version__)} (Python ")
    document = json.loads(mooring.done("version", "-o", "json"))
    assert (document["mooring"], document["commit"]) == (__version__, build.commit())
