"""Reading topics into Spark: discovery, planning, offsets, partitions, columns of records.

Driver and executors share these modules; only ``driver`` and ``discovery`` run on the driver alone.
"""
