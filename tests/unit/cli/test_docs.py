"""What the documents say of options, settings, files and commands is so."""

import argparse
import dataclasses
import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from triomq.broker.config import BrokerConfig
from triomq.cli.arguments.arguments import build_parser, parse
from triomq.client import ClientConfig, ConsumerConfig, LitePullConfig, ProducerConfig
from triomq.protocol.codes import SerializeType
from triomq.storage.config import Durability, StoreConfig

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "docs/accounts.md",
    "docs/api.md",
    "docs/cli.md",
    "docs/configuration.md",
    "docs/dashboard.md",
    "docs/deployment.md",
    "docs/metrics.md",
    "docs/performance.md",
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser with those of all its commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found += parsers(child)
    return found


def commands(name: str) -> list[list[str]]:
    """The triomq commands in a document's shell examples, without the program's name."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text(name), re.DOTALL):
        for line in block.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
            lexer.whitespace_split = True
            for _, words in itertools.groupby(lexer, lambda word: word in ("|", "<", ">")):
                program, *rest = words
                if program == "triomq":
                    found.append(rest)
    return found


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("README.md", 10),
        ("docs/accounts.md", 3),
        ("docs/cli.md", 15),
        ("docs/configuration.md", 1),
        ("docs/deployment.md", 1),
    ],
)
def test_every_command_in_a_document_can_be_read(name: str, least: int) -> None:
    found = commands(name)
    assert len(found) >= least
    for words in found:
        parse(words)


def test_every_option_is_in_the_documents() -> None:
    documents = text("docs/cli.md") + text("docs/configuration.md")
    for parser in parsers(build_parser()):
        for action in parser._actions:
            for option in action.option_strings:
                if option not in ("-h", "--help"):
                    assert re.search(rf"`(triomq )?{option}\b", documents), f"{parser.prog} {option}"


def shown(value: Any) -> str:
    names: dict[Any, str] = {Durability.ASYNC: "Durability.ASYNC", SerializeType.JSON: "SerializeType.JSON"}
    return names[value] if isinstance(value, Durability | SerializeType) else str(value)


CONFIGS = (BrokerConfig, StoreConfig, ClientConfig, ProducerConfig, ConsumerConfig, LitePullConfig)


@pytest.mark.parametrize("settings", CONFIGS)
def test_every_setting_is_documented_with_its_default(settings: type) -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", text("docs/configuration.md"), re.MULTILINE)
    for field in dataclasses.fields(settings):
        told = [default for name, default in rows if name == field.name]
        assert told, field.name
        if isinstance(field.default, str | int | float | None | Durability):
            assert f"`{shown(field.default)}`" in told, field.name


def test_every_file_in_the_architecture_exists() -> None:
    files = re.findall(r"`([a-z_/]+\.py)`", text("ARCHITECTURE.md"))
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_to_a_file_leads_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", text(name)):
        assert ((ROOT / name).parent / target).is_file(), target


def test_every_exit_code_is_in_the_documents() -> None:
    from triomq.cli.errors import ExitCode

    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", text("docs/cli.md"), re.MULTILINE)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_the_text_of_a_picture_is_inside_it(path: Path) -> None:
    picture = path.read_text(encoding="utf-8")
    width = int(re.findall(r'viewBox="0 0 (\d+) ', picture)[0])
    for attributes, text in re.findall(r"<text ([^>]*)>([^<]*)</text>", picture):
        (x,) = map(float, re.findall(r'x="([\d.]+)"', attributes))
        right = x + 7 * len(text) / (2 if "middle" in attributes else 1)  # 7 per character: a wide font of size 13
        assert right < width, text
