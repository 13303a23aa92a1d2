import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The client kafka-clients under the contract of proving/producers. */
public final class JavaProducer {
    private static final Map<String, String> GIVEN = new HashMap<>();

    public static void main(String[] arguments) throws InterruptedException {
        for (int at = 0; at < arguments.length; at += 2) {
            GIVEN.put(arguments[at].substring(2), arguments[at + 1]);
        }
        long first = Long.parseLong(GIVEN.get("first"));
        long count = Long.parseLong(GIVEN.get("count"));
        double rate = Double.parseDouble(GIVEN.getOrDefault("rate", "0"));
        int size = Integer.parseInt(GIVEN.getOrDefault("value-bytes", "0"));
        String name = GIVEN.getOrDefault("key", GIVEN.get("client-id"));
        byte[] key = name.isEmpty() ? null : name.getBytes();
        boolean quiet = "failed".equals(GIVEN.get("lines"));
        try (var producer = new KafkaProducer<>(settings(), new ByteArraySerializer(), new ByteArraySerializer())) {
            long begun = System.nanoTime();
            for (long sent = 0; sent < count; sent++) {
                if (rate > 0) {
                    long wait = (long) (sent * 1e9 / rate) - (System.nanoTime() - begun);
                    Thread.sleep(Math.max(0, wait) / 1_000_000);
                }
                long number = first + sent;
                var record = new ProducerRecord<>(GIVEN.get("topic"), key, value(number, size));
                producer.send(record, (told, error) -> {
                    if (error != null) {
                        say("failed " + number + " " + error.toString().replaceAll("\\s+", " "));
                    } else if (!quiet) {
                        say("acked " + number);
                    }
                });
            }
            producer.flush();
        }
        say("end");
    }

    private static byte[] value(long number, int size) {
        String digits = Long.toString(number);
        return ("0".repeat(Math.max(0, size - digits.length())) + digits).getBytes();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", GIVEN.get("bootstrap"));
        settings.put("client.id", GIVEN.get("client-id"));
        String password = GIVEN.get("password");
        String ca = GIVEN.get("ca");
        if (GIVEN.containsKey("codec")) {
            settings.put("compression.type", GIVEN.get("codec"));
        }
        if (password != null) {
            settings.put("sasl.mechanism", "PLAIN");
            settings.put(
                "sasl.jaas.config",
                "org.apache.kafka.common.security.plain.PlainLoginModule required username=\""
                    + GIVEN.get("client-id") + "\" password=\"" + password + "\";");
        }
        if (ca != null) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", ca);
        }
        if (password != null || ca != null) {
            settings.put("security.protocol", (password != null ? "SASL_" : "") + (ca != null ? "SSL" : "PLAINTEXT"));
        }
        return settings;
    }
}
