"""Settings of the processes of one server (`mooring.settings.serving`)."""

from __future__ import annotations

import pytest

from mooring.controlplane.configuration import server_config
from mooring.errors import ConfigError
from mooring.settings.declaration import COUNT
from mooring.settings.serving import AUTO, MAX_WORKERS, WorkersSettings


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("08", 8), (str(MAX_WORKERS), MAX_WORKERS), ("auto", AUTO)])
def test_a_number_or_auto_is_taken(text: str, count: int) -> None:
    assert WorkersSettings.read({"workers": text}).workers == count


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1.5", str(MAX_WORKERS + 1), "9" * 5000, "٣", "AUTO"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^workers: give a number from 1 to {MAX_WORKERS}, or auto$"):
        WorkersSettings.read({"workers": text})


@pytest.mark.parametrize(("value", "text"), [(4, "4"), ("auto", "auto")])
def test_the_configuration_file_holds_a_number_or_auto(value: object, text: str) -> None:
    assert COUNT.from_file(value) == text


@pytest.mark.parametrize("value", ["4", True, 1.0, None, [1]])
def test_the_configuration_file_holds_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match="give a whole number, or auto"):
        COUNT.from_file(value)


def test_a_store_in_memory_has_one_worker() -> None:
    server_config(storage="memory:", workers="1")
    server_config(storage="memory:", workers="auto")
    with pytest.raises(ConfigError, match=r"^workers: a store in memory belongs to one process"):
        server_config(storage="memory:", workers="2")
