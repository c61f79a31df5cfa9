import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request and reply: a producer that asks, a consumer that answers through a producer of its own. */
final class Requesting {
    private static final Map<String, Replier> REPLIERS = new ConcurrentHashMap<>();

    private Requesting() {
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("request", Requesting::request);
        verbs.put("replier", command -> {
            REPLIERS.put(command.getString("name"), new Replier(command));
            return null;
        });
        verbs.put("replier-close", command -> {
            REPLIERS.remove(command.getString("name")).close();
            return null;
        });
    }

    private static Object request(JSONObject command) throws Exception {
        DefaultMQProducer producer = Producing.producer(command);
        Message message = new Message(command.getString("topic"), command.getString("body").getBytes(StandardCharsets.UTF_8));
        long timeoutMs = command.getLongValue("timeoutMs");
        Message reply = command.getBooleanValue("later") ? requestLater(producer, message, timeoutMs) : producer.request(message, timeoutMs);
        return Main.map("body", new String(reply.getBody(), StandardCharsets.UTF_8), "topic", reply.getTopic(), "properties", reply.getProperties());
    }

    private static Message requestLater(DefaultMQProducer producer, Message message, long timeoutMs) throws Exception {
        CompletableFuture<Message> future = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) { // 5.3.3 also calls it when the request is sent
                    future.complete(reply);
                }
            }

            @Override
            public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        }, timeoutMs);
        return future.get(timeoutMs, TimeUnit.MILLISECONDS);
    }

    private static final class Replier {
        private final DefaultMQProducer producer;
        private final DefaultMQPushConsumer consumer;

        Replier(JSONObject command) throws Exception {
            String name = command.getString("name");
            producer = new DefaultMQProducer(command.getString("group") + "-replies");
            producer.setNamesrvAddr(command.getString("nameServer"));
            producer.setInstanceName(name + "-producer");
            producer.start();
            consumer = new DefaultMQPushConsumer(command.getString("group"));
            consumer.setNamesrvAddr(command.getString("nameServer"));
            consumer.setInstanceName(name);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(command.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    answer(name, message);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        private void answer(String name, MessageExt message) {
            Map<String, Object> line = Main.map("event", "message", "consumer", name, "properties", message.getProperties());
            try {
                String body = "re:" + new String(message.getBody(), StandardCharsets.UTF_8);
                Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
                line.put("status", producer.send(reply, 5000).getSendStatus().name());
            } catch (Exception error) {
                line.put("error", error.toString());
            }
            Main.print(line);
        }

        void close() {
            consumer.shutdown();
            producer.shutdown();
        }
    }
}
