"""A watch that does not end: list, watch, and again whenever the watch cannot go on.

Rules kept here (docs/protocol/watch.md; client-go's reflector):
* The first thing that comes is `Listed`, the whole state; then events in order. Another `Listed` replaces everything: it comes
  after 410, when events may have been missed.
* A watch that ends is resumed after the last version seen, bookmarks included, so nothing is missed and nothing comes twice.
* Trouble (no connection, 429, 5xx) is told and waited out, 0.8 s doubled up to 30 s; a refusal (401, 403, 404) is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from mooring.apimachinery.watchevent import BOOKMARK, WatchEvent
from mooring.client.cluster import ClusterClient, Listed, Target
from mooring.errors import (
    ExpiredError,
    InternalServerError,
    MooringError,
    PeerError,
    RequestTimeoutError,
    ServiceUnavailableError,
    TooManyRequestsError,
)

FIRST_PAUSE = 0.8
LONGEST_PAUSE = 30.0
"""client-go's reflector back-off."""
HEALTHY = 5.0
"""A watch that lasted this many seconds is resumed at once; a server that ends each at once is not asked in a tight loop."""
_PASSING = (PeerError, InternalServerError, RequestTimeoutError, ServiceUnavailableError, TooManyRequestsError)


async def follow(
    client: ClusterClient,
    target: Target,
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    on_trouble: Callable[[MooringError], None] = lambda error: None,
) -> AsyncGenerator[Listed | WatchEvent]:
    """The state and every change of it, for ever. Raises ApiError for what does not pass by waiting."""
    version = ""
    pause = FIRST_PAUSE
    while True:
        started = client.clock.monotonic()
        try:
            if not version:
                listed = await client.list(
                    target, namespace, label_selector=label_selector, field_selector=field_selector
                )
                yield listed
                version = listed.resource_version
            events = client.watch(
                target,
                namespace,
                resource_version=version,
                label_selector=label_selector,
                field_selector=field_selector,
            )
            async with aclosing(events):
                async for event in events:
                    version = event.object.get("metadata", {}).get("resourceVersion", version)
                    if event.type != BOOKMARK:
                        yield event
        except ExpiredError:
            version = ""
        except _PASSING as error:
            on_trouble(error)
        if client.clock.monotonic() - started >= HEALTHY:
            pause = FIRST_PAUSE
            continue
        await client.clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
