"""The broker's settings under RocketMQ's names: one table tells them and changes those that may change.

Only settings that have an effect in this broker are in the table.  Paths, sizes of files and whatever else protects the
broker are fixed: nobody who connects may change them.

Source: wire.md 7.4, 7.5; BrokerConfig.java, MessageStoreConfig.java.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from triomq.broker.config import BrokerConfig
from triomq.protocol.bodies.route import DataVersion
from triomq.protocol.errors import ConfigError
from triomq.protocol.names import TRACE_TOPIC
from triomq.storage.config import Durability, StoreConfig
from triomq.storage.delays import DelayLevels

LOGGER: Final = logging.getLogger("triomq.broker.settings")

_FLUSH_TYPES: Final = {Durability.ASYNC: "ASYNC_FLUSH", Durability.SYNC: "SYNC_FLUSH"}
_DELAY_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_FLAGS: Final = {"true": True, "false": False}
_LONGEST_TOLD: Final = 80


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _read_number(text: str) -> float:
    if not re.fullmatch(r"\d{1,12}(\.\d{1,6})?", text, re.ASCII):
        raise ValueError("a number")
    return float(text)


def _read_count(text: str) -> int:
    value = _read_number(text)
    if value != int(value):
        raise ValueError("a whole number")
    return int(value)


def _read_flag(text: str) -> bool:
    if text not in _FLAGS:
        raise ValueError("true or false")
    return _FLAGS[text]


def _read_hours(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,2}(;\d{1,2})*", text, re.ASCII):
        raise ValueError("hours of a day, separated by ;")
    return tuple(map(int, text.split(";")))


def _delays(levels: DelayLevels) -> str:
    units = ((ms, next(unit for unit in _DELAY_UNITS if ms % unit[0] == 0)) for ms in levels.delays_ms)
    return " ".join(f"{ms // unit_ms}{name}" for ms, (unit_ms, name) in units)


class FixedSettingError(ConfigError):
    """A setting that does not exist, or may not be changed while the server runs."""


class _Kind(NamedTuple):
    """How a setting is written, and read."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


_TEXT: Final = _Kind(str, str)
_COUNT: Final = _Kind(str, _read_count)
_NUMBER: Final = _Kind(_number, _read_number)
_FLAG: Final = _Kind(lambda value: "true" if value else "false", _read_flag)
_MS: Final = _Kind(lambda seconds: str(round(seconds * 1000)), lambda text: _read_count(text) / 1000)
_HOURS: Final = _Kind(lambda hours: ";".join(f"{hour:02d}" for hour in hours), _read_hours)


class _Setting(NamedTuple):
    """One row: RocketMQ's name, ours, how it is written, and whether a running broker may change it."""

    name: str
    field: str
    kind: _Kind
    is_live: bool = False


_LIVE: Final = True
_BROKER: Final = (
    _Setting("brokerClusterName", "cluster_name", _TEXT),
    _Setting("brokerName", "broker_name", _TEXT),
    _Setting("regionId", "region", _TEXT),
    _Setting("aclEnable", "has_accounts", _FLAG),
    _Setting("autoCreateTopicEnable", "auto_create_topic", _FLAG, _LIVE),
    _Setting("autoCreateSubscriptionGroup", "auto_create_group", _FLAG, _LIVE),
    _Setting("defaultTopicQueueNums", "default_topic_queues", _COUNT, _LIVE),
    _Setting("serverChannelMaxIdleTimeSeconds", "idle_timeout_s", _NUMBER, _LIVE),
    _Setting("flushConsumerOffsetInterval", "persist_offsets_interval_s", _MS),
    _Setting("flushDelayOffsetInterval", "persist_delay_offsets_interval_s", _MS),
    _Setting("timerMaxDelaySec", "timer_max_delay_s", _NUMBER, _LIVE),
    _Setting("waitTimeMillsInSendQueue", "max_send_wait_s", _MS, _LIVE),
    _Setting("transactionTimeOut", "transaction_timeout_s", _MS, _LIVE),
    _Setting("transactionCheckInterval", "transaction_check_interval_s", _MS, _LIVE),
    _Setting("transactionCheckMax", "transaction_check_max", _COUNT, _LIVE),
    _Setting("com.rocketmq.remoting.frameMaxLength", "max_frame_bytes", _COUNT),
    _Setting("syncFlushTimeout", "sync_flush_timeout_s", _MS),
)
_STORE: Final = (
    _Setting("storePathRootDir", "root", _TEXT),
    _Setting("mappedFileSizeCommitLog", "commit_log_file_size_bytes", _COUNT),
    _Setting("mappedFileSizeConsumeQueue", "consume_queue_file_size_bytes", _COUNT),
    _Setting("maxMessageSize", "max_message_size_bytes", _COUNT),
    _Setting("flushDiskType", "durability", _Kind(_FLUSH_TYPES.__getitem__, str)),
    _Setting("flushIntervalCommitLog", "flush_interval_s", _MS),
    _Setting("flushCommitLogLeastPages", "flush_least_pages", _COUNT),
    _Setting("flushCommitLogThoroughInterval", "flush_thorough_interval_s", _MS),
    _Setting("flushIntervalConsumeQueue", "flush_consume_queue_interval_s", _MS),
    _Setting("flushConsumeQueueLeastPages", "flush_consume_queue_least_pages", _COUNT),
    _Setting("flushConsumeQueueThoroughInterval", "flush_consume_queue_thorough_interval_s", _MS),
    _Setting("maxTransferBytesOnMessageInMemory", "max_transfer_bytes_in_memory", _COUNT, _LIVE),
    _Setting("maxTransferCountOnMessageInMemory", "max_transfer_count_in_memory", _COUNT, _LIVE),
    _Setting("maxTransferBytesOnMessageInDisk", "max_transfer_bytes_in_disk", _COUNT, _LIVE),
    _Setting("maxTransferCountOnMessageInDisk", "max_transfer_count_in_disk", _COUNT, _LIVE),
    _Setting("accessMessageInMemoryMaxRatio", "in_memory_max_ratio", _COUNT, _LIVE),
    _Setting("fileReservedTime", "retention_hours", _NUMBER, _LIVE),
    _Setting("deleteWhen", "delete_when", _HOURS, _LIVE),
    _Setting("diskMaxUsedSpaceRatio", "disk_max_used_ratio", _COUNT, _LIVE),
    _Setting("cleanFileForciblyEnable", "clean_file_forcibly", _FLAG, _LIVE),
    _Setting("cleanResourceInterval", "clean_interval_s", _MS, _LIVE),
    _Setting("deleteCommitLogFilesInterval", "delete_files_interval_s", _MS, _LIVE),
    _Setting("checkCRCOnRecover", "check_crc_on_recover", _FLAG),
    _Setting("messageIndexEnable", "index", _FLAG),
    _Setting("maxHashSlotNum", "index_slots", _COUNT),
    _Setting("maxIndexNum", "index_units", _COUNT),
    _Setting("messageDelayLevel", "delay_levels", _Kind(_delays, str)),
)
_TOLD: Final = {  # settings without a choice
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",  # without slaves
    "slaveReadEnable": "false",
    "filterServerNums": "0",
    "useTLS": "false",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceOn": "true",
    "traceTopicEnable": "true",
}


class Settings:
    """The settings of a running broker.

    Attributes:
        version: changes with each change.
    """

    def __init__(self, config: BrokerConfig, start_ms: int) -> None:
        self._config = config
        self._settings: dict[str, tuple[_Setting, BrokerConfig | StoreConfig]] = {
            setting.name: (setting, owner)
            for owner, settings in ((config, _BROKER), (config.store, _STORE))
            for setting in settings
        }
        self.version = DataVersion(counter=0, timestamp=start_ms)

    def texts(self, advertised: str) -> dict[str, str]:
        """Return all settings; ``advertised`` is the broker's address for the one who asks."""
        host, _, port = advertised.rpartition(":")
        return {**_TOLD, "brokerIP1": host, "listenPort": port} | {
            name: setting.kind.write(getattr(owner, setting.field)) for name, (setting, owner) in self._settings.items()
        }

    def change(self, wanted: Mapping[str, str], advertised: str, now_ms: int, peer: str) -> None:
        """Change settings at once, all or none; they are back at the next start.

        Those that are as wanted already are no changes, so that a tool may send back all it was told.

        Raises:
            FixedSettingError: a setting is unknown or fixed.
            ConfigError: a value is impossible.
        """
        texts = self.texts(advertised)
        changes = {name: text for name, text in wanted.items() if texts.get(name) != text}
        found: dict[type, dict[str, Any]] = {BrokerConfig: {}, StoreConfig: {}}
        for name, text in changes.items():
            setting, owner = self._live(name)
            try:
                found[type(owner)][setting.field] = setting.kind.read(text)
            except ValueError as exc:
                raise ConfigError(f"setting {name}: {text[:_LONGEST_TOLD]!r} is not {exc}") from None
        replace(self._config, **found[BrokerConfig])
        replace(self._config.store, **found[StoreConfig])  # both check the new values
        for owner in (self._config, self._config.store):
            for field, value in found[type(owner)].items():
                object.__setattr__(owner, field, value)  # the only place that changes them: they are read at each use
        for name, text in changes.items():
            LOGGER.warning("setting changed name=%s from=%s to=%s peer=%s", name, texts[name], text, peer)
        if changes:
            self.version = DataVersion(counter=self.version.counter + 1, timestamp=now_ms)

    def _live(self, name: str) -> tuple[_Setting, BrokerConfig | StoreConfig]:
        """Return a setting that may change, and what it is a field of.

        Raises:
            FixedSettingError: it may not, or does not exist.
        """
        found = self._settings.get(name)
        if found is not None and found[0].is_live:
            return found
        if name not in self.texts(""):
            raise FixedSettingError(f"setting {name[:_LONGEST_TOLD]!r} does not exist in triomq")
        raise FixedSettingError(f"setting {name} cannot be changed while the broker runs: start it with other options")
