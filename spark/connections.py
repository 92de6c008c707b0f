"""Connections of a process to brokers: clients, retries with a deadline, warnings.

Clients are kept between tasks, since a connection costs more than a small task.  A client is closed after an error,
and after a minute without use (checked when the next one is borrowed).  The process id is part of the key, because
Spark's workers are forks.

Warnings, such as messages lost with ``failOnDataLoss=false`` or brokers that do not answer, go to stderr, which is in
the log of the executor or driver.  A program that configures logging itself keeps its configuration.  Repeated lines
are limited, but each queue that lost messages gets a line.

Source: spark.md 3.10.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from triomq.client.cluster.instance import ClientInstance as TrioClientInstance
from triomq.client.config import ClientConfig, TlsConfig, load_credentials
from triomq.client.sync import ClientInstance
from triomq.common.logs import LineFormatter, RepeatFilter
from triomq.protocol.errors import BrokerResponseError, ClientClosedError, RequestTimeoutError, TriomqError
from triomq.protocol.wire.signing import Credentials
from triomq.spark.options.options import Options

_IDLE_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 2.0
_LOGGER: Final = logging.getLogger("triomq")
_LOSS_LOGGER: Final = "triomq.spark.reading.loss"

T = TypeVar("T")
Key = tuple[int, str, ClientConfig]


@dataclass(slots=True)
class _Entry:
    shared: ClientInstance
    instance: TrioClientInstance
    users: int = 0
    last_used: float = 0.0
    broken: bool = False


_lock = threading.Lock()
_entries: dict[Key, _Entry] = {}


def client_config(options: Options) -> ClientConfig:
    """Return the settings of a client.

    Raises:
        ConfigError: the account cannot be read in this process.
    """
    credentials = None
    if options.given("credentials"):
        credentials = load_credentials(options["credentials"])  # again at each call: its source may have changed
    elif options.given("accessKey"):
        credentials = Credentials(options["accessKey"], options["secretKey"], options["securityToken"])
    tls: bool | TlsConfig = options["tls"]
    if any(map(options.given, ("tlsCa", "tlsCert", "tlsKey", "tlsVerify"))):
        tls = TlsConfig(
            ca=options["tlsCa"], cert=options["tlsCert"], key=options["tlsKey"], verify=options["tlsVerify"]
        )
    return ClientConfig(
        connect=False,  # a reader or writer sends requests at once
        connect_timeout_s=options["connectTimeoutMs"] / 1000,
        advertise=options["advertise"],
        credentials=credentials,
        tls=tls,
    )


@contextmanager
def borrow_client(options: Options) -> Iterator[TrioClientInstance]:
    """Lend the process's client for these options, to be passed as ``instance`` to the classes of ``client.sync``.

    A client whose block ends with an error is not used again.

    Raises:
        ConfigError: the account cannot be read in this process.
    """
    key = (os.getpid(), str(options["nameServer"]), client_config(options))
    with _lock:
        for other, unused in list(_entries.items()):
            is_idle = not unused.users and time.monotonic() - unused.last_used > _IDLE_S
            if is_idle or other[0] != key[0]:
                _forget(other, unused)
        if key not in _entries:
            shared = ClientInstance(key[1], key[2])
            _entries[key] = _Entry(shared, shared.__enter__())
        entry = _entries[key]
        entry.users += 1
    try:
        yield entry.instance
    except TriomqError:
        entry.broken = True
        raise
    finally:
        with _lock:
            entry.users -= 1
            entry.last_used = time.monotonic()
            if entry.broken:
                _forget(key, entry)


def close_clients() -> None:
    """Close all unused clients: at the end of a driver, and in tests."""
    with _lock:
        for key, entry in list(_entries.items()):
            _forget(key, entry)


def _forget(key: Key, entry: _Entry) -> None:
    if entry.users and key[0] == os.getpid():
        return
    if _entries.get(key) is entry:
        del _entries[key]
    with suppress(ClientClosedError):  # it has ended already, with the error that its user got
        entry.shared.__exit__(None, None, None)


def show_warnings() -> None:
    """Write warnings to stderr from now on, unless logging is configured; for processes that Spark starts."""
    if _LOGGER.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(LineFormatter())
    repeats = RepeatFilter()
    handler.addFilter(lambda record: record.name == _LOSS_LOGGER or repeats.filter(record))
    _LOGGER.addHandler(handler)


def is_busy(error: TriomqError) -> bool:
    """Whether a broker rejected a request only because it is busy."""
    return error.is_retriable and isinstance(error, BrokerResponseError)


class Retry:
    """Repeats an operation, with growing pauses, until it succeeds or its time is up."""

    def __init__(self, limit_s: float, what: str) -> None:
        """Set the limit; its time starts with the first failure.

        Args:
            limit_s: seconds from the first failure after the last success.
            what: the operation, for the error: ``"reading queue X (option 'readTimeoutMs')"``.
        """
        self._limit_s = limit_s
        self._what = what
        self._began: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def call(self, action: Callable[[], T], *, is_final: Callable[[TriomqError], bool] = lambda _: False) -> T:
        """Call ``action`` until it succeeds, or fails with a final error.

        Raises:
            TriomqError: the final error, else as :meth:`failed`.
        """
        while True:
            began = time.monotonic()
            try:
                return action()
            except TriomqError as exc:
                if is_final(exc):
                    raise
                self.failed(exc, time.monotonic() - began)

    def success(self) -> None:
        """Start over: the next failure is a first one."""
        self._began = None
        self._pause_s = _FIRST_PAUSE_S

    def failed(self, error: TriomqError, took_s: float = 0.0) -> None:
        """Pause before the next attempt, each time a little longer.

        Args:
            error: why the attempt failed.
            took_s: how long it took.  It counts, and no attempt starts that would end too late if it took as long.

        Raises:
            TriomqError: ``error`` itself if another attempt cannot help.
            RequestTimeoutError: the time is up; ``error`` is its cause and part of its text.
        """
        if not error.is_retriable:
            raise error
        now = time.monotonic()
        if self._began is None:
            self._began = now - took_s
        pause_s = max(self._pause_s, getattr(error, "retry_after_s", None) or 0.0)  # a busy broker may say when
        if now + pause_s + took_s > self._began + self._limit_s:
            text = f"{self._what}: given up after {now - self._began:.1f} s; the last error: {error}"
            raise RequestTimeoutError(text) from error
        time.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
