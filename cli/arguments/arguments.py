"""The command line: all commands with their options, for argparse.

The modules of the options import neither broker nor client: the module that runs a command and the class of its options
are names, imported when needed.  So ``triomq broker`` does not load the client, and ``--help`` loads neither.
"""

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from triomq import __version__
from triomq.cli.arguments import values
from triomq.cli.arguments.admin_arguments import add_acl, add_group, add_topic
from triomq.cli.arguments.broker_arguments import add_broker, add_cluster, add_init, add_namesrv
from triomq.cli.arguments.message_arguments import (
    add_consume,
    add_dlq,
    add_message,
    add_produce,
    add_request,
    add_transaction,
)
from triomq.cli.arguments.options import Options
from triomq.cli.arguments.parser import Parser, add_client_command, add_command, usage_line
from triomq.cli.arguments.store_arguments import add_store
from triomq.cli.exit_codes import EXIT_CODES_TEXT, ExitCode
from triomq.common.broker_settings import variable_of

VARIABLES: Final = ("config", "log-level", "log-file", "log-max-size", "log-backups", "log-format")
"""Options of ``triomq broker`` that are no settings of the broker, but may be environment variables, too."""

Runner = Callable[[Options], int]
"""The function that ``Invocation.runner`` names."""


class Invocation(NamedTuple):
    """A command to run: ``module:function`` with these options."""

    runner: str
    name: str
    options: Options


def parse(argv: Sequence[str]) -> Invocation:
    """Read a command line, without the program's name.

    Raises:
        SystemExit: it is wrong, or asks for help or the version; the text has been written.
    """
    words, parser = _with_variables(_join_relative_times(argv)), build_parser()
    parser.check_names(words)
    namespace, unread = parser.parse_known_args(words)
    found = vars(namespace)
    if unread:
        program, hint = f"triomq {found['name']}", ""
        if found["name"] == "produce" and not unread[0].startswith("-"):
            hint = f"; bodies are lines of stdin: echo BODY | triomq produce {found['topic']}"
        text = f"unrecognized arguments: {' '.join(unread)}{hint}"
        parser.exit(ExitCode.USAGE, usage_line(program, text, f"{program} --help"))
    module, _, name = found["options_type"].partition(":")
    options_type: type[Options] = getattr(importlib.import_module(module), name)
    fields = {field.name: _frozen(found[field.name]) for field in dataclasses.fields(options_type)}
    return Invocation(found["runner"], found["name"], options_type(**fields))


def build_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="triomq",
        description="Message broker and client that speak Apache RocketMQ's protocol and keep its store files.",
        epilog=EXIT_CODES_TEXT,
    )
    parser.add_argument("--version", action="version", version=f"triomq {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_broker(commands)
    add_namesrv(commands)
    add_cluster(commands)
    add_init(commands)
    add_produce(commands)
    add_request(commands)
    add_consume(commands)
    add_topic(commands)
    add_group(commands)
    add_acl(commands)
    add_message(commands)
    add_dlq(commands)
    add_transaction(commands)
    add_store(commands)
    options_type = "triomq.cli.arguments.options:CompletionOptions"
    text = "print a script that completes commands and options in your shell"
    completion = add_command(commands, "completion", "completion:run", options_type, text)
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    add_client_command(commands, "ping", "ping:run", "ClientOptions", "ask whether name server and brokers answer")
    text = "examine name servers, brokers and consumer groups; say what is wrong and what to do"
    add_client_command(commands, "doctor", "doctor:run", "ClientOptions", text)
    return parser


def _frozen(value: Any) -> Any:  # a Namespace has no types
    return tuple(value) if isinstance(value, list) else value


def _with_variables(words: list[str]) -> list[str]:
    """Put options of ``triomq broker`` that come from the environment before those of the command line."""
    if words[:1] != ["broker"]:
        return words
    texts = ((name, os.environ.get(variable_of(name))) for name in VARIABLES)
    return ["broker", *(f"--{name}={text}" for name, text in texts if text), *words[1:]]


def _join_relative_times(argv: Sequence[str]) -> list[str]:
    """Make ``--from -10m`` and ``--to -10m`` one word: argparse would read ``-10m`` as an option."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in ("--from", "--to") and values.is_relative_time(word):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words
