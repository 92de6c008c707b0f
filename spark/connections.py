"""The clients of a worker process, and its warnings.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from triomq.client.cluster.instance import ClientInstance as TrioClientInstance
from triomq.client.config import ClientConfig, TlsConfig, load_credentials
from triomq.client.sync import ClientInstance
from triomq.common.logs import LineFormatter, RepeatFilter
from triomq.protocol.errors import ClientClosedError, TriomqError
from triomq.protocol.wire.signing import Credentials
from triomq.spark.options.options import Options

_clock = time.monotonic
_IDLE_S: Final = 60.0
_LOGGER: Final = logging.getLogger("triomq")
_LOSS_LOGGER: Final = "triomq.spark.reading.loss"

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
            is_idle = not unused.users and _clock() - unused.last_used > _IDLE_S
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
            entry.last_used = _clock()
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
    try:
        entry.shared.__exit__(None, None, None)
    except ClientClosedError:
        return  # it has ended already, with the error that its user got


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
