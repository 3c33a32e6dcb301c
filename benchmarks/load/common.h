/* What both programs share: the clock, options written as key=value, one timer, and an incremental HTTP/1.1 reader. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define BILLION 1000000000LL

typedef unsigned long long u64;

static void die(const char *what) {
    fprintf(stderr, "%s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static void *grown(void *old, size_t bytes) {
    void *memory = realloc(old, bytes);
    if (!memory) die("out of memory");
    return memory;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * BILLION + t.tv_nsec;
}

/* Nobody's orphan: the program ends with the one that started it. And as many connections as the system allows. */
static void start_up(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
}

/* --- options --- */

struct option_of {
    const char *name;
    double *number; /* one of the two */
    const char **text;
};

static void read_options(int argc, char **argv, const struct option_of *known) {
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        const struct option_of *o = known;
        size_t bytes = value ? (size_t)(value - argv[i]) : 0;
        while (value && o->name && (strlen(o->name) != bytes || memcmp(o->name, argv[i], bytes))) o++;
        errno = 0;
        if (!value || !o->name) {
            fprintf(stderr, "no such option: %s; there are:", argv[i]);
            for (o = known; o->name; o++) fprintf(stderr, " %s=", o->name);
            die("");
        }
        if (o->text) *o->text = value + 1;
        else *o->number = strtod(value + 1, NULL);
    }
}

/* --- waiting: epoll, and one timer that wakes it at a nanosecond rather than at a millisecond --- */

static int polled, timer;

static void watch(int fd, int operation, uint32_t events, void *tag) {
    struct epoll_event e = {.events = events, .data.ptr = tag};
    if (epoll_ctl(polled, operation, fd, &e)) die("epoll_ctl");
}

static void open_polling(void) {
    polled = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (polled < 0 || timer < 0) die("epoll");
    watch(timer, EPOLL_CTL_ADD, EPOLLIN, &timer);
}

/* Whether an event is the timer's, which is then ready for the next time. */
static bool is_timer(const void *tag) {
    uint64_t fired;
    return tag == &timer && read(timer, &fired, sizeof fired) != 0;
}

/* Wake up at this time, or never for INT64_MAX. */
static void wake_at(int64_t at_ns) {
    static int64_t armed = -1;
    if (at_ns == armed) return;
    armed = at_ns;
    struct itimerspec spec = {0};
    if (at_ns != INT64_MAX) {
        if (at_ns <= 0) at_ns = 1;
        spec.it_value = (struct timespec){at_ns / BILLION, at_ns % BILLION};
    }
    if (timerfd_settime(timer, TFD_TIMER_ABSTIME, &spec, NULL)) die("timerfd_settime");
}

/* --- an HTTP/1.1 message, read as its bytes come: a request or a response; with a length, in chunks, to the end --- */

enum http_state { HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, UNTIL_CLOSE, DONE, BROKEN };

struct http {
    enum http_state state;
    char head[16384]; /* a string, whole when the state is no longer HEAD */
    size_t head_bytes;
    char line[256]; /* a chunk's size, or a trailer */
    size_t line_bytes;
    u64 left, chunks, body_bytes;
};

typedef void http_sink(void *owner, const char *data, size_t bytes);

static void http_reset(struct http *m) {
    m->state = HEAD;
    m->head_bytes = m->line_bytes = m->left = m->chunks = m->body_bytes = 0;
}

/* Where the value of a header begins, or NULL. The name is given as "\r\nname:". */
static const char *http_header(const struct http *m, const char *name) {
    const char *at = strcasestr(m->head, name);
    return at ? at + strlen(name) + strspn(at + strlen(name), " ") : NULL;
}

static int http_status(const struct http *m) { return m->head_bytes > 12 ? atoi(m->head + 9) : 0; }

static void http_end_of_head(struct http *m, bool response) {
    const char *length = http_header(m, "\r\ncontent-length:"), *coding = http_header(m, "\r\ntransfer-encoding:");
    if (response && http_status(m) / 100 == 1) http_reset(m);
    else if (coding && !strncasecmp(coding, "chunked", 7)) m->state = CHUNK_SIZE;
    else if (length) m->state = (m->left = strtoull(length, NULL, 10)) ? LENGTH : DONE;
    else m->state = response && http_status(m) != 204 ? UNTIL_CLOSE : DONE;
}

static void http_end_of_line(struct http *m) {
    m->line[m->line_bytes] = 0;
    bool empty = m->line_bytes == 0 || m->line[0] == '\r';
    m->line_bytes = 0;
    if (m->state == CHUNK_END) m->state = empty ? CHUNK_SIZE : BROKEN;
    else if (m->state == TRAILER) m->state = empty ? DONE : TRAILER;
    else if (empty) m->state = BROKEN;
    else if ((m->left = strtoull(m->line, NULL, 16))) m->state = CHUNK_DATA, m->chunks++;
    else m->state = TRAILER;
}

/* How many of the bytes belong to this message. It is over when the state is DONE. */
static size_t http_feed(struct http *m, const char *data, size_t bytes, bool response, http_sink *sink, void *owner) {
    size_t at = 0;
    while (at < bytes && m->state != DONE && m->state != BROKEN) {
        if (m->state == HEAD) {
            if (m->head_bytes == sizeof m->head - 1) { m->state = BROKEN; break; }
            m->head[m->head_bytes++] = data[at++];
            if (m->head_bytes >= 4 && !memcmp(m->head + m->head_bytes - 4, "\r\n\r\n", 4)) {
                m->head[m->head_bytes] = 0;
                http_end_of_head(m, response);
            }
        } else if (m->state == LENGTH || m->state == CHUNK_DATA || m->state == UNTIL_CLOSE) {
            size_t taken = bytes - at;
            if (m->state != UNTIL_CLOSE && taken > m->left) taken = m->left;
            if (sink) sink(owner, data + at, taken);
            m->body_bytes += taken;
            at += taken;
            if (m->state != UNTIL_CLOSE && !(m->left -= taken)) m->state = m->state == LENGTH ? DONE : CHUNK_END;
        } else { /* a line */
            char byte = data[at++];
            if (byte == '\n') http_end_of_line(m);
            else if (m->line_bytes < sizeof m->line - 1) m->line[m->line_bytes++] = byte;
            else m->state = BROKEN;
        }
    }
    return at;
}
