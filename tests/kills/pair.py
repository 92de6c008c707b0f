"""A sync-master and its slave under load, of which one or both are killed again and again.

After some kills of the master the slave is promoted, and the former master copies it.  In the end all acknowledged
messages are in both stores, once; both logs are the same; and the slave, started as master without the other one,
delivers them.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from tests.kills.load import SMALL_FILES, Load, Outcome, consume, dump, run_triomq
from tests.processes import Broker, start_member, start_name_server, start_triomq
from triomq.client import Message, SendStatus
from triomq.client.sync import Producer

ENDS: Final = ("first", "second")
_VICTIMS: Final = ("master", "master", "slave", "slave", "both")
_PROMOTED: Final = 0.5  # how often a slave is promoted after its master was killed
_POLL_S: Final = 0.05
_AGAIN: Final = 0.3  # how often a kill follows before the pair has come together


class Pair:
    """The two processes, with one address each over all restarts, so that they find each other at once.

    Attributes:
        master, slave: which of the two has this role.
    """

    def __init__(self, folder: Path, namesrv: str, durability: str) -> None:
        self.master, self.slave = ENDS
        self._folder = folder
        self._namesrv = namesrv
        self._options = ("--durability", durability, *SMALL_FILES)
        pid = os.getpid()
        host = f"127.{pid // 62_500 % 250 + 1}.{pid // 250 % 250}.{pid % 250}"  # where no other program is
        self._addresses = dict.fromkeys(ENDS, (f"{host}:0", f"{host}:0"))
        self._was_promoted = False
        self._running: dict[str, Broker] = {}

    def start(self, end: str) -> None:
        """Start an end that does not run: a promoted one as a supervisor does, with its command line of a slave."""
        is_slave = end != self.master or self._was_promoted
        role = ("slave", "--broker-id", "1") if is_slave else ("sync-master",)
        listen, ha_listen = self._addresses[end]
        options = ("--listen", listen, "--ha-listen", ha_listen, "--role", *role, *self._options)
        broker = start_member(self._folder / end, "pair", self._namesrv, *options)
        self._running[end] = broker
        self._addresses[end] = broker.broker, broker.ha

    def promote(self) -> None:
        """Kill the master and promote the slave."""
        self.kill(self.master)
        command = ("replica", "promote", "--role", "sync-master", "--broker", self._addresses[self.slave][0])
        run_triomq(*command, "--namesrv", self._namesrv)
        self.master, self.slave, self._was_promoted = self.slave, self.master, True

    def kill(self, *ends: str) -> None:
        """Kill these ends at one moment."""
        victims = [self._running.pop(end) for end in ends]
        for victim in victims:
            victim.process.kill()
        for victim in victims:
            victim.kill()

    def stop(self) -> None:
        """Stop the master in order, so that the slave gets the end of its log; then the slave."""
        for end in (self.master, self.slave):
            self._running.pop(end).stop()

    def end(self) -> None:
        """Kill all that run."""
        self.kill(*self._running)

    def store(self, end: str) -> Path:
        return self._folder / end / "store"


def kill_pair_often(folder: Path, kills: int, seed: int, durability: str) -> Outcome:
    """Load a pair and kill one of the two or both ``kills`` times, then compare them."""
    random = Random(seed)
    acknowledged: set[str] = set()
    with start_name_server(folder / "namesrv") as name_server:
        pair = Pair(folder, name_server.namesrv, durability)
        try:
            for end in ENDS:
                pair.start(end)
            _join(name_server.namesrv)
            left = kills
            while left >= 0:  # the last load kills nothing: the slave has caught up when it is acknowledged
                with Load(name_server.namesrv, folder, f"{left}") as load:
                    load.wait_acknowledged()
                    time.sleep(random.uniform(0.05, 0.8))  # varies the moment of the kill; no condition names it
                    left = _kill_some(pair, random, left) if left else -1
                acknowledged |= load.acknowledged()
            pair.stop()
        finally:
            pair.end()
    faults = list(_differences(pair, acknowledged))
    with start_triomq(pair.store(pair.slave).parent, *SMALL_FILES, "--durability", durability) as promoted:
        delivered = consume(promoted.namesrv)
    faults += [f"not delivered by the slave as master: {body}" for body in sorted(acknowledged - set(delivered))]
    return Outcome(kills, len(acknowledged), len(delivered), faults)


def _join(namesrv: str) -> None:
    """Send until the slave has a message: it would begin with the newest file of a longer log."""
    with Producer("first", namesrv=namesrv) as producer:
        while producer.send(Message("first", b"first")).status is not SendStatus.SEND_OK:
            time.sleep(_POLL_S)


def _kill_some(pair: Pair, random: Random, left: int) -> int:
    """Kill and restart, under load, until both run; return how many kills are left."""
    while True:
        victims = random.choice(_VICTIMS)
        if victims == "master" and random.random() < _PROMOTED:
            pair.promote()
            pair.start(pair.slave)
        else:
            ends = {"master": (pair.master,), "slave": (pair.slave,)}.get(victims, (pair.master, pair.slave))
            pair.kill(*ends)
            for end in ends:  # first the master, as one that was promoted earlier takes its place otherwise
                pair.start(end)
        left -= 1
        if not left or random.random() > _AGAIN:
            return left
        time.sleep(random.uniform(0, 0.3))


def _differences(pair: Pair, acknowledged: set[str]) -> Iterator[str]:
    """Yield the faults of the two stores."""
    logs = [{path.name: path.read_bytes() for path in (pair.store(end) / "commitlog").iterdir()} for end in ENDS]
    if logs[0].keys() != logs[1].keys():
        yield f"files of the logs: {sorted(logs[0])} and {sorted(logs[1])}"
    for name in sorted(logs[0].keys() & logs[1].keys()):
        if logs[0][name] != logs[1][name]:
            yield f"file {name} of the logs differs"
    for end in ENDS:
        stored = Counter(dump(pair.store(end)))
        yield from (f"not in the store of the {end}: {body}" for body in sorted(acknowledged - stored.keys()))
        yield from (f"{count} times in the store of the {end}: {body}" for body, count in stored.items() if count > 1)
