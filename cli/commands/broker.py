"""``triomq broker`` and ``triomq namesrv``: run a broker, or a name server without one, until a signal ends it."""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final

from triomq.broker import Address, Broker, BrokerConfig, Listener, keep_broker, open_broker
from triomq.broker.config import DEFAULT_BROKER, DEFAULT_NAMESRV, NameServerConfig, default_store_root
from triomq.broker.name_server import NameServer, open_name_server
from triomq.cli.arguments.options import BrokerOptions, NamesrvOptions
from triomq.cli.commands.broker_dashboard import Served, check_dashboard, with_dashboard, without_dashboard
from triomq.cli.configuration import collect, print_settings, typed_settings
from triomq.cli.errors import ExitCode, UsageError
from triomq.cli.serving import serve_until_signal, settle_garbage_collector
from triomq.common.broker_settings import NAMESRV_SETTINGS, SETTINGS
from triomq.protocol.errors import ConfigError, StoreError
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.delays import DEFAULT_DELAY_LEVELS, DelayLevels

LOGGER: Final = logging.getLogger("triomq.cli.commands.broker")

_DURABILITY_TEXTS: Final[Mapping[Durability, str]] = {
    Durability.ASYNC: "acknowledged messages survive a crash of the broker, not a power loss",
    Durability.SYNC: "acknowledged messages are on the disk",
}


def run(options: BrokerOptions) -> int:
    """Serve until a signal; the first one stops the broker in order, a second one at once.

    Raises:
        ConfigError: an invalid setting, or an address that cannot be bound.
        StoreError: the store cannot be opened.
    """
    given = collect(options)
    config = make_config({field: value for field, (value, _) in given.items()})
    if options.print_config:
        print_settings(options, given)
        return ExitCode.OK
    broker = keep_broker(config, partial(open_broker, is_alone=True), settle_garbage_collector)
    served = without_dashboard(broker)
    if options.dashboard:
        check_dashboard(config)
        served = with_dashboard(broker, options)
    serve_until_signal(served, _describe, options, ends_with_stdin=options.end_with_stdin)
    LOGGER.info("stopped store=%s", config.store.root)
    return ExitCode.OK


def make_config(given: Mapping[str, Any]) -> BrokerConfig:
    """Convert the settings that were given, by the fields of their rows.

    Raises:
        ConfigError: a value is invalid, or needs ``--insecure`` because it opens the broker to a network.
    """
    settings = typed_settings(given, SETTINGS)
    first = Listener(
        broker=settings.pop("listen", DEFAULT_BROKER),
        # one that registers elsewhere needs none
        namesrv=settings.pop("namesrv_listen", None if "register" in settings else DEFAULT_NAMESRV),
        advertise=_advertised("--advertise", settings.pop("advertise", None)),
    )
    listeners = (first, *map(parse_listener, settings.pop("listener", ())))
    for address in (address for listener in listeners for address in (listener.broker, listener.namesrv)):
        if address is not None:
            check_host(address)
    names = [listener.name for listener in listeners]
    if len(set(names)) != len(names):
        raise UsageError(f"--listener: names must be unique, not {', '.join(names[1:])} ({names[0]} is taken)")
    if "register" in settings:
        texts = settings["register"].split(";")
        settings["register"] = tuple(parse_address("--register", each) for each in texts)
    elif settings.get("role") == "slave":
        raise UsageError("a slave needs --register: its master's name servers know where topics and offsets come from")
    root = settings["root"] = settings.get("root") or default_store_root()
    if root.exists() and not root.is_dir():
        raise StoreError(f"{root} is not a directory: choose another folder with --store")
    settings["durability"] = Durability(given.get("durability", "async"))
    settings["delay_levels"] = DelayLevels(given.get("delay_levels", DEFAULT_DELAY_LEVELS))
    store = {field.name: settings.pop(field.name) for field in fields(StoreConfig) if field.name in settings}
    return BrokerConfig(store=StoreConfig(**store), listeners=listeners, **settings)


def parse_listener(text: str) -> Listener:
    """Read ``NAME,namesrv=HOST:PORT,broker=HOST:PORT[,advertise=HOST[:PORT]]``.

    Raises:
        UsageError: it has another form.
    """
    name, *settings = text.split(",")
    found = dict(setting.partition("=")[::2] for setting in settings)
    if not name or "=" in name or not {"namesrv", "broker"} <= found.keys() <= {"namesrv", "broker", "advertise"}:
        raise UsageError(
            f"--listener {text!r}: write NAME,namesrv=HOST:PORT,broker=HOST:PORT and perhaps ,advertise=HOST[:PORT]"
        )
    return Listener(
        name=name,
        broker=parse_address(f"--listener {name}, broker", found["broker"]),
        namesrv=parse_address(f"--listener {name}, namesrv", found["namesrv"]),
        advertise=_advertised(f"--listener {name}, advertise", found.get("advertise")),
    )


def check_host(address: Address) -> None:
    """Check that a host exists.

    Raises:
        UsageError: its name cannot be resolved.
    """
    try:
        socket.getaddrinfo(address.host, None)
    except OSError as exc:
        raise UsageError(f"cannot listen on {address}: {exc.strerror}") from exc


def parse_address(option: str, text: str, default_port: int | None = None) -> Address:
    """Read ``HOST:PORT``, with ``default_port`` also ``HOST``.

    Raises:
        UsageError: it has another form; the text names ``option``.
    """
    try:
        return Address.parse(text, default_port)
    except ConfigError as exc:
        raise UsageError(f"{option}: {exc}") from exc


def _advertised(option: str, text: str | None) -> str | None:
    if text is not None and parse_address(option, text, default_port=1).port == 0:
        raise UsageError(f"{option} {text}: clients cannot connect to port 0; omit the port, or give the real one")
    return text


def _describe(served: Served) -> tuple[dict[str, Any], str]:
    broker, config = served.kept.broker, served.kept.broker.config
    listening, namesrv = map(str, broker.addresses[config.listeners[0].name])
    if config.listeners[0].namesrv is None:
        namesrv = ";".join(map(str, config.register))
    store, durability = str(config.store.root), config.store.durability
    members: dict[str, Any] = {"broker": listening, "namesrv": namesrv, "store": store, "durability": durability.value}
    text = f"broker {listening}, name server {namesrv}, store {store}, "
    text += f"durability {durability.value} ({_DURABILITY_TEXTS[durability]}), pid {os.getpid()}"
    members["role"] = config.role
    if config.is_slave:
        master = broker.registration.log_address
        members |= {"id": config.broker_id, "master": master}
        text += f"; slave {config.broker_id} of {master or 'a master that is not known yet'}"
    if broker.ha_address is not None:
        members["ha"] = str(broker.ha_address)
        text += f"; {config.role}'s port for slaves {broker.ha_address}"
    for listener in config.listeners[1:]:
        at, name_server = map(str, broker.addresses[listener.name])
        members.setdefault("listeners", {})[listener.name] = {"broker": at, "namesrv": name_server}
        text += f"; listener {listener.name}: broker {at}, name server {name_server}"
    if served.dashboard is not None:
        members["dashboard"] = served.dashboard
        text += f"; dashboard {served.dashboard}"
    return _with_others(broker, members, text)


def _with_others(server: Broker | NameServer, members: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """Add the addresses for administration and metrics."""
    if server.admin_address is not None:
        members["admin"] = str(server.admin_address)
        text += f"; administration {server.admin_address}"
    if server.monitor is not None:
        members["metrics"] = str(server.monitor.address)
        text += f"; metrics http://{server.monitor.address}/metrics"
    return members, text


def run_namesrv(options: NamesrvOptions) -> int:
    """Serve until a signal; the first one stops the name server in order, a second one at once.

    Raises:
        ConfigError: an invalid setting, or an address that cannot be bound.
        StoreError: the folder cannot be used.
    """
    given = collect(options)
    config = make_namesrv_config({field: value for field, (value, _) in given.items()})
    if options.print_config:
        print_settings(options, given)
        return ExitCode.OK

    def describe(server: NameServer) -> tuple[dict[str, Any], str]:
        text = f"name server {server.address}, store {config.root}, pid {os.getpid()}"
        return _with_others(server, {"namesrv": str(server.address), "store": str(config.root)}, text)

    serve_until_signal(open_name_server(config), describe, options)
    LOGGER.info("stopped store=%s", config.root)
    return ExitCode.OK


def make_namesrv_config(given: Mapping[str, Any]) -> NameServerConfig:
    """Convert the settings of a name server that were given, by the fields of their rows.

    Raises:
        ConfigError: a value is invalid, or needs ``--insecure`` because it opens the name server to a network.
    """
    settings = {"listen": DEFAULT_NAMESRV, **typed_settings(given, NAMESRV_SETTINGS)}
    check_host(settings["listen"])
    settings["root"] = settings.get("root") or default_store_root().with_name("namesrv")
    return NameServerConfig(**settings)
