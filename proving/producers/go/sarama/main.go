// The client sarama under the contract of proving/producers.
package main

import (
	"sync"

	"github.com/IBM/sarama"

	"producers/contract"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func main() {
	load := contract.Parse()
	config := sarama.NewConfig()
	config.ClientID = load.ClientID
	// Without it sarama does not say what was answered.
	config.Producer.Return.Successes = true
	if codec, given := codecs[load.Codec]; given {
		config.Producer.Compression = codec
	}
	if load.Password != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.User = load.ClientID
		config.Net.SASL.Password = load.Password
	}
	if load.TLS != nil {
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = load.TLS
	}
	producer, err := sarama.NewAsyncProducer([]string{load.Bootstrap}, config)
	contract.Check(err)
	var heard sync.WaitGroup
	heard.Add(2)
	go func() {
		defer heard.Done()
		for message := range producer.Successes() {
			load.Answered(message.Metadata.(int64), nil)
		}
	}()
	go func() {
		defer heard.Done()
		for failure := range producer.Errors() {
			load.Answered(failure.Msg.Metadata.(int64), failure.Err)
		}
	}()
	load.Each(func(number int64, value []byte) {
		message := &sarama.ProducerMessage{Topic: load.Topic, Value: sarama.ByteEncoder(value), Metadata: number}
		if load.Key != nil {
			message.Key = sarama.ByteEncoder(load.Key)
		}
		producer.Input() <- message
	})
	producer.AsyncClose()
	heard.Wait()
	load.End()
}
