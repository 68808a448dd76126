"""Every extension point is an explicit table, and each table is complete (law 10).

Rules kept here: this file alone proves that a table is complete. The definitions of a room are found in the values of all its
modules, so that one without a row fails the build. Names and order of the rows are proved by the tests of the room.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, KINDS, RESOURCES, STORED_FORMS, by_resource
from mooring.authz.table import AUTHORIZERS, PrivilegedGroup
from mooring.cli.commands import COMMANDS
from mooring.cli.options.declared import OPTION_ARGUMENTS
from mooring.controllers.table import CONTROLLERS, ControllerSettings
from mooring.controlplane.configuration import SUBJECTS, declared_settings
from mooring.pki.pem import RootCa
from mooring.pki.x509.signers import SIGNERS
from mooring.registry.admission.table import ADMISSION
from mooring.server.authentication.custom import CustomCalls
from mooring.server.endpoints.reviews import REVIEWS, review
from mooring.server.endpoints.routes import ENDPOINTS, ServedPath, find
from mooring.server.endpoints.supervisor.routes import ROUTES
from mooring.server.endpoints.tokens import service_account_token
from mooring.settings.controllers import StandaloneSettings
from mooring.settings.declaration import Settings
from mooring.settings.signing import SIGNING_DURATION
from mooring.storage.drivers import DRIVERS
from tests.authn.test_table import built, everything
from tests.support.rows import each_row
from tests.support.storagedrivers import MAKERS
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
CONTROLLER_SETTINGS = ControllerSettings(
    authority_for=CA.cluster_ca.for_signer, root_ca=RootCa(CA.certificate_pem), signing_duration=SIGNING_DURATION
)


def values(*rooms: str) -> Iterator[Any]:
    """Yield every value that a module of the rooms holds under a name, and the items of tuples."""
    for room in rooms:
        package = import_module(room)
        names = [found.name for found in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{room}.")]
        for module in (package, *map(import_module, names)):
            for value in vars(module).values():
                yield from value if isinstance(value, tuple) else (value,)


def instances(room: str, kind: type) -> list[Any]:
    """Return the instances of a class that the room holds."""
    return [value for value in values(room) if isinstance(value, kind)]


def subclasses(parent: type, *rooms: str) -> list[type]:
    """Return the subclasses of a class that the rooms hold."""
    return [
        value
        for value in values(*rooms)
        if inspect.isclass(value) and issubclass(value, parent) and value is not parent
    ]


def classes(room: str, method: str) -> list[type]:
    """Return the classes defined in the room that have the method, without Protocols."""
    return [
        value
        for value in values(room)
        if inspect.isclass(value)
        and (value.__module__ or "").startswith(room)  # classes made by protobuf have none
        and callable(getattr(value, method, None))
        and not getattr(value, "_is_protocol", False)
    ]


def handlers() -> list[Any]:
    """Return the coroutine functions of the endpoints that return a Response."""
    return [
        value
        for value in values("mooring.server.endpoints")
        if inspect.iscoroutinefunction(value) and inspect.signature(value).return_annotation == "Response"
    ]


def signer_names() -> list[str]:
    """Return the names of signers that the modules of signers hold."""
    named = (*instances("mooring.pki.x509.signers", str), *instances("mooring.pki.x509.signers", str))
    found = [value for value in named if value.startswith(("kubernetes.io/", "mooring.io/")) and "\n" not in value]
    return [value for value in found if value.endswith(("-client", "-serving", "-kubelet", "-unknown"))]


def by_identity(found: Iterable[Any]) -> dict[int | str, Any]:
    """Return strings by value and all other things by identity."""
    return {one if isinstance(one, str) else id(one): one for one in found}


Collect = Callable[[Path], Iterable[Any]]
TABLES: dict[str, tuple[Collect, Collect]] = {
    "kinds": (lambda folder: instances("mooring.api", Kind), lambda folder: (*KINDS, *STORED_FORMS)),
    "reviews": (lambda folder: (kind.resource.plural for kind in KINDS if kind.virtual), lambda folder: REVIEWS),
    "authenticators": (
        lambda folder: (
            *classes("mooring.authn", "authenticate"),
            *classes("mooring.server.authentication", "authenticate"),
        ),
        lambda folder: (*map(type, built(**everything(folder))), CustomCalls),
    ),
    "authorizers; the privileged group precedes every mode": (
        lambda folder: classes("mooring.authz", "authorize"),
        lambda folder: (*(type(make()) for make in AUTHORIZERS.values()), PrivilegedGroup),
    ),
    "admission plugins": (
        lambda folder: classes("mooring.registry.admission", "admit"),
        lambda folder: ADMISSION.values(),
    ),
    "controllers": (
        lambda folder: classes("mooring.controllers", "plan"),
        lambda folder: (type(make(CONTROLLER_SETTINGS)) for make in CONTROLLERS.values()),
    ),
    "signers": (lambda folder: signer_names(), lambda folder: SIGNERS),
    "endpoints, and routes of the supervisor; the router calls two handlers itself": (
        lambda folder: handlers(),
        lambda folder: (
            *(endpoint.serve for endpoint in ENDPOINTS),
            *(route.serve for route in ROUTES),
            review,
            service_account_token,
        ),
    ),
    "storage drivers": (
        lambda folder: classes("mooring.storage", "compact"),
        lambda folder: (type(MAKERS[scheme](folder)) for scheme in DRIVERS),
    ),
    "commands": (
        lambda folder: instances("mooring.cli", click.Command),
        lambda folder: (entry.load() for entry in COMMANDS.values()),
    ),
    "subjects of settings; those of mooring controllers are of its own": (
        lambda folder: (
            subject
            for subject in subclasses(
                Settings,
                "mooring.settings",
                "mooring.authn",
                "mooring.trust.sharedkeys",
                "mooring.trust.k3s",
                "mooring.trust.notices",
            )
            if hasattr(subject, "heading")  # without one it is a base of several
        ),
        lambda folder: (*SUBJECTS, StandaloneSettings),
    ),
}


@pytest.mark.parametrize(("defined", "listed"), TABLES.values(), ids=TABLES.keys())
def test_every_definition_is_in_the_table_and_every_row_is_defined(
    defined: Collect, listed: Collect, tmp_path: Path
) -> None:
    definitions, rows = (by_identity(collect(tmp_path)) for collect in (defined, listed))
    assert [one for key, one in definitions.items() if key not in rows] == []
    assert [one for key, one in rows.items() if key not in definitions] == []


@each_row("kind", KINDS, lambda kind: kind.resource.plural)
def test_every_kind_can_be_found(kind: Kind) -> None:
    resource = kind.resource
    assert by_resource(resource.group, resource.version, resource.plural) is kind
    assert resource in RESOURCES
    assert (BY_PLURAL.get(resource.plural) is kind) is kind.stored


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_endpoint_can_be_reached(endpoint: ServedPath[Any]) -> None:
    found = [find(endpoint.path + rest) for rest in ("", "/", "/deeper/down", "x")]
    slash = find("/") if endpoint.path == "" else endpoint if endpoint.slashes else None
    assert found == [endpoint, slash, endpoint if endpoint.below else None, None]


def test_every_subject_of_settings_has_a_heading_of_its_own() -> None:
    assert len({subject.heading for subject in SUBJECTS}) == len(SUBJECTS)


def test_every_setting_has_its_own_name_and_a_type_on_the_command_line() -> None:
    settings = declared_settings()
    assert len({one.name for one in settings}) == len(settings)
    assert {one.value_type for one in settings if one.flag} <= set(OPTION_ARGUMENTS)
    assert [one.name for one in settings if not one.flag] == ["authenticators"]
    former_names = {one.former_name for one in settings if one.former_name}
    assert former_names.isdisjoint(one.name for one in settings)
