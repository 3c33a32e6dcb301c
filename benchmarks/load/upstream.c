/* A model server that costs next to nothing: vLLM's replies and metrics page, from one process on all of loopback.
 *
 *   upstream port=0 model=m      prints {"port": N} when it listens
 *
 * It listens on 0.0.0.0, so 127.0.0.1, 127.0.0.2, ... are as many servers; running requests are counted by address.
 * What is wanted is in the request: max_tokens, whether they are streamed, and their pace, as in
 * "user":"first_gap_us=20000 interval_us=5000", which every proxy passes on. A streamed answer is one event per token,
 * each an HTTP chunk of its own. The second comes first_gap_us after the first, the others interval_us apart, or as fast
 * as they are taken: all of them for 0, else those after the first paced_tokens. The tail carries the usage. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define MAX_BODY (64 << 20)
#define OUT_BYTES 65536
#define EVENT_BYTES 512
#define USAGE "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu}"
#define USAGE_OF(c) (c)->prompt_tokens, (c)->tokens, (c)->prompt_tokens + (c)->tokens

struct conn {
    int fd;
    struct http request;
    char *body;
    size_t body_bytes, body_room;
    char *out; /* what is still to be written */
    size_t out_bytes, out_at, out_room;
    uint32_t *running;
    u64 tokens, sent, paced_tokens, prompt_tokens, id;
    int64_t next_ns, first_gap_ns, interval_ns; /* when the next event is due, and the pace */
    bool answering, blocked, closing;
    struct conn *previous, *next; /* among those that stream */
};

static double port = 0;
static const char *model = "bench";
static struct conn streaming = {.previous = &streaming, .next = &streaming}, *closed;
static uint32_t running_at[65536];
static u64 served, prompt_tokens_total, generation_tokens_total;
static int listener;

static void leave_streaming(struct conn *c) {
    if (!c->next) return;
    c->previous->next = c->next;
    c->next->previous = c->previous;
    c->next = c->previous = NULL;
}

static void close_conn(struct conn *c) { /* memory is freed after the round of events, which may still name it */
    if (c->fd < 0) return;
    if (c->answering) --*c->running;
    leave_streaming(c);
    close(c->fd);
    c->fd = -1;
    c->next = closed;
    closed = c;
}

static void free_closed(void) {
    while (closed) {
        struct conn *c = closed;
        closed = c->next;
        free(c->body);
        free(c->out);
        free(c);
    }
}

static char *room_for(struct conn *c, size_t bytes) {
    if (c->out_bytes + bytes > c->out_room) c->out = grown(c->out, c->out_room = 2 * (c->out_bytes + bytes));
    return c->out + c->out_bytes;
}

static void say(struct conn *c, const char *status, const char *type, const char *body, size_t bytes) {
    char *to = room_for(c, 256 + bytes);
    const char *start = "HTTP/1.1 %s\r\ncontent-type: %s\r\nserver: uvicorn\r\ncontent-length: %zu\r\n\r\n";
    int head = sprintf(to, start, status, type, bytes);
    memcpy(to + head, body, bytes);
    c->out_bytes += head + bytes;
}

/* False when the connection takes no more for now, or is gone. */
static bool flush_out(struct conn *c) {
    while (c->out_at < c->out_bytes) {
        ssize_t n = write(c->fd, c->out + c->out_at, c->out_bytes - c->out_at);
        if (n > 0) { c->out_at += n; continue; }
        if (errno == EAGAIN && !c->blocked) watch(c->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT, c), c->blocked = true;
        else if (errno != EAGAIN) close_conn(c);
        return false;
    }
    c->out_at = c->out_bytes = 0;
    if (c->blocked) watch(c->fd, EPOLL_CTL_MOD, EPOLLIN, c), c->blocked = false;
    return true;
}

static void finish_answer(struct conn *c) {
    --*c->running;
    c->answering = false;
    served++;
    prompt_tokens_total += c->prompt_tokens;
    generation_tokens_total += c->tokens;
    leave_streaming(c);
    http_reset(&c->request);
}

static void add_event(struct conn *c) {
    char event[EVENT_BYTES];
    char *to = room_for(c, EVENT_BYTES + 16);
    const char *begin = "data: {\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                        "\"model\":\"%s\",\"choices\":[";
    const char *token = "{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
    int n = sprintf(event, begin, c->id, model);
    if (c->sent < c->tokens) n += sprintf(event + n, "%s", token);
    else n += sprintf(event + n, "],\"usage\":" USAGE "}\n\ndata: [DONE]\n\n", USAGE_OF(c));
    int size = sprintf(to, "%x\r\n", n);
    memcpy(to + size, event, n);
    memcpy(to + size + n, "\r\n", 2);
    c->out_bytes += size + n + 2;
    if (c->sent++ == c->tokens) c->out_bytes += sprintf(c->out + c->out_bytes, "0\r\n\r\n");
}

/* Write what is due of a streamed answer. */
static void stream(struct conn *c, int64_t now) {
    while (c->answering && c->sent <= c->tokens && c->next_ns <= now) {
        bool first = c->sent == 0;
        add_event(c);
        bool at_once = !first && (c->interval_ns == 0 || c->sent > c->paced_tokens);
        while (at_once && c->sent <= c->tokens && c->out_bytes < OUT_BYTES - EVENT_BYTES) add_event(c);
        if (first) c->next_ns = now + c->first_gap_ns;
        else if (!at_once && c->sent < c->tokens) c->next_ns += c->interval_ns; /* with the last token goes the tail */
        if (!flush_out(c)) return;
    }
    if (c->answering && c->sent > c->tokens) finish_answer(c);
}

static double number_of(const struct conn *c, const char *key, double missing) {
    const char *at = memmem(c->body, c->body_bytes, key, strlen(key));
    return at ? strtod(at + strlen(key), NULL) : missing; /* the body ends in a 0 byte */
}

static void complete(struct conn *c, int64_t now) {
    bool streamed = memmem(c->body, c->body_bytes, "\"stream\":true", 13) ||
                    memmem(c->body, c->body_bytes, "\"stream\": true", 14);
    c->tokens = number_of(c, "\"max_tokens\":", number_of(c, "\"max_completion_tokens\":", 16));
    if (c->tokens < 1 || c->tokens > 1000000) c->tokens = 16;
    c->prompt_tokens = c->body_bytes / 4 + 1;
    c->id = served + 1;
    c->first_gap_ns = number_of(c, "first_gap_us=", 0) * 1e3;
    c->interval_ns = number_of(c, "interval_us=", 0) * 1e3;
    c->paced_tokens = number_of(c, "paced_tokens=", 1e9);
    c->sent = 0;
    if (streamed) {
        const char *head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nserver: uvicorn\r\n"
                           "transfer-encoding: chunked\r\n\r\n";
        c->out_bytes += sprintf(room_for(c, 256), "%s", head);
        c->next_ns = now;
        c->next = &streaming;
        c->previous = streaming.previous;
        c->previous->next = streaming.previous = c;
        stream(c, now);
        return;
    }
    char *text = grown(NULL, 1024 + 6 * c->tokens);
    const char *begin = "{\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"%s\","
                        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    int n = sprintf(text, begin, c->id, model);
    for (u64 i = 0; i < c->tokens; i++) n += sprintf(text + n, " token");
    n += sprintf(text + n, "\"},\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":" USAGE "}", USAGE_OF(c));
    say(c, "200 OK", "application/json", text, n);
    free(text);
    finish_answer(c);
    flush_out(c);
}

static void metrics_page(struct conn *c) {
    char text[4096];
    const char *gauge = "# TYPE vllm:%s gauge\nvllm:%s{engine=\"0\",model_name=\"%s\"} %g\n";
    const char *counter = "# TYPE vllm:%s counter\nvllm:%s_total{engine=\"0\",model_name=\"%s\"} %g\n";
    double running = *c->running;
    int n = sprintf(text, gauge, "num_requests_running", "num_requests_running", model, running);
    n += sprintf(text + n, gauge, "num_requests_waiting", "num_requests_waiting", model, 0.0);
    n += sprintf(text + n, gauge, "kv_cache_usage_perc", "kv_cache_usage_perc", model, running < 500 ? running / 500 : 1);
    n += sprintf(text + n, counter, "prompt_tokens", "prompt_tokens", model, (double)prompt_tokens_total);
    n += sprintf(text + n, counter, "generation_tokens", "generation_tokens", model, (double)generation_tokens_total);
    n += sprintf(text + n, "# TYPE vllm:cache_config_info gauge\n"
                           "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"8192\",engine=\"0\"} 1.0\n");
    say(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", text, n);
}

static void other_page(struct conn *c) {
    char text[1024];
    const char *path = strchr(c->request.head, ' ');
    path = path ? path + 1 : "";
    if (!strncmp(path, "/metrics ", 9)) return metrics_page(c);
    if (!strncmp(path, "/v1/models ", 11)) {
        const char *models = "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1760000000,"
                             "\"owned_by\":\"vllm\",\"root\":\"%s\",\"max_model_len\":1000000}]}";
        int n = sprintf(text, models, model, model);
        say(c, "200 OK", "application/json", text, n);
    } else if (strstr(path, "_info ")) { /* what routers of the SGLang family ask a worker first */
        const char *info = "{\"model_path\":\"%s\",\"model_id\":\"%s\",\"served_model_name\":\"%s\",\"tokenizer_path\":\"\","
                           "\"is_generation\":true,\"version\":\"0\"}";
        int n = sprintf(text, info, model, model, model);
        say(c, "200 OK", "application/json", text, n);
    } else if (!strncmp(path, "/health", 7) || !strncmp(path, "/version ", 9)) {
        say(c, "200 OK", "application/json", "{\"version\":\"0.11.0\"}", 20);
    } else say(c, "404 Not Found", "application/json", "{}", 2);
}

static void collect(void *owner, const char *data, size_t bytes) {
    struct conn *c = owner;
    if (c->body_bytes + bytes > MAX_BODY) { c->closing = true; return; }
    if (c->body_bytes + bytes + 1 > c->body_room) {
        c->body_room = 2 * (c->body_bytes + bytes) + 4096;
        c->body = grown(c->body, c->body_room);
    }
    memcpy(c->body + c->body_bytes, data, bytes);
    c->body[c->body_bytes += bytes] = 0;
}

static void on_readable(struct conn *c, int64_t now) {
    static char data[262144];
    ssize_t n = read(c->fd, data, sizeof data);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || c->answering) return close_conn(c); /* gone, or a client that pipelines, which none of ours does */
    size_t taken = http_feed(&c->request, data, n, false, collect, c);
    if (c->request.state == BROKEN || taken < (size_t)n || c->closing) return close_conn(c);
    if (c->request.state != DONE) return;
    if (!strncmp(c->request.head, "POST ", 5) && c->body_bytes) {
        ++*c->running;
        c->answering = true;
        complete(c, now);
    } else {
        other_page(c);
        http_reset(&c->request);
        flush_out(c);
    }
    c->body_bytes = 0;
}

static void accept_all(void) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct sockaddr_in own;
        socklen_t length = sizeof own;
        struct conn *c = grown(NULL, sizeof *c);
        memset(c, 0, sizeof *c);
        getsockname(fd, (struct sockaddr *)&own, &length);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        c->fd = fd;
        c->running = &running_at[ntohl(own.sin_addr.s_addr) & 0xffff];
        watch(fd, EPOLL_CTL_ADD, EPOLLIN, c);
    }
}

int main(int argc, char **argv) {
    const struct option_of known[] = {
        {"port", &port, NULL},
        {"model", NULL, &model},
        {0},
    };
    start_up();
    read_options(argc, argv, known);
    open_polling();
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t length = sizeof address;
    int on = 1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) die("cannot listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN, &listener);
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    for (;;) {
        int64_t soonest = INT64_MAX;
        for (struct conn *c = streaming.next; c != &streaming; c = c->next)
            if (!c->blocked && c->next_ns < soonest) soonest = c->next_ns;
        wake_at(soonest);
        struct epoll_event events[256];
        int n = epoll_wait(polled, events, 256, -1);
        int64_t now = now_ns();
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (events[i].data.ptr == &listener) accept_all();
            else if (!is_timer(c)) {
                if (c->fd >= 0 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c, now);
                if (c->fd >= 0 && events[i].events & EPOLLOUT && flush_out(c)) stream(c, now);
            }
        }
        for (struct conn *c = streaming.next, *next; c != &streaming; c = next) {
            next = c->next;
            if (!c->blocked) stream(c, now);
        }
        free_closed();
    }
}
