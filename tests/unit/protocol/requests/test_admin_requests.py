"""The headers of administration and of the name server against tables copied from wire.md, not from the classes."""

from typing import Final

import pytest

from tests.unit.protocol.header_table import check_kinds, check_names, check_required, full, header_classes
from triomq.protocol.codes import RequestCode
from triomq.protocol.requests import admin_requests
from triomq.protocol.requests.admin_requests import (
    CreateTopicRequestHeader,
)

#: Wire names in the order of the class; ``?`` may be absent.  Source: wire.md 7, 8.
TABLE: Final = {
    # Java demands topicFilterType and order too, but reads neither of them
    "CreateTopicRequestHeader": """topic:str defaultTopic:str readQueueNums:int writeQueueNums:int perm:int
        topicFilterType:str? topicSysFlag:int? order:bool?""",
    "TopicRequestHeader": "topic:str clusterName:str?",
    "DeleteSubscriptionGroupRequestHeader": "groupName:str removeOffset:bool? cleanOffset:bool?",
    "GetConsumeStatsRequestHeader": "consumerGroup:str topic:str?",
    "CloneGroupOffsetRequestHeader": "srcGroup:str destGroup:str topic:str? offline:bool?",
    "ProducerGroupRequestHeader": "producerGroup:str",
    "GroupRequestHeader": "group:str",
    "QueryConsumeTimeSpanRequestHeader": "topic:str group:str",
    "ViewBrokerStatsDataRequestHeader": "statsName:str statsKey:str",
    "QueryConsumeQueueRequestHeader": "topic:str queueId:int index:long count:int consumerGroup:str?",
    "GetRouteInfoRequestHeader": "topic:str acceptStandardJsonOnly:bool?",
    "KvConfigRequestHeader": "namespace:str key:str? value:str?",
    "ClusterRequestHeader": "cluster:str",
}

#: Classes for one request code; the others serve several, or answer.
CODES: Final = {
    "CreateTopicRequestHeader": 17,
    "GetRouteInfoRequestHeader": 105,
    "ProducerGroupRequestHeader": 204,
    "DeleteSubscriptionGroupRequestHeader": 207,
    "GetConsumeStatsRequestHeader": 208,
    "ClusterRequestHeader": 224,
    "QueryConsumeTimeSpanRequestHeader": 303,
    "CloneGroupOffsetRequestHeader": 314,
    "ViewBrokerStatsDataRequestHeader": 315,
    "QueryConsumeQueueRequestHeader": 321,
    "GroupRequestHeader": 352,
}

CLASSES: Final = header_classes(admin_requests)


def test_the_tables_know_every_administration_header() -> None:
    assert set(TABLE) == set(CLASSES)
    assert set(CODES) == {name for name, cls in CLASSES.items() if hasattr(cls, "code")}


@pytest.mark.parametrize("name", list(CODES))
def test_header_belongs_to_its_request_code(name: str) -> None:
    assert CLASSES[name].code == CODES[name]
    assert CLASSES[name].code in set(RequestCode)


@pytest.mark.parametrize("name", list(TABLE))
def test_header_has_the_wire_names_of_the_table(name: str) -> None:
    check_names(CLASSES[name], TABLE[name])


@pytest.mark.parametrize("name", list(TABLE))
def test_header_has_the_kinds_of_the_table(name: str) -> None:
    check_kinds(CLASSES[name], TABLE[name])


@pytest.mark.parametrize("name", list(TABLE))
def test_header_demands_what_the_table_demands_and_no_more(name: str) -> None:
    check_required(CLASSES[name], TABLE[name])


@pytest.mark.parametrize("name", list(TABLE))
def test_header_says_where_it_comes_from(name: str) -> None:
    assert CLASSES[name].__doc__


def test_a_topic_of_5_x_with_attributes_is_read() -> None:
    fields = full(TABLE["CreateTopicRequestHeader"]) | {"attributes": "", "force": "false"}
    assert CreateTopicRequestHeader.decode(fields).topic == "text"
