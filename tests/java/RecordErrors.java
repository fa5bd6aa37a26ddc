// Sends ten records in one batch, of which those without a key or with an old time are bad, and says what became of each.

import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

public class RecordErrors {
    public static void main(String[] arguments) throws InterruptedException {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("linger.ms", "1000");
        StringSerializer text = new StringSerializer();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            long now = System.currentTimeMillis();
            for (String what : arguments[2].split(",")) {
                String key = what.equals("keyless") ? null : "key";
                Long time = what.equals("old") ? now - 7_200_000 : what.equals("new") ? now + 7_200_000 : now;
                sent.add(producer.send(new ProducerRecord<>(arguments[1], 0, time, key, what)));
            }
            producer.flush();
        }
        for (Future<RecordMetadata> each : sent) {
            try {
                each.get();
                System.out.println("stored");
            } catch (ExecutionException failed) {
                System.out.println(failed.getCause().getClass().getSimpleName());
            }
        }
    }
}
