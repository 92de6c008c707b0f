"""The parser of the command line: errors with a hint, and a short notation for options."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from triomq.cli.arguments import values
from triomq.cli.exit_codes import ExitCode
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
        super().__init__(allow_abbrev=False, **settings)

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

    def option_names(self) -> list[str]:
        """Return the options, long forms only."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Write one line to stderr and exit."""
        self.exit(ExitCode.USAGE, usage_line(self.prog, message, f"{self.prog} --help"))


def usage_line(program: str, message: str, help_command: str) -> str:
    """Return the line for a wrong command line; for an option of RocketMQ it names the alternative."""
    options = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    reasons = [reason for option in options if (reason := explain_missing(option)) is not None]
    parts = [f"{program}: {message}", *dict.fromkeys(reasons), f"see {help_command}"]
    return "; ".join(parts) + "\n"


def add_option(
    parser: Any, spec: str, text: str | None = None, default: Any = None, read: Any = None, **settings: Any
) -> None:
    """Declare an option or operand, which may also belong to an exclusive group.

    ``--name`` is a flag; ``--name N`` takes a value of the kind that :data:`values.KINDS` has for ``N``; ``--name a|b``
    takes one of these; ``NAME`` is an operand.  ``...`` at the end: it may be repeated.

    Args:
        parser: a parser, or a group of options.
        spec: how it is written.
        text: its help.
        default: its value if it is not given.
        read: converts its value, instead of the function of its kind.
        settings: others of argparse.
    """
    name, _, value = spec.removesuffix("...").partition(" ")
    if name == "--" or not name.startswith("-"):
        metavar = None if "choices" in settings else spec
        parser.add_argument(settings.pop("dest", name.lower()), metavar=metavar, help=text, **settings)
    elif not value:
        parser.add_argument(name, help=text, default=default or False, **{"action": "store_true", **settings})
    elif "|" in value:
        parser.add_argument(name, choices=value.split("|"), default=default, help=text, **settings)
    else:
        if spec.endswith("...") and "action" not in settings:
            settings |= {"action": "append"}
            default = []
        read = read or values.KINDS.get(value)
        parser.add_argument(name, metavar=value, type=read, default=default, help=text, **settings)
