"""The parser of the command line: errors with a hint, and how commands and their options are declared.

A command is a class, its options are attributes: ``count: int | None = option("--count N", "end after N messages")``.
The docstring of the class is the help of the command.  The classes are no dataclasses, which would cost every command
30 ms at its start; nothing here imports trio, the broker or the clients.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from triomq.cli.arguments import values
from triomq.cli.errors import ExitCode
from triomq.common.broker_settings import Setting
from triomq.protocol.missing import explain_missing

_FAMILIAR: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "-b": (("--broker", ""),),
    "-c": (("--config", ""),),
    "-g": (("--group", ""), ("GROUP", "write the group without an option")),
    "-n": (("--namesrv", ""), ("--register", "")),
    "-p": (("--listen", "write --listen HOST:PORT"),),
    "-t": (("--topic", ""), ("TOPIC", "write the topic without an option")),
    "--body": (("--json-lines", "bodies are the lines of stdin: echo hello | triomq produce TOPIC"), ("BODY", "")),
    "--bootstrap-server": (("--namesrv", ""),),
    "--from-beginning": (("--from", "write --from earliest"),),
    "--group": (("GROUP", "write the group without an option"),),
    "--partitions": (("--queues", ""),),
    "--port": (("--listen", "write --listen HOST:PORT"),),
    "--topic": (("TOPIC", "write the topic without an option"),),
    "alter": (("update", ""),),
    "describe": (("show", ""), ("status", "")),
    "ls": (("list", ""),),
    "rm": (("delete", ""),),
}
"""Names in the tools of RocketMQ and Kafka: what must exist in a command here, and what to write, "" for its name."""

Commands = Any
"""What ``add_subparsers`` returns: a private class of argparse."""


class Parser(argparse.ArgumentParser):
    """Reports errors on one line, and takes no abbreviated options: a new option must not break scripts."""

    def __init__(self, **settings: Any) -> None:  # argparse's own signature is of this kind
        self.commands: Commands = None
        self._sections: dict[str, Any] = {}
        super().__init__(allow_abbrev=False, **settings)
        self._negative_number_matcher = values.RELATIVE_TIME  # -10m is the value of an option, too

    def add_subparsers(self, **settings: Any) -> Commands:
        """Add commands below this one."""
        self.commands = super().add_subparsers(**settings)
        return self.commands

    def check_names(self, words: Sequence[str]) -> None:
        """Refuse an option or command that does not exist, with the nearest name and the help that lists them."""
        names = self.commands.choices if self.commands is not None else {}
        rest = iter(words)
        for word in rest:
            option, has_value, _ = word.partition("=")
            if word == "--":
                return
            if word in names:
                names[word].check_names(list(rest))
            elif option.startswith("--") or (option in _FAMILIAR and option.startswith("-")):
                action = self._option_string_actions.get(option)
                if action is None:
                    hint = "" if explain_missing(option) else self._hint(option, self._option_string_actions)
                    self.error(f"unknown option {option}{hint}")
                if action.nargs is None and not has_value:
                    next(rest, None)
            elif names and not word.startswith("-"):
                self.error(f"unknown command {word!r}{self._hint(word, names)}; commands: {', '.join(names)}")

    def _hint(self, word: str, names: Iterable[str]) -> str:
        """Return a hint for an unknown option or command, "" if no name is similar."""
        from difflib import get_close_matches

        here = {*names, *(action.metavar for action in self._actions if not action.option_strings)}
        for needed, text in _FAMILIAR.get(word, ()):
            if needed in here:
                return f"; {text or f'did you mean {needed}?'}"
        setting = re.compile(rf"\b{re.escape(word.lstrip('-'))}\b")
        for action in self._actions:
            if word.lower() != word and setting.search(action.help or ""):  # a setting of RocketMQ, like brokerIP1
                return f"; did you mean {action.option_strings[0]}?"
        return "".join(f"; did you mean {name}?" for name in get_close_matches(word, names, 1, cutoff=0.75))

    def section(self, title: str) -> Any:
        """Return the group of options with this title, which only ``--help-all`` shows."""
        if not self._sections:
            self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options and exit")
        if title not in self._sections:
            self._sections[title] = self.add_argument_group(title)
        return self._sections[title]

    def format_help(self) -> str:
        """Return the help without the options of sections."""
        groups = self._sections.values()
        hidden = [(action, action.help) for group in groups for action in group._group_actions]  # noqa: SLF001
        for action, _ in hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in hidden:
                action.help = text

    def format_full_help(self) -> str:
        """Return the help with all options."""
        return super().format_help()

    def option_names(self) -> list[str]:
        """Return the options, long forms only."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Write one line to stderr and exit."""
        self.exit(ExitCode.USAGE, usage_line(self.prog, message, f"{self.prog} --help"))


class _HelpAll(argparse.Action):
    """Writes the help with all options, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:  # argparse's own signature
        assert isinstance(parser, Parser)
        sys.stdout.write(parser.format_full_help())
        parser.exit()


def usage_line(program: str, message: str, help_command: str) -> str:
    """Return the line for a wrong command line; for an option of RocketMQ it names the alternative."""
    options = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    reasons = [reason for option in options if (reason := explain_missing(option)) is not None]
    parts = [f"{program}: {message}", *dict.fromkeys(reasons), f"see {help_command}"]
    return "; ".join(parts) + "\n"


class Option(NamedTuple):
    """An option or operand of a command.

    Attributes:
        spec: how it is written.  ``--name`` is a flag; ``--name N`` takes a value of the kind that :data:`values.KINDS`
            has for ``N``; ``--name a|b`` takes one of these; ``NAME`` is an operand, which may be left out as
            ``[NAME]``.  ``...`` at the end: it may be repeated.
        text: its help.
        default: its value if it is not given.
        variable: the environment variable that has its default, "" for none.
        group: options of one group exclude each other.
        read: converts its value, instead of the function of its kind.
        required: whether an option must be given.
    """

    spec: str
    text: str | None = None
    default: Any = None
    variable: str = ""
    group: str = ""
    read: Callable[[str], Any] | None = None
    required: bool = False

    def add(self, parser: Any, field: str) -> None:
        """Add it to a parser, or to a group of exclusive options; its value is the attribute ``field``."""
        is_optional = self.spec.startswith("[")
        written = self.spec[1:-1] if is_optional else self.spec
        is_repeated, spec = written.endswith("..."), written.removesuffix("...")
        name, _, value = spec.partition(" ")
        default = os.environ.get(self.variable) or self.default
        settings: dict[str, Any] = {"dest": field, "default": default, "help": self.text}
        if not spec.startswith("--") or name == "--":
            nargs = {(True, False): "?", (False, True): "+", (True, True): "*"}.get((is_optional, is_repeated))
            choices = spec.split("|") if "|" in spec else None
            parser.add_argument(field, help=self.text, nargs=nargs, choices=choices, metavar=None if choices else spec)
        elif not value:
            settings["default"] = default or False
            parser.add_argument(name, action="store_const", const=not name.startswith("--no-"), **settings)
        elif "|" in value:
            parser.add_argument(name, choices=value.split("|"), **settings)
        else:
            if is_repeated:
                settings |= {"action": "append", "default": default or []}
            read = self.read or values.KINDS.get(value)
            parser.add_argument(name, metavar=value, type=read, required=self.required, **settings)


option: Final[Any] = Option
"""Declares an option; the value of the attribute in an instance is that of the command line."""


class Options:
    """The options of all commands.

    Attributes:
        commands: the class of each command, such as ``broker status``, which is the name of its class in words.
        runner: the function that runs it, as ``module:function`` in ``triomq.cli.commands``.
        settings_rows: settings of a server; those on the command line are in ``settings``, by their fields.
    """

    commands: ClassVar[dict[str, "type[Options]"]] = {}
    command: ClassVar[str]
    runner: ClassVar[str]
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

    def __init_subclass__(cls, run: str = "") -> None:
        if run:
            first, *others = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Options"))
            cls.command, cls.runner = f"{first} {'-'.join(others)}".strip().lower(), run
            cls.commands[cls.command] = cls

    def __init__(self, **found: Any) -> None:
        vars(self).update(found)

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Return the options by the names of their attributes, those of base classes first."""
        found = {}
        for base in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(base).items() if isinstance(value, Option)})
        return found
