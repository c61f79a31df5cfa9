// Transactions: what the local work says, and what is answered when the broker asks.
package main

import (
	"context"
	"fmt"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var (
	transacting  = map[string]*transactor{}
	transactions = map[string]primitive.LocalTransactionState{"COMMIT_MESSAGE": primitive.CommitMessageState,
		"ROLLBACK_MESSAGE": primitive.RollbackMessageState, "UNKNOW": primitive.UnknowState}
)

type transactor struct {
	sync.Mutex
	made    rocketmq.TransactionProducer
	state   string
	answer  string
	checked []line
}

func (t *transactor) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	t.Lock()
	defer t.Unlock()
	return transactions[t.state]
}

func (t *transactor) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	t.Lock()
	defer t.Unlock()
	t.checked = append(t.checked, line{"topic": message.Topic, "body": string(message.Body), "key": message.GetKeys(),
		"msgId": message.MsgId, "transactionId": message.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)})
	return transactions[t.answer]
}

func openTransactor(c command) (interface{}, error) {
	one := &transactor{answer: c.Answer, checked: []line{}}
	made, err := rocketmq.NewTransactionProducer(one, producer.WithNameServer([]string{c.NameServer}),
		producer.WithGroupName(c.Group), producer.WithInstanceName(c.Name), producer.WithSendMsgTimeout(timeout))
	if err != nil {
		return nil, err
	}
	one.made = made
	transacting[c.Name] = one
	return nil, made.Start()
}

func sendInTransaction(c command) (interface{}, error) {
	one, results := transacting[c.Name], []line{}
	one.Lock()
	one.state = c.State
	one.Unlock()
	for _, message := range messages(c) {
		message.WithKeys([]string{"key-" + string(message.Body)})
		sent, err := one.made.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return nil, err
		}
		status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[sent.Status]
		results = append(results, line{"status": status, "state": c.State, "msgId": sent.MsgID, "offset": sent.QueueOffset,
			"transactionId": sent.TransactionID})
	}
	return results, nil
}

func aboutTransactor(c command) (interface{}, error) {
	one, found := transacting[c.Name]
	if !found {
		return nil, fmt.Errorf("no transaction producer %s", c.Name)
	}
	if c.Do == "tx-close" {
		delete(transacting, c.Name)
		return nil, one.made.Shutdown()
	}
	one.Lock()
	defer one.Unlock()
	if c.Do == "tx-answer" {
		one.answer = c.Answer
	}
	return one.checked, nil
}
