"""The options of ``triomq store`` and its commands."""

from functools import partial

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_command, add_option, add_subcommands


def add_store(commands: Commands) -> None:
    """Add ``triomq store`` with its commands."""
    store = add_subcommands(commands, "store", "inspect a store that no broker uses, triomq's or Apache's")
    _add_store_command(store, "info", "StoreOptions", "show sizes, files and queues")
    _add_store_command(store, "check", "StoreOptions", "verify every record, queue and stored offset")
    text = "write the messages of the commit log"
    add = partial(add_option, _add_store_command(store, "dump", "StoreDumpOptions", text))
    add("--topic TOPIC", "only this topic")
    add("--queue N", "only queues with this id", dest="queue_id", read=values.parse_count)
    add("--key KEY", "only messages with this key or message id")
    add("--from TIME", "only messages stored at or after this time", dest="begin")
    add("--to TIME", "only messages stored before: 2026-01-31T12:00, or -10m", dest="end")
    add("--count N", "end after N messages")


def _add_store_command(commands: Commands, name: str, options_type: str, text: str) -> Parser:
    options_type = f"triomq.cli.arguments.store_options:{options_type}"
    parser = add_command(commands, name, f"store:{name}", options_type, text)
    add_option(parser, "--store DIR", "folder of the store (that of triomq broker)")
    return parser
