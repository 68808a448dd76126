"""List and watch without end: the client resumes a watch, and lists again when it cannot.

Rules kept here (docs/protocol/watch.md; client-go's reflector):
* `ListResult`, the whole state, comes first, and events follow in order. After 410, when events may have been missed, another
  `ListResult` replaces everything.
* A watch that ends is resumed after the last resource version. So no event is missed or comes twice.
* A failure that can pass (no connection, 429, 5xx) is reported and retried after 0.8 s, doubled up to 30 s. A refusal (401, 403,
  404) is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from mooring.apimachinery.watchevent import BOOKMARK, WatchEvent
from mooring.client.cluster import ClusterClient, ListResult, Target
from mooring.clock import doubling
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
"""Seconds of back-off, as in client-go's reflector."""
HEALTHY = 5.0
"""A watch that lasted this many seconds is resumed at once. A shorter one is resumed after the back-off."""
_TRANSIENT = (PeerError, InternalServerError, RequestTimeoutError, ServiceUnavailableError, TooManyRequestsError)


async def follow(
    client: ClusterClient,
    target: Target,
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    on_failure: Callable[[MooringError], None] = lambda error: None,
    on_open: Callable[[], None] = lambda: None,
) -> AsyncGenerator[ListResult | WatchEvent]:
    """Yield the state and every change of it, without end. Raises ApiError for an error that waiting does not resolve.

    `on_failure` is called when a list or a watch fails, and `on_open` when a watch is open, so that changes arrive again.
    """
    version = ""
    pauses = doubling(FIRST_PAUSE, LONGEST_PAUSE)
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
                on_open=on_open,
            )
            async with aclosing(events):
                async for event in events:
                    # That of a bookmark, too: a watch without changes would be resumed at a version that is
                    # compacted.
                    version = event.object.get("metadata", {}).get("resourceVersion", version)
                    if event.type != BOOKMARK:
                        yield event
        except ExpiredError:
            # 410: events may have been missed, so the whole state is read again.
            version = ""
        except _TRANSIENT as error:
            on_failure(error)
        if client.clock.monotonic() - started >= HEALTHY:
            pauses = doubling(FIRST_PAUSE, LONGEST_PAUSE)
            continue
        await client.clock.sleep(next(pauses))
