"""KMS v2 plugins that work, rotate, hang, lie, die and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mooring.clock import SystemClock
from mooring.errors import ConfigError, StorageError
from mooring.storage.encryption import providers as module
from mooring.storage.encryption.providers import Providers
from mooring.trust.encryption.configuration import EncryptionConfiguration, parse, parse_group_resource
from mooring.trust.encryption.transformer import UnreadableError
from tests.support.encryption import IDENTITY, entry, file, kms, local
from tests.support.kmsplugin import SimulatedPlugin, message, serving
from tests.support.registryroom import counting_entropy

SECRETS = parse_group_resource("secrets")
KEY = b"/registry/secrets/default/a"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEALTHY_SECONDS", 0.02)
    monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 0.02)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[SimulatedPlugin]:
    with serving(SimulatedPlugin(tmp_path / "kms.sock")) as plugin:
        yield plugin


def configuration(plugin: SimulatedPlugin, timeout: str = "3s") -> EncryptionConfiguration:
    return parse(file(entry("secrets", kms(plugin.endpoint, timeout=timeout), IDENTITY)), "f")


@asynccontextmanager
async def started(configuration: EncryptionConfiguration) -> AsyncIterator[Providers]:
    providers = Providers(configuration, SystemClock(), counting_entropy())
    await providers.start()
    try:
        yield providers
    finally:
        await providers.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        await asyncio.wait_for(test(), 30)

    asyncio.run(body())


async def until(look: Callable[[], bool]) -> None:
    """Return once `look` is true; `run` bounds the wait."""
    while not look():
        await asyncio.sleep(0.005)


def test_one_seed_serves_many_values_and_another_process_asks_for_it_once(plugin: SimulatedPlugin) -> None:
    async def body() -> None:
        async with started(configuration(plugin)) as first:
            values = [first.seal(SECRETS, b"value", KEY) for _ in range(5)]
            assert len(set(values)) == 5
            assert [first.open_now(SECRETS, value, KEY) for value in values] == [(b"value", False)] * 5
        assert plugin.calls["Encrypt"] == 1
        assert plugin.calls["Decrypt"] == 0
        async with started(configuration(plugin)) as second:
            found = await asyncio.gather(*(second.open(SECRETS, value, KEY) for value in values))
            assert set(found) == {(b"value", False)}  # the plugin's key is the same: nothing is stale
        assert plugin.calls["Decrypt"] == 1
        assert second.cache_misses == 1

    run(body)


def test_a_new_key_of_the_plugin_makes_a_new_seed_and_old_values_stale(plugin: SimulatedPlugin) -> None:
    async def body() -> None:
        async with started(configuration(plugin)) as providers:
            value = providers.seal(SECRETS, b"value", KEY)
            plugin.key_id = "key-2"
            await until(lambda: providers.open_now(SECRETS, value, KEY) == (b"value", True))
            newer = providers.seal(SECRETS, b"value", KEY)
            assert providers.open_now(SECRETS, newer, KEY) == (b"value", False)
            assert providers.healthy

    run(body)


def test_a_plugin_that_hangs_delays_a_thousand_values_no_more_than_one(
    plugin: SimulatedPlugin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 60.0)

    async def body() -> None:
        async with started(configuration(plugin)) as writer:
            value = writer.seal(SECRETS, b"value", KEY)
        plugin.answers.clear()
        async with started(configuration(plugin, "50ms")) as providers:
            assert not providers.healthy
            for _ in range(1000):
                with pytest.raises(UnreadableError, match="kms vault: the KMS plugin did not decrypt the data key"):
                    await providers.open(SECRETS, value, KEY)
            assert plugin.calls["Decrypt"] <= 1
            assert caplog.text.count("could not be decrypted") == 1
            with pytest.raises(
                StorageError, match="secrets cannot be encrypted: kms vault: the KMS plugin has not been reached"
            ):
                providers.seal(SECRETS, b"value", KEY)

    run(body)


def test_a_plugin_that_starts_late_makes_values_readable_again(tmp_path: Path) -> None:
    async def body() -> None:
        plugin = SimulatedPlugin(tmp_path / "kms.sock")
        with serving(plugin):
            async with started(configuration(plugin)) as writer:
                value = writer.seal(SECRETS, b"value", KEY)
        again: list[bool] = []
        async with started(configuration(plugin, "50ms")) as providers:
            providers.subscribe(lambda: again.append(True))
            assert not providers.healthy
            with pytest.raises(UnreadableError):
                await providers.open(SECRETS, value, KEY)
            with serving(plugin):
                await until(lambda: bool(again) and providers.healthy)
                assert await providers.open(SECRETS, value, KEY) == (b"value", False)

    run(body)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"healthz": "sealed"}, "says that it is not healthy", id="not healthy"),
        pytest.param({"version": "v1"}, "another version of the API than v2", id="another version"),
        pytest.param({"key_id": ""}, "keyID is empty", id="no key id"),
        pytest.param(
            {"encrypts_with": "other"}, "encrypts with another key than the one that its status", id="two keys"
        ),
        pytest.param({"annotations": {"local": b""}}, "not a fully qualified domain name", id="a bad annotation"),
        pytest.param(
            {"reply": lambda method, request: b"\xff"}, "the answer to Status is not a message of KMS v2", id="noise"
        ),
        pytest.param(
            {"reply": lambda method, request: b"x" * 100_000}, "Status failed: RESOURCE_EXHAUSTED", id="a huge answer"
        ),
        pytest.param(
            {"reply": lambda method, request: message() if method == "Encrypt" else None},
            "encrypted DEK source is empty",
            id="an empty answer",
        ),
    ],
)
def test_a_plugin_that_is_wrong_is_not_healthy_and_the_log_says_why(
    plugin: SimulatedPlugin, change: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        for name, value in change.items():
            setattr(plugin, name, value)
        with caplog.at_level(logging.ERROR):
            async with started(configuration(plugin)) as providers:
                assert not providers.healthy
                with pytest.raises(StorageError):
                    providers.seal(SECRETS, b"value", KEY)
        assert problem in caplog.text

    run(body)


def test_a_wrong_data_key_makes_a_value_unreadable(plugin: SimulatedPlugin) -> None:
    async def body() -> None:
        async with started(configuration(plugin)) as writer:
            value = writer.seal(SECRETS, b"value", KEY)
        for answer, problem in (
            (b"w" * 32, "not authentic"),
            (b"short", "something that is no data key|shorter than 32 bytes"),
        ):
            plugin.reply = lambda method, request, plain=answer: message((1, plain)) if method == "Decrypt" else None  # type: ignore[misc]  # mypy cannot infer a default of a lambda
            async with started(configuration(plugin)) as providers:
                with pytest.raises(UnreadableError, match=problem):
                    await providers.open(SECRETS, value, KEY)

    run(body)


async def written_with(plugin: SimulatedPlugin, *key_ids: str) -> list[bytes]:
    """Return a value of each key of the plugin."""
    values = []
    for plugin.key_id in key_ids:
        async with started(configuration(plugin)) as writer:
            values.append(writer.seal(SECRETS, b"value", KEY))
    return values


def test_a_value_whose_key_was_destroyed_keeps_no_other_from_being_read_and_the_plugin_is_healthy(
    plugin: SimulatedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 60.0)

    async def body() -> None:
        lost, *good = await written_with(plugin, "key-1", "key-2", "key-3")
        plugin.lost = {"key-1"}
        again: list[bool] = []
        async with started(configuration(plugin)) as providers:
            providers.subscribe(lambda: again.append(True))
            for _ in range(20):
                with pytest.raises(UnreadableError, match="kms vault: the KMS plugin did not decrypt the data key"):
                    await providers.open(SECRETS, lost, KEY)
                for value in good:
                    assert (await providers.open(SECRETS, value, KEY))[0] == b"value"
            assert plugin.calls["Decrypt"] == 3  # each data key once
            assert providers.healthy
            assert again == []

    run(body)


def test_a_data_key_that_was_not_decrypted_is_asked_for_again_less_often_each_time(plugin: SimulatedPlugin) -> None:
    async def body() -> None:
        (lost,) = await written_with(plugin, "key-1")
        plugin.lost = {"key-1"}
        again: list[bool] = []
        async with started(configuration(plugin)) as providers:
            providers.subscribe(lambda: again.append(True))
            with pytest.raises(UnreadableError):
                await providers.open(SECRETS, lost, KEY)
            (waiting,) = [key for one in providers._plugins.values() for key in one.waiting.values()]
            waits: list[float] = []
            while len(waits) < 4:
                before = plugin.calls["Decrypt"]
                waits.append(waiting.wait)
                await until(lambda calls=before: plugin.calls["Decrypt"] > calls and waiting.wait > waits[-1])  # type: ignore[misc]  # mypy cannot infer a default of a lambda
            assert waits == [module.UNHEALTHY_SECONDS * factor for factor in (1, 2, 4, 8)]
            assert again == []  # nothing became readable: nothing is read again
            plugin.lost = set()
            await until(lambda: bool(again))
            assert providers.open_now(SECRETS, lost, KEY) == (b"value", False)

    run(body)


def test_a_wrong_answer_is_not_remembered_and_other_values_of_the_data_key_are_read(
    plugin: SimulatedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with started(configuration(plugin)) as writer:
            value, moved = (writer.seal(SECRETS, b"value", context) for context in (KEY, KEY + b"/other"))
        async with started(configuration(plugin)) as providers:
            monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 3600.0)  # the key that waits is not asked for meanwhile
            with pytest.raises(UnreadableError, match="not authentic"):
                await providers.open(SECRETS, moved, KEY)  # the fault of the value, and not of its data key
            assert await providers.open(SECRETS, value, KEY) == (b"value", False)
            assert plugin.calls["Decrypt"] == 1
        monkeypatch.setattr(module, "UNHEALTHY_SECONDS", 0.02)
        wrong = [message((1, b"w" * 32))]
        plugin.reply = lambda method, request: wrong.pop() if method == "Decrypt" and wrong else None
        again: list[bool] = []
        async with started(configuration(plugin)) as providers:
            providers.subscribe(lambda: again.append(True))
            with pytest.raises(UnreadableError, match="not authentic"):
                await providers.open(SECRETS, value, KEY)
            await until(lambda: bool(again))
            assert providers.open_now(SECRETS, value, KEY) == (b"value", False)

    run(body)


def test_one_call_that_is_lost_leaves_the_other_data_keys_readable(
    plugin: SimulatedPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        values = await written_with(plugin, "key-1", "key-2", "key-3")
        again: list[bool] = []
        async with started(configuration(plugin, "250ms")) as providers:
            providers.subscribe(lambda: again.append(True))
            monkeypatch.setattr(module, "HEALTHY_SECONDS", 3600.0)  # the Status does not time out here
            await asyncio.sleep(0)
            plugin.answers.clear()
            with pytest.raises(UnreadableError):
                await providers.open(SECRETS, values[0], KEY)
            plugin.answers.set()
            for value in values[1:]:
                assert (await providers.open(SECRETS, value, KEY))[0] == b"value"
            await until(lambda: bool(again))
            assert (await providers.open(SECRETS, values[0], KEY))[0] == b"value"

    run(body)


def test_a_new_configuration_waits_for_its_plugins(plugin: SimulatedPlugin, tmp_path: Path) -> None:
    async def body() -> None:
        local_only = parse(file(entry("secrets", local("aesgcm", "one"))), "f")
        async with started(local_only) as providers:
            before = providers.transformers
            missing = SimulatedPlugin(tmp_path / "missing.sock")
            with pytest.raises(StorageError, match="KMS plugins of the new configuration are not healthy: vault: "):
                await providers.replace(configuration(missing, "50ms"))
            assert providers.transformers is before
            value = providers.seal(SECRETS, b"value", KEY)
            both = parse(file(entry("secrets", kms(plugin.endpoint), local("aesgcm", "one"))), "f")
            await providers.replace(both)
            assert await providers.open(SECRETS, value, KEY) == (b"value", True)
            assert providers.seal(SECRETS, b"value", KEY).startswith(b"k8s:enc:kms:v2:vault:")
            seeds = plugin.calls["Encrypt"]
            await providers.replace(configuration(plugin))  # the same plugin: its seed stays
            assert plugin.calls["Encrypt"] == seeds
            await providers.replace(local_only)
            assert providers.healthy

    run(body)


def test_a_plugin_without_grpc_names_the_extra(plugin: SimulatedPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        providers = Providers(configuration(plugin), SystemClock(), counting_entropy())
        with pytest.raises(ConfigError, match=r"mooring\[etcd\]"):
            await providers.start()

    with contextlib.ExitStack() as stack:
        stack.enter_context(monkeypatch.context()).setitem(sys.modules, "grpc", None)
        run(body)
