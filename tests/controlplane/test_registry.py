"""One registry for every command: its store, authorizers and admission plugins follow the settings."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.options import WriteOptions
from mooring.controlplane.configuration import server_config
from mooring.controlplane.parts.foundation import check_names, open_registry
from mooring.errors import ConfigError, NotFoundError
from mooring.identity import API_SERVER_USER
from tests.support.encryption import IDENTITY, entry, file, local
from tests.support.manualclock import ManualClock

LOST = {"metadata": {"name": "lost", "namespace": "missing"}}


def create_in_a_missing_namespace(**flags: Any) -> None:
    async def body() -> None:
        clock = ManualClock()
        async with open_registry(server_config(storage="memory:", **flags), clock, os.urandom) as parts:
            change = Change(API_SERVER_USER, clock.now())
            await parts.registry.writer.create(BY_PLURAL["configmaps"], "missing", LOST, change, WriteOptions())

    asyncio.run(body())


def test_an_admission_plugin_checks_writes_unless_it_is_disabled() -> None:
    with pytest.raises(NotFoundError, match='namespaces "missing" not found'):
        create_in_a_missing_namespace()
    create_in_a_missing_namespace(disable_admission_plugins=("NodeRestriction, NamespaceLifecycle",))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"disable_admission_plugins": ("Nope",)},
            'disable-admission-plugins: "Nope" is not one of NamespaceLifecycle, ',
        ),
        ({"authorization_mode": "Nope"}, 'authorization-mode: "Nope" is not one of '),
        ({"controllers": ("*", "-nope")}, 'controllers: "nope" is not one of bootstrap-signer-controller, '),
        ({"storage": "nope:"}, "storage: "),
    ],
    ids=str,
)
def test_names_that_no_table_has_are_refused_before_anything_is_opened(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_names(server_config(**{"storage": "memory:", **flags}), ManualClock())
    assert str(caught.value).startswith(message)


def test_an_entry_of_the_denylist_that_cannot_be_decrypted_is_known_by_its_name(tmp_path: Path) -> None:
    def flags(name: str) -> dict[str, Any]:
        place = tmp_path / "encryption.json"
        place.write_bytes(file(entry("*.mooring.dev", local("secretbox", name)), entry("*.*", IDENTITY)))
        return {"data_dir": str(tmp_path), "encryption_provider_config": str(place)}

    async def start(name: str, *, creates: bool) -> None:
        clock = ManualClock()
        async with open_registry(server_config(**flags(name)), clock, os.urandom) as parts:
            if creates:
                spec = {"serialNumber": "1f", "reason": "keyCompromise"}
                obj = {"metadata": {"name": "serial-1f"}, "spec": spec}
                change = Change(API_SERVER_USER, clock.now())
                await parts.registry.writer.create(BY_PLURAL["certificaterevocations"], "", obj, change, WriteOptions())
            view = parts.registry.views["certificaterevocations"]
            assert bool(view.problem("serial-1f")) is (name == "other")
            assert (view.get("serial-1f") is None) is (name == "other")

    asyncio.run(start("first", creates=True))
    asyncio.run(start("first", creates=False))
    asyncio.run(start("other", creates=False))
