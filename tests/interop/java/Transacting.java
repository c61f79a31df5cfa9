import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions: what the local work says, and what is answered when the broker asks. */
final class Transacting {
    private static final Map<String, Transacting> PRODUCERS = new ConcurrentHashMap<>();

    private final List<Object> checked = new CopyOnWriteArrayList<>();
    private TransactionMQProducer producer;
    private volatile LocalTransactionState answer;

    private Transacting(LocalTransactionState answer) {
        this.answer = answer;
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("tx-producer", Transacting::open);
        verbs.put("tx-send", command -> of(command).send(command));
        verbs.put("tx-answer", command -> {
            of(command).answer = LocalTransactionState.valueOf(command.getString("answer"));
            return null;
        });
        verbs.put("tx-checked", command -> of(command).checked);
        verbs.put("tx-close", command -> {
            Transacting closed = PRODUCERS.remove(command.getString("name"));
            if (closed != null) {
                closed.producer.shutdown();
            }
            return null;
        });
    }

    private static Transacting of(JSONObject command) {
        return PRODUCERS.get(command.getString("name"));
    }

    private static Object open(JSONObject command) throws Exception {
        Transacting made = new Transacting(LocalTransactionState.valueOf(command.getString("answer")));
        made.producer = new TransactionMQProducer(command.getString("group"), Main.hook(command));
        made.producer.setNamesrvAddr(command.getString("nameServer"));
        made.producer.setInstanceName(command.getString("name"));
        made.producer.setVipChannelEnabled(false);
        made.producer.setTransactionListener(made.listener());
        made.producer.start();
        PRODUCERS.put(command.getString("name"), made);
        return null;
    }

    private TransactionListener listener() {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checked.add(Main.map("topic", message.getTopic(), "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "msgId", message.getMsgId(), "transactionId", message.getTransactionId(), "key", message.getKeys()));
                return answer;
            }
        };
    }

    private Object send(JSONObject command) throws Exception {
        List<Object> results = new ArrayList<>();
        JSONArray bodies = command.getJSONArray("bodies");
        LocalTransactionState state = LocalTransactionState.valueOf(command.getString("state"));
        for (int i = 0; i < bodies.size(); i++) {
            Message message = new Message(command.getString("topic"), bodies.getString(i).getBytes(StandardCharsets.UTF_8));
            message.setKeys("key-" + bodies.getString(i));
            TransactionSendResult sent = producer.sendMessageInTransaction(message, state);
            results.add(Main.map("status", sent.getSendStatus().name(), "state", sent.getLocalTransactionState().name(),
                "transactionId", sent.getTransactionId(), "msgId", sent.getMsgId(), "offset", sent.getQueueOffset()));
        }
        return results;
    }
}
