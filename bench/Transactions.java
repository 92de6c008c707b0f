import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Commits transactions of 1 KiB messages: NAMESRV THREADS WARMUP_S SECONDS. Prints one line of JSON. */
final class Transactions {
    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[1]);
        TransactionMQProducer producer = new TransactionMQProducer("bench-transactions");
        producer.setNamesrvAddr(args[0]);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        byte[] body = new byte[1024];
        Arrays.fill(body, (byte) 'x');
        LongAdder commits = new LongAdder();
        AtomicBoolean isOver = new AtomicBoolean();
        Thread[] workers = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            workers[i] = new Thread(() -> {
                while (!isOver.get()) {
                    try {
                        producer.sendMessageInTransaction(new Message("bench-transactions", body), null);
                        commits.increment();
                    } catch (Exception e) {
                        e.printStackTrace();
                    }
                }
            });
            workers[i].start();
        }
        Thread.sleep(Long.parseLong(args[2]) * 1000);
        long before = commits.sum();
        long began = System.nanoTime();
        Thread.sleep(Long.parseLong(args[3]) * 1000);
        double rate = (commits.sum() - before) * 1e9 / (System.nanoTime() - began);
        isOver.set(true);
        for (Thread worker : workers) {
            worker.join();
        }
        producer.shutdown();
        System.out.println("{\"msgs_per_s\": " + Math.round(rate) + "}");
    }
}
