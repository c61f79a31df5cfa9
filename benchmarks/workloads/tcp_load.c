/* A load generator without a runtime of its own: SEND_MESSAGE_V2 frames as the Java client writes them.
 *
 *   tcp_load HOST PORT TOPIC QUEUES BODY_BYTES CONNECTIONS IN_FLIGHT SECONDS
 *
 * Each connection keeps IN_FLIGHT requests unanswered and sends one for each answer it reads; the answers are counted and
 * the code of each is looked at. One line of JSON at the end. IN_FLIGHT 64 on one connection is what 64 threads of one
 * Java producer look like to a broker.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 18, CONNECTIONS_MAX = 1024, HEADER_BYTES_MAX = 1024 };

struct connection {
    int socket;
    uint8_t *in;
    size_t in_bytes;
};

static struct connection connections[CONNECTIONS_MAX];
static const char *topic;
static int queues, body_bytes, opaque;
static uint64_t answered, refused;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t put_frame(uint8_t *out)
{
    char *header = (char *)out + 8;
    int number = opaque++;
    int bytes = snprintf(header, HEADER_BYTES_MAX,
                         "{\"code\":310,\"extFields\":{\"a\":\"benchmark_producer\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"4\","
                         "\"e\":\"%d\",\"f\":\"0\",\"g\":\"%llu\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F0000010BAC2A139A55%08X"
                         "\\u0002WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":"
                         "\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}",
                         topic, number % queues, 1700000000000ULL, (unsigned)number, number);
    uint32_t words[2] = {htonl((uint32_t)(4 + bytes + body_bytes)), htonl((uint32_t)bytes)};
    memcpy(out, words, sizeof words);
    memset(out + 8 + bytes, 'x', (size_t)body_bytes);
    return 8 + (size_t)bytes + (size_t)body_bytes;
}

static void send_some(struct connection *connection, int count)
{
    static uint8_t *out;
    size_t bytes = 0, sent = 0;
    out = out ? out : malloc((size_t)4096 * (HEADER_BYTES_MAX + (size_t)body_bytes));
    for (int i = 0; i < count; i++) {
        bytes += put_frame(out + bytes);
    }
    while (sent < bytes) {
        ssize_t part = send(connection->socket, out + sent, bytes - sent, MSG_NOSIGNAL);
        if (part < 0) {
            fail("send");
        }
        sent += (size_t)part;
    }
}

static int read_some(struct connection *connection)
{
    ssize_t part = recv(connection->socket, connection->in + connection->in_bytes, READ_BYTES - connection->in_bytes, 0);
    if (part <= 0) {
        fail("recv");
    }
    connection->in_bytes += (size_t)part;
    size_t at = 0;
    int count = 0;
    uint32_t frame;
    while (connection->in_bytes - at >= 8) {
        memcpy(&frame, connection->in + at, 4);
        frame = ntohl(frame);
        if (connection->in_bytes - at < 4 + (size_t)frame) {
            break;
        }
        refused += memcmp(connection->in + at + 8, "{\"code\":0,", 10) != 0;
        at += 4 + (size_t)frame;
        count++;
    }
    memmove(connection->in, connection->in + at, connection->in_bytes - at);
    connection->in_bytes -= at;
    answered += (uint64_t)count;
    return count;
}

static void open_connection(struct connection *connection, const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    inet_pton(AF_INET, host, &address.sin_addr);
    connection->socket = socket(AF_INET, SOCK_STREAM, 0);
    connection->in = malloc(READ_BYTES);
    if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0) {
        fail("connect");
    }
    setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int main(int argc, char **argv)
{
    if (argc != 9) {
        fprintf(stderr, "usage: %s HOST PORT TOPIC QUEUES BODY_BYTES CONNECTIONS IN_FLIGHT SECONDS\n", argv[0]);
        return 2;
    }
    topic = argv[3];
    queues = atoi(argv[4]);
    body_bytes = atoi(argv[5]);
    int count = atoi(argv[6]), in_flight = atoi(argv[7]);
    double seconds = atof(argv[8]);
    struct pollfd polled[CONNECTIONS_MAX];
    for (int i = 0; i < count; i++) {
        open_connection(&connections[i], argv[1], atoi(argv[2]));
        polled[i] = (struct pollfd){.fd = connections[i].socket, .events = POLLIN};
        send_some(&connections[i], in_flight);
    }
    double start = now(), end = start + seconds;
    while (now() < end) {
        if (poll(polled, (nfds_t)count, 1000) < 0) {
            fail("poll");
        }
        for (int i = 0; i < count; i++) {
            int done = polled[i].revents ? read_some(&connections[i]) : 0;
            if (done) {
                send_some(&connections[i], done);
            }
        }
    }
    printf("{\"answered\": %llu, \"refused\": %llu, \"per_second\": %.0f}\n", (unsigned long long)answered,
           (unsigned long long)refused, (double)answered / (now() - start));
    return refused != 0;
}
