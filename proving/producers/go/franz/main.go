// The client franz-go under the contract of proving/producers.
package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"producers/contract"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() {
	load := contract.Parse()
	options := []kgo.Opt{kgo.SeedBrokers(load.Bootstrap), kgo.ClientID(load.ClientID)}
	if codec, given := codecs[load.Codec]; given {
		options = append(options, kgo.ProducerBatchCompression(codec))
	}
	if load.Password != "" {
		mechanism := plain.Auth{User: load.ClientID, Pass: load.Password}.AsMechanism()
		options = append(options, kgo.SASL(mechanism))
	}
	if load.TLS != nil {
		options = append(options, kgo.DialTLSConfig(load.TLS))
	}
	client, err := kgo.NewClient(options...)
	contract.Check(err)
	load.Each(func(number int64, value []byte) {
		record := &kgo.Record{Topic: load.Topic, Key: load.Key, Value: value}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { load.Answered(number, err) })
	})
	contract.Check(client.Flush(context.Background()))
	client.Close()
	load.End()
}
