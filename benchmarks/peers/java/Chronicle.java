import java.util.concurrent.locks.LockSupport;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.rollcycles.TestRollCycles;
import net.openhft.chronicle.bytes.Bytes;

/** One end of a Chronicle Queue: `produce|consume DIRECTORY BEGIN_MS SECONDS BYTES`; prints the messages of each second. */
public final class Chronicle {
    public static void main(String[] words) throws Exception {
        long begin = Long.parseLong(words[2]);
        int seconds = Integer.parseInt(words[3]);
        byte[] body = new byte[Integer.parseInt(words[4])];
        java.util.Arrays.fill(body, (byte) 0x5a);
        Seconds counts = new Seconds(begin, seconds);
        try (ChronicleQueue queue =
                ChronicleQueue.singleBuilder(words[1]).rollCycle(TestRollCycles.TEST_SECONDLY).build()) {
            if (words[0].equals("produce")) {
                produce(queue, body, counts);
            } else {
                consume(queue, body, counts);
            }
        }
        counts.print();
    }

    private static void produce(ChronicleQueue queue, byte[] body, Seconds counts) {
        ExcerptAppender appender = queue.createAppender();
        Bytes<?> bytes = Bytes.wrapForRead(body);
        do {
            for (int i = 0; i < Seconds.STEP; i++) {
                bytes.readPosition(0);
                appender.writeBytes(bytes);
            }
        } while (counts.add());
    }

    private static void consume(ChronicleQueue queue, byte[] body, Seconds counts) {
        ExcerptTailer tailer = queue.createTailer();
        Bytes<?> bytes = Bytes.allocateElasticDirect(2 * body.length);
        do {
            for (int i = 0; i < Seconds.STEP; ) {
                bytes.clear();
                if (tailer.readBytes(bytes)) {
                    if (bytes.readRemaining() != body.length) {
                        throw new IllegalStateException("received " + bytes.readRemaining() + " bytes");
                    }
                    i++;
                } else if (counts.isOver()) {
                    return;
                } else {
                    Thread.onSpinWait();
                }
            }
        } while (counts.add());
    }
}
