"""`/metrics` in Prometheus' text format, from what `server_stub.http.access_log` counted and the service tells.

Imported at the first scrape: prometheus-client takes 90 ms, and a local server is never scraped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from client_lib.spec.states import State
from client_lib.spec.wire import InstanceType
from server_stub.http.access_log import BUCKETS, Latency, Traffic

__all__ = ["CONTENT_TYPE", "exposition"]


def exposition(families: Iterable[Metric]) -> bytes:
    """The whole answer of `/metrics`: these, and the library's own about the process."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(_Families(families))
    return generate_latest(registry)


def families(
    traffic: Traffic,
    jobs: Mapping[State, int],
    followers: int,
    instance_types: Sequence[InstanceType],
    disk_free_bytes: int,
) -> Iterator[Metric]:
    """The metrics of the server, which docs/kubernetes.md lists."""
    yield from _requests(traffic)
    yield from _jobs(jobs)
    yield from _capacity(followers, instance_types, disk_free_bytes)


class _Families(Collector):
    """Families that were made before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _requests(traffic: Traffic) -> Iterator[Metric]:
    count = CounterMetricFamily(
        "client_lib_http_requests",
        "Answers since the start, by method, route and status.",
        labels=["method", "route", "status"],
    )
    for (method, route, status), number in traffic.requests.items():
        count.add_metric([method, route, str(status)], number)
    yield count
    latency = HistogramMetricFamily(
        "client_lib_http_request_seconds",
        "Time of answers by route, streams and long polls included.",
        labels=["route"],
    )
    for route, seconds in traffic.latencies.items():
        latency.add_metric([route], _cumulative(seconds), seconds.sum_s)
    yield latency
    yield GaugeMetricFamily("client_lib_http_in_flight", "Requests that are being answered.", value=traffic.in_flight)


def _cumulative(latency: Latency) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
    return list(zip(bounds, accumulate(map(float, latency.counts)), strict=True))


def _jobs(jobs: Mapping[State, int]) -> Iterator[Metric]:
    gauge = GaugeMetricFamily("client_lib_jobs", "Jobs of all users, by state.", labels=["state"])
    for state in State:
        gauge.add_metric([state], jobs.get(state, 0))
    yield gauge


def _capacity(followers: int, instance_types: Sequence[InstanceType], disk_free_bytes: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("client_lib_log_followers", "Log streams that are followed.", value=followers)
    free = GaugeMetricFamily(
        "client_lib_available_workers",
        "Workers that fit now, by instance type; local runtime only.",
        labels=["instance_type"],
    )
    for kind in instance_types:
        if kind.available is not None:
            free.add_metric([kind.name], kind.available)
    yield free
    yield GaugeMetricFamily(
        "client_lib_disk_free_bytes", "Bytes that are free on the disk of `data_dir`.", value=disk_free_bytes
    )
