// The stage `ship` of the shop in Go, with the standard library and the code made from the .proto files alone:
//
//	go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
//	go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
//	protoc -I FOLDER-OF-THE-PROTOS --go_out=. --go-grpc_out=. \
//	    --go_opt=module=ship,Mpipelines.proto=ship/pipelines,Mcloudevents.proto=ship/cloudevents \
//	    --go-grpc_opt=module=ship,Mpipelines.proto=ship/pipelines,Mcloudevents.proto=ship/cloudevents \
//	    pipelines.proto cloudevents.proto
//	go mod tidy && go run . HOST:PORT[,HOST:PORT]
//
// It works for ever: when its gateway is lost it connects to the next one. It may be killed at any time.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"ship/cloudevents"
	"ship/pipelines"
)

func main() {
	gateways := strings.Split(os.Args[1], ",")
	for at := 0; ; at++ {
		address := gateways[at%len(gateways)]
		if err := work(address); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", address, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// work takes deliveries of one gateway until it is lost.
func work(address string) error {
	connection, err := grpc.NewClient(
		address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Without an answer to a ping the gateway's machine has vanished, and the next gateway is tried.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)), // Inputs may be larger than 4 MiB.
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := pipelines.NewPipelinesClient(connection).Work(context.Background())
	if err != nil {
		return err
	}
	join := &pipelines.JoinStage{Pipeline: "shop/fulfil", Stage: "ship", Concurrency: 4}
	message := &pipelines.WorkerMessage{Message: &pipelines.WorkerMessage_Join{Join: join}}
	for {
		// A message that cannot be sent is explained by what is received.
		_ = channel.Send(message)
		delivery, err := next(channel)
		if err != nil {
			return err
		}
		message = answer(delivery)
	}
}

// next is the next delivery; everything else that a gateway says needs no answer.
func next(channel pipelines.Pipelines_WorkClient) (*pipelines.StageDelivery, error) {
	for {
		event, err := channel.Recv()
		if err != nil {
			return nil, err
		}
		if delivery := event.GetDelivery(); delivery != nil {
			return delivery, nil
		}
	}
}

func answer(delivery *pipelines.StageDelivery) *pipelines.WorkerMessage {
	data, err := ship(delivery)
	if err != nil {
		nack := &pipelines.Nack{Delivery: delivery.Delivery, Reason: err.Error()}
		return &pipelines.WorkerMessage{Message: &pipelines.WorkerMessage_Nack{Nack: nack}}
	}
	contentType := &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: "application/json"}
	event := &cloudevents.CloudEvent{
		Id:          rand.Text(),
		Source:      "/shop/ship.go",
		SpecVersion: "1.0",
		Type:        "shop.order.shipped",
		Attributes: map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{
			"datacontenttype": {Attr: contentType},
		},
		Data: &cloudevents.CloudEvent_BinaryData{BinaryData: data},
	}
	ack := &pipelines.Ack{
		Delivery: delivery.Delivery,
		Output:   &pipelines.Payload{Data: data, ContentType: "application/json"},
		StreamOutputs: []*pipelines.StreamEvents{
			{Stream: "shop/shipments", Events: []*cloudevents.CloudEvent{event}},
		},
	}
	return &pipelines.WorkerMessage{Message: &pipelines.WorkerMessage_Ack{Ack: ack}}
}

// ship is the work of the stage.
func ship(delivery *pipelines.StageDelivery) ([]byte, error) {
	var order, paid, shipment map[string]any
	for _, one := range []struct {
		data []byte
		into *map[string]any
	}{
		{delivery.GetRootEvent().GetBinaryData(), &order},
		{delivery.Outputs["pay"].GetData(), &paid},
		{delivery.Outputs["reserve"].GetData(), &shipment},
	} {
		if err := json.Unmarshal(one.data, one.into); err != nil {
			return nil, err
		}
	}
	shipment["order"], shipment["paid"] = order["order"], paid["paid"]
	return json.Marshal(shipment)
}
