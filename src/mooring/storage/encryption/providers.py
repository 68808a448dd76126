"""Keys and KMS plugins of one process: the configuration in force, and the health of each plugin.

Rules kept here:
* A new configuration comes into force whole, after each plugin that it adds was healthy once. Until then the old one stays.
* Each plugin is asked for its status at intervals. A new key id gives a new seed (`mooring.trust.encryption.transformer`).
* A data key is decrypted once, however many values need it at the same time. One that the plugin does not decrypt, or whose answer
  opens no value, waits before it is asked for again: 3 s first, twice as long after each failure, 5 minutes at most. No other data
  key waits for it.
* Only the Status speaks for the health of a plugin. A plugin that left three calls in a row without an answer (one, while its
  Status fails) is not asked for data keys for a moment, so that a list of a thousand values does not wait a thousand times.
* Data keys that wait are asked for again by themselves. When the plugin decrypts one, or a new configuration is in force,
  subscribers are called: values may be readable that were not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from mooring.apimachinery.names import uuid4
from mooring.bounded import Bounded
from mooring.clock import Clock
from mooring.errors import MooringError, StorageError
from mooring.observed import Observed
from mooring.secret import Secret
from mooring.storage.encryption.kmsplugin import KmsPluginClient, PluginError, UnansweredError
from mooring.trust.encryption.configuration import EncryptionConfiguration, GroupResource, KmsPlugin
from mooring.trust.encryption.encryptedobject import SEED, CipherError, EncryptedDataKey, Entropy
from mooring.trust.encryption.transformer import (
    PLAIN,
    DataKeyNeededError,
    Envelope,
    Transformer,
    Transformers,
    UnreadableError,
)

HEALTHY_SECONDS = 20.0
"""Between two questions to a healthy plugin; kube-apiserver's health check keeps an answer as long."""
UNHEALTHY_SECONDS = 3.0
"""Between two questions to a plugin that failed, the time for which one without answers is not asked for data keys, and the first
wait of a data key that it did not decrypt."""
MAX_WAIT_SECONDS = 300.0
"""Longest wait of a data key. A key that was destroyed stays so; one that is brought back is used at a start, too."""
RETRY_PAUSE = 0.01
"""Least pause between two rounds of questions for data keys that wait."""
UNANSWERED_CALLS = 3
"""Calls in a row that a plugin leaves without an answer before it is not asked: a single one may be lost."""
MAX_WAITING = 4096
"""Data keys of a plugin that wait: as many as are kept when they are decrypted."""
CLOSE_FACTOR = 2
"""Timeouts after which the connection to a removed plugin is closed: calls under way have ended by then."""

FROM_STORAGE, TO_STORAGE = "from_storage", "to_storage"
Connect = Callable[[KmsPlugin], KmsPluginClient]

log = logging.getLogger(__name__)


class WaitingKey:
    """A data key that no value could be opened with: when it is asked for again, and a value that needs it."""

    __slots__ = ("answer", "needed", "problem", "until", "wait")

    def __init__(self, needed: DataKeyNeededError) -> None:
        self.needed = needed
        self.until = 0.0
        self.wait = 0.0
        self.problem = ""
        self.answer: Secret | None = None
        """The last answer of the plugin. Other values try it while the key waits; the first that it opens ends the wait."""

    def failed(self, now: float, problem: str) -> None:
        """Wait longer than before."""
        self.wait = min(max(UNHEALTHY_SECONDS, self.wait * 2), MAX_WAIT_SECONDS)
        self.until = now + self.wait
        self.problem = problem


class Plugin:
    """One KMS plugin with its connection, its data keys and its health."""

    def __init__(self, plugin: KmsPlugin, envelope: Envelope, client: KmsPluginClient) -> None:
        self.plugin = plugin
        self.envelope = envelope
        self.client = client
        self.problem = "it has not been reached yet"
        """Reason of the last failure, "" while it is healthy."""
        self.silent_until = 0.0
        self.unanswered = 0
        """Calls of Decrypt in a row without an answer."""
        self.polling: asyncio.Task[None] | None = None
        self.decrypting: dict[EncryptedDataKey, asyncio.Task[Secret]] = {}
        self.waiting: Bounded[EncryptedDataKey, WaitingKey] = Bounded(MAX_WAITING)
        self.retrying: asyncio.Task[None] | None = None

    def wait_for(self, needed: DataKeyNeededError) -> WaitingKey:
        """Return the entry of a data key among those that wait."""
        found = self.waiting.get(needed.data_key)
        if found is None:
            found = self.waiting[needed.data_key] = WaitingKey(needed)
        return found


class Providers(Observed[[]]):
    """Transformers in force, and the plugins behind them. Subscribers are called when values may have become readable."""

    def __init__(
        self,
        configuration: EncryptionConfiguration,
        clock: Clock,
        entropy: Entropy,
        connect: Connect = KmsPluginClient,
    ) -> None:
        super().__init__()
        self.clock = clock
        self._entropy = entropy
        self._connect = connect
        self.transformers = Transformers(configuration)
        self._plugins: dict[str, Plugin] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.operations: Counter[tuple[str, str, str, str]] = Counter()
        """Transformations by resource, direction, prefix and status, as kube-apiserver counts them."""
        self.cache_misses = 0
        """Data keys that a plugin had to decrypt."""

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ask every plugin once, then go on asking. Raises ConfigError when gRPC is not installed."""
        self._plugins = self._connected(self.transformers, {})
        await asyncio.gather(*(self._probe(one) for one in self._plugins.values()))
        self._poll(self._plugins)

    async def stop(self) -> None:
        """End everything. Idempotent."""
        plugins, self._plugins = self._plugins, {}
        for task in tuple(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(_close(one) for one in plugins.values()))

    async def replace(self, configuration: EncryptionConfiguration) -> None:
        """Bring a configuration into force. Raises StorageError when a plugin that it adds is not healthy, and ConfigError."""
        kept = {
            name: one.envelope
            for name, one in self._plugins.items()
            if any(plugin.name == name and plugin.socket == one.plugin.socket for plugin in configuration.plugins)
        }
        transformers = Transformers(configuration, kept)
        plugins = self._connected(transformers, self._plugins)
        added = {name: one for name, one in plugins.items() if one is not self._plugins.get(name)}
        try:
            # The old configuration stays in force until each new plugin was healthy: no write fails meanwhile.
            await asyncio.gather(*(self._probe(one) for one in added.values()))
            sick = [f"{name}: {one.problem}" for name, one in added.items() if one.problem]
            if sick:
                raise StorageError(f"KMS plugins of the new configuration are not healthy: {'; '.join(sick)}")
        except BaseException:
            await asyncio.gather(*(_close(one) for one in added.values()))
            raise
        removed = [one for name, one in self._plugins.items() if plugins.get(name) is not one]
        # Both without an `await` in between: the plugin of a data key is found by the envelope of its transformer.
        self.transformers, self._plugins = transformers, plugins
        self._poll(added)
        for one in removed:
            # Calls that are under way with the removed plugin end first.
            task = asyncio.create_task(self._close_later(one))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        # Values that only the new keys decrypt are readable now.
        self.notify()

    def _connected(self, transformers: Transformers, present: Mapping[str, Plugin]) -> dict[str, Plugin]:
        """Return the plugins of a configuration; those that stay the same keep their connection."""
        found: dict[str, Plugin] = {}
        for plugin in transformers.configuration.plugins:
            known = present.get(plugin.name)
            if known is None or known.plugin != plugin:
                known = Plugin(plugin, transformers.envelopes[plugin.name], self._connect(plugin))
            found[plugin.name] = known
        return found

    def _poll(self, plugins: Mapping[str, Plugin]) -> None:
        for name, one in plugins.items():
            one.polling = asyncio.get_running_loop().create_task(self._poll_forever(one), name=f"KMS plugin {name}")

    async def _close_later(self, plugin: Plugin) -> None:
        for task in (plugin.polling, plugin.retrying):
            if task is not None:
                task.cancel()
        await self.clock.sleep(CLOSE_FACTOR * plugin.plugin.timeout.total_seconds())
        await _close(plugin)

    # -- health --------------------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Every plugin was healthy when it was last asked."""
        return not any(one.problem for one in self._plugins.values())

    async def _poll_forever(self, plugin: Plugin) -> None:
        while True:
            await self.clock.sleep(UNHEALTHY_SECONDS if plugin.problem else HEALTHY_SECONDS)
            await self._probe(plugin)

    async def _probe(self, plugin: Plugin) -> None:
        """Ask one plugin for its status, and let it encrypt a new seed when it has a new key."""
        before = plugin.problem
        try:
            await self._ask(plugin)
            plugin.problem = ""
        except (PluginError, CipherError) as error:
            plugin.problem = str(error)
        except Exception as error:  # a poll that ended would make all writes fail after a while
            log.exception("the KMS plugin %s could not be asked", plugin.plugin.name)
            plugin.problem = type(error).__name__
        if plugin.problem and plugin.problem != before:
            log.error("the KMS plugin %s is not healthy: %s", plugin.plugin.name, plugin.problem)
        elif before and not plugin.problem:
            log.info("the KMS plugin %s is healthy", plugin.plugin.name)
            self._ask_again(plugin)

    async def _ask(self, plugin: Plugin) -> None:
        now, envelope = self.clock.monotonic(), plugin.envelope
        status = await plugin.client.status()
        # Before the seed is used longer or replaced: a plugin that is not healthy must not extend it.
        envelope.check_status(status)
        if envelope.is_current(status.key_id):
            envelope.extend(now)
            return
        seed = Secret(self._entropy(SEED))
        encrypted = await plugin.client.encrypt(seed, uuid4(self._entropy))
        envelope.replace(seed, encrypted, status.key_id, now)
        log.info("the KMS plugin %s encrypted a new seed", plugin.plugin.name)

    # -- values --------------------------------------------------------------------------------------------------------

    def transformer(self, resource: GroupResource) -> Transformer:
        """Return the transformer of a resource."""
        return self.transformers.of(resource)

    @property
    def encrypts(self) -> bool:
        """False without a configuration: values are stored as they are."""
        return bool(self.transformers.configuration.providers)

    def is_configured(self, resource: GroupResource) -> bool:
        """Return whether the configuration names the resource."""
        return self.transformers.of(resource) is not PLAIN

    def open_now(self, resource: GroupResource, value: bytes, context: bytes) -> tuple[bytes, bool] | None:
        """Return the plain value, and whether it is stale; None when a plugin has to decrypt a data key first.

        Raises UnreadableError.
        """
        transformer = self.transformers.of(resource)
        try:
            found = transformer.open(value, context, self.clock.monotonic())
        except DataKeyNeededError:
            return None
        except UnreadableError:
            self.operations[str(resource), FROM_STORAGE, "unknown", "unknown-non-grpc"] += 1
            raise
        if transformer is not PLAIN:
            self.operations[str(resource), FROM_STORAGE, _prefix(value, transformer), "OK"] += 1
        return found

    async def open(self, resource: GroupResource, value: bytes, context: bytes) -> tuple[bytes, bool]:
        """Return the plain value, and whether it is stale. Raises UnreadableError."""
        refused: dict[EncryptedDataKey, str] = {}
        found = self.open_now(resource, value, context)
        while found is None:
            transformer = self.transformers.of(resource)
            try:
                found = transformer.open(value, context, self.clock.monotonic(), refused)
            except DataKeyNeededError as needed:
                try:
                    await self._learn(needed)
                except PluginError:
                    refused[needed.data_key] = "the KMS plugin did not decrypt the data key"
                except CipherError as error:
                    refused[needed.data_key] = f"with the data key that the KMS plugin returned: {error}"
        return found

    def seal(self, resource: GroupResource, value: bytes, context: bytes) -> bytes:
        """Return the value to store. Raises StorageError."""
        transformer = self.transformers.of(resource)
        if transformer is PLAIN:
            return value
        prefix = transformer.prefix.decode(errors="replace")
        try:
            sealed = transformer.seal(value, context, self._entropy, self.clock.monotonic())
        except CipherError as error:
            self.operations[str(resource), TO_STORAGE, prefix, "unknown-non-grpc"] += 1
            raise StorageError(f"{resource} cannot be encrypted: {transformer.label}: {error}") from None
        self.operations[str(resource), TO_STORAGE, prefix, "OK"] += 1
        return sealed

    # -- data keys -----------------------------------------------------------------------------------------------------

    async def _learn(self, needed: DataKeyNeededError) -> None:
        """Have a data key decrypted, and keep it if it opens the value. Raises PluginError or CipherError."""
        plugin = next((one for one in self._plugins.values() if one.envelope is needed.envelope), None)
        if plugin is None:
            raise PluginError("the plugin was removed from the configuration meanwhile")
        plain = await self._decrypted(plugin, needed)
        now = self.clock.monotonic()
        try:
            plugin.envelope.learn(needed, plain, now)
        except CipherError as error:
            waiting = plugin.wait_for(needed)
            # Several values may try one answer. The first that fails counts as the failure.
            if waiting.answer is not plain:
                waiting.answer = plain
                waiting.failed(now, str(error))
                log.warning("what the KMS plugin %s decrypted does not open a value: %s", plugin.plugin.name, error)
            self._retry_later(plugin)
            raise
        plugin.waiting.pop(needed.data_key, None)

    async def _decrypted(self, plugin: Plugin, needed: DataKeyNeededError) -> Secret:
        """Return the answer of the plugin, a recent one where the key waits. Raises PluginError."""
        task = plugin.decrypting.get(needed.data_key)
        if task is None:
            now = self.clock.monotonic()
            waiting = plugin.waiting.get(needed.data_key)
            # A key that waits is not asked for again: thousands of values may need it.
            if waiting is not None and now < waiting.until:
                if waiting.answer is None:
                    raise PluginError(waiting.problem)
                return waiting.answer
            if now < plugin.silent_until:
                waiting = plugin.wait_for(needed)
                waiting.until, waiting.problem = plugin.silent_until, "the KMS plugin does not answer"
                self._retry_later(plugin)
                raise PluginError(waiting.problem)
            task = asyncio.get_running_loop().create_task(self._decrypt_once(plugin, needed))
            plugin.decrypting[needed.data_key] = task
            task.add_done_callback(lambda _: plugin.decrypting.pop(needed.data_key, None))
        # Shielded: other values wait for the same answer.
        return await asyncio.shield(task)

    async def _decrypt_once(self, plugin: Plugin, needed: DataKeyNeededError) -> Secret:
        self.cache_misses += 1
        try:
            plain = await plugin.client.decrypt(needed.data_key, uuid4(self._entropy))
        except MooringError as error:
            now = self.clock.monotonic()
            log.warning("a data key could not be decrypted: %s", error)
            plugin.unanswered = plugin.unanswered + 1 if isinstance(error, UnansweredError) else 0
            if plugin.unanswered >= (1 if plugin.problem else UNANSWERED_CALLS):
                plugin.silent_until = now + UNHEALTHY_SECONDS
            waiting = plugin.wait_for(needed)
            waiting.answer = None
            waiting.failed(now, str(error))
            self._retry_later(plugin)
            raise
        plugin.unanswered = 0
        return plain

    def _ask_again(self, plugin: Plugin) -> None:
        """Ask at once for the data keys that wait: the plugin is healthy again."""
        plugin.silent_until, plugin.unanswered = 0.0, 0
        for waiting in plugin.waiting.values():
            waiting.until = waiting.wait = 0.0
        if plugin.retrying is not None:
            plugin.retrying.cancel()
            plugin.retrying = None
        self._retry_later(plugin)

    def _retry_later(self, plugin: Plugin) -> None:
        if plugin.waiting and (plugin.retrying is None or plugin.retrying.done()):
            name = f"data keys of KMS plugin {plugin.plugin.name}"
            plugin.retrying = asyncio.get_running_loop().create_task(self._retry(plugin), name=name)

    async def _retry(self, plugin: Plugin) -> None:
        """Ask for data keys when their wait is over, until none waits."""
        while plugin.waiting:
            now = self.clock.monotonic()
            await self.clock.sleep(max(min(one.until for one in plugin.waiting.values()) - now, RETRY_PAUSE))
            now = self.clock.monotonic()
            is_readable = False
            for key, waiting in tuple(plugin.waiting.items()):
                if waiting.until > now or plugin.waiting.get(key) is not waiting:
                    continue
                before = waiting.answer
                try:
                    await self._learn(waiting.needed)
                    is_readable = True
                except MooringError:
                    # Another answer may open other values than the one that waits here.
                    is_readable = is_readable or (waiting.answer is not None and waiting.answer != before)
            if is_readable:
                self.notify()


def _prefix(value: bytes, transformer: Transformer) -> str:
    """Return the prefix of a value as kube-apiserver's metric has it: closed to those of the configuration."""
    return next(
        (prefix.decode(errors="replace") for prefix in transformer.prefixes if value.startswith(prefix)), "identity"
    )


async def _close(plugin: Plugin) -> None:
    tasks = [plugin.polling, plugin.retrying, *plugin.decrypting.values()]
    for task in tasks:
        if task is not None:
            task.cancel()
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
    with contextlib.suppress(Exception):
        await plugin.client.close()
