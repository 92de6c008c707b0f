// Reads or writes the offsets file of a broadcasting consumer with Apache's own class: see test_local_offsets_of_java.py.
//   java -Drocketmq.client.localOffsetStoreDir=DIR -cp ... LocalOffsets.java read|write CLIENT_ID GROUP QUEUE=OFFSET ...
// A queue is TOPIC/BROKER/ID.  "read" prints the queues with what the store has, -1 if it has nothing.

import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

public final class LocalOffsets {
    public static void main(String[] args) throws Exception {
        MQClientInstance instance = new MQClientInstance(new ClientConfig(), 0, args[1]);
        LocalFileOffsetStore store = new LocalFileOffsetStore(instance, args[2]);
        store.load();
        Set<MessageQueue> queues = new HashSet<>();
        for (int i = 3; i < args.length; i++) {
            String[] words = args[i].split("[/=]");
            MessageQueue queue = new MessageQueue(words[0], words[1], Integer.parseInt(words[2]));
            if (args[0].equals("write")) {
                store.updateOffset(queue, Long.parseLong(words[3]), false);
                queues.add(queue);
            } else {
                System.out.println(args[i] + "=" + store.readOffset(queue, ReadOffsetType.READ_FROM_STORE));
            }
        }
        store.persistAll(queues);
        System.exit(0);
    }

    private LocalOffsets() {
    }
}
