import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes a topic in a namespace, fails each message once, and sends what it got to another topic of the namespace, all
 * of it traced: NAMESRV NAMESPACE GROUP TOPIC ANSWERS. It continues the W3C trace context of a message as the agent of
 * OpenTelemetry does, in the user property traceparent, with a span of its own.
 */
final class TracedPeer {
    private static final String SPAN = "00f067aa0ba902b7";

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(args[1], "JavaAnswers", null, true, null);
        producer.setNamesrvAddr(args[0]);
        producer.setInstanceName("answers");
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args[1], args[2], null, new AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[3], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getReconsumeTimes() == 0) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                String text = message.getTopic() + " " + new String(message.getBody(), StandardCharsets.UTF_8);
                Message answer = new Message(args[4], "Answer", "answer-key", text.getBytes(StandardCharsets.UTF_8));
                String[] trace = message.getUserProperty("traceparent").split("-");
                answer.putUserProperty("traceparent", String.join("-", trace[0], trace[1], SPAN, trace[3]));
                try {
                    producer.send(answer);
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.currentThread().join();
    }
}
