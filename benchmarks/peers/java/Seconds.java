/** Messages of each second of a run that two processes begin and end together, by the wall clock. */
final class Seconds {
    static final int STEP = 16;
    private final long begin;
    private final long[] counts;

    Seconds(long begin, int seconds) {
        this.begin = begin;
        this.counts = new long[seconds];
    }

    boolean isOver() {
        return System.currentTimeMillis() >= begin + counts.length * 1000L;
    }

    /** Count STEP messages of now; false when the run is over. What comes before it begins only warms up. */
    boolean add() {
        long since = System.currentTimeMillis() - begin;
        if (since >= counts.length * 1000L) {
            return false;
        }
        if (since >= 0) {
            counts[(int) (since / 1000)] += STEP;
        }
        return true;
    }

    void print() {
        StringBuilder text = new StringBuilder();
        for (long count : counts) {
            text.append(count).append(' ');
        }
        System.out.println(text.toString().trim());
    }
}
