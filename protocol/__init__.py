"""RocketMQ's wire protocol and record formats as plain functions and values: no socket, file, clock or task."""
