import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQ's own clients, unchanged: CLASS NAMESRV COMMAND ARGUMENTS. Every line of output begins with a word. */
public class Clients {
    static final long SECONDS = 80;

    public static void main(String[] given) throws Exception {
        String namesrv = given[0];
        try {
            switch (given[1]) {
                case "send": send(namesrv, given[2]); break;
                case "delay": delay(namesrv, given[2], Integer.parseInt(given[3])); break;
                case "push": push(namesrv, given[2], given[3], given[4], Integer.parseInt(given[5])); break;
                case "pop": push(namesrv, given[2], given[3], given[4], Integer.parseInt(given[5]), true); break;
                case "orderly": orderly(namesrv, given[2], given[3], Integer.parseInt(given[4])); break;
                case "litepull": litePull(namesrv, given[2], given[3], Integer.parseInt(given[4])); break;
                case "prepare": prepare(namesrv, given[2], given[3]); break;
                case "check": check(namesrv, given[2], Integer.parseInt(given[3])); break;
                case "reply": reply(namesrv, given[2], given[3]); break;
                case "request": request(namesrv, given[2]); break;
                case "sql": sql(namesrv, given[2], given[3], given[4], Integer.parseInt(given[5])); break;
                case "broadcast": broadcast(namesrv, given[2], given[3], Integer.parseInt(given[4])); break;
                case "timer": timer(namesrv, given[2]); break;
                case "traced": traced(namesrv, given[2], given[3]); break;
                default: throw new IllegalArgumentException(given[1]);
            }
        } catch (Throwable error) {
            error.printStackTrace(System.out);
            System.exit(1);
        }
        // Clients leave threads behind that are no daemons.
        System.exit(0);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static void sent(String how, SendResult result) {
        System.out.println("SENT " + how + " " + result.getSendStatus() + " " + result.getMessageQueue().getQueueId()
            + " " + result.getQueueOffset() + " " + result.getOffsetMsgId() + " " + result.getMsgId());
    }

    static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.start();
        return producer;
    }

    /** One-way and each other way to send: 5 x 3 messages, and a large one that the client compresses. */
    static void send(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        for (int i = 0; i < 3; i++) {
            Message message = new Message(topic, i % 2 == 0 ? "even" : "odd", "key" + i, bytes("sync-" + i));
            message.putUserProperty("color", "blå");
            message.setFlag(7);
            sent("sync", producer.send(message));
        }
        CountDownLatch left = new CountDownLatch(3);
        for (int i = 0; i < 3; i++) {
            producer.send(new Message(topic, "async", bytes("async-" + i)), new SendCallback() {
                public void onSuccess(SendResult result) {
                    sent("async", result);
                    left.countDown();
                }

                public void onException(Throwable error) {
                    error.printStackTrace(System.out);
                }
            });
        }
        if (!left.await(SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException("async sends were not answered");
        }
        for (int i = 0; i < 3; i++) {
            producer.sendOneway(new Message(topic, "oneway", bytes("oneway-" + i)));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            batch.add(new Message(topic, "batch", "b" + i, bytes("batch-" + i)));
        }
        sent("batch", producer.send(batch));
        for (int i = 0; i < 3; i++) {
            sent("select", producer.send(new Message(topic, "select", bytes("select-" + i)),
                (queues, message, arg) -> queues.get(((Integer) arg) % queues.size()), 1));
        }
        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 30000; i++) {
            large.append("large ");
        }
        sent("large", producer.send(new Message(topic, "large", bytes(large.toString()))));
        // One-way sends have no answer: what follows on the connection was handled after them.
        sent("last", producer.send(new Message(topic, "last", bytes("last"))));
        producer.shutdown();
    }

    static void delay(String namesrv, String topic, int level) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        Message message = new Message(topic, "delay", bytes("delayed " + System.currentTimeMillis()));
        message.setDelayTimeLevel(level);
        sent("delay", producer.send(message));
        producer.shutdown();
    }

    static TransactionMQProducer transactions(String namesrv, String group, TransactionListener listener)
        throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setSendMsgTimeout(20000);
        producer.setTransactionListener(listener);
        producer.start();
        return producer;
    }

    /** Commits one message, rolls one back, and then stands still in the local transaction of the others. */
    static void prepare(String namesrv, String group, String topic) throws Exception {
        TransactionMQProducer producer = transactions(namesrv, group, new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object given) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (body.equals("now")) {
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
                if (body.equals("never")) {
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                }
                if (!body.equals("last")) {
                    return LocalTransactionState.UNKNOW;
                }
                System.out.println("STARTED");
                try {
                    Thread.sleep(1000 * SECONDS);
                } catch (InterruptedException end) {
                    Thread.currentThread().interrupt();
                }
                return LocalTransactionState.UNKNOW;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        for (String body : new String[] {"now", "never", "commit", "rollback", "last"}) {
            producer.sendMessageInTransaction(new Message(topic, "t", bytes(body)), null);
        }
    }

    /** Another producer of the group: it knows nothing the first time it is asked, then decides by the body. */
    static void check(String namesrv, String group, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        ConcurrentHashMap<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = transactions(namesrv, group, new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object given) {
                return LocalTransactionState.UNKNOW;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                System.out.println("ASKED " + body + " " + message.getTopic() + " " + message.getTransactionId());
                left.countDown();
                if (asked.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet() == 1) {
                    return LocalTransactionState.UNKNOW;
                }
                return body.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        // A producer tells the brokers of its topics that it is there.
        producer.send(new Message(group, bytes("here")));
        finish(left);
        // What was answered last is one-way: a request on the same connection is answered after it.
        Thread.sleep(500);
        producer.shutdown();
    }

    /** Replies to one request. */
    static void reply(String namesrv, String group, String topic) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch left = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                    sent("reply", producer.send(MessageUtil.createReplyMessage(message, bytes(body)), 20000));
                } catch (Exception error) {
                    error.printStackTrace(System.out);
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("STARTED");
        finish(left);
        consumer.shutdown();
        producer.shutdown();
    }

    static void request(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("askers");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.start();
        // With a callback: in 5.3.2 the call without one ends as soon as the question is sent.
        CountDownLatch left = new CountDownLatch(1);
        producer.request(new Message(topic, bytes("question")), new RequestCallback() {
            public void onSuccess(Message reply) {
                System.out.println("REPLY " + new String(reply.getBody(), StandardCharsets.UTF_8));
                left.countDown();
            }

            public void onException(Throwable error) {
                error.printStackTrace(System.out);
                left.countDown();
            }
        }, 1000 * SECONDS);
        finish(left);
        // The broker is answered behind the callback.
        Thread.sleep(500);
        producer.shutdown();
    }

    static void sql(String namesrv, String group, String topic, String expression, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, MessageSelector.bySql(expression));
        consume(consumer, count);
    }

    static void broadcast(String namesrv, String group, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        // The class of the model lies in another package in each of the versions.
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
            }
        }
        consumer.setInstanceName(java.util.UUID.randomUUID().toString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consume(consumer, count);
    }

    static void consume(DefaultMQPushConsumer consumer, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                got(message);
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("STARTED");
        finish(left);
        consumer.shutdown();
    }

    /** A message for two seconds on. */
    static void timer(String namesrv, String topic) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        long now = System.currentTimeMillis();
        Message message = new Message(topic, "timer", bytes("timed " + now));
        MessageAccessor.putProperty(message, "TIMER_DELAY_MS", "2000");
        sent("timer", producer.send(message));
        producer.shutdown();
    }

    /** A message that is sent and consumed by clients that record it. */
    static void traced(String namesrv, String group, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("traced", null, true, null);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.start();
        sent("traced", producer.send(new Message(topic, "traced", "k", bytes("traced"))));
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, null, new AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch left = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                got(message);
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        finish(left);
        System.out.println("STARTED");
        // What they recorded is sent every five seconds, and not at all once they are shut down.
        Thread.sleep(1000 * SECONDS);
    }

    static void got(MessageExt message) {
        byte[] body = message.getBody();
        String text = body.length > 100 ? "bytes=" + body.length : new String(body, StandardCharsets.UTF_8);
        System.out.println("GOT " + message.getTopic() + "|" + message.getQueueId() + "|" + message.getQueueOffset()
            + "|" + message.getTags() + "|" + message.getKeys() + "|" + message.getReconsumeTimes() + "|"
            + message.getFlag() + "|" + message.getUserProperty("color") + "|" + text);
    }

    /** Messages whose body begins with "fail" are refused twice, those with "dead" always. */
    static void push(String namesrv, String group, String topic, String tags, int count) throws Exception {
        push(namesrv, group, topic, tags, count, false);
    }

    /** With `pops` the broker says which queues are read, and whether by pops. */
    static void push(String namesrv, String group, String topic, String tags, int count, boolean pops)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        if (pops) {
            // Clients before 5.0 do not have it.
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(3);
        // The last message is settled before the client goes.
        consumer.setAwaitTerminationMillisWhenShutdown(20000);
        consumer.subscribe(topic, tags);
        CountDownLatch left = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                boolean fails = body.startsWith("fail") && message.getReconsumeTimes() < 2 || body.startsWith("dead");
                System.out.println("AT " + System.currentTimeMillis());
                got(message);
                left.countDown();
                if (fails) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("STARTED");
        finish(left);
        consumer.shutdown();
    }

    /** Each queue is read by one thread, in order; the first try of every fifth message of a queue is suspended. */
    static void orderly(String namesrv, String group, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch left = new CountDownLatch(count);
        ConcurrentHashMap<String, AtomicInteger> tries = new ConcurrentHashMap<>();
        // What is "dead" is tried again so often, and then given up.
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                AtomicInteger tried = tries.computeIfAbsent(message.getMsgId(), key -> new AtomicInteger());
                if (message.getQueueOffset() % 5 == 4 && tried.incrementAndGet() == 1) {
                    context.setSuspendCurrentQueueTimeMillis(50);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                got(message);
                left.countDown();
                if (new String(message.getBody(), StandardCharsets.UTF_8).equals("dead")) {
                    context.setSuspendCurrentQueueTimeMillis(50);
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        System.out.println("STARTED");
        finish(left);
        consumer.shutdown();
    }

    static void litePull(String namesrv, String group, String topic, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        int seen = 0;
        long until = System.currentTimeMillis() + SECONDS * 1000;
        while (seen < count && System.currentTimeMillis() < until) {
            for (MessageExt message : consumer.poll(1000)) {
                got(message);
                seen++;
            }
        }
        if (seen < count) {
            throw new IllegalStateException(seen + " of " + count + " messages came");
        }
        consumer.commitSync();
        consumer.shutdown();
    }

    static void finish(CountDownLatch left) throws Exception {
        if (!left.await(SECONDS, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " messages did not come");
        }
    }
}
