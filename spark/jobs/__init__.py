"""Jobs for ``spark-submit``, for use as they are and as examples: produce, consume, aggregate, replay.

Each is a program with ``--help``.  ``python -m triomq.spark.jobs.produce`` runs one on this machine without
``spark-submit``.

Source: spark.md 8.
"""
