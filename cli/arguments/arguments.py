"""The command line: all commands with their options, for argparse.

Neither broker nor client is imported: the module that runs a command is a name, imported when needed.  So ``triomq
broker`` does not load the client, and ``--help`` loads neither.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from triomq import __version__
from triomq.cli.arguments import client_options as client
from triomq.cli.arguments import options as own
from triomq.cli.arguments import values
from triomq.cli.arguments.options import Options
from triomq.cli.arguments.parser import Commands, Parser, add_option, usage_line
from triomq.cli.exit_codes import EXIT_CODES_TEXT, ExitCode
from triomq.common.broker_settings import Setting, variable_of

COMMANDS: Final[Mapping[str, tuple[str, type[Options]]]] = {
    "broker": ("broker:run", own.BrokerOptions),
    "broker status": ("broker_status:run", client.BrokerStatusOptions),
    "broker set": ("broker_status:change", client.BrokerSetOptions),
    "namesrv": ("broker:run_namesrv", own.NamesrvOptions),
    "cluster": ("cluster:run", own.ClusterOptions),
    "init": ("init:run", own.InitOptions),
    "produce": ("produce:run", client.ProduceOptions),
    "request": ("produce:request", client.RequestOptions),
    "consume": ("consume:run", client.ConsumeOptions),
    "topic list": ("topic:list_topics", client.TopicListOptions),
    "topic create": ("topic:create", client.TopicCreateOptions),
    "topic update": ("topic:update", client.TopicUpdateOptions),
    "topic delete": ("topic:delete", client.TopicDeleteOptions),
    "topic show": ("topic:show", client.TopicShowOptions),
    "group list": ("group:list_groups", client.GroupListOptions),
    "group show": ("group:show", client.GroupShowOptions),
    "group create": ("group:create", client.GroupCreateOptions),
    "group delete": ("group:delete", client.GroupDeleteOptions),
    "group reset-offset": ("group:reset_offset", client.GroupResetOffsetOptions),
    "group replay": ("group_replay:run", client.GroupReplayOptions),
    "acl list": ("acl:list_accounts", client.AclListOptions),
    "acl set": ("acl:set_one", client.AclSetOptions),
    "acl delete": ("acl:delete", client.AclDeleteOptions),
    "acl check": ("acl:check", client.AclCheckOptions),
    "message show": ("message:show", client.MessageShowOptions),
    "message trace": ("message:trace", client.MessageTraceOptions),
    "message recall": ("message:recall", client.MessageRecallOptions),
    "message find": ("message:find", client.MessageFindOptions),
    "dlq list": ("dlq:list_letters", client.DlqListOptions),
    "dlq redrive": ("dlq:redrive", client.DlqRedriveOptions),
    "transaction list": ("message:list_undecided", client.TransactionListOptions),
    "transaction commit": ("message:commit", client.TransactionCommitOptions),
    "transaction rollback": ("message:rollback", client.TransactionRollbackOptions),
    "transaction check": ("message:check", client.TransactionCheckOptions),
    "store info": ("store:info", own.StoreInfoOptions),
    "store check": ("store:check", own.StoreCheckOptions),
    "store dump": ("store:dump", own.StoreDumpOptions),
    "completion": ("completion:run", own.CompletionOptions),
    "ping": ("health:ping", client.PingOptions),
    "doctor": ("health:doctor", client.DoctorOptions),
}
"""Each command with the function that runs it and the class of its options."""

_GROUPS: Final = {
    "topic": "list, create, update, delete or show topics",
    "group": "list, create, delete, show, reset or replay consumer groups",
    "acl": "list, set, delete or check the accounts of running brokers",
    "message": "show, find, trace or recall messages",
    "dlq": "list dead letters, or send them back to their topics",
    "transaction": "list undecided transactions, or decide one",
    "store": "inspect a store that no broker uses, triomq's or Apache's",
}
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
    words = _with_variables(_join_relative_times(argv))
    parser = build_parser("".join(words[:1]))
    parser.check_names(words)
    namespace, unread = parser.parse_known_args(words)
    found = vars(namespace)
    name: str = found["command"]
    if unread:
        program, hint = f"triomq {name}", ""
        if name == "produce" and not unread[0].startswith("-"):
            hint = f"; bodies are lines of stdin: echo BODY | triomq produce {found['topic']}"
        text = f"unrecognized arguments: {' '.join(unread)}{hint}"
        parser.exit(ExitCode.USAGE, usage_line(program, text, f"{program} --help"))
    runner, options_type = COMMANDS[name]
    fields = {field: _frozen(found[field]) for field in options_type.declared()}
    if options_type.settings_rows:
        fields["settings"] = found["settings"]
    return Invocation(f"triomq.cli.commands.{runner}", name, options_type(**fields))


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
    for path, (_, options_type) in COMMANDS.items():
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
    for field, declared in options_type.declared().items():
        if declared.group and declared.group not in exclusive:
            exclusive[declared.group] = parser.add_mutually_exclusive_group()
        default = os.environ.get(declared.variable) or declared.default
        target = exclusive[declared.group] if declared.group else parser
        add_option(target, declared.spec, declared.text, default, dest=field, **declared.more)
    if options_type.settings_rows:
        parser.set_defaults(settings={})
    for row in options_type.settings_rows:
        more = {} if row.metavar else {"nargs": 0}
        add_option(parser, row.option, row.help, argparse.SUPPRESS, action=partial(_Given, row), **more)


class _Given(argparse.Action):
    """Adds a setting to ``settings`` under the name of its field: options that are not given stay out."""

    def __init__(self, row: Setting, **settings: Any) -> None:
        super().__init__(**settings)
        self._row = row

    def __call__(self, _parser: object, namespace: argparse.Namespace, value: Any, _option: str | None = None) -> None:
        row, settings = self._row, namespace.settings
        if not row.metavar:
            value = not row.key.startswith("no-")
        elif row.option.endswith("..."):
            value = (*settings.get(row.field, ()), value)
        namespace.settings = {**settings, row.field: value}


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
