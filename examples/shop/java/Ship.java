import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.ByteString;
import io.cloudevents.v1.Cloudevents.CloudEvent;
import io.cloudevents.v1.Cloudevents.CloudEvent.CloudEventAttributeValue;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import wallaroo.pipelines.v1.PipelinesGrpc;
import wallaroo.pipelines.v1.PipelinesOuterClass.Ack;
import wallaroo.pipelines.v1.PipelinesOuterClass.JoinStage;
import wallaroo.pipelines.v1.PipelinesOuterClass.Nack;
import wallaroo.pipelines.v1.PipelinesOuterClass.Payload;
import wallaroo.pipelines.v1.PipelinesOuterClass.StageDelivery;
import wallaroo.pipelines.v1.PipelinesOuterClass.StreamEvents;
import wallaroo.pipelines.v1.PipelinesOuterClass.WorkerEvent;
import wallaroo.pipelines.v1.PipelinesOuterClass.WorkerMessage;

/**
 * The stage `ship` of the shop in Java, made from the .proto files alone:
 *
 * <pre>mvn compile exec:java -Dexec.mainClass=Ship -Dexec.args=HOST:PORT[,HOST:PORT]</pre>
 *
 * It works for ever: when its gateway is lost it connects to the next one. It may be killed at any time.
 */
public final class Ship implements ClientResponseObserver<WorkerMessage, WorkerEvent> {
  private final CountDownLatch ended = new CountDownLatch(1);
  private ClientCallStreamObserver<WorkerMessage> messages;

  public static void main(String[] arguments) throws InterruptedException {
    String[] gateways = arguments[0].split(",");
    for (int at = 0; ; at++) {
      ManagedChannel channel =
          Grpc.newChannelBuilder(gateways[at % gateways.length], InsecureChannelCredentials.create())
              .maxInboundMessageSize(64 << 20) // inputs may be larger than 4 MiB
              .build();
      Ship ship = new Ship();
      PipelinesGrpc.newStub(channel).work(ship);
      ship.messages.onNext(
          WorkerMessage.newBuilder()
              .setJoin(JoinStage.newBuilder().setPipeline("shop/fulfil").setStage("ship").setConcurrency(4))
              .build());
      ship.ended.await();
      channel.shutdownNow();
      Thread.sleep(500);
    }
  }

  static Ack acked(StageDelivery work) {
    JsonObject shipment = json(work.getOutputsOrThrow("reserve").getData());
    shipment.add("order", json(work.getRootEvent().getBinaryData()).get("order"));
    shipment.add("paid", json(work.getOutputsOrThrow("pay").getData()).get("paid"));
    ByteString data = ByteString.copyFromUtf8(shipment.toString());
    CloudEventAttributeValue type = CloudEventAttributeValue.newBuilder().setCeString("application/json").build();
    CloudEvent event =
        CloudEvent.newBuilder()
            .setId(UUID.randomUUID().toString())
            .setSource("/shop/Ship.java")
            .setSpecVersion("1.0")
            .setType("shop.order.shipped")
            .putAttributes("datacontenttype", type)
            .setBinaryData(data)
            .build();
    return Ack.newBuilder()
        .setDelivery(work.getDelivery())
        .setOutput(Payload.newBuilder().setData(data).setContentType("application/json"))
        .addStreamOutputs(StreamEvents.newBuilder().setStream("shop/shipments").addEvents(event))
        .build();
  }

  private static JsonObject json(ByteString data) {
    return JsonParser.parseString(data.toStringUtf8()).getAsJsonObject();
  }

  @Override
  public void beforeStart(ClientCallStreamObserver<WorkerMessage> messages) {
    this.messages = messages;
  }

  @Override
  public void onNext(WorkerEvent event) {
    if (!event.hasDelivery()) return;
    StageDelivery work = event.getDelivery();
    WorkerMessage.Builder answer = WorkerMessage.newBuilder();
    try {
      answer.setAck(acked(work));
    } catch (RuntimeException error) {
      answer.setNack(Nack.newBuilder().setDelivery(work.getDelivery()).setReason(error.toString()));
    }
    messages.onNext(answer.build());
  }

  @Override
  public void onError(Throwable error) {
    System.err.println(error.getMessage());
    ended.countDown();
  }

  @Override
  public void onCompleted() {
    ended.countDown();
  }
}
