"""RocketMQ's wire protocol and record formats as plain functions and values: no sockets, files, clocks or tasks."""
