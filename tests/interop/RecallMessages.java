import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends two delayed messages, takes the first back, and prints the second's handle: NAMESRV GROUP TOPIC DELAY_MS. */
public class RecallMessages {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1]);
        producer.setNamesrvAddr(args[0]);
        producer.start();
        SendResult first = send(producer, args[2], "taken back by Java", args[3]);
        SendResult second = send(producer, args[2], "taken back by us", args[3]);
        send(producer, args[2], "delivered", args[3]);
        String id = producer.recallMessage(args[2], first.getRecallHandle());
        if (!id.equals(first.getMsgId())) {
            throw new IllegalStateException(id + " is not " + first.getMsgId());
        }
        try {
            producer.recallMessage(args[2], first.getRecallHandle().substring(0, 40));
            throw new IllegalStateException("half a handle was taken");
        } catch (MQBrokerException e) {
            System.err.println("refused with " + e.getResponseCode());
        } catch (org.apache.rocketmq.client.exception.MQClientException e) {
            System.err.println("refused by the client");
        }
        System.out.println(second.getRecallHandle());
        producer.shutdown();
        System.exit(0);
    }

    private static SendResult send(DefaultMQProducer producer, String topic, String body, String delayMs) throws Exception {
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        message.setDelayTimeMs(Long.parseLong(delayMs));
        return producer.send(message);
    }
}
