import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends until it is killed: NAMESRV TOPIC SENDERS PAUSE_MS SEND_LATENCY_FAULT_ENABLE. Prints a line for each send: the
 * sender's number and the broker that stored it, or "-".
 */
final class Failover {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-failover");
        producer.setNamesrvAddr(args[0]);
        producer.setSendLatencyFaultEnable(Boolean.parseBoolean(args[4]));
        producer.start();
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            int sender = i;
            new Thread(() -> {
                while (true) {
                    String broker = "-";
                    try {
                        broker = producer.send(new Message(args[1], new byte[100])).getMessageQueue().getBrokerName();
                    } catch (Exception e) {
                        // counted
                    }
                    System.out.println(sender + " " + broker);
                    try {
                        Thread.sleep(Long.parseLong(args[3]));
                    } catch (InterruptedException e) {
                        return;
                    }
                }
            }).start();
        }
    }

    private Failover() {
    }
}
