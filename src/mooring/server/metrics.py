"""Counters and histograms under kube-apiserver's names, in Prometheus text, and the lag of the event loop."""

from __future__ import annotations

import asyncio
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mooring import __version__

# Measure the lag of the event loop, for `/readyz` and the metrics.
#
# Rules kept here:
# * A periodic timer measures by how much it fires late: every callback of the loop waits that long.
# * The lag is the median of several measurements, so that one long turn of the loop does not count, and recovery shows soon.

INTERVAL_SECONDS = 0.5
"""Time between measurements. Two timers a second have no measurable cost."""
SAMPLES = 9
"""Measurements of which the median is taken: half of 4.5 s must have been late, and 2.5 s on time are enough to recover."""
MAX_LATE_SECONDS = 0.25
"""Five times the longest turn that one request may take. A request takes several turns, and probes time out after one second
(Kubernetes' default of `timeoutSeconds`): a load balancer should use other servers before its own probes fail."""


class EventLoopLag:
    """Lag of the event loop on which it is started."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Median of the last measurements; 0 before the first."""
        return statistics.median(self._samples) if self._samples else 0.0

    @property
    def is_late(self) -> bool:
        """True when a load balancer should use other servers."""
        return self.seconds > MAX_LATE_SECONDS

    def note(self, seconds: float) -> None:
        """Add one measurement."""
        self._samples.append(max(0.0, seconds))

    def start(self) -> None:
        """Begin to measure."""
        loop = asyncio.get_running_loop()
        self._schedule(loop)

    def stop(self) -> None:
        """Stop measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.note(loop.time() - due)
        self._schedule(loop)


# Counters and histograms under kube-apiserver's names, in Prometheus text.
#
# Source: docs/protocol/rbac.md#default-roles.
#
# Rules kept here:
# * Labels come from closed sets (verbs, resources, codes, reason codes), never from text that a client sent. So the number of
#   series is bounded, and no secret can become a label.
# * A name ends in `_total` exactly when its metric is a counter (prometheus.io, Metric and label naming).

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Combine = Callable[[Iterable[float]], float]


ByLabels = Callable[[], Mapping[tuple[str, ...], float]]
"""Reads the values of one metric, by the values of its labels."""


class _Read(Collector):
    """Numbers that another part counts, by the values of their labels."""

    def __init__(self, family: type[CounterMetricFamily | GaugeMetricFamily], read: ByLabels, *named: Any) -> None:
        self._family = family
        self._read = read
        self._named = named

    def collect(self) -> list[Metric]:
        """Return the numbers as they are now."""
        name, text, labels = self._named
        family = self._family(name, text, labels=labels)
        for values, number in self._read().items():
            family.add_metric(values, number)
        return [family]


class Metrics:
    """One set of metrics for one server process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._combined: dict[str, Combine] = {}
        requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and HTTP code.",
            ["verb", "group", "resource", "subresource", "code"],
            registry=self.registry,
        )
        durations = Histogram(
            "apiserver_request_duration_seconds",
            "Time from the whole request header to the end of the reply, watches apart.",
            ["verb", "group", "resource"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._token_reviews = Counter(
            "mooring_token_webhook_reviews",
            "Token webhook reviews by result.",
            ["result"],
            registry=self.registry,
        )
        self.authentication_attempts = Counter(
            "authentication_attempts", "Authenticated requests by result.", ["result"], registry=self.registry
        )
        self.refused_guesses = Counter(
            "mooring_refused_guesses",
            "Failed authentications answered late and with 429, because their source had failed too often.",
            registry=self.registry,
        )
        self.login = Counter("mooring_logins", "Logins by what was issued.", ["result"], registry=self.registry).labels
        # `labels` hashes and checks every label; requests use the same few children
        self.request = lru_cache(maxsize=8192)(requests.labels)
        self.duration = lru_cache(maxsize=2048)(durations.labels)
        self.attempt = lru_cache(maxsize=64)(self.authentication_attempts.labels)

    def token_review(self, result: str) -> None:
        """Count a review by the token webhook. `result`: `accepted`, `not-mine`, or the reason code of a refusal."""
        self._token_reviews.labels(result).inc()

    def gauge(self, name: str, text: str, read: Callable[[], float], combine: Combine = sum) -> None:
        """Add a gauge whose value is read at each scrape. `combine`: the value of several workers, from that of each."""
        Gauge(name, text, registry=self.registry).set_function(read)
        self._combined[name] = combine

    def gauges(self, name: str, text: str, labels: Sequence[str], read: ByLabels, combine: Combine = max) -> None:
        """Add a gauge with labels, whose values are read at each scrape."""
        self.registry.register(_Read(GaugeMetricFamily, read, name, text, labels))
        self._combined[name] = combine

    def counter(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a counter whose value is read at each scrape."""
        self.counters(name, text, (), lambda: {(): read()})

    def counters(self, name: str, text: str, labels: Sequence[str], read: ByLabels) -> None:
        """Add a counter with labels, whose values are read at each scrape."""
        self.registry.register(_Read(CounterMetricFamily, read, name, text, labels))

    def add_process(self) -> None:
        """Add the metrics of the process, under the names of Prometheus' client libraries, and which program it is."""
        ProcessCollector(registry=self.registry)
        self._combined["process_start_time_seconds"] = min
        self.gauges(
            "mooring_build_info", "1, with the version of this server.", ("version",), lambda: {(__version__,): 1.0}
        )

    def combine(self, name: str) -> Combine:
        """Return the function that makes one value of those of several workers."""
        return self._combined.get(name, sum)
