// A connector in Go, with the standard library alone (draft-be). Each line of standard input is a message.
//
//	WALLAROO_WORKERS=host-a:7100 WALLAROO_COOKIE=secret WALLAROO_INSTANCE=shop-1 go run connector.go < orders.txt
//
// The message id of a line is its number. So the program may be killed at any time: when it is started again with the
// same lines, it goes on behind the committed ones. Source: docs/protocol.md.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"
)

const (
	version  = "0.0.1"
	program  = "connector.go"
	stream   = uint64(1) // The id of the one stream belongs to this instance.
	name     = "lines"
	boundary = 2
	eos      = 4
	longest  = 4 << 20          // Of a frame.
	answer   = 40 * time.Second // A worker may answer HELLO late.
	giveUp   = 300 * time.Second
)

var big = binary.BigEndian

// refused is an answer for a person: connecting again would bring the same one.
type refused string

func (reason refused) Error() string { return string(reason) }

// redirected is the answer of a worker that has not got the instance.
type redirected string

func (address redirected) Error() string { return "redirect to " + string(address) }

var errAgain = errors.New("connect again")

func short(text string) []byte {
	return append(big.AppendUint16(nil, uint16(len(text))), text...)
}

func frame(tag byte, fields ...[]byte) []byte {
	body := bytes.Join(fields, nil)
	// The length counts the tag and the body.
	head := append(big.AppendUint32(nil, uint32(len(body)+1)), tag)
	return append(head, body...)
}

func u64(value uint64) []byte { return big.AppendUint64(nil, value) }

type received struct {
	tag  byte
	body []byte
}

// read passes on the frames of a connection, until it ends. A frame may come in parts, and several at once.
func read(connection net.Conn, frames chan<- received, ended <-chan struct{}) {
	defer close(frames)
	reader := bufio.NewReader(connection)
	for {
		head := make([]byte, 5)
		if _, err := io.ReadFull(reader, head); err != nil {
			return
		}
		length := big.Uint32(head)
		if length == 0 || length > longest {
			return
		}
		body := make([]byte, length-1)
		if _, err := io.ReadFull(reader, body); err != nil {
			return
		}
		select {
		case frames <- received{head[4], body}:
		case <-ended:
			return
		}
	}
}

// session sends the lines to one worker. It returns nil when everything is acknowledged; opened says whether there was OK.
func session(address, cookie, instance string, lines [][]byte) (opened bool, err error) {
	connection, err := net.DialTimeout("tcp", address, 10*time.Second) // With TCP keepalive.
	if err != nil {
		return false, errAgain
	}
	ended := make(chan struct{})
	defer close(ended)
	defer connection.Close()
	hello := frame('H', short(version), short(cookie), short(program), short(instance))
	if _, err := connection.Write(hello); err != nil {
		return false, errAgain
	}
	// A worker is listened to while messages are written, too.
	frames := make(chan received, 64)
	go read(connection, frames, ended)

	late := time.After(answer)
	last := uint64(max(1, len(lines))) // The id of the stream's end.
	credits, next, closed := int64(0), uint64(0), false
	for {
		var one received
		var open bool
		select {
		case one, open = <-frames:
		case <-late:
			if !opened {
				return false, errAgain
			}
			late = nil
			continue
		}
		if !open {
			return opened, errAgain
		}
		switch one.tag {
		case 'O':
			opened = true
			credits = int64(big.Uint32(one.body)) - 1 // NOTIFY costs one.
			committed := committedOf(one.body)
			next = committed + 1
			notify := frame('N', u64(stream), short(name), u64(committed))
			if _, err := connection.Write(notify); err != nil {
				return opened, errAgain
			}
		case 'A':
			credits += int64(big.Uint32(one.body))
			for at := 8; at < len(one.body); at += 16 {
				if big.Uint64(one.body[at:]) == stream && closed && big.Uint64(one.body[at+8:]) >= last {
					return opened, nil
				}
			}
		case '!': // RESTART: connect again, and go on behind the reference of OK.
			return opened, errAgain
		case 'E':
			return opened, refusal(string(one.body[2:]))
		}
		var data []byte
		for ; credits > 0 && !closed; credits-- {
			if next <= uint64(len(lines)) {
				data = append(data, frame('M', []byte{0, 0}, u64(stream), u64(next), lines[next-1])...)
				next++
			} else {
				data = append(data, frame('M', []byte{0, boundary | eos}, u64(stream), u64(last))...)
				closed = true
			}
		}
		if _, err := connection.Write(data); err != nil {
			// The reason may be among the frames that have come.
			credits, closed = 0, true
		}
	}
}

// committedOf is the committed reference of the stream in OK, by its id: a worker may not know the name.
func committedOf(body []byte) uint64 {
	for at := 4; at < len(body); {
		length := int(big.Uint16(body[at+8:]))
		if big.Uint64(body[at:]) == stream {
			return big.Uint64(body[at+10+length:])
		}
		at += 18 + length
	}
	return 0
}

func refusal(reason string) error {
	if rest, found := strings.CutPrefix(reason, "redirect to "); found {
		address, _, _ := strings.Cut(rest, ": ")
		return redirected(address)
	}
	if strings.HasPrefix(reason, "try again later: ") {
		return errAgain
	}
	return refused(reason)
}

func run(addresses []string, cookie, instance string, lines [][]byte) error {
	address, redirects, failures := addresses[0], 0, 0
	lost := time.Now() // Since when there is no session.
	for {
		opened, err := session(address, cookie, instance, lines)
		var elsewhere redirected
		var reason refused
		if err == nil || errors.As(err, &reason) {
			return err
		}
		if opened {
			redirects, failures, lost = 0, 0, time.Now()
		}
		if errors.As(err, &elsewhere) && redirects < 5 {
			redirects, address = redirects+1, string(elsewhere)
			continue
		}
		if time.Since(lost) > giveUp {
			return fmt.Errorf("there is no session with %s", strings.Join(addresses, ", "))
		}
		redirects, address = 0, addresses[failures%len(addresses)]
		pause := min(10*time.Second, 200*time.Millisecond<<min(failures, 6))
		time.Sleep(pause/2 + rand.N(pause/2))
		failures++
	}
}

func main() {
	input, err := io.ReadAll(os.Stdin)
	var lines [][]byte
	if text := bytes.TrimSuffix(input, []byte("\n")); len(input) > 0 {
		lines = bytes.Split(text, []byte("\n"))
	}
	if err == nil {
		addresses := strings.Split(cmp.Or(os.Getenv("WALLAROO_WORKERS"), "127.0.0.1:7100"), ",")
		instance := cmp.Or(os.Getenv("WALLAROO_INSTANCE"), program)
		err = run(addresses, os.Getenv("WALLAROO_COOKIE"), instance, lines)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "connector.go:", err)
		os.Exit(1)
	}
}
