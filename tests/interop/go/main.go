// The Go client, driven by lines of JSON as ../java/Main.java is.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const timeout = 10 * time.Second

type command struct {
	ID         int      `json:"id"`
	Do         string   `json:"do"`
	Name       string   `json:"name"`
	Group      string   `json:"group"`
	NameServer string   `json:"nameServer"`
	Broker     string   `json:"broker"`
	Topic      string   `json:"topic"`
	Tag        string   `json:"tag"`
	Tags       string   `json:"tags"`
	Key        string   `json:"key"`
	Bodies     []string `json:"bodies"`
	Shard      *int     `json:"shard"`
	Queue      int      `json:"queue"`
	Offset     int64    `json:"offset"`
	FailFirst  int32    `json:"failFirst"`
	Orderly    bool     `json:"orderly"`
	Broadcast  bool     `json:"broadcast"`
	State      string   `json:"state"`
	Answer     string   `json:"answer"`
}

type line map[string]interface{}

var (
	printing  sync.Mutex
	producers = map[string]rocketmq.Producer{}
	consumers = map[string]rocketmq.PushConsumer{}
	shards    sync.Map
)

func print(one line) {
	text, _ := json.Marshal(one)
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(string(text))
}

type shardSelector struct{ otherwise producer.QueueSelector }

func (s shardSelector) Select(message *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if shard, given := shards.Load(message); given {
		return queues[shard.(int)%len(queues)]
	}
	return s.otherwise.Select(message, queues, last)
}

func messages(c command) []*primitive.Message {
	made := []*primitive.Message{}
	for _, body := range c.Bodies {
		message := primitive.NewMessage(c.Topic, []byte(body))
		if c.Tag != "" {
			message.WithTag(c.Tag)
		}
		if c.Key != "" {
			message.WithKeys([]string{c.Key})
		}
		if c.Shard != nil {
			shards.Store(message, *c.Shard)
		}
		made = append(made, message)
	}
	return made
}

func result(sent *primitive.SendResult) line {
	status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[sent.Status]
	return line{"status": status, "msgId": sent.MsgID, "offsetMsgId": sent.OffsetMsgID, "broker": sent.MessageQueue.BrokerName,
		"queue": sent.MessageQueue.QueueId, "offset": sent.QueueOffset, "region": sent.RegionID, "traceOn": sent.TraceOn}
}

func openProducer(c command) (interface{}, error) {
	made, err := rocketmq.NewProducer(producer.WithNameServer([]string{c.NameServer}), producer.WithGroupName(c.Group),
		producer.WithInstanceName(c.Name), producer.WithSendMsgTimeout(timeout),
		producer.WithQueueSelector(shardSelector{producer.NewRoundRobinQueueSelector()}))
	if err != nil {
		return nil, err
	}
	producers[c.Name] = made
	return nil, made.Start()
}

func send(c command) (interface{}, error) {
	results := []line{}
	for _, message := range messages(c) {
		sent, err := producers[c.Name].SendSync(context.Background(), message)
		if err != nil {
			return nil, err
		}
		results = append(results, result(sent))
	}
	return results, nil
}

func sendBatch(c command) (interface{}, error) {
	sent, err := producers[c.Name].SendSync(context.Background(), messages(c)...)
	if err != nil {
		return nil, err
	}
	return result(sent), nil
}

func sendLater(c command) (interface{}, error) {
	type outcome struct {
		sent *primitive.SendResult
		err  error
	}
	all := messages(c)
	done := make(chan outcome, len(all))
	for _, message := range all {
		callback := func(_ context.Context, sent *primitive.SendResult, err error) { done <- outcome{sent, err} }
		if err := producers[c.Name].SendAsync(context.Background(), callback, message); err != nil {
			return nil, err
		}
	}
	results := []line{}
	for range all {
		select {
		case one := <-done:
			if one.err != nil {
				return nil, one.err
			}
			results = append(results, result(one.sent))
		case <-time.After(timeout):
			return nil, errors.New("an asynchronous send did not end")
		}
	}
	return results, nil
}

func sendOneWay(c command) (interface{}, error) {
	for _, message := range messages(c) {
		if err := producers[c.Name].SendOneWay(context.Background(), message); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func described(message *primitive.MessageExt) line {
	return line{"topic": message.Topic, "body": string(message.Body), "tag": message.GetTags(), "keys": message.GetKeys(),
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "msgId": message.MsgId, "reconsumeTimes": message.ReconsumeTimes}
}

func expression(c command) consumer.MessageSelector {
	if c.Tags == "" {
		return consumer.MessageSelector{}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: c.Tags}
}

func push(c command) (interface{}, error) {
	model := consumer.Clustering
	if c.Broadcast {
		model = consumer.BroadCasting
	}
	made, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{c.NameServer}), consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.Name), consumer.WithConsumerModel(model), consumer.WithConsumerOrder(c.Orderly),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeGoroutineNums(2),
		consumer.WithSuspendCurrentQueueTimeMillis(200*time.Millisecond))
	if err != nil {
		return nil, err
	}
	err = made.Subscribe(c.Topic, expression(c), func(ctx context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failed := false
		for _, message := range all {
			one := described(message)
			one["event"], one["consumer"] = "message", c.Name
			print(one)
			failed = failed || message.ReconsumeTimes < c.FailFirst
		}
		if failed && c.Orderly {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if failed {
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	consumers[c.Name] = made
	return nil, made.Start()
}

func pullFrom(c command) (interface{}, error) {
	made, err := rocketmq.NewPullConsumer(consumer.WithNameServer([]string{c.NameServer}), consumer.WithGroupName(c.Group), consumer.WithInstance(c.Name))
	if err != nil {
		return nil, err
	}
	if err = made.Subscribe(c.Topic, expression(c)); err != nil {
		return nil, err
	}
	if err = made.Start(); err != nil {
		return nil, err
	}
	defer made.Shutdown()
	queue := &primitive.MessageQueue{Topic: c.Topic, BrokerName: c.Broker, QueueId: c.Queue}
	pulled, err := made.PullFrom(context.Background(), queue, c.Offset, 32)
	if err != nil {
		return nil, err
	}
	found := []line{}
	for _, message := range pulled.GetMessageExts() {
		found = append(found, described(message))
	}
	return line{"next": pulled.NextBeginOffset, "min": pulled.MinOffset, "max": pulled.MaxOffset, "messages": found}, nil
}

func manageTopic(c command) (interface{}, error) {
	made, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{c.NameServer})))
	if err != nil {
		return nil, err
	}
	defer made.Close()
	if c.Do == "create-topic" {
		return nil, made.CreateTopic(context.Background(), admin.WithTopicCreate(c.Topic), admin.WithBrokerAddrCreate(c.Broker))
	}
	return nil, made.DeleteTopic(context.Background(), admin.WithTopicDelete(c.Topic), admin.WithBrokerAddrDelete(c.Broker))
}

func closeOne(c command) (interface{}, error) {
	if made, found := producers[c.Name]; found {
		delete(producers, c.Name)
		return nil, made.Shutdown()
	}
	if made, found := consumers[c.Name]; found {
		delete(consumers, c.Name)
		return nil, made.Shutdown()
	}
	return nil, nil
}

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath("client-go.log")
	verbs := map[string]func(command) (interface{}, error){
		"producer": openProducer, "producer-close": closeOne, "send": send, "batch": sendBatch, "async": sendLater, "oneway": sendOneWay,
		"push": push, "push-close": closeOne, "pull-from": pullFrom, "create-topic": manageTopic, "delete-topic": manageTopic,
		"tx-producer": openTransactor, "tx-send": sendInTransaction, "tx-answer": aboutTransactor, "tx-checked": aboutTransactor,
		"tx-close": aboutTransactor,
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(make([]byte, 1<<20), 1<<26)
	for input.Scan() {
		var c command
		err := json.Unmarshal(input.Bytes(), &c)
		var given interface{}
		if verb, found := verbs[c.Do]; err == nil && found {
			given, err = verb(c)
		} else if err == nil {
			err = errors.New("no verb " + c.Do)
		}
		if err != nil {
			print(line{"id": c.ID, "error": err.Error(), "code": -1})
		} else {
			print(line{"id": c.ID, "result": given})
		}
	}
}
