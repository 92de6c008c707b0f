"""Jobs for ``spark-submit``, usable as they are and as examples: produce, consume, aggregate, replay.

Each is a module with ``main(argv) -> int`` and ``--help``; ``python -m triomq.spark.jobs.produce`` runs one without
``spark-submit``, and its ``--print-submit`` prints what to give to ``spark-submit``.

Source: spark.md 8.
"""
