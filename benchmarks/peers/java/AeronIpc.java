import io.aeron.Aeron;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import org.agrona.concurrent.NoOpIdleStrategy;
import org.agrona.concurrent.BackoffIdleStrategy;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * One end of an Aeron IPC stream: `produce|consume DIRECTORY BEGIN_MS SECONDS BYTES`; prints the messages of each second.
 * The consumer's process has the media driver, which does next to nothing for IPC, in one thread that backs off.
 */
public final class AeronIpc {
    private static final String CHANNEL = "aeron:ipc?term-length=64m";
    private static final int STREAM = 10;

    public static void main(String[] words) throws Exception {
        long begin = Long.parseLong(words[2]);
        int seconds = Integer.parseInt(words[3]);
        int size = Integer.parseInt(words[4]);
        Seconds counts = new Seconds(begin, seconds);
        boolean consumes = words[0].equals("consume");
        MediaDriver driver = consumes ? MediaDriver.launch(new MediaDriver.Context()
            .aeronDirectoryName(words[1]).dirDeleteOnStart(true).dirDeleteOnShutdown(true)
            .threadingMode(ThreadingMode.SHARED).sharedIdleStrategy(new BackoffIdleStrategy())) : null;
        try (Aeron aeron = Aeron.connect(new Aeron.Context().aeronDirectoryName(words[1]))) {
            if (consumes) {
                consume(aeron, size, counts);
            } else {
                produce(aeron, size, counts);
            }
        }
        if (driver != null) {
            driver.close();
        }
        counts.print();
    }

    private static void produce(Aeron aeron, int size, Seconds counts) {
        UnsafeBuffer buffer = new UnsafeBuffer(java.nio.ByteBuffer.allocateDirect(size));
        buffer.setMemory(0, size, (byte) 0x5a);
        try (Publication publication = aeron.addExclusivePublication(CHANNEL, STREAM)) {
            do {
                for (int i = 0; i < Seconds.STEP; ) {
                    if (publication.offer(buffer, 0, size) > 0) {
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

    private static void consume(Aeron aeron, int size, Seconds counts) {
        int[] taken = {0};
        FragmentHandler handler = (buffer, offset, length, header) -> {
            if (length != size || buffer.getByte(offset) != 0x5a || buffer.getByte(offset + length - 1) != 0x5a) {
                throw new IllegalStateException("received " + length + " bytes");
            }
            taken[0]++;
        };
        try (Subscription subscription = aeron.addSubscription(CHANNEL, STREAM)) {
            while (!counts.isOver()) {
                if (subscription.poll(handler, Seconds.STEP) == 0) {
                    Thread.onSpinWait();
                }
                while (taken[0] >= Seconds.STEP && counts.add()) {
                    taken[0] -= Seconds.STEP;
                }
            }
        }
    }
}
