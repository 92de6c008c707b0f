// Reads a topic from its first message to its last with Apache's own client: see test_read_by_java.py.
//   java -cp ... ReadTopic NAMESRV TOPIC COUNT FILE
// Waits until there are COUNT messages, and writes for each one: queue, offset, flag, milliseconds from birth to store,
// then keys, tag, sharding key, the property n and the body.  Fields end with a tab.

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public final class ReadTopic {
    private static final long LIMIT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("READ_TOPIC");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        List<MessageExt> found = new ArrayList<>();
        Map<MessageQueue, Long> positions = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args[1])) {
            positions.put(queue, 0L);
        }
        long limit = System.currentTimeMillis() + LIMIT_MS;
        while (found.size() < Integer.parseInt(args[2]) && System.currentTimeMillis() < limit) {
            for (MessageQueue queue : positions.keySet()) {
                PullResult result = consumer.pull(queue, "*", positions.get(queue), 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
                positions.put(queue, result.getNextBeginOffset());
            }
        }
        consumer.shutdown();
        StringBuilder lines = new StringBuilder();
        for (MessageExt message : found) {
            Object[] fields = {
                message.getQueueId(), message.getQueueOffset(), message.getFlag(),
                message.getStoreTimestamp() - message.getBornTimestamp(), message.getKeys(), message.getTags(),
                message.getProperty("__SHARDINGKEY"), message.getProperty("n"),
                new String(message.getBody(), StandardCharsets.UTF_8)};
            for (Object field : fields) {
                lines.append(field).append('\t');
            }
            lines.append('\n');
        }
        Files.writeString(Path.of(args[3]), lines);
        System.exit(0);
    }

    private ReadTopic() {
    }
}
