"""The options of the servers and of stopped stores, and how the options of a command are declared.

The options of a command are attributes of a class: ``count: int | None = option("--count N", "end after N messages")``.
The docstring of the class is the help of the command.  The classes are no dataclasses, which would cost every command
30 ms at its start; nothing here imports trio, the broker or the clients.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from triomq.cli.arguments import values
from triomq.common.broker_settings import OPTIONS, SECURITY, Setting

BROKER_ADDRESS: Final = "127.0.0.1:10911"
NAMESRV_ADDRESS: Final = "127.0.0.1:9876"


class Option(NamedTuple):
    """An option or operand of a command; ``add_option`` explains the parts.

    Attributes:
        variable: the environment variable that has its default, "" for none.
        group: options of one group exclude each other.
    """

    spec: str
    text: str | None
    default: Any
    variable: str
    group: str
    more: Mapping[str, Any]


def option(
    spec: str, text: str | None = None, default: Any = None, *, variable: str = "", group: str = "", **more: Any
) -> Any:
    """Declare an option; the value of the attribute in an instance is that of the command line."""
    return Option(spec, text, default, variable, group, more)


class Options:
    """The options of all commands."""

    settings_rows: ClassVar[Iterable[Setting]] = ()

    json: bool = option("--json", "write JSON: one object, or one object per line")
    log_level: str = option("--log-level debug|info|warning|error", "what to log (warning)", "warning")
    log_file: str | None = option("--log-file FILE", "log to this file instead of stderr")
    log_max_size: int = option(
        "--log-max-size SIZE",
        "rename the log file to FILE.1 above this size and begin a new one; 0: never (100MiB)",
        100 * 1024**2,
    )
    log_backups: int = option("--log-backups N", "keep this many renamed log files (5)", 5)
    log_format: str = option("--log-format text|json", "format of the log (text)", "text")

    def __init__(self, **found: Any) -> None:
        vars(self).update(found)

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Return the options by the names of their attributes, those of base classes first."""
        found = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, Option)})
        return found


class CompletionOptions(Options):
    """Print a script that completes commands and options in your shell."""

    shell: str = option("shell", choices=("bash", "zsh", "fish"))


class InitOptions(Options):
    """Write accounts and certificates for a broker on a network into a new folder."""

    dir: str = option("DIR", "the folder; it must not exist, or be empty")
    acl: bool = option("--acl", "write an administrator and an application, with new secrets")
    tls: bool = option("--tls", "write a CA and a certificate signed by it, for three years; needs openssl")
    host: tuple[str, ...] = option(
        "--host HOST...",
        "name or IP address by which clients reach the broker, beside localhost, 127.0.0.1 and ::1; may be repeated",
    )


class ServerOptions(Options):
    """Options of all servers."""

    log_level: str = option("--log-level debug|info|warning|error", "what to log (info)", "info")


class BrokerOptions(ServerOptions):
    """Run a broker with its name server."""

    settings_rows: ClassVar[Iterable[Setting]] = OPTIONS

    settings: Mapping[str, Any]  # those on the command line, by the fields of their rows
    config: str | None = option(
        "--config FILE",
        "read settings from this file: RocketMQ's broker.conf with its names, or FILE.toml with those of the options",
    )
    print_config: bool = option("--print-config", "write each setting with its value and where it comes from, and exit")
    end_with_stdin: bool = option(
        "--end-with-stdin", "stop also when stdin ends, as when the program that started it ends"
    )


class NamesrvOptions(ServerOptions):
    """Run a name server without a broker, for brokers that register with it."""

    settings_rows: ClassVar[Iterable[Setting]] = SECURITY

    settings: Mapping[str, Any]
    listen: str = option(
        "--listen HOST:PORT", f"its address (listenPort; {NAMESRV_ADDRESS}; port 0: any free port)", NAMESRV_ADDRESS
    )
    store: str | None = option(
        "--store DIR", "folder of its key-value table (kvConfigPath; triomq/namesrv in the user's data folder)"
    )
    order_messages: bool = option("--order-messages", "put the queues of order topics into routes (orderMessageEnable)")


class ClusterOptions(ServerOptions):
    """Run a name server and several brokers, each in a separate process."""

    brokers: int = option("--brokers N", "how many brokers: broker-a, broker-b ... (2)", 2)
    listen: str = option(
        "--listen HOST:PORT",
        f"address of the first broker ({BROKER_ADDRESS}), each next port is 10 higher; port 0: any free ports",
        BROKER_ADDRESS,
    )
    namesrv_listen: str = option(
        "--namesrv-listen HOST:PORT",
        f"address of the name server ({NAMESRV_ADDRESS}; port 0: any free port)",
        NAMESRV_ADDRESS,
    )
    store: str | None = option(
        "--store DIR", "folder of all stores and of the brokers' logs (triomq/cluster in the user's data folder)"
    )
    insecure: bool = option("--insecure", "allow listening beyond loopback without accounts")
    options: tuple[str, ...] = option("-- BROKER_OPTION", "options of triomq broker for all brokers", nargs="*")


class StoreOptions(Options):
    """Options of the commands for stopped stores."""

    store: str | None = option("--store DIR", "folder of the store (that of triomq broker)")


class StoreInfoOptions(StoreOptions):
    """Show sizes, files and queues."""


class StoreCheckOptions(StoreOptions):
    """Verify every record, queue and stored offset."""


class StoreDumpOptions(StoreOptions):
    """Write the messages of the commit log."""

    topic: str | None = option("--topic TOPIC", "only this topic")
    queue_id: int | None = option("--queue N", "only queues with this id", read=values.parse_count)
    key: str | None = option("--key KEY", "only messages with this key or message id")
    begin: datetime | None = option("--from TIME", "only messages stored at or after this time")
    end: datetime | None = option("--to TIME", "only messages stored before: 2026-01-31T12:00, or -10m")
    count: int | None = option("--count N", "end after N messages")
