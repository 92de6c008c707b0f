from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from triomq.cli.in_flight import InFlight

REQUESTS = 20_000


@pytest.mark.parametrize(
    ("round_trip_s", "service_s", "limits", "tasks", "least_rate"),
    [
        (0.05, 0.0001, {}, (500, 1500), 7500),  # 500 keep the server busy
        (0.0, 0.0001, {}, (32, 32), 9900),
        (0.05, 0.0001, {"fixed": 10}, (10, 10), 190),
        (0.05, 0.0001, {"request_bytes": 1024**2}, (64, 64), 1200),
        (2.0, 0.00001, {}, (700, 2048), 250),
    ],
)
async def test_tasks_grow_until_server_is_busy(
    autojump_clock: MockClock,
    round_trip_s: float,
    service_s: float,
    limits: dict[str, int],
    tasks: tuple[int, int],
    least_rate: float,
) -> None:
    left, busy_until = iter(range(REQUESTS)), 0.0

    async def work(answered: Callable[[float], None]) -> None:
        nonlocal busy_until
        for _ in left:
            began = trio.current_time()
            busy_until = max(began, busy_until) + service_s  # one request after another
            await trio.sleep_until(busy_until + round_trip_s)
            answered(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        in_flight = InFlight(lambda answered: nursery.start_soon(work, answered), **limits)
    assert tasks[0] <= in_flight.tasks <= tasks[1]
    assert REQUESTS / (trio.current_time() - began) >= least_rate
