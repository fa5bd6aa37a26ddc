// go-nsq as a process of its own, in the shape that clients.py describes.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/nsqio/go-nsq"
)

type spec struct {
	Do           string   `json:"do"`
	Nsqd         string   `json:"nsqd"`
	Lookup       string   `json:"lookup"`
	Topic        string   `json:"topic"`
	Channel      string   `json:"channel"`
	How          string   `json:"how"`
	Bodies       []string `json:"bodies"`
	DeferMs      int      `json:"defer_ms"`
	InFlight     int      `json:"in_flight"`
	Count        int64    `json:"count"`
	First        string   `json:"first"`
	DelayMs      int      `json:"delay_ms"`
	HoldMs       int      `json:"hold_ms"`
	MsgTimeoutMs int      `json:"msg_timeout_ms"`
	TLSCa        string   `json:"tls_ca"`
	Snappy       bool     `json:"snappy"`
	Deflate      bool     `json:"deflate"`
	Auth         string   `json:"auth"`
}

func say(what map[string]any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	say(map[string]any{"error": err.Error()})
	os.Exit(1)
}

func config(s spec) *nsq.Config {
	c := nsq.NewConfig()
	c.MaxAttempts = 0
	c.MaxInFlight = max(1, s.InFlight)
	c.LookupdPollInterval = 100 * time.Millisecond
	c.OutputBufferTimeout = 0
	c.BackoffMultiplier = 50 * time.Millisecond
	c.Snappy = s.Snappy
	c.Deflate = s.Deflate
	c.AuthSecret = s.Auth
	c.MsgTimeout = time.Duration(s.MsgTimeoutMs) * time.Millisecond
	if s.TLSCa != "" {
		pem, err := os.ReadFile(s.TLSCa)
		if err != nil {
			fail(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		c.TlsV1 = true
		c.TlsConfig = &tls.Config{RootCAs: roots, ServerName: "localhost"}
	}
	return c
}

func publish(s spec) {
	producer, err := nsq.NewProducer(s.Nsqd, config(s))
	if err != nil {
		fail(err)
	}
	producer.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	var bodies [][]byte
	for _, body := range s.Bodies {
		bodies = append(bodies, []byte(body))
	}
	if s.How == "batch" {
		err = producer.MultiPublish(s.Topic, bodies)
	} else {
		for _, body := range bodies {
			if s.How == "defer" {
				err = producer.DeferredPublish(s.Topic, time.Duration(s.DeferMs)*time.Millisecond, body)
			} else {
				err = producer.Publish(s.Topic, body)
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		fail(err)
	}
	producer.Stop()
	say(map[string]any{"published": len(bodies)})
}

func consume(s spec) {
	consumer, err := nsq.NewConsumer(s.Topic, s.Channel, config(s))
	if err != nil {
		fail(err)
	}
	consumer.SetLogger(log.New(os.Stderr, "", 0), nsq.LogLevelWarning)
	left := s.Count
	if left == 0 {
		left = 1 << 62
	}
	finish := func(m *nsq.Message) {
		m.Finish()
		if atomic.AddInt64(&left, -1) > 0 {
			return
		}
		go func() {
			if s.First == "hang" {
				// Stop would wait for what was never answered.
				time.Sleep(200 * time.Millisecond)
				os.Exit(0)
			}
			consumer.Stop()
		}()
	}
	delay := time.Duration(s.DelayMs) * time.Millisecond
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(m *nsq.Message) error {
		at := time.Now().UnixMilli()
		say(map[string]any{
			"body": string(m.Body), "attempts": m.Attempts, "timestamp": m.Timestamp, "id": string(m.ID[:]), "at": at,
		})
		m.DisableAutoResponse()
		first := "finish"
		if m.Attempts == 1 && s.First != "" {
			first = s.First
		}
		switch first {
		case "requeue":
			m.RequeueWithoutBackoff(delay)
		case "fail":
			m.Requeue(delay)
		case "touch":
			go func() {
				for i := 0; i < 8; i++ {
					time.Sleep(time.Duration(s.HoldMs) * time.Millisecond / 8)
					m.Touch()
				}
				finish(m)
			}()
		case "finish":
			finish(m)
		}
		return nil
	}), 4)
	if s.Lookup != "" {
		err = consumer.ConnectToNSQLookupd(s.Lookup)
	} else {
		err = consumer.ConnectToNSQD(s.Nsqd)
	}
	if err != nil {
		fail(err)
	}
	<-consumer.StopChan
}

func main() {
	var s spec
	if len(os.Args) != 2 {
		fail(errors.New("one argument is wanted: the work, in JSON"))
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &s); err != nil {
		fail(err)
	}
	if s.Do == "publish" {
		publish(s)
	} else {
		consume(s)
	}
}
