"""Work in steps: who takes turns, and what is done between them."""

from collections.abc import Generator

import trio

from triomq.broker.network.steps import STEP_S, Steps


async def test_sockets_are_read_before_each_step_of_long_work() -> None:
    done: list[str] = []
    steps = Steps(lambda: None)
    steps.clock = lambda: len(done) * STEP_S * 2  # each part takes two steps
    steps.read_ready = lambda: done.append("read")

    def work() -> Generator[None, None, None]:
        for _ in range(3):
            done.append("part")
            yield

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(steps.run, work())
    assert done[:12] == ["read", "part"] * 6
