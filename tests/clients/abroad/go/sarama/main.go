// Sarama as a process of its own, in the shape that clients.py describes.
package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"headrace/tests/clients/abroad/work"

	"github.com/IBM/sarama"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func config(s work.Spec) *sarama.Config {
	c := sarama.NewConfig()
	// Sarama speaks as a client of the version that it is told.
	if s.Version != "" {
		version, err := sarama.ParseKafkaVersion(s.Version)
		work.Check(err)
		c.Version = version
	} else {
		c.Version = sarama.MaxVersion
	}
	c.Producer.Return.Successes = true
	c.Producer.MaxMessageBytes = 8 << 20
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	c.Consumer.MaxWaitTime = 200 * time.Millisecond
	return c
}

func produce(_ context.Context, s work.Spec) {
	c := config(s)
	c.Producer.Compression = codecs[s.Compression]
	c.Producer.RequiredAcks = sarama.RequiredAcks(s.Acks)
	if s.Idempotent || s.Transactional != "" {
		c.Producer.Idempotent = true
		c.Producer.Transaction.ID = s.Transactional
		c.Net.MaxOpenRequests = 1
	}
	p, err := sarama.NewSyncProducer(s.Brokers(), c)
	work.Check(err)
	defer p.Close()
	if s.Transactional != "" {
		work.Check(p.BeginTxn())
	}
	var messages []*sarama.ProducerMessage
	for _, m := range s.Messages {
		made := &sarama.ProducerMessage{Topic: s.Topic, Partition: m.Partition}
		if m.Key != nil {
			made.Key = sarama.StringEncoder(*m.Key)
		}
		if m.Value != nil {
			made.Value = sarama.StringEncoder(*m.Value)
		}
		for name, value := range m.Headers {
			made.Headers = append(made.Headers, sarama.RecordHeader{Key: []byte(name), Value: []byte(value)})
		}
		messages = append(messages, made)
	}
	var failed sarama.ProducerErrors
	if err := p.SendMessages(messages); errors.As(err, &failed) {
		work.Check(failed[0].Err)
	} else {
		work.Check(err)
	}
	if s.Transactional != "" && s.Abort {
		work.Check(p.AbortTxn())
	} else if s.Transactional != "" {
		work.Check(p.CommitTxn())
	}
	work.Say(map[string]any{"produced": len(messages)})
}

func stream(ctx context.Context, s work.Spec) {
	c := config(s)
	c.Producer.Idempotent = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Retry.Max = 1000
	c.Net.MaxOpenRequests = 1
	p, err := sarama.NewSyncProducer(s.Brokers(), c)
	work.Check(err)
	defer p.Close()
	for i := 0; ctx.Err() == nil; i++ {
		value := strconv.Itoa(i)
		m := &sarama.ProducerMessage{Topic: s.Topic, Partition: int32(i % s.Partitions), Value: sarama.StringEncoder(value)}
		partition, offset, err := p.SendMessage(m)
		work.Check(err)
		work.Say(work.Message{Value: &value, Headers: map[string]string{}, Partition: partition, Offset: offset})
	}
}

type handler struct {
	mutex  sync.Mutex
	left   int
	enough context.CancelFunc
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error { return nil }

// Cleanup commits: on the way a commit would wait behind the fetch on the same connection.
func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case <-session.Context().Done():
			return nil
		case r, more := <-claim.Messages():
			if !more || !h.take(session, r) {
				return nil
			}
		}
	}
}

func (h *handler) take(session sarama.ConsumerGroupSession, r *sarama.ConsumerMessage) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.left == 0 || session.Context().Err() != nil {
		return false
	}
	m := work.Message{Key: work.Text(r.Key), Value: work.Text(r.Value), Partition: r.Partition, Offset: r.Offset}
	m.Headers = map[string]string{}
	for _, each := range r.Headers {
		m.Headers[string(each.Key)] = string(each.Value)
	}
	work.Say(m)
	session.MarkMessage(r, "")
	h.left--
	if h.left == 0 {
		h.enough()
	}
	return true
}

func consume(ctx context.Context, s work.Spec) {
	c := config(s)
	if s.Committed {
		c.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	group, err := sarama.NewConsumerGroup(s.Brokers(), s.Group, c)
	work.Check(err)
	defer group.Close()
	ctx, enough := context.WithCancel(ctx)
	defer enough()
	h := &handler{left: s.Count, enough: enough}
	for ctx.Err() == nil {
		s.Survive(group.Consume(ctx, []string{s.Topic}, h))
	}
}

func administer(_ context.Context, s work.Spec) {
	brokers := s.Brokers()
	c, err := sarama.NewClient(brokers, config(s))
	work.Check(err)
	admin, err := sarama.NewClusterAdminFromClient(c)
	work.Check(err)
	defer admin.Close()
	retention := "86400000"
	entries := map[string]*string{"retention.ms": &retention}
	work.Check(admin.CreateTopic(s.Topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: entries}, false))
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: s.Topic, ConfigNames: []string{"retention.ms"}}
	configs, err := admin.DescribeConfig(resource)
	work.Check(err)
	said := map[string]any{"retention": configs[0].Value}
	first := time.Now().Add(-time.Hour)
	p, err := sarama.NewSyncProducer(brokers, config(s))
	work.Check(err)
	for i := range 10 {
		m := &sarama.ProducerMessage{Topic: s.Topic, Value: sarama.StringEncoder("x"), Timestamp: first.Add(time.Duration(i) * time.Minute)}
		_, _, err := p.SendMessage(m)
		work.Check(err)
	}
	work.Check(p.Close())
	said["by_time"], err = c.GetOffset(s.Topic, 0, first.Add(210*time.Second).UnixMilli())
	work.Check(err)
	work.Check(admin.DeleteRecords(s.Topic, map[int32]int64{0: 3}))
	said["start"], err = c.GetOffset(s.Topic, 0, sarama.OffsetOldest)
	work.Check(err)
	offsets, err := sarama.NewOffsetManagerFromClient(s.Group, c)
	work.Check(err)
	partition, err := offsets.ManagePartition(s.Topic, 0)
	work.Check(err)
	partition.MarkOffset(6, "")
	offsets.Commit()
	partition.AsyncClose()
	work.Check(offsets.Close())
	end, err := c.GetOffset(s.Topic, 0, sarama.OffsetNewest)
	work.Check(err)
	committed, err := admin.ListConsumerGroupOffsets(s.Group, map[string][]int32{s.Topic: {0}})
	work.Check(err)
	said["lag"] = end - committed.GetBlock(s.Topic, 0).Offset
	work.Check(admin.DeleteConsumerGroup(s.Group))
	work.Check(admin.DeleteTopic(s.Topic))
	topics, err := admin.ListTopics()
	work.Check(err)
	_, said["left"] = topics[s.Topic]
	work.Say(said)
}

func main() {
	work.Run(map[string]work.Task{"produce": produce, "stream": stream, "consume": consume, "administer": administer})
}
