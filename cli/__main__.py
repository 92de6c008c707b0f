"""``python -m triomq.cli`` does what the ``triomq`` command does."""

import sys

from triomq.cli import main

sys.exit(main())
