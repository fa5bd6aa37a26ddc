// Reads the topics that a pattern means to the broker, and says each value: no tool of Kafka's subscribes that way.

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ReadsByPattern {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("group.protocol", "consumer");
        properties.put("auto.offset.reset", "earliest");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties, text, text)) {
            consumer.subscribe(new SubscriptionPattern(arguments[2]));
            while (true) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> System.out.println(record.value()));
            }
        }
    }
}
