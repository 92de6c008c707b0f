"""The options of the servers: ``triomq broker``, ``triomq namesrv``, ``triomq cluster``."""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from triomq.cli.arguments.parser import Commands, Parser, add_client_command, add_command, add_option
from triomq.common.broker_settings import OPTIONS, SECURITY, Setting


def add_broker(commands: Commands) -> None:
    """Add ``triomq broker`` and its commands."""
    options_type = "triomq.cli.arguments.options:BrokerOptions"
    text = "run a broker with its name server"
    parser = add_command(commands, "broker", "broker:run", options_type, text, log_level="info")
    text = "read settings from this file: RocketMQ's broker.conf with its names, or FILE.toml with those of the options"
    add_option(parser, "--config FILE", text)
    add_option(parser, "--print-config", "write each setting with its value and where it comes from, and exit")
    add_option(parser, "--end-with-stdin", "stop also when stdin ends, as when the program that started it ends")
    _add_settings(parser, OPTIONS)
    more = parser.add_subparsers(metavar="[COMMAND]", required=False)
    status = add_client_command(
        more, "status", "broker_status:run", "BrokerStatusOptions", "show settings and counters of running brokers"
    )
    status.add_argument("address", metavar="HOST:PORT", nargs="?", help="only this broker (all in the name server)")
    text = "change settings of running brokers, until they are started again"
    change = add_client_command(more, "set", "broker_status:change", "BrokerSetOptions", text)
    change.add_argument("settings", metavar="NAME=VALUE", nargs="+", help="RocketMQ's name and the new value")
    add_option(change, "--broker HOST:PORT", "only this broker (all in the name server)")


def add_namesrv(commands: Commands) -> None:
    """Add ``triomq namesrv``."""
    options_type = "triomq.cli.arguments.options:NamesrvOptions"
    text = "run a name server without a broker, for brokers that register with it"
    parser = add_command(commands, "namesrv", "namesrv:run", options_type, text, log_level="info")
    address = "127.0.0.1:9876"
    add_option(parser, "--listen HOST:PORT", f"its address (listenPort; {address}; port 0: any free port)", address)
    text = "folder of its key-value table (kvConfigPath; triomq/namesrv in the user's data folder)"
    add_option(parser, "--store DIR", text)
    add_option(parser, "--order-messages", "put the queues of order topics into routes (orderMessageEnable)")
    _add_settings(parser, SECURITY)


def add_cluster(commands: Commands) -> None:
    """Add ``triomq cluster``."""
    options_type = "triomq.cli.arguments.options:ClusterOptions"
    text = "run a name server and several brokers, each a process of its own"
    parser = add_command(commands, "cluster", "cluster:run", options_type, text, log_level="info")
    add = partial(add_option, parser)
    add("--brokers N", "how many brokers: broker-a, broker-b ... (2)", 2)
    address = "127.0.0.1:10911"
    text = f"address of the first broker ({address}), each next port is 10 higher; port 0: any free ports"
    add("--listen HOST:PORT", text, address)
    address = "127.0.0.1:9876"
    add("--namesrv-listen HOST:PORT", f"address of the name server ({address}; port 0: any free port)", address)
    add("--store DIR", "folder of all stores and of the brokers' logs (triomq/cluster in the user's data folder)")
    add("--insecure", "allow listening beyond loopback without accounts")
    parser.add_argument(
        "options", metavar="-- BROKER_OPTION", nargs="*", help="options of triomq broker for all brokers"
    )


def add_init(commands: Commands) -> None:
    """Add ``triomq init``."""
    options_type = "triomq.cli.arguments.options:InitOptions"
    text = "write accounts and certificates for a broker on a network into a new folder"
    parser = add_command(commands, "init", "init:run", options_type, text)
    add_option(parser, "DIR", "the folder; it must not exist, or be empty")
    add_option(parser, "--acl", "write an administrator and an application, with new secrets")
    add_option(parser, "--tls", "write a CA and a certificate signed by it, for three years; needs openssl")
    text = "name or IP address by which clients reach the broker, beside localhost, 127.0.0.1 and ::1; may be repeated"
    add_option(parser, "--host HOST...", text)


def _add_settings(parser: Parser, rows: Iterable[Setting]) -> None:
    parser.set_defaults(settings={})
    for row in rows:
        more = {} if row.metavar else {"nargs": 0}
        add_option(parser, row.option, row.help, argparse.SUPPRESS, dest=row.field, action=_Given, **more)


class _Given(argparse.Action):
    """Adds a value to ``settings`` under the name of its field: options that are not given stay out."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, value: Any, option: str | None = None) -> None:
        if self.nargs == 0:
            value = not str(option).startswith("--no-")
        elif self.dest in _REPEATED:
            value = (*namespace.settings.get(self.dest, ()), value)
        namespace.settings = {**namespace.settings, self.dest: value}


_REPEATED: Final = frozenset(row.field for row in OPTIONS if row.option.endswith("..."))
