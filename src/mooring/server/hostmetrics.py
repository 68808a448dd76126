"""Metrics of all workers of a host, added up at a scrape of any of them.

Rules kept here:
* Each worker publishes its metrics when it is asked, when it is scraped itself, and when it ends. A scrape asks the others, and
  adds up what all have published. One that does not answer in time counts with what it published last.
* A counter never goes back when a worker is replaced: the replacement starts from what was published last. A worker that is killed
  loses what it counted since then, which no scrape has shown.
* Counters and histograms are added up over all workers that ever were. Gauges are added up, or their greatest or least value is
  taken, over those that serve.
* A server that was used in every way has 4 000 lines, and one that gave every status to every verb 20 000. They are added up and
  written in a thread: that takes three times as long as reading them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mooring.server.metrics import Metrics
from mooring.server.sharedmemory import ALONE, WorkerMemory
from mooring.server.workerqueries import WorkerQueries

QUESTION = "metrics"
"""Question to a worker to publish its metrics."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


class _Sum(Collector):
    """Sum of the metrics of several workers."""

    def __init__(self, combine: Callable[[str], Callable[[Iterable[float]], float]]) -> None:
        self._combine = combine
        self._families: dict[str, tuple[str, str, dict[Key, float]]] = {}

    def add(self, family: Metric, keeps: Callable[[str], bool] = lambda kind: True) -> None:
        """Add the samples of one worker; only those of a type that `keeps` accepts."""
        _, _, samples = self._families.setdefault(family.name, (family.documentation, family.type, {}))
        for sample in family.samples if keeps(family.type) else ():
            key = (sample.name, tuple(sample.labels.items()))
            combine = min if sample.name.endswith("_created") else self._combine(family.name)
            samples[key] = combine((samples[key], sample.value)) if key in samples else sample.value

    def collect(self) -> list[Metric]:
        """Return the families that have samples."""
        found = []
        for name, (documentation, kind, samples) in self._families.items():
            family = Metric(name, documentation, kind)
            for (sample, labels), value in samples.items():
                family.add_sample(sample, dict(labels), value)
            if family.samples:
                found.append(family)
        return found


class HostMetrics:
    """Metrics that `/metrics` shows. `worker_queries` asks the other workers to publish theirs."""

    def __init__(self, metrics: Metrics, share: WorkerMemory = ALONE) -> None:
        self._metrics = metrics
        self._share = share
        self._before: list[Metric] = []
        self._publications = 0
        if share.memory is not None:
            self._before = [family for family in _read(share, share.worker) if _is_lasting(family.type)]

    def publish(self) -> None:
        """Publish the metrics of this worker for the others."""
        if self._share.memory is not None:
            self._write(_encode(self._own(self._metrics.registry.collect()).collect()))

    def answer(self, _: str) -> bytes:
        """Answer QUESTION."""
        self.publish()
        return b""

    async def text(self, worker_queries: WorkerQueries) -> bytes:
        """Return the metrics of all workers in the Prometheus text format."""
        if self._share.memory is None:
            return await asyncio.to_thread(_text, tuple(self._metrics.registry.collect()))
        await worker_queries.ask(QUESTION)
        before, own = self._publications, tuple(self._metrics.registry.collect())
        text, published = await asyncio.to_thread(self._added_up, own, frozenset(worker_queries.present))
        if self._publications == before:  # else what was published since has more
            self._write(published)
        return text

    def _added_up(self, own: Sequence[Metric], serving: frozenset[int]) -> tuple[bytes, bytes]:
        """Return the metrics of all workers as text, and those of this one to be published. Runs in a thread."""
        assert self._share.memory is not None
        total = self._own(own)
        published = _encode(total.collect())
        for worker in range(self._share.memory.slots):
            if worker != self._share.worker:
                for family in _read(self._share, worker):
                    total.add(family, _any if worker in serving else _is_lasting)
        return _text(total.collect()), published

    def _write(self, published: bytes) -> None:
        assert self._share.memory is not None
        self._publications += 1
        self._share.memory.publication(self._share.worker).write(published)

    def _own(self, families: Iterable[Metric]) -> _Sum:
        """Return what this worker has counted, and those before it in its place."""
        own = _Sum(self._metrics.combine)
        for family in families:
            own.add(family)
        for family in self._before:
            own.add(family, _is_lasting)
        return own


class _Collected(Collector):
    """Metrics as they were read."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families


def _text(families: Sequence[Metric]) -> bytes:
    """Return metrics in the Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return generate_latest(registry)


def _any(kind: str) -> bool:
    return True


def _is_lasting(kind: str) -> bool:
    """Return True for a type whose samples only grow."""
    return kind in ("counter", "histogram")


def _encode(families: Iterable[Metric]) -> bytes:
    return json.dumps(
        [
            [
                one.name,
                one.documentation,
                one.type,
                [[sample.name, sample.labels, sample.value] for sample in one.samples],
            ]
            for one in families
        ]
    ).encode()


def _read(share: WorkerMemory, worker: int) -> list[Metric]:
    """Return what a worker has published last."""
    assert share.memory is not None
    document = share.memory.publication(worker).read()
    families = []
    for name, documentation, kind, samples in json.loads(document or b"[]"):
        family = Metric(name, documentation, kind)
        for sample, labels, value in samples:
            family.add_sample(sample, labels, value)
        families.append(family)
    return families
