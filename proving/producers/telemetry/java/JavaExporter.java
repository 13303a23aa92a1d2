import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.context.Context;
import io.opentelemetry.exporter.otlp.http.trace.OtlpHttpSpanExporter;
import io.opentelemetry.sdk.common.CompletableResultCode;
import io.opentelemetry.sdk.resources.Resource;
import io.opentelemetry.sdk.trace.ReadWriteSpan;
import io.opentelemetry.sdk.trace.ReadableSpan;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.SpanProcessor;
import io.opentelemetry.sdk.trace.data.SpanData;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** OpenTelemetry's SDK for Java under the contract of proving/producers: as python_exporter.py, over HTTP. */
public final class JavaExporter {
    private static final Map<String, String> GIVEN = new HashMap<>();
    private static final int MOST = 200;

    public static void main(String[] arguments) throws InterruptedException {
        for (int at = 0; at < arguments.length; at += 2) {
            GIVEN.put(arguments[at].substring(2), arguments[at + 1]);
        }
        long first = Long.parseLong(GIVEN.get("first"));
        long count = Long.parseLong(GIVEN.get("count"));
        double rate = Double.parseDouble(GIVEN.getOrDefault("rate", "0"));
        var service = Attributes.of(AttributeKey.stringKey("service.name"), GIVEN.get("client-id"));
        List<SpanData> spans = new ArrayList<>();
        var provider = SdkTracerProvider.builder()
            .setResource(Resource.create(service))
            .addSpanProcessor(new Collected(spans))
            .build();
        var settings = OtlpHttpSpanExporter.builder().setEndpoint("http://" + GIVEN.get("bootstrap") + "/v1/traces");
        if (GIVEN.containsKey("password")) {
            settings.addHeader("Authorization", "Bearer " + GIVEN.get("password"));
        }
        try (var exporter = settings.build()) {
            long begun = System.nanoTime();
            for (long sent = 0; sent < count;) {
                double seconds = (System.nanoTime() - begun) / 1e9;
                long due = rate > 0 ? Math.min(count, 1 + (long) (seconds * rate)) : count;
                if (due <= sent) {
                    Thread.sleep(Math.max(1, (long) (1000 * (sent / rate - seconds))));
                    continue;
                }
                long end = Math.min(due, sent + MOST);
                spans.clear();
                for (long number = sent; number < end; number++) {
                    provider.get("proving").spanBuilder(Long.toString(first + number)).startSpan().end();
                }
                CompletableResultCode result = exporter.export(List.copyOf(spans)).join(1, TimeUnit.HOURS);
                for (; sent < end; sent++) {
                    String line = result.isSuccess() ? "acked " + (first + sent) : "failed " + (first + sent) + " "
                        + String.valueOf(result.getFailureThrowable()).replaceAll("\\s+", " ");
                    System.out.println(line);
                }
                System.out.flush();
            }
        }
        System.out.println("end");
        System.out.flush();
        System.exit(0);
    }

    /** Keeps all spans that have ended. */
    private record Collected(List<SpanData> spans) implements SpanProcessor {
        @Override
        public void onStart(Context parent, ReadWriteSpan span) {}

        @Override
        public boolean isStartRequired() {
            return false;
        }

        @Override
        public void onEnd(ReadableSpan span) {
            spans.add(span.toSpanData());
        }

        @Override
        public boolean isEndRequired() {
            return true;
        }
    }
}
