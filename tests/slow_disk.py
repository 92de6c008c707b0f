"""``python -m tests.slow_disk SECONDS COMMAND...``: a command of triomq on a disk on which each sync takes longer."""

import sys
from functools import partial

from triomq.broker import open_broker
from triomq.cli import main
from triomq.cli.commands import broker
from triomq.testing.host import SlowDisk

if __name__ == "__main__":
    vars(broker)["open_broker"] = partial(open_broker, file_system=SlowDisk(float(sys.argv[1])))
    sys.exit(main(sys.argv[2:]))
