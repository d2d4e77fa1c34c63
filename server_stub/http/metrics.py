"""Counts the requests of a server, and makes `/metrics`, in Prometheus' text format, of the counts
and of the server's jobs.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

import prometheus_client as prometheus

from client_lib.spec.states import State
from client_lib.spec.wire import InstanceType

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; one more bucket holds longer times (long polls, streams)."""

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # one more sample for each count: its time of creation


class Traffic:
    """Counts the requests of one server: for `/metrics`, the page about the server, and
    the stop of an idle server.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.in_flight = 0
        self.requests = prometheus.Counter(
            "client_lib_http_requests",
            "Answers since the start, by method, route and status.",
            ["method", "route", "status"],
            registry=None,
        )
        self.seconds = prometheus.Histogram(
            "client_lib_http_request_seconds",
            "Time of answers by route, streams and long polls included.",
            ["route"],
            buckets=BUCKETS,
            registry=None,
        )

    def begin(self) -> None:
        self.in_flight += 1

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        self.in_flight -= 1
        self._last = time.monotonic()
        self.requests.labels(method, route, status).inc()
        self.seconds.labels(route).observe(seconds)

    def idle_s(self) -> float:
        """Seconds since the last response ended; 0 while a request is in progress."""
        return 0.0 if self.in_flight else time.monotonic() - self._last

    def answers(self, least_status: int = 0) -> int:
        """The number of responses with this status or a greater one."""
        samples = [sample for metric in self.requests.collect() for sample in metric.samples]
        return sum(
            int(sample.value) for sample in samples if int(sample.labels["status"]) >= least_status
        )


def registry(
    traffic: Traffic,
    jobs: Mapping[State, int],
    followers: int,
    instance_types: Sequence[InstanceType],
    disk_free_bytes: int,
) -> prometheus.CollectorRegistry:
    """The metrics of the server, which docs/kubernetes.md lists."""
    found = prometheus.CollectorRegistry()
    gauge = partial(prometheus.Gauge, registry=found)
    found.register(traffic.requests)
    found.register(traffic.seconds)
    gauge("client_lib_http_in_flight", "Requests that are being answered.").set(traffic.in_flight)
    of_state = gauge("client_lib_jobs", "Jobs of all users, by state.", ["state"])
    for state in State:
        of_state.labels(state).set(jobs.get(state, 0))
    gauge("client_lib_log_followers", "Log streams that are followed.").set(followers)
    fitting = gauge(
        "client_lib_available_workers",
        "Workers that fit now, by instance type; local runtime only.",
        ["instance_type"],
    )
    for kind in instance_types:
        if kind.available is not None:
            fitting.labels(kind.name).set(kind.available)
    gauge("client_lib_disk_free_bytes", "Bytes that are free on the disk of `data_dir`.").set(
        disk_free_bytes
    )
    return found


def exposition(server: prometheus.CollectorRegistry) -> bytes:
    """The answer of `/metrics`: the metrics in `server`, and the library's metrics of the
    process.
    """
    for collector in (
        prometheus.ProcessCollector,
        prometheus.PlatformCollector,
        prometheus.GCCollector,
    ):
        collector(registry=server)
    return prometheus.generate_latest(server)
