"""triomq: Apache RocketMQ's protocol and store in Python, on trio.

This package imports nothing by itself: use ``triomq.client``, ``triomq.broker`` and the others.
"""

from typing import Final

__version__: Final = "0.1.0"
