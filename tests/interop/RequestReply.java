import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A requester or a replier of Java: NAMESRV GROUP TOPIC ask|answer. */
final class RequestReply {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1] + "-producer");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        if (args[3].equals("ask")) {
            for (int number = 0; number < 5; number++) {
                Message reply = producer.request(new Message(args[2], bytes("ask " + number)), 20_000);
                System.out.println(new String(reply.getBody(), StandardCharsets.UTF_8));
            }
            producer.shutdown();
            return;
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = "java: " + new String(message.getBody(), StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, bytes(body)));
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            consumer.shutdown();
            producer.shutdown();
        }));
        consumer.start();
        System.out.println("ready");
        Thread.currentThread().join();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
