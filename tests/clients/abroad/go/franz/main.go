// franz-go as a process of its own, in the shape that clients.py describes.
package main

import (
	"context"
	"strconv"
	"time"

	"headrace/tests/clients/abroad/work"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func client(s work.Spec, options ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.Brokers()...)}, options...)...)
	work.Check(err)
	return c
}

func produce(ctx context.Context, s work.Spec) {
	acks := map[int]kgo.Acks{0: kgo.NoAck(), 1: kgo.LeaderAck(), -1: kgo.AllISRAcks()}[s.Acks]
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[s.Compression]),
		kgo.RequiredAcks(acks),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(8 << 20),
	}
	if !s.Idempotent && s.Transactional == "" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	if s.Transactional != "" {
		options = append(options, kgo.TransactionalID(s.Transactional))
	}
	c := client(s, options...)
	defer c.Close()
	if s.Transactional != "" {
		work.Check(c.BeginTransaction())
	}
	var records []*kgo.Record
	for _, m := range s.Messages {
		r := &kgo.Record{Topic: s.Topic, Partition: m.Partition, Key: work.Bytes(m.Key), Value: work.Bytes(m.Value)}
		for name, value := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		records = append(records, r)
	}
	work.Check(c.ProduceSync(ctx, records...).FirstErr())
	if s.Transactional != "" {
		work.Check(c.EndTransaction(ctx, kgo.TransactionEndTry(!s.Abort)))
	}
	work.Say(map[string]any{"produced": len(records)})
}

func stream(ctx context.Context, s work.Spec) {
	c := client(s, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer c.Close()
	for i := 0; ctx.Err() == nil; i++ {
		value := strconv.Itoa(i)
		r := &kgo.Record{Topic: s.Topic, Partition: int32(i % s.Partitions), Value: []byte(value)}
		work.Check(c.ProduceSync(context.WithoutCancel(ctx), r).FirstErr())
		work.Say(work.Message{Value: &value, Headers: map[string]string{}, Partition: r.Partition, Offset: r.Offset})
	}
}

func consume(ctx context.Context, s work.Spec) {
	// The client outlives the signal, to leave its group.
	whole := context.WithoutCancel(ctx)
	if s.NewProtocol {
		whole = context.WithValue(whole, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	options := []kgo.Opt{
		kgo.WithContext(whole),
		kgo.ConsumeTopics(s.Topic),
		kgo.ConsumerGroup(s.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
	if s.Pattern {
		options = append(options, kgo.ConsumeRegex())
	}
	if s.Committed {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	c := client(s, options...)
	defer c.Close()
	for n := 0; n < s.Count && ctx.Err() == nil; {
		fetched := c.PollRecords(ctx, s.Count-n)
		if ctx.Err() == nil {
			s.Survive(fetched.Err())
		}
		fetched.EachRecord(func(r *kgo.Record) {
			m := work.Message{Key: work.Text(r.Key), Value: work.Text(r.Value), Partition: r.Partition, Offset: r.Offset}
			m.Headers = map[string]string{}
			for _, h := range r.Headers {
				m.Headers[h.Key] = string(h.Value)
			}
			work.Say(m)
			n++
		})
		s.Survive(c.CommitRecords(whole, fetched.Records()...))
		c.AllowRebalance()
	}
}

func administer(ctx context.Context, s work.Spec) {
	c := client(s)
	defer c.Close()
	admin := kadm.NewClient(c)
	retention := "86400000"
	_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &retention}, s.Topic)
	work.Check(err)
	configs, err := admin.DescribeTopicConfigs(ctx, s.Topic)
	work.Check(err)
	said := map[string]any{}
	for _, each := range configs[0].Configs {
		if each.Key == "retention.ms" {
			said["retention"] = each.MaybeValue()
		}
	}
	first := time.Now().Add(-time.Hour)
	for i := range 10 {
		r := &kgo.Record{Topic: s.Topic, Timestamp: first.Add(time.Duration(i) * time.Minute), Value: []byte("x")}
		p := client(s, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		work.Check(p.ProduceSync(ctx, r).FirstErr())
		p.Close()
	}
	listed, err := admin.ListOffsetsAfterMilli(ctx, first.Add(210*time.Second).UnixMilli(), s.Topic)
	work.Check(err)
	found, _ := listed.Lookup(s.Topic, 0)
	said["by_time"] = found.Offset
	_, err = admin.DeleteRecords(ctx, kadm.Offsets{s.Topic: {0: {Topic: s.Topic, Partition: 0, At: 3}}})
	work.Check(err)
	starts, err := admin.ListStartOffsets(ctx, s.Topic)
	work.Check(err)
	found, _ = starts.Lookup(s.Topic, 0)
	said["start"] = found.Offset
	offsets := kadm.Offsets{s.Topic: {0: {Topic: s.Topic, Partition: 0, At: 6}}}
	work.Check(admin.CommitAllOffsets(ctx, s.Group, offsets))
	lag, err := admin.Lag(ctx, s.Group)
	work.Check(err)
	said["lag"] = lag[s.Group].Lag.TotalByTopic()[s.Topic].Lag
	_, err = admin.DeleteGroup(ctx, s.Group)
	work.Check(err)
	_, err = admin.DeleteTopic(ctx, s.Topic)
	work.Check(err)
	topics, err := admin.ListTopics(ctx)
	work.Check(err)
	said["left"] = topics.Has(s.Topic)
	work.Say(said)
}

func main() {
	work.Run(map[string]work.Task{"produce": produce, "stream": stream, "consume": consume, "administer": administer})
}
