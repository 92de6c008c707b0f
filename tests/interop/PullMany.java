// Pulls once with Apache's own pull consumer and prints how many messages came: see test_long_pulls_of_java.py.
//   java -cp ... PullMany.java NAMESRV GROUP TOPIC MOST

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageQueue;

public final class PullMany {
    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(args[2]).iterator().next();
        PullResult found = consumer.pull(queue, "*", 5, Integer.parseInt(args[3]));
        System.out.println(found.getMsgFoundList().size() + " " + found.getNextBeginOffset());
        System.exit(0);
    }

    private PullMany() {
    }
}
