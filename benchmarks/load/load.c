/* HTTP/1.1 load that costs little: closed loop, or open loop at a fixed rate with latency from the scheduled time.
 *
 *   load port=8080 connections=64 seconds=2                 each connection sends as soon as it has its answer
 *   load port=8080 connections=64 seconds=2 rate=400        400 requests/s, whether answers come or not
 *
 * After warmup_s it prints {"mark": "begin", ...}, after seconds more {"mark": "end", ...}, each with what has been
 * completed so far; then it waits at most drain_s for the answers under way and prints the result. Latencies are of
 * requests completed between the marks, in microseconds.
 *
 * A body of body_bytes is a chat whose text begins with a number of one of `groups` groups, then has shared_bytes that
 * are the same for all, then a number of its own. So requests of one group share that prefix, and no others; with
 * groups=0 none share any. body_bytes=0 sends GET /v1/models. headers="a: b;c: d" are sent as well.
 * max_tokens, stream, first_gap_us, interval_us and paced_tokens are what the servers are asked for. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define MAX_ERRORS 1000
#define HEX 16

struct conn {
    int fd;
    bool busy, writing;
    struct http response;
    char *request;
    size_t sent;
    int64_t from_ns, first_ns; /* scheduled; first byte of the body */
};

static const char *host = "127.0.0.1", *model = "bench", *headers = "";
static double port, connections = 1, seconds = 1, warmup_s = 0, drain_s = 5, rate = 0, ramp_s = 0, limit = 0;
static double body_bytes = 1024, shared_bytes = 0, groups = 0, max_tokens = 100, streamed = 1;
static double first_gap_us = 20000, interval_us = 0, paced_tokens = 1e9;

static struct conn *conns;
static size_t request_bytes, group_at, own_at;
static char *request_text;
static u64 started, completed, errors, chunks, bytes;
static const char *last_error = "";
static uint32_t *total_us, *first_us;
static size_t samples, room;
static bool measuring;

/* --- the request --- */

static void make_request(void) {
    size_t room_bytes = (size_t)body_bytes + 4096;
    char *to = request_text = grown(NULL, room_bytes);
    char more[1024];
    size_t more_bytes = 0;
    for (const char *at = headers; *at && more_bytes < sizeof more - 3; at++) {
        if (*at == ';') memcpy(more + more_bytes, "\r\n", 2), more_bytes += 2;
        else more[more_bytes++] = *at;
    }
    strcpy(more + more_bytes, more_bytes ? "\r\n" : "");
    const char *get = "GET /v1/models HTTP/1.1\r\nhost: bench\r\nuser-agent: load\r\naccept: */*\r\n%s\r\n";
    const char *post = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: load\r\naccept: */*\r\n"
                       "content-type: application/json\r\nauthorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
                       "content-length: %zu\r\n%s\r\n";
    if (body_bytes == 0) {
        request_bytes = sprintf(to, get, more);
        return;
    }
    const char *start = "{\"model\":\"%s\",\"user\":\"first_gap_us=%.0f interval_us=%.0f paced_tokens=%.0f\",\"max_tokens\":%d,\"stream\":%s,"
                        "\"messages\":[{\"role\":\"user\",\"content\":\"";
    const char *kind = streamed ? "true,\"stream_options\":{\"include_usage\":true}" : "false";
    char head[2048];
    size_t n = snprintf(head, sizeof head, start, model, first_gap_us, interval_us, paced_tokens, (int)max_tokens, kind);
    if (n >= sizeof head) errno = 0, die("model= is too long");
    const char *tail = "\"}]}";
    size_t least = n + 2 * HEX + strlen(tail), size = body_bytes < least ? least : (size_t)body_bytes;
    size_t text = size - n - strlen(tail);
    to += sprintf(to, post, size, more);
    memcpy(to, head, n);
    to += n;
    uint32_t random = 1;
    for (size_t i = 0, word = 0; i < text; i++) { /* words of 1 to 8 letters, the same in every run */
        random = random * 1664525 + 1013904223;
        to[i] = word ? 'a' + (random >> 16) % 26 : ' ';
        word = word ? word - 1 : 1 + (random >> 24) % 8;
    }
    group_at = to - request_text;
    own_at = group_at + HEX + (shared_bytes > text - 2 * HEX ? text - 2 * HEX : (size_t)shared_bytes);
    memcpy(to + text, tail, strlen(tail));
    request_bytes = to + text + strlen(tail) - request_text;
}

static void write_hex(char *to, u64 value) {
    for (int i = HEX - 1; i >= 0; i--, value >>= 4) to[i] = "0123456789abcdef"[value & 15];
}

/* --- a connection --- */

static void send_more(struct conn *c) {
    ssize_t n = write(c->fd, c->request + c->sent, request_bytes - c->sent);
    if (n > 0) c->sent += n;
    bool more = c->sent < request_bytes;
    if (more != c->writing) watch(c->fd, EPOLL_CTL_MOD, more ? EPOLLIN | EPOLLOUT : EPOLLIN, c), c->writing = more;
}

static void open_conn(struct conn *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) die("host= wants an IPv4 address");
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS) die("cannot connect");
    watch(c->fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT, c);
    c->writing = true;
}

static void start(struct conn *c, int64_t from_ns) {
    if (!c->request) c->request = memcpy(grown(NULL, request_bytes), request_text, request_bytes);
    if (own_at) {
        u64 own = (u64)getpid() << 40 | started;
        write_hex(c->request + group_at, groups ? started % (u64)groups : own);
        write_hex(c->request + own_at, own);
    }
    started++;
    c->busy = true;
    c->sent = 0;
    c->from_ns = from_ns;
    c->first_ns = 0;
    http_reset(&c->response);
    if (c->fd < 0) open_conn(c);
    else send_more(c);
}

static void fail(struct conn *c, const char *why) {
    if (c->busy) {
        last_error = why;
        if (++errors >= MAX_ERRORS) errno = 0, fprintf(stderr, "%d requests failed, the last: ", MAX_ERRORS), die(why);
    }
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->busy = false;
}

static void finish(struct conn *c, int64_t now) {
    static char why[64];
    int status = http_status(&c->response);
    if (status != 200) {
        sprintf(why, "status %d", status);
        return fail(c, why);
    }
    completed++;
    c->busy = false;
    if (!measuring) return;
    if (samples == room) {
        room = room ? 2 * room : 65536;
        total_us = grown(total_us, room * sizeof *total_us);
        first_us = grown(first_us, room * sizeof *first_us);
    }
    total_us[samples] = (now - c->from_ns) / 1000;
    first_us[samples++] = ((c->first_ns ? c->first_ns : now) - c->from_ns) / 1000;
}

static void on_readable(struct conn *c) {
    static char data[262144];
    ssize_t n = read(c->fd, data, sizeof data);
    if (n < 0 && errno == EAGAIN) return;
    int64_t now = now_ns();
    if (n <= 0) {
        if (n == 0 && c->busy && c->response.state == UNTIL_CLOSE) finish(c, now);
        return fail(c, n ? "the connection broke" : "the connection was closed before the end of the answer");
    }
    if (!c->busy) return fail(c, "an answer to no request");
    u64 chunks_before = c->response.chunks;
    size_t taken = http_feed(&c->response, data, n, true, NULL, NULL);
    chunks += c->response.chunks - chunks_before;
    bytes += n;
    if (!c->first_ns && c->response.body_bytes) c->first_ns = now;
    if (c->response.state == BROKEN || taken < (size_t)n) fail(c, "the answer is not HTTP/1.1");
    else if (c->response.state == DONE) {
        bool closing = http_header(&c->response, "\r\nconnection: close") != NULL;
        finish(c, now);
        if (closing && c->fd >= 0) fail(c, "");
    }
}

/* --- the run --- */

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_latencies(const char *name, uint32_t *us) {
    const double shares[] = {0.5, 0.9, 0.99};
    const char *names[] = {"p50", "p90", "p99"};
    if (samples) qsort(us, samples, sizeof *us, by_size);
    for (int i = 0; i < 3; i++) {
        if (samples) printf(", \"%s_%s_us\": %u", name, names[i], us[(size_t)(shares[i] * (samples - 1) + 0.5)]);
        else printf(", \"%s_%s_us\": null", name, names[i]);
    }
}

/* A line of JSON without its end. */
static void begin_line(const char *name, double at_s) {
    const char *line = "{\"mark\": \"%s\", \"at_s\": %.6f, \"started\": %llu, \"completed\": %llu, \"errors\": %llu, "
                       "\"chunks\": %llu, \"bytes\": %llu";
    printf(line, name, at_s, started, completed, errors, chunks, bytes);
}

static void mark(const char *name, int64_t now) {
    begin_line(name, now / 1e9);
    printf("}\n");
}

static void print_result(void) {
    u64 unfinished = 0;
    for (int i = 0; i < (int)connections; i++) unfinished += conns[i].busy;
    begin_line("result", now_ns() / 1e9);
    printf(", \"last_error\": \"%s\", \"unfinished\": %llu, \"samples\": %zu", last_error, unfinished, samples);
    print_latencies("total", total_us);
    print_latencies("first", first_us);
    printf("}\n");
}

static struct conn *idle_conn(void) { /* the longest idle, in turn */
    static int at;
    for (int i = 0; i < (int)connections; i++) {
        at = (at + 1) % (int)connections;
        if (!conns[at].busy) return &conns[at];
    }
    return NULL;
}

int main(int argc, char **argv) {
    const struct option_of known[] = {
        {"host", NULL, &host},
        {"port", &port, NULL},
        {"connections", &connections, NULL},
        {"seconds", &seconds, NULL},
        {"warmup_s", &warmup_s, NULL},
        {"drain_s", &drain_s, NULL},
        {"rate", &rate, NULL},
        {"ramp_s", &ramp_s, NULL},
        {"requests", &limit, NULL},
        {"body_bytes", &body_bytes, NULL},
        {"shared_bytes", &shared_bytes, NULL},
        {"groups", &groups, NULL},
        {"model", NULL, &model},
        {"max_tokens", &max_tokens, NULL},
        {"stream", &streamed, NULL},
        {"first_gap_us", &first_gap_us, NULL},
        {"interval_us", &interval_us, NULL},
        {"paced_tokens", &paced_tokens, NULL},
        {"headers", NULL, &headers},
        {0},
    };
    start_up();
    read_options(argc, argv, known);
    errno = 0;
    if (connections < 1 || connections > 100000 || body_bytes > 1 << 30) die("connections= or body_bytes= out of range");
    open_polling();
    make_request();
    conns = grown(NULL, (size_t)connections * sizeof *conns);
    memset(conns, 0, (size_t)connections * sizeof *conns);
    for (int i = 0; i < (int)connections; i++) conns[i].fd = -1;

    int64_t zero = now_ns(), begin = zero + warmup_s * 1e9, end = begin + seconds * 1e9, last = end + drain_s * 1e9;
    u64 scheduled = 0; /* open loop: requests due so far; closed loop: connections that have begun */
    double step_ns = rate ? 1e9 / rate : ramp_s * 1e9 / connections;
    bool ended = false;
    for (;;) {
        int64_t now = now_ns();
        if (!measuring && !ended && now >= begin) measuring = true, mark("begin", now);
        bool all_sent = limit && started >= limit;
        bool none_busy = true;
        for (int i = 0; i < (int)connections && none_busy; i++) none_busy = !conns[i].busy;
        if (measuring && (now >= end || (all_sent && none_busy))) measuring = false, ended = true, mark("end", now);
        if (ended && (none_busy || now >= last)) break;

        int64_t wake = ended ? last : measuring ? end : begin;
        while (!ended && !all_sent && (rate || scheduled < connections)) {
            int64_t due = zero + (int64_t)(scheduled * step_ns);
            struct conn *c = due <= now ? rate ? idle_conn() : &conns[scheduled] : NULL;
            if (due > now && due < wake) wake = due;
            if (!c) break;
            scheduled++;
            start(c, due);
            all_sent = limit && started >= limit;
        }
        wake_at(wake);
        struct epoll_event events[256];
        int n = epoll_wait(polled, events, 256, -1);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (is_timer(c)) continue;
            if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
            if (c->fd >= 0 && events[i].events & EPOLLOUT) send_more(c);
        }
        now = now_ns();
        for (int i = 0; !rate && i < (int)scheduled && now < end && !(limit && started >= limit); i++)
            if (!conns[i].busy) start(&conns[i], now);
    }
    print_result();
}
