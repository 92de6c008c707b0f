"""The state of copies, as RocketMQ 5.5.0 writes it."""

from triomq.protocol.bodies.replication import HaClient, HaConnection, HaStatus

#: Written by HARuntimeInfo.encode() of RocketMQ 5.5.0.
MASTER = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterFlushOffset":0,"maxOffset":0,'
    b'"transferredByteInSecond":0},"haConnectionInfo":[{"addr":"10.0.0.2:5","diff":1000,"inSync":true,'
    b'"slaveAckOffset":4000,"transferFromWhere":4500,"transferredByteInSecond":7}],"inSyncSlaveNums":1,"master":true,'
    b'"masterCommitLogMaxOffset":5000}'
)
SLAVE = (
    b'{"haClientRuntimeInfo":{"lastReadTimestamp":0,"lastWriteTimestamp":0,"masterAddr":"10.0.0.1:10912",'
    b'"masterFlushOffset":0,"maxOffset":9,"transferredByteInSecond":0},"haConnectionInfo":[],"inSyncSlaveNums":0,'
    b'"master":false,"masterCommitLogMaxOffset":0}'
)


def test_states_are_read_and_written_as_by_rocketmq() -> None:
    connection = HaConnection("10.0.0.2:5", 4000, 1000, in_sync=True, transferred_byte_in_second=7)
    connection.transfer_from_where = 4500
    master = HaStatus(
        master=True, master_commit_log_max_offset=5000, in_sync_slave_nums=1, ha_connection_info=[connection]
    )
    slave = HaStatus(ha_client_runtime_info=HaClient("10.0.0.1:10912", max_offset=9))
    for body, status in ((MASTER, master), (SLAVE, slave)):
        assert HaStatus.decode(body) == status
        assert status.encode() == body
