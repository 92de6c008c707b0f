"""The options of ``triomq store`` and its commands."""

from triomq.cli.arguments import values
from triomq.cli.arguments.parser import Commands, Parser, add_command, add_subcommands


def add_store(commands: Commands) -> None:
    """Add ``triomq store`` with its commands."""
    store = add_subcommands(commands, "store", "inspect or repair a store that no broker uses, triomq's or Apache's")
    _add_store_command(store, "info", "StoreOptions", "show sizes, files and queues")
    _add_store_command(store, "check", "StoreOptions", "verify every record, queue and stored offset")
    dump = _add_store_command(store, "dump", "StoreDumpOptions", "write the messages of the commit log")
    add = dump.add_argument
    add("--topic", help="only this topic")
    add("--queue", dest="queue_id", metavar="N", type=values.parse_count, help="only queues with this id")
    add("--key", help="only messages with this key or message id")
    add(
        "--from",
        dest="begin",
        metavar="TIME",
        type=values.parse_time,
        help="only messages stored at or after this time",
    )
    add(
        "--to",
        dest="end",
        metavar="TIME",
        type=values.parse_time,
        help="only messages stored before: 2026-01-31T12:00, or -10m",
    )
    add("--count", metavar="N", type=values.parse_positive, help="end after N messages")
    repair = _add_store_command(store, "repair", "StoreRepairOptions", "print what a repair would do, or do it")
    repair.add_argument("--apply", action="store_true", help="repair the store (default: only print)")
    export = _add_store_command(store, "export", "StoreExportOptions", "write the messages of a topic to a file")
    export.add_argument("topic", metavar="TOPIC")
    export.add_argument("file", metavar="FILE")
    load = _add_store_command(store, "import", "StoreImportOptions", "append messages from a file to a store")
    load.add_argument("file", metavar="FILE")
    for parser in (export, load):
        parser.add_argument(
            "--format", choices=("jsonl", "msgpack"), help="of the file (jsonl, or msgpack if its name ends so)"
        )


def _add_store_command(commands: Commands, name: str, options_type: str, text: str) -> Parser:
    runner = {"import": "import_"}.get(name, name)
    options_type = f"triomq.cli.arguments.store_options:{options_type}"
    parser = add_command(commands, name, f"store:{runner}", options_type, text, log_level="warning")
    parser.add_argument("--store", metavar="DIR", help="folder of the store (that of triomq broker)")
    return parser
