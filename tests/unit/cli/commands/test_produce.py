from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triomq.cli.arguments.arguments import parse
from triomq.cli.arguments.options import ProduceOptions
from triomq.cli.commands.produce import GeneratedSource, LineSource, make_message, read_json_line
from triomq.cli.errors import UsageError
from triomq.cli.sending import Batch, Stopper
from triomq.protocol.record.message import Message


def options(*words: str) -> ProduceOptions:
    found = parse(["produce", "T", *words])
    assert isinstance(found, ProduceOptions)
    return found


def reader(*chunks: bytes) -> Callable[[], Awaitable[bytes]]:
    """Return a function that gives the chunks, then the end."""
    rest = list(chunks)

    async def read() -> bytes:
        await trio.lowlevel.checkpoint()
        return rest.pop(0) if rest else b""

    return read


async def read_all(source: LineSource, limit: int = 2) -> list[Message]:
    found: list[Message] = []
    while messages := (await source.take(limit)).messages:
        assert len(messages) <= limit
        found += messages
    assert await source.take(limit) == Batch([], [])
    return found


TEXT = b"one\ntwo\r\n\n  \nthree \xff\nlast"
LINES = [b"one", b"two", b"three \xff", b"last"]


@pytest.mark.parametrize("step", [1, 2, 3, 7, len(TEXT)])
async def test_lines_are_the_same_however_they_arrive(step: int) -> None:
    chunks = [TEXT[at : at + step] for at in range(0, len(TEXT), step)]
    source = LineSource(options("--tag", "t", "--key", "k"), Stopper(), reader(*chunks))
    messages = await read_all(source)
    assert [message.body for message in messages] == LINES
    assert {(message.topic, message.tags, tuple(message.keys)) for message in messages} == {("T", "t", ("k",))}
    assert source.skipped == 2


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n\r\n"])
async def test_input_without_text_gives_no_message(text: bytes) -> None:
    assert await read_all(LineSource(options(), Stopper(), reader(text))) == []


async def test_overlong_line_is_rejected_before_it_fills_memory() -> None:
    source = LineSource(options(), Stopper(), reader(b"short\n", *[b"x" * 1024**2] * 20))
    assert [message.body for message in (await source.take(5)).messages] == [b"short"]
    with pytest.raises(UsageError, match=r"line 2 is longer than"):
        await source.take(5)


async def test_reading_ends_when_the_stopper_is_set() -> None:
    stopper = Stopper()
    source = LineSource(options(), stopper, trio.sleep_forever)
    found: list[Batch] = []

    async def take() -> None:
        found.append(await source.take(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        stopper.set()
    assert found == [Batch([], [])]


def test_a_json_line_overrides_the_options() -> None:
    given = options("--tag", "t", "--key", "k", "--property", "a=1", "--property", "b=2")
    message = read_json_line(given, b'{"body":"x","tags":"u","keys":["l","m"],"properties":{"b":"3"}}', 1)
    assert (message.body, message.tags, message.keys) == (b"x", "u", ["l", "m"])
    assert message.properties == {"a": "1", "b": "3"}
    plain = read_json_line(given, b'{"body_base64":"/w=="}', 1)
    assert (plain.body, plain.tags, plain.keys, plain.properties) == (b"\xff", "t", ("k",), {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--delay", "2m"], {"TIMER_DELAY_MS": "120000"}),
        (["--deliver-at", "2027-01-15T08:00Z"], {"TIMER_DELIVER_MS": "1800000000000"}),
    ],
)
def test_every_message_has_the_delay_of_the_option(words: list[str], expected: dict[str, str]) -> None:
    asked = options(*words)
    for message in (make_message(asked, b"x"), read_json_line(asked, b'{"body":"x"}', 1)):
        assert message.all_properties() == {"WAIT": "true", **expected}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "unexpected end"),
        (b"[]", "not a JSON object"),
        (b'{"body":"\xff"}', "not UTF-8: write binary bodies as body_base64"),
        (b'{"body":"x","properties":{"TAGS":"t"}}', "TAGS"),
        (b"{}", "either body or body_base64"),
        (b'{"body":1}', "either body or body_base64"),
        (b'{"body":"x","body_base64":"eA=="}', "either body or body_base64"),
        (b'{"body_base64":"!"}', "base64"),
        (b'{"body":"x","tag":"t"}', "unknown: tag; known: body,"),
        (b'{"body":"x","tags":["t"]}', "tags must be text"),
        (b'{"body":"x","keys":[1]}', "keys must be"),
        (b'{"body":"x","properties":{"a":1}}', "properties must be"),
        (b'{"body":"x","properties":[]}', ""),
    ],
)
def test_invalid_json_message_is_rejected_with_line_number(line: bytes, complaint: str) -> None:
    if complaint:
        with pytest.raises(UsageError, match=complaint) as error:
            read_json_line(options("--json-lines"), line, 17)
        assert str(error.value).startswith("line 17: ")
    else:
        assert read_json_line(options("--json-lines"), line, 17).properties == {}


async def test_reading_continues_after_a_refused_json_line() -> None:
    source = LineSource(options("--json-lines"), Stopper(), reader(b'{"body":"a"}\n{\n{"body":"b"}\n'))
    assert [message.body for message in (await source.take(1)).messages] == [b"a"]
    with pytest.raises(UsageError, match="line 2"):
        await source.take(1)
    assert [message.body for message in (await source.take(1)).messages] == [b"b"]


async def test_lines_before_a_refused_line_are_sent() -> None:
    text = b'{"body":"a"}\n{"body":"b"}\n{\n{\n{"body":"c"}\n'
    source = LineSource(options("--json-lines"), Stopper(), reader(text))
    assert [message.body for message in (await source.take(10)).messages] == [b"a", b"b"]
    for number in (3, 4):
        with pytest.raises(UsageError, match=f"line {number}:"):
            await source.take(10)
    assert [message.body for message in (await source.take(10)).messages] == [b"c"]
    assert await source.take(10) == Batch([], [])


@pytest.mark.parametrize("size", [1, 2, 5, 128, 5000])
async def test_generated_messages_have_the_given_size(size: int) -> None:
    source = GeneratedSource(options("--count", "10", "--size", str(size)), 10)
    assert source.total == 10
    messages = [message for _ in range(3) for message in (await source.take(4)).messages]
    assert await source.take(4) == Batch([], [])
    assert [len(message.body) for message in messages] == [size] * 10
    if size > 4:
        assert [int(message.body.split()[0]) for message in messages] == list(range(10))


async def test_messages_carry_the_numbers_of_their_lines() -> None:
    source = LineSource(options(), Stopper(), reader(b"one\n\ntwo\nthree\n"))
    assert (await source.take(2)).lines == [1, 3]
    assert (await source.take(2)).lines == [4]


async def test_lines_read_together_are_shared_evenly() -> None:
    source = LineSource(options(), Stopper(), reader(b"x\n" * 10))
    source.tasks = 4
    assert [len((await source.take(100)).messages) for _ in range(5)] == [3, 3, 3, 1, 0]
