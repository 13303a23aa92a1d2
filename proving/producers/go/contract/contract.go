// Package contract has what the programs of Go's clients have in common: the contract of proving/producers.
package contract

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Load is what a program sends, and how.
type Load struct {
	Bootstrap, Topic, ClientID, Codec, Password string
	// Key is the key of every record; nil for none.
	Key []byte
	// TLS is nil for connections without it.
	TLS *tls.Config

	first, count int64
	rate         float64
	size         int
	quiet        bool
	lock         sync.Mutex
}

// Parse reads the arguments of the program.
func Parse() *Load {
	load := &Load{}
	flag.StringVar(&load.Bootstrap, "bootstrap", "", "")
	flag.StringVar(&load.Topic, "topic", "", "")
	flag.StringVar(&load.ClientID, "client-id", "", "")
	flag.StringVar(&load.Codec, "codec", "", "")
	flag.StringVar(&load.Password, "password", "", "")
	flag.Int64Var(&load.first, "first", 0, "")
	flag.Int64Var(&load.count, "count", 0, "")
	flag.Float64Var(&load.rate, "rate", 0, "")
	flag.IntVar(&load.size, "value-bytes", 0, "")
	ca := flag.String("ca", "", "")
	lines := flag.String("lines", "all", "")
	key := flag.String("key", "\x00", "")
	flag.Parse()
	load.quiet = *lines == "failed"
	switch *key {
	case "\x00":
		load.Key = []byte(load.ClientID)
	case "":
	default:
		load.Key = []byte(*key)
	}
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		Check(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		load.TLS = &tls.Config{RootCAs: pool}
	}
	return load
}

// Check ends the program where there is an error.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Each calls send for each record, at the wanted rate.
func (load *Load) Each(send func(number int64, value []byte)) {
	begun := time.Now()
	for sent := int64(0); sent < load.count; sent++ {
		if load.rate > 0 {
			time.Sleep(time.Duration(float64(sent)/load.rate*float64(time.Second)) - time.Since(begun))
		}
		number := load.first + sent
		send(number, fmt.Appendf(nil, "%0*d", load.size, number))
	}
}

// Answered says what became of a record.
func (load *Load) Answered(number int64, err error) {
	if err != nil {
		load.say(fmt.Sprintf("failed %d %s", number, strings.Join(strings.Fields(err.Error()), " ")))
	} else if !load.quiet {
		load.say(fmt.Sprintf("acked %d", number))
	}
}

// End says that nothing is under way any more.
func (load *Load) End() {
	load.say("end")
}

func (load *Load) say(line string) {
	load.lock.Lock()
	defer load.lock.Unlock()
	fmt.Println(line)
}
