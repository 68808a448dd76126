"""Every extension point is an explicit table, and each table is complete (law 10).

Rules kept here: the definitions of a room are found in the values of all its modules, so that one without a row fails the build;
and every row of a table is built, or found, once.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, KINDS, RESOURCES, by_resource
from mooring.authn.custom.runtime import CustomCalls
from mooring.authz import table as authz
from mooring.authz.privilegedgroup import PrivilegedGroup
from mooring.cli.commands import COMMANDS, GROUPS
from mooring.cli.options.declared import OPTION_ARGUMENTS
from mooring.clock import SystemClock
from mooring.controllers.table import CONTROLLERS, ControllerSettings
from mooring.pki.rootca import RootCa
from mooring.pki.x509 import signers
from mooring.plane.configuration import SUBJECTS, declared_settings
from mooring.registry.admission.table import ADMISSION
from mooring.server.endpoints.reviews import REVIEWS, review
from mooring.server.endpoints.table import ENDPOINTS, Endpoint, find
from mooring.server.endpoints.tokenrequest import service_account_token
from mooring.settings.declaration import Settings
from mooring.storage.table import DRIVERS, open_storage
from tests.authn.test_table import built, everything
from tests.support.testca import ThrowawayCA


def modules(room: str) -> Iterator[Any]:
    """Import and yield every module of a room, the room itself included."""
    package = import_module(room)
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{room}."):
        yield import_module(found.name)


def values(room: str) -> Iterator[Any]:
    """Yield every value that a module of the room holds under a name."""
    for module in modules(room):
        yield from vars(module).values()


def classes(room: str, method: str) -> set[type]:
    """Return the classes defined in the room that have the method, without Protocols."""
    return {
        value
        for value in values(room)
        if inspect.isclass(value)
        and value.__module__.startswith(room)
        and callable(getattr(value, method, None))
        and not getattr(value, "_is_protocol", False)
    }


CA = ThrowawayCA()


def test_every_kind_is_in_the_table() -> None:
    defined = [value for value in values("mooring.api") if isinstance(value, Kind)]
    in_lists = [item for value in values("mooring.api") if isinstance(value, tuple) for item in value]
    assert {id(kind) for kind in defined} | {id(item) for item in in_lists if isinstance(item, Kind)} == set(
        map(id, KINDS)
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.plural)
def test_every_kind_can_be_found(kind: Kind) -> None:
    resource = kind.resource
    assert by_resource(resource.group, resource.version, resource.plural) is kind
    assert resource in RESOURCES
    assert (BY_PLURAL.get(resource.plural) is kind) is kind.stored
    assert (resource.plural in REVIEWS) is kind.virtual


def test_every_review_is_of_a_virtual_kind() -> None:
    assert set(REVIEWS) == {kind.resource.plural for kind in KINDS if kind.virtual}


def test_every_authenticator_is_in_the_table_under_its_name(tmp_path: Path) -> None:
    found = {type(authenticator) for authenticator in built(**everything(tmp_path))}
    assert found | {CustomCalls} == classes("mooring.authn", "authenticate")


def test_every_authorizer_is_in_the_table() -> None:
    built = {type(make()) for make in authz.AUTHORIZERS.values()}
    assert built | {PrivilegedGroup} == classes("mooring.authz", "authorize"), (
        "PrivilegedGroup is asked first whatever the mode"
    )


def test_every_admission_plugin_is_in_the_table_under_its_name() -> None:
    assert {make().name for make in ADMISSION.values()} == set(ADMISSION)
    assert {type(make()) for make in ADMISSION.values()} == classes("mooring.registry.admission", "admit")


def test_every_controller_is_in_the_table_under_its_name() -> None:
    settings = ControllerSettings(authority=CA.authority, root_ca=RootCa(CA.certificate_pem))
    built = {name: make(settings) for name, make in CONTROLLERS.items()}
    assert {name: controller.name for name, controller in built.items()} == {name: name for name in CONTROLLERS}
    assert {type(controller) for controller in built.values()} == classes("mooring.controllers", "plan")
    for controller in built.values():
        assert set(controller.watches) <= set(BY_PLURAL), "a controller watches stored kinds only"


def test_every_signer_is_in_the_table_under_its_name() -> None:
    assert {name: signer.name for name, signer in signers.SIGNERS.items()} == {name: name for name in signers.SIGNERS}
    named = {
        value
        for value in vars(signers).values()
        if isinstance(value, str) and value.startswith("kubernetes.io/") and "\n" not in value
    }
    assert named == set(signers.SIGNERS)


def test_every_endpoint_is_in_the_table() -> None:
    handlers = {
        value
        for value in values("mooring.server.endpoints")
        if inspect.iscoroutinefunction(value) and inspect.signature(value).return_annotation == "Response"
    }
    called_by_the_router = {review, service_account_token}
    assert called_by_the_router < handlers
    assert handlers - called_by_the_router == {endpoint.serve for endpoint in ENDPOINTS}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_endpoint_can_be_reached(endpoint: Endpoint[Any]) -> None:
    found = [find(endpoint.path + rest) for rest in ("", "/", "/deeper/down", "x")]
    slash = find("/") if endpoint.path == "" else endpoint if endpoint.slashes else None
    assert found == [endpoint, slash, endpoint if endpoint.below else None, None]


def test_every_storage_driver_is_in_the_table(tmp_path: Path) -> None:
    urls = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/a.db"}
    assert set(urls) == set(DRIVERS), "a new driver is made here too"
    made = {type(open_storage(url, SystemClock())) for url in urls.values()}
    assert made == classes("mooring.storage", "compact")


def test_every_command_is_in_the_table() -> None:
    defined = [value for value in values("mooring.cli") if isinstance(value, click.Command)]
    loaded = {name: entry.load() for name, entry in COMMANDS.items()}
    assert {id(command) for command in defined} == {id(command) for command in loaded.values()}
    assert {name: command.name for name, command in loaded.items()} == {name: name.split()[-1] for name in COMMANDS}
    assert {name.partition(" ")[0] for name in COMMANDS if " " in name} == set(GROUPS)


def test_every_subject_of_settings_is_in_the_table() -> None:
    declared = {
        value
        for package in ("mooring.settings", "mooring.authn")
        for value in values(package)
        if inspect.isclass(value) and issubclass(value, Settings) and value is not Settings
    }
    assert declared == set(SUBJECTS)
    assert len({subject.heading for subject in SUBJECTS}) == len(SUBJECTS)


def test_every_setting_has_its_own_name_and_a_type_on_the_command_line() -> None:
    settings = declared_settings()
    assert len({one.name for one in settings}) == len(settings)
    assert {one.kind for one in settings if one.flag} <= set(OPTION_ARGUMENTS)
    assert [one.name for one in settings if not one.flag] == ["authenticators"]
    former_names = {one.former_name for one in settings if one.former_name}
    assert former_names.isdisjoint(one.name for one in settings)
