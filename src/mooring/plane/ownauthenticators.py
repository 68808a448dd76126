"""The authenticators of the operator's own: found, made, and asked.

Rules kept here:
* What the configuration names is imported when the server starts, and nothing else is: there are no plugins that come by being
  installed (law 10). What is wrong with it stops the start, in one line that names the place in the configuration.
* The form is checked at start: a class, made with the options, with an `authenticate` that takes what was offered.
* What the class raises is told by the name of its type alone: the options may hold secrets. A `ConfigError`, which promises to
  hold none, is told whole.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

from mooring.authn.chain import BASIC, BEARER
from mooring.authn.custom.authenticator import ContainedAuthenticator
from mooring.authn.own import OwnAuthenticator
from mooring.authn.table import AUTHENTICATORS
from mooring.authn.verdictcache import KEY_BYTES, VerdictCache
from mooring.authn.websocketbearer import NAME as WEBSOCKET
from mooring.errors import ConfigError
from mooring.server.authentication.customcode import GuestCode
from mooring.settings.authentication import OwnAuthenticator as Named

DEFAULT_SCHEMES = ("Bearer", "Basic")
MAX_SCHEMES = 8
"""Each is a header of every 401."""
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}", re.ASCII)
"""RFC 9110 11.1: a token."""
CLOSE_SECONDS = 2.0
"""For closing connections, all authenticators at once: the server's stop waits for it."""


NAMES = frozenset({BEARER, BASIC, WEBSOCKET, *(name for name, _ in AUTHENTICATORS)})
"""What records and metrics call others."""


class OwnAuthenticators:
    """Those of one server, in the order of the configuration."""

    def __init__(self, named: Sequence[Named], entropy: Callable[[int], bytes]) -> None:
        """Raises ConfigError."""
        self._running: list[GuestCode] = []
        found = []
        self.schemes: dict[str, str] = {}
        """Schemes that any of them takes, beside Bearer: by their names in lower case, as the first of them spells it."""
        for place, one in enumerate(named):
            path = f"authenticators[{place}]"
            if one.name in NAMES:
                raise ConfigError(f'{path}.name: "{one.name}" is what Mooring calls one of its own; choose another')
            instance = made(one, path)
            schemes = schemes_of(instance, f"{path}.class")
            self.schemes = {name: spelled for name, spelled in schemes.items() if name != BEARER} | self.schemes
            guest = GuestCode(one.name, instance)
            self._running.append(guest)
            remembered = VerdictCache(entropy(KEY_BYTES), one.cache_ttl)
            found.append(ContainedAuthenticator(one.name, guest.ask, one.deadline, remembered, schemes))
        self.authenticators = tuple(found)

    async def close(self) -> None:
        """Let each close what it opened."""
        await asyncio.gather(*(guest.close(CLOSE_SECONDS) for guest in self._running))


def made(named: Named, path: str) -> OwnAuthenticator:
    """The authenticator that the configuration names at `path`. Raises ConfigError."""
    key = f"{path}.class"
    module_name, _, class_name = named.location.partition(":")
    found = getattr(_imported(module_name, key), class_name, None)
    if found is None:
        raise ConfigError(f'{key}: the module "{module_name}" has no {class_name}')
    if not inspect.isclass(found):
        raise ConfigError(f"{key}: {class_name} is no class")
    make = cast(Callable[[Mapping[str, Any]], object], found)
    if not _takes(make, named.options):
        raise ConfigError(f"{key}: {class_name} cannot be made with one argument, the options")
    try:
        guest = make(named.options)
    except ConfigError as error:
        raise ConfigError(f"{path}.options: {error}") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{key}: {class_name} raised {type(error).__name__} when it was made") from None
    authenticate = getattr(guest, "authenticate", None)
    if not callable(authenticate) or not _takes(authenticate, None):
        raise ConfigError(f"{key}: {class_name} has no method authenticate that takes one argument, what was offered")
    close = getattr(guest, "close", None)
    if close is not None and not (inspect.iscoroutinefunction(close) and _takes(close)):
        raise ConfigError(f"{key}: the method close of {class_name} is no async def without arguments")
    return cast(OwnAuthenticator, guest)


def schemes_of(instance: OwnAuthenticator, key: str) -> dict[str, str]:
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


def _imported(name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f'{key}: there is no module "{error.name}"; install it beside mooring, or name its folder in PYTHONPATH'
            ) from None
        needed = f'needs "{error.name}", which' if error.name else "needs a module that"
        raise ConfigError(f'{key}: the module "{name}" {needed} is not installed') from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{key}: importing "{name}" raised {type(error).__name__}') from None


def _takes(call: Callable[..., Any], *arguments: object) -> bool:
    """Whether it can be called so, as far as one can tell."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of something that is not written in Python
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
