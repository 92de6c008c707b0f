"""docker-compose.yml against the published schema of compose files, and against the Dockerfile."""

import copy
import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from tests.packaging.dockerfile import ROOT, last

SCHEMA: Final = Path(__file__).parent / "compose-schema" / "compose-spec.json"


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


def test_compose_file_follows_the_published_schema(compose: dict[str, Any], validator: Draft7Validator) -> None:
    validator.validate(compose)


@pytest.mark.parametrize(
    ("key", "value"), [("heathcheck", {}), ("command", 5), ("ports", "9876"), ("healthcheck", {"test": 1})]
)
def test_schema_refuses_what_is_not_a_service(
    compose: dict[str, Any], validator: Draft7Validator, key: str, value: object
) -> None:
    broken = copy.deepcopy(compose)
    broken["services"]["broker"][key] = value
    with pytest.raises(ValidationError):
        validator.validate(broken)


def test_service_runs_image_command_with_address_from_env(
    compose: dict[str, Any],
) -> None:
    of_image = last("CMD").words()
    assert compose["services"]["broker"]["command"] == [*of_image[:-1], "${TRIOMQ_ADVERTISE:-127.0.0.1}"]
    assert of_image[-2:] == ["--advertise", "127.0.0.1"]


def test_health_check_is_that_of_the_image(compose: dict[str, Any]) -> None:
    assert compose["services"]["broker"]["healthcheck"]["test"] == ["CMD", *last("HEALTHCHECK").words()]


def test_exposed_ports_are_published_on_loopback_by_default(
    compose: dict[str, Any],
) -> None:
    expected = [f"${{TRIOMQ_BIND:-127.0.0.1}}:{port}:{port}" for port in last("EXPOSE").words()]
    assert compose["services"]["broker"]["ports"] == expected


def test_store_outlives_the_container(compose: dict[str, Any]) -> None:
    (volume,) = compose["services"]["broker"]["volumes"]
    name, _, path = volume.partition(":")
    assert name in compose["volumes"]
    assert path == last("VOLUME").arguments
