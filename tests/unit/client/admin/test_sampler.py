"""What displays remember of a cluster."""

from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from triomq.client import Admin
from triomq.client.admin.broker_answers import BrokerAnswer
from triomq.client.admin.diagnosis import Diagnosis
from triomq.client.admin.sampler import WAIT_S, Sampler
from triomq.protocol.errors import RequestTimeoutError


async def test_findings_of_last_minutes_need_no_waiting(autojump_clock: MockClock) -> None:
    examined = 0

    async def diagnose() -> Diagnosis:
        nonlocal examined
        examined += 1
        number = examined
        await trio.sleep(5)
        return Diagnosis(number, 0, ())

    async def brokers() -> list[BrokerAnswer]:
        return []

    async def found() -> tuple[int, float]:
        """Return the number of the examination, and how long a page waited for it."""
        began = trio.current_time()
        diagnosis = await sampler.examined()
        assert diagnosis is not None
        return diagnosis.brokers, round(trio.current_time() - began, 3)

    async with trio.open_nursery() as nursery:
        sampler = Sampler(cast("Admin", SimpleNamespace(brokers=brokers, diagnose=diagnose)))
        await nursery.start(sampler.keep_asking)
        await trio.sleep(6)
        assert await found() == (1, 0)  # without a visitor
        await trio.sleep(60)
        assert await found() == (1, 0)
        await trio.sleep(6)
        assert await found() == (2, 0)
        await trio.sleep(600)
        assert await found() == (2, WAIT_S)
        nursery.cancel_scope.cancel()


async def test_page_gives_up_when_no_answer_comes(autojump_clock: MockClock) -> None:
    async def brokers() -> list[BrokerAnswer]:
        return []

    async def nothing() -> None:
        await trio.sleep_forever()

    admin = SimpleNamespace(brokers=brokers, diagnose=nothing, topics=nothing, backlog=nothing)
    async with trio.open_nursery() as nursery:
        sampler = Sampler(cast("Admin", admin))
        await nursery.start(sampler.keep_asking)
        with trio.fail_after(60):
            with pytest.raises(RequestTimeoutError):
                await sampler.topic_kinds()
            assert await sampler.backlog() == {}
        nursery.cancel_scope.cancel()


async def test_restarted_broker_is_asked_for_its_durability(autojump_clock: MockClock) -> None:
    flush, boot = "ASYNC_FLUSH", "1"

    async def brokers() -> list[BrokerAnswer]:
        return [BrokerAnswer("broker-a", 0, "a:1", "a:1", runtime={"bootTimestamp": boot})]

    async def broker_settings(address: str) -> dict[str, str]:
        return {"flushDiskType": flush}

    async def diagnose() -> Diagnosis:
        return Diagnosis(1, 0, ())

    admin = SimpleNamespace(brokers=brokers, broker_settings=broker_settings, diagnose=diagnose)
    async with trio.open_nursery() as nursery:
        sampler = Sampler(cast("Admin", admin))
        await nursery.start(sampler.keep_asking)
        await trio.sleep(1)
        assert sampler.brokers["broker-a", 0].durability == "async"
        flush, boot = "SYNC_FLUSH", "2"
        await trio.sleep(6)
        assert sampler.brokers["broker-a", 0].durability == "sync"
        nursery.cancel_scope.cancel()
