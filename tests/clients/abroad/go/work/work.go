// Package work is what a client program is asked to do, and how it answers, in the shape that clients.py describes.
package work

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Message is one message, as it is sent and as it came. A value or key that is absent is null.
type Message struct {
	Key       *string           `json:"key"`
	Value     *string           `json:"value"`
	Headers   map[string]string `json:"headers"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
}

// Spec is the program's one argument.
type Spec struct {
	Do            string    `json:"do"`
	Broker        string    `json:"broker"`
	Topic         string    `json:"topic"`
	Pattern       bool      `json:"pattern"`
	Messages      []Message `json:"messages"`
	Times         int       `json:"times"`
	Compression   string    `json:"compression"`
	Acks          int       `json:"acks"`
	Idempotent    bool      `json:"idempotent"`
	Transactional string    `json:"transactional_id"`
	Abort         bool      `json:"abort"`
	Group         string    `json:"group"`
	Count         int       `json:"count"`
	Committed     bool      `json:"committed"`
	NewProtocol   bool      `json:"new_protocol"`
	Version       string    `json:"version"`
	Partitions    int       `json:"partitions"`
	Patient       bool      `json:"patient"`
}

// Brokers are where the client begins.
func (s Spec) Brokers() []string {
	return strings.Split(s.Broker, ",")
}

// Asked reads the argument.
func Asked() Spec {
	s := Spec{Acks: -1, Compression: "none", Times: 1}
	if err := json.Unmarshal([]byte(os.Args[1]), &s); err != nil {
		panic(err)
	}
	for _, m := range s.Messages {
		if m.Value != nil {
			*m.Value = strings.Repeat(*m.Value, s.Times)
		}
	}
	return s
}

// Task is what a client can be asked to do.
type Task func(context.Context, Spec)

// Run does what is asked, until it is done or the program is told to stop.
func Run(tasks map[string]Task) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := Asked()
	tasks[s.Do](ctx, s)
}

// Say prints one line.
func Say(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// Check ends the program with the error's words.
func Check(err error) {
	if err != nil {
		Say(map[string]any{"error": err.Error()})
		os.Exit(1)
	}
}

// Survive ends the program as Check does, unless it is to be patient: then the error is logged, and it goes on.
func (s Spec) Survive(err error) {
	if err != nil && s.Patient {
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(100 * time.Millisecond)
		return
	}
	Check(err)
}

// Bytes of a string that may be absent.
func Bytes(s *string) []byte {
	if s == nil {
		return nil
	}
	return []byte(*s)
}

// Text of bytes that may be absent.
func Text(b []byte) *string {
	if b == nil {
		return nil
	}
	s := string(b)
	return &s
}
