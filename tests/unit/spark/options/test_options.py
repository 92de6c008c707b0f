"""Scenario 45 of spark.md 6: wrong names, values and combinations are errors before any connection, without values."""

import pickle
from pathlib import Path

import pytest

from tests.unit.spark.options.tables import tables
from triomq.protocol.errors import ConfigError
from triomq.spark.options.options import NAMESRV_VARIABLE, OPTIONS, Option, Options, Use, parse_options

NAME_SERVER = {"nameServer": "127.0.0.1:9876"}
READ = {**NAME_SERVER, "subscribe": "T"}


def refusal(given: dict[str, str], use: Use = Use.BATCH_READ) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_options(given, use)
    return str(caught.value)


def test_names_match_in_any_case_like_sparks_own() -> None:
    given = {"NAMESERVER": "h:1", "subscribe": "A, B", "minpartitions": "8", "checkpointlocation": "x", "path": "y"}
    options = parse_options(given, Use.BATCH_READ)
    assert (options["minPartitions"], options["subscribe"], options["tags"]) == (8, ("A", "B"), "*")


def test_unknown_name_error_lists_near_names() -> None:
    text = refusal({**READ, "minPartition": "2"})
    assert "near: minPartitions" in text
    assert "maxRecordsPerPartition" in text
    assert "sendTimeoutMs" not in text


def test_unsupported_client_option_names_the_alternative() -> None:
    text = refusal({**READ, "enablemsgtrace": "hush"})
    assert text.startswith("option 'enablemsgtrace': ")
    assert "is not supported yet; instead: " in text
    assert "hush" not in text


@pytest.mark.parametrize(
    ("name", "ours"),
    [("messageselector", "sql"), ("groupidprefix", "readGroup"), ("kafka.bootstrap.servers", "nameServer")],
)
def test_names_of_other_connectors_lead_to_ours(name: str, ours: str) -> None:
    assert f"near: {ours}" in refusal({**READ, name: "1"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tlsKey": "k.pem"}, "tlsCert and tlsKey belong together; given: tlsKey"),
        ({"accessKey": "hush"}, "accessKey and secretKey belong together; given: accessKey"),
        ({"secretKey": "hush", "securityToken": "hush"}, "given: secretKey, securityToken"),
        ({"credentials": "hush"}, "'credentials' does not name a source; possible: env:NAME or file:PATH"),
        ({"credentials": "env:A", "accessKey": "hush", "secretKey": "hush"}, "credentials or accessKey and secretKey"),
    ],
)
def test_half_an_account_is_refused_without_a_secret(given: dict[str, str], words: str) -> None:
    text = refusal({**READ, **given})
    assert words in text
    assert "hush" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("minPartitions", "0"), ("minPartitions", "many"), ("minPartitions", "1.5"), ("maxRecordsPerPartition", "-1"),
        ("pullBatchSize", "1025"), ("batchBytes", "10"), ("failOnDataLoss", "yes"), ("tags", "||"),
        ("startingTimestamp", "yesterday"), ("startingOffsets", "{"), ("startingOffsets", '{"T": 3}'),
        ("startingOffsets", '{"T": {"b": {"0": -3}}}'), ("startingOffsets", '{"T": {"b": {"x": 3}}}'),
        ("startingOffsets", '{"T": {"b": {"0": true}}}'), ("tlsVerify", "guess"), ("endingOffsets", "earliest"),
        ("nameServer", "http://host"), ("readGroup", "DEFAULT_CONSUMER"), ("planTimeoutMs", "0"), ("subscribe", "a b"),
    ],
)  # fmt: skip
def test_wrong_value_error_names_option(name: str, value: str) -> None:
    text = refusal({**READ, name: value})
    assert f"option '{name}'" in text
    assert "possible: " in text


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("startingTimestamp", "1795693758", "looks like seconds"),
        ("endingTimestamp", "1795693758", "looks like seconds"),
        ("startingTimestamp", "1795693758000000", "looks like microseconds"),
        ("sql", "amount > 5 AND region LIKE 'e%'", "is not an SQL expression: see character 23"),
        ("startingTimestamp", "today", "in UTC unless it names a zone"),
    ],
)
def test_likely_mistakes_have_a_hint(name: str, value: str, words: str) -> None:
    assert words in refusal({**READ, name: value})


def test_time_without_zone_is_utc_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = "2026-01-31T12:00:00"
    naive, utc = (parse_options({**READ, "startingTimestamp": f"{text}{zone}"}, Use.BATCH_READ) for zone in ("", "Z"))
    assert naive["startingTimestamp"] == utc["startingTimestamp"] == 1769860800000
    assert caplog.messages == ["time without zone read as UTC: append Z, or an offset such as +01:00"]


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_no_error_shows_a_value(option: Option, use: Use) -> None:
    for secret in ("s3cr3t {marker", "http://s3cr3t:(", "||"):
        for given in ({option.name: secret}, {secret: option.name}):
            text = ""
            try:
                parse_options({**NAME_SERVER, **given}, use)
            except ConfigError as exc:
                text = str(exc)
            assert "s3cr3t" not in text


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_empty_value_is_refused(option: Option) -> None:
    name, uses = option.name, option.uses
    given = {**(NAME_SERVER if Use.WRITE in uses else READ), name: " "}
    assert f"option '{name}' is empty" in refusal(given, Use.WRITE if uses == {Use.WRITE} else next(iter(uses)))


def test_option_of_another_use_is_rejected() -> None:
    assert "for a batch read" in refusal({**READ, "endingOffsets": "latest"}, Use.STREAM_READ)
    assert "for a write" in refusal({**READ, "retries": "1"})
    assert "this is a batch read: use option 'subscribe'" in refusal({**NAME_SERVER, "topic": "T"})
    assert "this is a write: use option 'topic'" in refusal(READ, Use.WRITE)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"assign": '{"T": {"b": [0]}}'}, "given: subscribe, assign"),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "1"},
            "give one of the options startingOffsets and startingTimestamp, not both",
        ),
        (
            {"endingTimestamp": "1", "endingOffsets": "latest"},
            "give one of the options endingOffsets and endingTimestamp, not both",
        ),
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"tags": "A", "sql": "a > 1"}, "give one of the options tags and sql, not both"),
        (
            {"startingTimestamp": "2026-01-02T00Z", "endingTimestamp": "2026-01-01T00Z"},
            "is before the time to start at",
        ),
    ],
)
def test_contradicting_options_are_rejected(more: dict[str, str], words: str) -> None:
    assert words in refusal({**READ, **more})


def test_environment_may_name_the_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMESRV_VARIABLE, raising=False)
    assert NAMESRV_VARIABLE in refusal({"subscribe": "T"})
    monkeypatch.setenv(NAMESRV_VARIABLE, "h:1")
    assert parse_options({"subscribe": "T"}, Use.BATCH_READ)["nameServer"] == "h:1"


def test_options_survive_pickling_and_show_no_values() -> None:
    options = parse_options({**READ, "tags": "hush"}, Use.BATCH_READ)
    copy: Options = pickle.loads(pickle.dumps(options))
    assert (copy["tags"], copy["fetchBytes"]) == ("hush", options["fetchBytes"])
    assert "hush" not in repr(copy)


CHAPTER = Path(__file__).parents[4] / "docs" / "spark.md"


@pytest.mark.parametrize("name", tables())
def test_the_chapter_has_the_table_of_the_code(name: str) -> None:
    """``python -m tests.unit.spark.options.tables`` prints the text between the two comments."""
    text = CHAPTER.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- {name}: made by python -m tests.unit.spark.options.tables -->\n")
    assert rest.partition("<!-- end -->")[0] == tables()[name]
