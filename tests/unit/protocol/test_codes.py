"""The numbers of the protocol against tables copied from wire.md."""

from enum import IntEnum

import pytest

from triomq.protocol.codes import (
    COMPRESSION_TYPE_MASK,
    TRANSACTION_MASK,
    VERSION,
    VERSION_MAX_RECONSUME,
    CommandFlag,
    LanguageCode,
    MessageSysFlag,
    Permission,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    SerializeType,
    code_name,
)

#: Source: wire.md 4 (those marked core), 14 (5.x).
CORE_REQUESTS = """
    10 SEND_MESSAGE, 11 PULL_MESSAGE, 12 QUERY_MESSAGE, 14 QUERY_CONSUMER_OFFSET, 15 UPDATE_CONSUMER_OFFSET,
    29 SEARCH_OFFSET_BY_TIMESTAMP, 30 GET_MAX_OFFSET, 31 GET_MIN_OFFSET, 32 GET_EARLIEST_MSG_STORETIME,
    33 VIEW_MESSAGE_BY_ID, 34 HEART_BEAT, 35 UNREGISTER_CLIENT, 36 CONSUMER_SEND_MSG_BACK, 37 END_TRANSACTION,
    38 GET_CONSUMER_LIST_BY_GROUP, 39 CHECK_TRANSACTION_STATE, 40 NOTIFY_CONSUMER_IDS_CHANGED, 41 LOCK_BATCH_MQ,
    42 UNLOCK_BATCH_MQ, 46 CHECK_CLIENT_CONFIG, 103 REGISTER_BROKER, 104 UNREGISTER_BROKER, 105 GET_ROUTEINFO_BY_TOPIC,
    220 RESET_CONSUMER_CLIENT_OFFSET, 221 GET_CONSUMER_STATUS_FROM_CLIENT, 307 GET_CONSUMER_RUNNING_INFO,
    309 CONSUME_MESSAGE_DIRECTLY, 310 SEND_MESSAGE_V2, 320 SEND_BATCH_MESSAGE, 324 SEND_REPLY_MESSAGE,
    325 SEND_REPLY_MESSAGE_V2, 326 PUSH_REPLY_MESSAGE_TO_CLIENT, 361 LITE_PULL_MESSAGE, 370 RECALL_MESSAGE,
    400 QUERY_ASSIGNMENT"""

#: Source: wire.md 4 (those marked admin or replication, as far as we name them), 14 (5.x).
ADMIN_REQUESTS = """17 UPDATE_AND_CREATE_TOPIC, 21 GET_ALL_TOPIC_CONFIG, 25 UPDATE_BROKER_CONFIG, 26 GET_BROKER_CONFIG,
    28 GET_BROKER_RUNTIME_INFO, 43 GET_ALL_CONSUMER_OFFSET, 45 GET_ALL_DELAY_OFFSET, 100 PUT_KV_CONFIG,
    101 GET_KV_CONFIG, 102 DELETE_KV_CONFIG, 106 GET_BROKER_CLUSTER_INFO, 200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 202 GET_TOPIC_STATS_INFO, 203 GET_CONSUMER_CONNECTION_LIST,
    204 GET_PRODUCER_CONNECTION_LIST, 205 WIPE_WRITE_PERM_OF_BROKER, 206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    207 DELETE_SUBSCRIPTIONGROUP, 208 GET_CONSUME_STATS, 215 DELETE_TOPIC_IN_BROKER, 216 DELETE_TOPIC_IN_NAMESRV,
    219 GET_KVLIST_BY_NAMESPACE, 222 INVOKE_BROKER_TO_RESET_OFFSET, 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    224 GET_TOPICS_BY_CLUSTER, 300 QUERY_TOPIC_CONSUME_BY_WHO, 303 QUERY_CONSUME_TIME_SPAN,
    304 GET_SYSTEM_TOPIC_LIST_FROM_NS, 305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER, 306 CLEAN_EXPIRED_CONSUMEQUEUE,
    308 QUERY_CORRECTION_OFFSET, 311 GET_UNIT_TOPIC_LIST, 312 GET_HAS_UNIT_SUB_TOPIC_LIST,
    313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, 314 CLONE_GROUP_OFFSET, 315 VIEW_BROKER_STATS_DATA, 316 CLEAN_UNUSED_TOPIC,
    317 GET_BROKER_CONSUME_STATS, 318 UPDATE_NAMESRV_CONFIG, 319 GET_NAMESRV_CONFIG, 321 QUERY_CONSUME_QUEUE,
    323 RESUME_CHECK_HALF_MESSAGE,
    322 QUERY_DATA_VERSION, 327 ADD_WRITE_PERM_OF_BROKER,
    328 GET_ALL_PRODUCER_INFO, 329 DELETE_EXPIRED_COMMITLOG,
    50 UPDATE_AND_CREATE_ACL_CONFIG, 51 DELETE_ACL_CONFIG, 52 GET_BROKER_CLUSTER_ACL_INFO,
    53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, 54 GET_BROKER_CLUSTER_ACL_CONFIG, 351 GET_TOPIC_CONFIG,
    352 GET_SUBSCRIPTIONGROUP_CONFIG"""

#: Source: wire.md 3; codes that are unused on the wire are left out.
RESPONSES = """0 SUCCESS, 1 SYSTEM_ERROR, 2 SYSTEM_BUSY, 3 REQUEST_CODE_NOT_SUPPORTED, 4 TRANSACTION_FAILED,
    10 FLUSH_DISK_TIMEOUT, 11 SLAVE_NOT_AVAILABLE, 12 FLUSH_SLAVE_TIMEOUT, 13 MESSAGE_ILLEGAL, 14 SERVICE_NOT_AVAILABLE,
    16 NO_PERMISSION, 17 TOPIC_NOT_EXIST, 19 PULL_NOT_FOUND, 20 PULL_RETRY_IMMEDIATELY, 21 PULL_OFFSET_MOVED,
    22 QUERY_NOT_FOUND, 23 SUBSCRIPTION_PARSE_FAILED, 24 SUBSCRIPTION_NOT_EXIST, 25 SUBSCRIPTION_NOT_LATEST,
    26 SUBSCRIPTION_GROUP_NOT_EXIST, 27 FILTER_DATA_NOT_EXIST, 28 FILTER_DATA_NOT_LATEST, 204 NO_BUYER_ID,
    205 NOT_IN_CURRENT_UNIT, 206 CONSUMER_NOT_ONLINE,
    207 CONSUME_MSG_TIMEOUT, 209 UPDATE_AND_CREATE_ACL_CONFIG_FAILED, 210 ILLEGAL_OPERATION,
    210 DELETE_ACL_CONFIG_FAILED, 211 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, 215 FLOW_CONTROL, 1500 GO_AWAY"""

#: Source: wire.md 2.4.
LANGUAGES = """0 JAVA, 1 CPP, 2 DOTNET, 3 PYTHON, 4 DELPHI, 5 ERLANG, 6 RUBY, 7 OTHER, 8 HTTP, 9 GO, 10 PHP, 11 OMS,
    12 RUST, 13 NODE_JS"""


def parse(table: str) -> dict[str, int]:
    return {name: int(number) for number, name in (row.split() for row in table.split(","))}


@pytest.mark.parametrize(
    ("enum", "table"),
    [(RequestCode, f"{CORE_REQUESTS}, {ADMIN_REQUESTS}"), (ResponseCode, RESPONSES), (LanguageCode, LANGUAGES)],
)
def test_names_and_numbers_are_those_of_the_table(enum: type[IntEnum], table: str) -> None:
    """Trap 15: 361, the pull of 5.x lite consumers, is among them."""
    assert {name: member.value for name, member in enum.__members__.items()} == parse(table)


@pytest.mark.parametrize("enum", [RequestCode, ResponseCode])
def test_every_code_fits_16_bits(enum: type[IntEnum]) -> None:
    """Trap 4."""
    assert all(0 <= code < 2**15 for code in enum)


def test_version_allows_java_expressions_and_fits_16_bits() -> None:
    """Trap 4: heartbeat responses with a version below 232 make Java refuse expressions; 4.9.7 is 393 + 2 * 7."""
    assert VERSION == 393 + 2 * 7
    assert 232 <= VERSION < 2**15
    assert VERSION_MAX_RECONSUME == 121


def test_serialisations_have_the_numbers_of_the_frame_byte() -> None:
    assert {kind.name: kind.value for kind in SerializeType} == {"JSON": 0, "ROCKETMQ": 1, "MSGPACK": 77}
    assert all(kind < 256 for kind in SerializeType)


def test_flags_are_bits_not_bit_numbers() -> None:
    assert (CommandFlag.RESPONSE, CommandFlag.ONEWAY) == (1, 2)
    assert [flag.value for flag in PullSysFlag] == [1, 2, 4, 8, 16]


def test_permissions_of_the_template_topic_are_7() -> None:
    """Trap 14: TBW102 must be routable with perm 7."""
    assert Permission.INHERIT | Permission.WRITE | Permission.READ == 7
    assert (Permission.WRITE, Permission.READ, Permission.PRIORITY) == (2, 4, 8)


def test_message_flags_are_those_of_the_table() -> None:
    """Source: wire.md 10.5."""
    assert {name: flag.value for name, flag in MessageSysFlag.__members__.items()} == {
        "COMPRESSED": 0x1,
        "MULTI_TAGS": 0x2,
        "TRANSACTION_PREPARED": 0x4,
        "TRANSACTION_COMMIT": 0x8,
        "TRANSACTION_ROLLBACK": 0xC,
        "BORN_HOST_V6": 0x10,
        "STORE_HOST_V6": 0x20,
        "COMPRESSION_LZ4": 0x100,
        "COMPRESSION_ZSTD": 0x200,
        "COMPRESSION_ZLIB": 0x300,
    }
    assert (TRANSACTION_MASK, COMPRESSION_TYPE_MASK) == (0xC, 0x700)


@pytest.mark.parametrize(
    ("code", "name"), [(0, "SUCCESS"), (17, "TOPIC_NOT_EXIST"), (-1, "UNKNOWN"), (9999, "UNKNOWN")]
)
def test_unknown_code_has_a_name(code: int, name: str) -> None:
    assert code_name(code) == name
