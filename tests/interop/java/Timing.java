import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/** Messages for a time of their own; what only the client of 5.x has is called by name. */
final class Timing {
    private Timing() {
    }

    static void register(Map<String, Main.Verb> verbs) {
        verbs.put("send-timed", Timing::send);
        verbs.put("recall", command -> invoke(Producing.producer(command), "recallMessage",
            new Class<?>[] {String.class, String.class}, command.getString("topic"), command.getString("handle")));
    }

    /** "setter" names a method of Message that takes a long, "property" a property that is set by hand. */
    private static Object send(JSONObject command) throws Exception {
        DefaultMQProducer producer = Producing.producer(command);
        Message message = new Message(command.getString("topic"), command.getString("body").getBytes(StandardCharsets.UTF_8));
        if (command.containsKey("setter")) {
            invoke(message, command.getString("setter"), new Class<?>[] {long.class}, command.getLongValue("value"));
        } else {
            MessageAccessor.putProperty(message, command.getString("property"), command.getString("value"));
        }
        SendResult sent = producer.send(message);
        Object handle = command.containsKey("setter") ? invoke(sent, "getRecallHandle", new Class<?>[0]) : null;
        return Main.map("status", sent.getSendStatus().name(), "msgId", sent.getMsgId(), "handle", handle);
    }

    private static Object invoke(Object target, String name, Class<?>[] types, Object... arguments) throws Exception {
        try {
            return target.getClass().getMethod(name, types).invoke(target, arguments);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }
}
