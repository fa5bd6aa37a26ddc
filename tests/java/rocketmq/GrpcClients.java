import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** RocketMQ's own gRPC client, unchanged: CLASS ADDRESS COMMAND ARGUMENTS. Every line of output begins with a word. */
public class GrpcClients {
    static final long SECONDS = 80;
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static ClientConfiguration configuration;

    public static void main(String[] given) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(given[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
        try {
            switch (given[1]) {
                case "send": send(given[2]); break;
                case "fifo": fifo(given[2], Integer.parseInt(given[3])); break;
                case "priorities": priorities(given[2]); break;
                case "transactions": transactions(given[2], given[3]); break;
                case "simple": simple(given[2], given[3], given[4], Integer.parseInt(given[5])); break;
                case "push": push(given[2], given[3], given[4], Integer.parseInt(given[5])); break;
                default: throw new IllegalArgumentException(given[1]);
            }
        } catch (Throwable error) {
            error.printStackTrace(System.out);
            System.exit(1);
        }
        // Clients leave threads behind that are no daemons.
        System.exit(0);
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static synchronized void got(MessageView message) {
        System.out.println("GOT " + message.getTopic() + "|" + message.getTag().orElse("") + "|"
            + message.getKeys().stream().sorted().collect(Collectors.joining(",")) + "|"
            + message.getMessageGroup().orElse("") + "|" + message.getDeliveryAttempt() + "|"
            + message.getProperties().getOrDefault("color", "") + "|" + message.getMessageId() + "|" + body(message));
    }

    /** Every kind but transactions; the last is recalled. */
    static void send(String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setTopics(topic)
            .setClientConfiguration(configuration).build()) {
            for (int i = 0; i < 3; i++) {
                SendReceipt receipt = producer.send(message(topic, "sync-" + i).setTag(i % 2 == 0 ? "even" : "odd")
                    .setKeys("key" + i, "all").addProperty("color", "blå").build());
                System.out.println("SENT " + receipt.getMessageId());
            }
            for (int i = 0; i < 3; i++) {
                producer.sendAsync(message(topic, "async-" + i).build()).get(SECONDS, TimeUnit.SECONDS);
            }
            producer.send(message(topic, "x".repeat(500000)).build());
            producer.send(message(topic, "fifo").setMessageGroup("group").build());
            long due = System.currentTimeMillis() + 2000;
            producer.send(message(topic, "later").setDeliveryTimestamp(due).build());
            System.out.println("DUE " + due);
        }
    }

    static void fifo(String topic, int count) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setTopics(topic)
            .setClientConfiguration(configuration).build()) {
            for (int i = 0; i < count; i++) {
                producer.send(message(topic, "" + i).setMessageGroup("group-" + i % 3).build());
            }
        }
    }

    static void priorities(String topic) throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder().setTopics(topic)
            .setClientConfiguration(configuration).build()) {
            for (int priority : new int[] {0, 2, 1}) {
                producer.send(message(topic, "" + priority).setPriority(priority).build());
            }
        }
    }

    /** Commits one, rolls one back, and leaves two: the checker answers COMMIT for those that begin with a word. */
    static void transactions(String topic, String word) throws Exception {
        CountDownLatch asked = new CountDownLatch(2);
        try (Producer producer = PROVIDER.newProducerBuilder().setTopics(topic).setClientConfiguration(configuration)
            .setTransactionChecker(message -> {
                System.out.println("ASKED " + body(message));
                asked.countDown();
                return body(message).startsWith(word) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            }).build()) {
            for (String body : List.of("committed", "rolled-back", word + "-left", "other-left")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, body).build(), transaction);
                if (body.equals("committed")) {
                    transaction.commit();
                } else if (body.equals("rolled-back")) {
                    transaction.rollback();
                }
            }
            if (!asked.await(SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("the checker was not asked");
            }
            Thread.sleep(1000);
        }
    }

    /** Receives until there are so many; a body that begins with "again" is given back the first time. */
    static void simple(String group, String topic, String tags, int count) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setConsumerGroup(group)
            .setClientConfiguration(configuration).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(
                Collections.singletonMap(topic, new FilterExpression(tags, FilterExpressionType.TAG))).build()) {
            int left = count;
            while (left > 0) {
                for (MessageView message : consumer.receive(8, Duration.ofSeconds(20))) {
                    got(message);
                    left--;
                    if (body(message).startsWith("again") && message.getDeliveryAttempt() == 1) {
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(message);
                    }
                }
            }
        }
    }

    /** Consumes until there are so many; a body that begins with "again" fails the first time, "dead" always. */
    static void push(String group, String topic, String tags, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setConsumerGroup(group)
            .setClientConfiguration(configuration)
            .setSubscriptionExpressions(
                Collections.singletonMap(topic, new FilterExpression(tags, FilterExpressionType.TAG)))
            .setMessageListener(message -> {
                got(message);
                left.countDown();
                boolean fails = body(message).startsWith("dead")
                    || body(message).startsWith("again") && message.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build()) {
            if (!left.await(SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(left.getCount() + " messages did not come");
            }
            // What was consumed last is acknowledged behind the listener.
            Thread.sleep(1000);
        }
    }
}
