"""GET_BROKER_CONFIG (26): the broker's settings as Java properties text, under RocketMQ's names.

Only settings that have an effect in this broker are listed.

Source: wire.md 7.5; BrokerConfig.java, MessageStoreConfig.java, MixAll.java.
"""

from collections.abc import Mapping
from typing import Final

from triomq.broker.config import BrokerConfig
from triomq.broker.network.connection import Connection
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.wire.command import RemotingCommand
from triomq.storage.config import Durability, StoreConfig

_FLUSH_TYPES: Final = {Durability.ASYNC: "ASYNC_FLUSH", Durability.SYNC: "SYNC_FLUSH"}
_DELAY_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


class SettingsProcessor:
    """Answers with the broker's settings."""

    def __init__(self, config: BrokerConfig, start_ms: int) -> None:
        self._config = config
        self._start_ms = start_ms

    def get_broker_config(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer with all settings; their version is the start time, as they never change."""
        settings = {
            **_broker_settings(self._config, connection.advertised),
            **_store_settings(self._config.store),
        }
        version = DataVersion(counter=0, timestamp=self._start_ms)
        return command.reply(ext_fields={"version": version.encode().decode()}, body=properties_text(settings).encode())


def _broker_settings(config: BrokerConfig, advertised: str) -> dict[str, str]:
    host, _, port = advertised.rpartition(":")
    return {
        "brokerClusterName": config.cluster_name,
        "brokerName": config.broker_name,
        "brokerId": "0",  # the master, which has no slaves
        "brokerIP1": host,
        "listenPort": port,
        "regionId": config.region,
        "autoCreateTopicEnable": _flag(config.auto_create_topic),
        "autoCreateSubscriptionGroup": _flag(config.auto_create_group),
        "defaultTopicQueueNums": str(config.default_topic_queues),
        "serverChannelMaxIdleTimeSeconds": _number(config.idle_timeout_s),
        "flushConsumerOffsetInterval": _ms(config.persist_offsets_interval_s),
        "flushDelayOffsetInterval": _ms(config.persist_delay_offsets_interval_s),
        "transactionTimeOut": _ms(config.transaction_timeout_s),
        "transactionCheckInterval": _ms(config.transaction_check_interval_s),
        "transactionCheckMax": str(config.transaction_check_max),
        "com.rocketmq.remoting.frameMaxLength": str(config.max_frame_bytes),
        "syncFlushTimeout": _ms(config.sync_flush_timeout_s),
    }


def _store_settings(store: StoreConfig) -> dict[str, str]:
    return {
        "storePathRootDir": str(store.root),
        "mappedFileSizeCommitLog": str(store.commit_log_file_size_bytes),
        "mappedFileSizeConsumeQueue": str(store.consume_queue_file_size_bytes),
        "maxMessageSize": str(store.max_message_size_bytes),
        "flushDiskType": _FLUSH_TYPES[store.durability],
        "flushIntervalCommitLog": _ms(store.flush_interval_s),
        "flushCommitLogLeastPages": str(store.flush_least_pages),
        "flushCommitLogThoroughInterval": _ms(store.flush_thorough_interval_s),
        "flushIntervalConsumeQueue": _ms(store.flush_consume_queue_interval_s),
        "flushConsumeQueueLeastPages": str(store.flush_consume_queue_least_pages),
        "flushConsumeQueueThoroughInterval": _ms(store.flush_consume_queue_thorough_interval_s),
        "maxTransferBytesOnMessageInMemory": str(store.max_transfer_bytes_in_memory),
        "maxTransferCountOnMessageInMemory": str(store.max_transfer_count_in_memory),
        "maxTransferBytesOnMessageInDisk": str(store.max_transfer_bytes_in_disk),
        "maxTransferCountOnMessageInDisk": str(store.max_transfer_count_in_disk),
        "accessMessageInMemoryMaxRatio": str(store.in_memory_max_ratio),
        "fileReservedTime": _number(store.retention_hours),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in store.delete_when),
        "diskMaxUsedSpaceRatio": str(store.disk_max_used_ratio),
        "cleanFileForciblyEnable": _flag(store.clean_file_forcibly),
        "cleanResourceInterval": _ms(store.clean_interval_s),
        "deleteCommitLogFilesInterval": _ms(store.delete_files_interval_s),
        "checkCRCOnRecover": _flag(store.check_crc_on_recover),
        "messageIndexEnable": _flag(store.index),
        "maxHashSlotNum": str(store.index_slots),
        "maxIndexNum": str(store.index_units),
        "messageDelayLevel": " ".join(map(_delay, store.delay_levels.delays_ms)),
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _ms(seconds: float) -> str:
    return str(round(seconds * 1000))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _delay(delay_ms: int) -> str:
    unit_ms, unit = next(entry for entry in _DELAY_UNITS if delay_ms % entry[0] == 0)
    return f"{delay_ms // unit_ms}{unit}"


def properties_text(settings: Mapping[str, str]) -> str:
    """Return ``key=value`` lines that ``java.util.Properties`` reads back exactly: ASCII, with its escapes."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def _escaped(value: str) -> str:
    escaped = "".join(map(_escaped_character, value))
    return "\\" + escaped if escaped.startswith(" ") else escaped  # Java drops leading blanks


def _escaped_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")  # a path may hold undecodable bytes
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
