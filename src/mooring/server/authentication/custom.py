"""Runs custom authenticators: imports their classes, makes them, and calls them.

Rules kept here:
* The server imports the modules that the configuration names, and no others: a package is never used because it is installed (law
  10). A mistake stops the start, in one line that names the place in the configuration.
* The form is checked at start: a class, made with the options, with an `authenticate` that takes the offered credential.
* Errors of the class are reported by the name of their type, SystemExit and KeyboardInterrupt too. Their texts may hold options or
  credentials, and are neither reported nor logged. A `ConfigError` promises to hold none, and is reported whole.
* A plain method runs in a thread of its own and so delays no other authenticator. A call that finds no free turn waits here and
  not in a queue of threads, so that a cancelled call leaves nothing behind. A call that never ends keeps its thread. The process
  ends without it.
* A coroutine runs in a task of its own: at the deadline the request goes on, even if the coroutine suppresses its cancellation. A
  coroutine that blocks the event loop blocks the server.
* A call holds one of AT_ONCE turns until it has ended, even when its request was cancelled before.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from mooring.authn import plugin
from mooring.authn.chain import BASIC, BEARER
from mooring.authn.credentials import NAME as WEBSOCKET
from mooring.authn.custom import CustomAuthenticator, CustomAuthenticatorEntry, CustomSettings
from mooring.authn.host import Configured, Host, Running
from mooring.authn.plugin import BlockingAuthenticator, Offered, PluginAuthenticator, Rejected, RemoteAuthenticator
from mooring.authn.reasons import FAILED, TOO_BUSY
from mooring.authn.verdictcache import KEY_BYTES, VerdictCache
from mooring.errors import ConfigError

log = logging.getLogger("mooring.authentication")

KEY = "authenticators"
AT_ONCE = 16
"""Calls of one authenticator under way: 800 a second to a directory that answers in 20 ms, or 16 threads to one that hangs."""
MAX_WAITING = 64
"""Calls that wait for a turn. Later ones are rejected. Three authenticators that hang leave room for the others."""
CLOSE_SECONDS = 2.0
"""For all authenticators at once to close their connections. The stop of the server waits for it."""
DEFAULT_SCHEMES = ("Bearer", "Basic")
MAX_SCHEMES = 8
"""Each is a header of every 401."""
RESERVED_NAMES = frozenset({BEARER, BASIC, WEBSOCKET})
"""Names in records and metrics that belong to no row of the table."""
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)
"""RFC 9110 11.1: a token."""


def build(config: Configured, host: Host) -> Running | None:
    """Return the authenticators in the order of the configuration; None without any. Raises ConfigError."""
    entries = config[CustomSettings].authenticators
    if not entries:
        return None
    schemes: dict[str, str] = {}
    authenticators, calls = [], []
    for place, entry in enumerate(entries):
        path = f"{KEY}[{place}]"
        if entry.name in host.names | RESERVED_NAMES:
            raise ConfigError(f'{path}.name: "{entry.name}" is what Mooring calls one of its own; choose another')
        instance = make(entry, path)
        named = schemes_of(instance, f"{path}.class")
        schemes = {name: spelled for name, spelled in named.items() if name != BEARER} | schemes
        call = CustomCalls(entry.name, instance)
        remembered = VerdictCache(host.entropy(KEY_BYTES), entry.cache_ttl)
        authenticators.append(CustomAuthenticator(entry.name, call.authenticate, entry.deadline, remembered, named))
        calls.append(call)

    async def close() -> None:
        await asyncio.gather(*(call.close(CLOSE_SECONDS) for call in calls))

    return Running(authenticators=tuple(authenticators), turned_on_by=KEY, schemes=schemes, close=close)


# ── importing and making ─────────────────────────────────────────────────────────────────────────────────────────


def make(entry: CustomAuthenticatorEntry, path: str) -> PluginAuthenticator:
    """Return an instance of the class that the entry at `path` of the configuration names. Raises ConfigError."""
    key = f"{path}.class"
    module_name, _, class_name = entry.location.partition(":")
    found = getattr(_import(module_name, key), class_name, None)
    if found is None:
        raise ConfigError(f'{key}: the module "{module_name}" has no {class_name}')
    if not inspect.isclass(found):
        raise ConfigError(f"{key}: {class_name} is no class")
    make_instance = cast(Callable[[Mapping[str, Any]], object], found)
    if not _accepts(make_instance, entry.options):
        raise ConfigError(f"{key}: {class_name} cannot be made with one argument, the options")
    try:
        instance = make_instance(entry.options)
    except ConfigError as error:
        raise ConfigError(f"{path}.options: {error}") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{key}: {class_name} raised {type(error).__name__} when it was made") from None
    authenticate = getattr(instance, "authenticate", None)
    if not callable(authenticate) or not _accepts(authenticate, None):
        raise ConfigError(f"{key}: {class_name} has no method authenticate that takes one argument, what was offered")
    close = getattr(instance, "close", None)
    if close is not None and not (inspect.iscoroutinefunction(close) and _accepts(close)):
        raise ConfigError(f"{key}: the method close of {class_name} is no async def without arguments")
    return cast(PluginAuthenticator, instance)


def schemes_of(instance: PluginAuthenticator, key: str) -> dict[str, str]:
    """Return the schemes that a custom authenticator names, by their names in lower case. Raises ConfigError."""
    named: object = getattr(instance, "schemes", DEFAULT_SCHEMES)
    schemes = named if isinstance(named, tuple | list) else ()
    if not 0 < len(schemes) <= MAX_SCHEMES or not all(
        isinstance(one, str) and _SCHEME.fullmatch(one) for one in schemes
    ):
        raise ConfigError(
            f'{key}: schemes of {type(instance).__name__} is no tuple of one to {MAX_SCHEMES} names, such as ("Negotiate",)'
        )
    return {one.lower(): one for one in schemes}


def _import(name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f'{key}: there is no module "{error.name}"; install it beside mooring, or name its folder in PYTHONPATH'
            ) from None
        if f"{error.name}".startswith("mooring."):
            raise ConfigError(
                f'{key}: the module "{name}" imports "{error.name}", which this version does not have; import from '
                f"{plugin.__name__}, and from no other module of Mooring"
            ) from None
        needed = f'needs "{error.name}", which' if error.name else "needs a module that"
        raise ConfigError(f'{key}: the module "{name}" {needed} is not installed') from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{key}: importing "{name}" raised {type(error).__name__}') from None


def _accepts(call: Callable[..., Any], *arguments: object) -> bool:
    """Return whether `call` takes these arguments; True when its signature is not known."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # not written in Python
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


# ── calling ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Raised:
    """Name of the type of an error. The error itself would keep alive what its frames hold."""

    name: str


class CustomCalls:
    """The calls of one custom authenticator."""

    def __init__(self, name: str, instance: PluginAuthenticator) -> None:
        self._name = name
        self._instance = instance
        self._begin = self._as_task if inspect.iscoroutinefunction(instance.authenticate) else self._in_thread
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def authenticate(self, offered: Offered) -> object:
        """Return the result of the authenticator, or a rejection when it fails. Raises nothing but cancellation."""
        if self._waiting >= MAX_WAITING:
            return Rejected(TOO_BUSY)
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        ending = self._begin(offered)
        try:
            await asyncio.wait({ending})
        finally:
            ending.cancel()  # ends a task whose request was cancelled; a thread goes on
        result = ending.result()
        if not isinstance(result, _Raised):
            return result
        log.warning("authenticator %s failed: %s", self._name, result.name)
        return Rejected(FAILED, f"it raised {result.name}")

    async def close(self, seconds: float) -> None:
        """Let the authenticator close its connections within `seconds`."""
        close = getattr(self._instance, "close", None)
        if close is None:
            return
        closing = asyncio.create_task(_contain(close))
        await asyncio.wait({closing}, timeout=seconds)
        if not closing.done():
            closing.cancel()
            log.warning("authenticator %s did not close within %g s", self._name, seconds)
        elif isinstance(result := closing.result(), _Raised):
            log.warning("authenticator %s failed to close: %s", self._name, result.name)

    def _as_task(self, offered: Offered) -> asyncio.Future[object]:
        instance = cast(RemoteAuthenticator, self._instance)
        task = asyncio.create_task(_contain(lambda: instance.authenticate(offered)), name=f"authenticate-{self._name}")
        task.add_done_callback(lambda _: self._turns.release())
        return task

    def _in_thread(self, offered: Offered) -> asyncio.Future[object]:
        instance, loop = cast(BlockingAuthenticator, self._instance), asyncio.get_running_loop()
        ending: asyncio.Future[object] = loop.create_future()

        def end(result: object) -> None:
            self._turns.release()
            if not ending.done():
                ending.set_result(result)

        def run() -> None:
            result: object
            try:
                result = instance.authenticate(offered)
            except BaseException as error:
                result = _Raised(type(error).__name__)
            with suppress(RuntimeError):  # the event loop is closed: the server has ended
                loop.call_soon_threadsafe(end, result)

        try:
            threading.Thread(target=run, name=f"authenticate-{self._name}", daemon=True).start()
        except RuntimeError as error:  # the process can start no more threads
            end(_Raised(type(error).__name__))
        return ending


async def _contain(call: Callable[[], Awaitable[object]]) -> object:
    try:
        return await call()
    except BaseException as error:
        return _Raised(type(error).__name__)
