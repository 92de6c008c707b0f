"""The command line: all commands with their options, for argparse.

Neither broker nor client is imported: the module that runs a command is a name, imported when needed.  So ``triomq
broker`` does not load the client, and ``--help`` loads neither.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from triomq import __version__
from triomq.cli.arguments import admin_options  # noqa: F401  # declares commands
from triomq.cli.arguments.options import ProduceOptions
from triomq.cli.arguments.parser import Commands, Option, Options, Parser, usage_line
from triomq.cli.errors import EXIT_CODES_TEXT, ExitCode
from triomq.common.broker_settings import variable_of

_GROUPS: Final = {
    "topic": "list, create, update, delete or show topics",
    "group": "list, create, delete, show, reset or replay consumer groups",
    "acl": "list, set, delete or check the accounts of running brokers",
    "message": "show, find, trace or recall messages",
    "dlq": "list dead letters, or send them back to their topics",
    "transaction": "list undecided transactions, or decide one",
    "replica": "show masters and slaves, and make a slave the master",
    "store": "inspect a store that no broker uses, triomq's or Apache's",
}
_SECTIONS: Final[Mapping[str, str]] = {
    "network": "listener admin-listen brokers-from no-local-peers max-connections-per-address memory-budget metrics",
    "accounts and TLS": "quotas audit tls tls-cert tls-key tls-client-ca tls-client-auth",
    "store": "commit-log-file-size consume-queue-file-size no-index index-slots index-units",
    "cluster and replication": "cluster-name broker-name role broker-id ha-listen ha-master ha-tls fast-listen"
    " slave-read-ratio",
    "retention": "retention-hours retention-bytes delete-when disk-max-used-ratio disk-clean-ratio disk-full-ratio",
    "messages and limits": "delay-levels no-auto-create-topic max-topics max-groups timer-max-delay transaction-timeout"
    " transaction-check-interval transaction-check-max stall-after order-messages",
    "connection": "as-dialled namespace tls tls-ca tls-cert tls-key tls-verify",
    "logging": "log-level log-file log-max-size log-backups log-format",
    "other": "print-config end-with-stdin",
}
"""Options that only ``--help-all`` shows, by their sections: a server has no ``connection``, a client only that."""
_OF_SERVERS: Final = "network", "accounts and TLS"
VARIABLES: Final = ("config", "log-level", "log-file", "log-max-size", "log-backups", "log-format")
"""Options of a server that are none of its settings, but may be environment variables, too."""
_SETTING: Final = "setting "
"""Begins the names of settings of a server in the namespace of argparse."""


def parse(argv: Sequence[str]) -> Options:
    """Read a command line, without the program's name; return the options of its command.

    Raises:
        SystemExit: it is wrong, or asks for help or the version; the text has been written.
    """
    words = list(argv)
    first = Options.commands.get("".join(words[:1]))
    if first is not None and first.settings_rows:  # options from variables come before those of the command line
        texts = ((name, os.environ.get(variable_of(words[0], name))) for name in VARIABLES)
        words[1:1] = [f"--{name}={text}" for name, text in texts if text]
    parser = build_parser("".join(words[:1]))
    parser.check_names(words)
    namespace, unread = parser.parse_known_args(words)
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(namespace).items()
    }
    options_type = Options.commands[namespace.command]
    if unread:
        program, hint = f"triomq {options_type.command}", ""
        if options_type is ProduceOptions and not unread[0].startswith("-"):
            hint = f"; bodies are lines of stdin: echo BODY | triomq produce {found['topic']}"
        text = f"unrecognized arguments: {' '.join(unread)}{hint}"
        parser.exit(ExitCode.USAGE, usage_line(program, text, f"{program} --help"))
    fields = {field: found[field] for field in options_type.declared()}
    if options_type.settings_rows:
        rows = ((row.field, _SETTING + row.field) for row in options_type.settings_rows)
        fields["settings"] = {field: found[name] for field, name in rows if name in found}
    return options_type(**fields)


def build_parser(wanted: str | None = None) -> Parser:
    """Make the parser of all commands, with the options of all of them, or only of ``wanted``: that saves 20 ms."""
    parser = Parser(
        prog="triomq",
        description="Message broker and client that speak Apache RocketMQ's protocol and keep its store files.",
        epilog=EXIT_CODES_TEXT,
    )
    parser.add_argument("--version", action="version", version=f"triomq {__version__}")
    top = parser.add_subparsers(metavar="COMMAND", required=True)
    groups = {"": top}
    parsers: dict[str, Parser] = {}
    for path, options_type in Options.commands.items():
        group, _, name = path.rpartition(" ")
        if group in parsers and group not in groups:  # a command that also has subcommands
            groups[group] = parsers[group].add_subparsers(metavar="[COMMAND]", required=False)
        elif group not in groups:
            below = _add_parser(top, group, _GROUPS[group], "")
            groups[group] = below.add_subparsers(metavar="COMMAND", required=True)
        text, _, more = str(options_type.__doc__).partition("\n\n")
        parsers[path] = _add_parser(groups[group], name, text[:1].lower() + text[1:].removesuffix("."), more)
        parsers[path].set_defaults(command=path)
        if wanted in (None, path.partition(" ")[0]):
            _add_options(parsers[path], options_type)
    return parser


def _add_parser(commands: Commands, name: str, text: str, more: str) -> Parser:
    description = f"{text[:1].upper()}{text[1:]}.  {' '.join(more.split())}".strip()
    parser: Parser = commands.add_parser(name, help=text, description=description, epilog=EXIT_CODES_TEXT)
    return parser


def _add_options(parser: Parser, options_type: type[Options]) -> None:
    exclusive: dict[str, Any] = {}
    skipped = ("connection",) if options_type.settings_rows else _OF_SERVERS
    declared = dict(options_type.declared())
    for row in options_type.settings_rows:
        if row.option.startswith("--"):  # one that is not given stays out
            declared[_SETTING + row.field] = Option(row.option, row.help, argparse.SUPPRESS)
    names = {each.spec.partition(" ")[0].removeprefix("--") for each in declared.values()}
    places: dict[str, Any] = {}
    for title, members in _SECTIONS.items():
        if title not in skipped and (found := names.intersection(members.split())):
            places |= dict.fromkeys(found, parser.section(title))
    for field, each in declared.items():
        if each.group and each.group not in exclusive:
            exclusive[each.group] = parser.add_mutually_exclusive_group()
        place = places.get(each.spec.partition(" ")[0].removeprefix("--"), parser)
        each.add(exclusive.get(each.group, place), field)
