import subprocess
import sys

SCRIPT = """
import logging, triomq.client
logging.getLogger("triomq.client.consumer").error("handler failed", exc_info=ValueError("boom"))
logging.getLogger("triomq.client.consumer").info("details")
"""


def test_errors_are_printed_by_programs_that_configure_no_logging() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["handler failed", "ValueError: boom"]
