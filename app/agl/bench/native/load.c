// HTTP load for a store: start a rollout, add four spans, finish, again and again, over a number of
// keep-alive connections. One thread, no libraries. Prints one JSON object; times are nanoseconds.
//
//   load HOST PORT PREFIX CONNECTIONS WARMUP_SECONDS SECONDS RATE PATIENCE_SECONDS SERVER_PID...
//
// RATE 0 is the closed loop: a connection sends its next request when it has the answer. Any other
// is the open loop: so many rollouts a second are due, their requests at even distances, whatever
// the server does; the next connection that is free takes the next request, and its latency counts
// from when it was due. Latency ends with the last byte read. Requests that were due and had no
// answer at the end count with the time they had waited.
//
// The schedule begins anew after the warm-up, however far the server is behind.
//
// Connections that are lost are opened again until none has been there for PATIENCE_SECONDS. SIGINT
// and SIGTERM end the run early. AGL_LOAD_HEADERS holds lines of the head, each with its CRLF. The
// CPU time of the server's processes is read at both ends of the measured time.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

enum { SPANS = 4, STEPS = SPANS + 2, ATTRIBUTES = 8, ATTRIBUTE_CHARS = 80, BUFFER = 65536 };
enum { KINDS = 3, ALL = KINDS };
static const char *const KIND_NAMES[] = {"start_rollout", "add_span", "update_attempt", "all"};
static const int64_t SECOND = 1000000000, LATE = 1000000, RETRY = 100000000, CONNECTING_TIME = 1000000000, DRAIN = 2000000000;

enum state { DOWN, CONNECTING, FREE, BUSY };

struct connection {
  enum state state;
  int socket, step, queued;
  size_t in_size;
  int64_t due, free_since, retry_at;
  struct connection *next_free;
  char rollout_id[64], attempt_id[64];
  char out[BUFFER], in[BUFFER];
};

static struct histogram recorded[KINDS + 1];
static struct connection *connections, *first_free, *last_free;
static struct addrinfo *server;
static const char *prefix, *headers = "Host: store\r\n";
static int connection_count, up, ever_up, poll_fd, timer_fd, gave_up;
static volatile sig_atomic_t interrupted;
static int64_t window_start, window_end, patience, away_since, away;
static int64_t schedule_start, lateness, armed;
static double interval;
static uint64_t due_count, requests, rollouts, failures, broken, unanswered, span_number;
static uint64_t late_server, late_loader;
static char first_failure[601], attributes[ATTRIBUTES * (ATTRIBUTE_CHARS + 32)];

static void die(const char *what) {
  fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void wrong(const char *what) {
  fprintf(stderr, "load: %s\n", what);
  exit(1);
}

static void interrupt(int number) {
  (void)number;
  interrupted = 1;
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}

static double own_cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

// Seconds that the processes have used, or -1 when one of them is not there.
static double server_cpu(char **pids) {
  double seconds = 0;
  for (; *pids; pids++) {
    char path[64], text[1024], *after_name;
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", atoi(*pids));
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    after_name = strrchr(text, ')');
    if (!after_name ||
        sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
      return -1;
    seconds += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
  }
  return seconds;
}

static void make_attributes(void) {
  char *p = attributes;
  for (int i = 0; i < ATTRIBUTES; i++) {
    p += sprintf(p, "%s\"attribute.number.%d\":\"", i ? "," : "", i);
    for (int j = 0; j < ATTRIBUTE_CHARS; j++) *p++ = (char)('a' + (i + j) % 26);
    *p++ = '"';
  }
  *p = 0;
}

static int make_body(struct connection *c, char *body, size_t room) {
  if (c->step == 0)
    return snprintf(body, room, "{\"input\":{\"question\":\"what is six times seven?\"},\"mode\":\"train\"}");
  if (c->step == STEPS - 1) return snprintf(body, room, "{\"status\":\"succeeded\"}");
  span_number++;
  return snprintf(
      body, room,
      "{\"rollout_id\":\"%s\",\"attempt_id\":\"%s\",\"sequence_id\":%d,"
      "\"trace_id\":\"%032llx\",\"span_id\":\"%016llx\",\"parent_id\":null,\"name\":\"llm.call\","
      "\"status\":{\"status_code\":\"OK\",\"description\":null},\"attributes\":{%s},\"events\":[],"
      "\"links\":[],\"start_time\":1764000000.25,\"end_time\":1764000001.5,\"context\":null,"
      "\"parent\":null,\"resource\":{\"attributes\":{},\"schema_url\":\"\"}}",
      c->rollout_id, c->attempt_id, c->step, (unsigned long long)span_number,
      (unsigned long long)span_number, attributes);
}

static int is_open_loop(void) { return interval > 0; }

static void note_free(struct connection *c, int64_t at) {
  c->state = FREE;
  c->free_since = at;
  if (c->queued) return;
  c->queued = 1;
  c->next_free = NULL;
  if (last_free)
    last_free->next_free = c;
  else
    first_free = c;
  last_free = c;
}

static struct connection *take_free(void) {
  while (first_free) {
    struct connection *c = first_free;
    first_free = c->next_free;
    if (!first_free) last_free = NULL;
    c->queued = 0;
    if (c->state == FREE) return c;
  }
  return NULL;
}

static void lose(struct connection *c, int64_t at) {
  if (c->state == BUSY) broken++;
  if ((c->state == BUSY || c->state == FREE) && --up == 0) away_since = at;
  close(c->socket);
  c->state = DOWN;
  c->step = 0;
  c->retry_at = at + RETRY;
}

static void send_request(struct connection *c, int64_t due) {
  static char body[BUFFER / 2];
  char path[512];
  int size = make_body(c, body, sizeof body);
  if (c->step == 0)
    snprintf(path, sizeof path, "%s/v1/agl/rollouts", prefix);
  else if (c->step == STEPS - 1)
    snprintf(path, sizeof path, "%s/v1/agl/rollouts/%s/attempts/%s", prefix, c->rollout_id, c->attempt_id);
  else
    snprintf(path, sizeof path, "%s/v1/agl/spans", prefix);
  size_t whole = (size_t)snprintf(c->out, sizeof c->out,
                                  "POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\n"
                                  "Content-Length: %d\r\n\r\n%s",
                                  path, headers, size, body);
  c->state = BUSY;
  c->in_size = 0;
  c->due = due;
  for (size_t done = 0; done < whole;) {
    ssize_t n = send(c->socket, c->out + done, whole - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      lose(c, now());
      return;
    }
    done += (size_t)n;
  }
}

static int take_id(const char *text, const char *key, char *into, size_t room) {
  const char *from = strstr(text, key), *to;
  if (!from || !(from = strchr(from + strlen(key), '"'))) return 0;
  to = strchr(++from, '"');
  if (!to || (size_t)(to - from) >= room) return 0;
  memcpy(into, from, (size_t)(to - from));
  into[to - from] = 0;
  return 1;
}

// The size of a whole answer, or 0 when bytes are missing.
static size_t answer_size(struct connection *c) {
  c->in[c->in_size] = 0;
  char *end = strstr(c->in, "\r\n\r\n");
  if (!end) return 0;
  char *length = strcasestr(c->in, "\r\ncontent-length:");
  if (!length || length > end) wrong("what answers sends no Content-Length; is there a proxy before the store?");
  size_t whole = (size_t)(end + 4 - c->in) + strtoul(length + 17, NULL, 10);
  if (whole >= sizeof c->in) wrong("an answer is larger than 64 KiB; that is no store");
  return c->in_size >= whole ? whole : 0;
}

static void record(int kind, int64_t nanoseconds) {
  if (kind != ALL) histogram_add(&recorded[kind], nanoseconds);
  histogram_add(&recorded[ALL], nanoseconds);
}

static int kind_of(const struct connection *c) { return c->step == 0 ? 0 : c->step == STEPS - 1 ? 2 : 1; }

static int in_window(int64_t at) { return window_start && at >= window_start && at < window_end; }

static void finish_answer(struct connection *c, int64_t at) {
  int ok = !strncmp(c->in + 9, "20", 2);
  if (in_window(is_open_loop() ? c->due : at)) record(kind_of(c), at - c->due);
  requests += (uint64_t)in_window(at);
  if (ok && c->step == 0)
    ok = take_id(c->in, "\"rollout_id\"", c->rollout_id, sizeof c->rollout_id) &&
         take_id(c->in, "\"attempt_id\"", c->attempt_id, sizeof c->attempt_id);
  if (!ok) {
    if (!failures++) snprintf(first_failure, sizeof first_failure, "%.600s", c->in);
    c->step = 0;
    return;
  }
  c->step = (c->step + 1) % STEPS;
  if (c->step == 0) rollouts += (uint64_t)in_window(at);
}

static void go_on(struct connection *c, int64_t at) {
  if (is_open_loop())
    note_free(c, at);
  else
    send_request(c, at);
}

static void readable(struct connection *c) {
  ssize_t n = recv(c->socket, c->in + c->in_size, sizeof c->in - 1 - c->in_size, 0);
  int64_t at = now();
  if (n < 0 && errno == EINTR) return;
  if (n <= 0 || c->state != BUSY) {
    lose(c, at);
    return;
  }
  c->in_size += (size_t)n;
  if (!answer_size(c)) return;
  finish_answer(c, at);
  go_on(c, now());
}

static void begin_connect(struct connection *c, int64_t at) {
  struct epoll_event event = {.events = EPOLLOUT, .data.ptr = c};
  c->socket = socket(server->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->socket < 0) die("socket");
  c->state = CONNECTING;
  if (connect(c->socket, server->ai_addr, server->ai_addrlen) && errno != EINPROGRESS)
    lose(c, at);
  else if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->socket, &event))
    die("epoll");
}

static void connected(struct connection *c) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  int problem = 0, on = 1;
  int64_t at = now();
  socklen_t size = sizeof problem;
  getsockopt(c->socket, SOL_SOCKET, SO_ERROR, &problem, &size);
  if (problem) {
    lose(c, at);
    return;
  }
  fcntl(c->socket, F_SETFL, 0);
  setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->socket, &event)) die("epoll");
  if (up++ == 0 && ever_up) away += at - away_since;
  ever_up = 1;
  go_on(c, at);
}

static int64_t due_at(uint64_t number) { return schedule_start + (int64_t)((double)number * interval); }

static void note_start(const struct connection *c, int64_t due, int64_t at) {
  if (!in_window(due)) return;
  if (at - due > lateness) lateness = at - due;
  if (at - due <= LATE) return;
  if (c->free_since > due)
    late_server++;
  else
    late_loader++;
}

static void send_due(int64_t until) {
  struct connection *c;
  for (int64_t at = now(); due_at(due_count) <= at && due_at(due_count) < until; at = now()) {
    if (!(c = take_free())) return;
    int64_t due = due_at(due_count++);
    note_start(c, due, at);
    send_request(c, due);
  }
}

// Opens lost connections again; returns when to look next.
static int64_t reconnect(int64_t at) {
  int64_t next = INT64_MAX;
  if (up == connection_count) return next;
  for (int i = 0; i < connection_count; i++) {
    struct connection *c = &connections[i];
    if (c->state == DOWN && c->retry_at <= at) begin_connect(c, at);
    if (c->state == DOWN && c->retry_at < next) next = c->retry_at;
  }
  if (up == 0 && at - away_since > patience) gave_up = 1;
  return up || next <= away_since + patience ? next : away_since + patience + 1;
}

static void arm(int64_t at) {
  if (at == armed) return;
  struct itimerspec when = {.it_value = {at / SECOND, at % SECOND}};
  if (timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL)) die("timer");
  armed = at;
}

static void wait_for_events(void) {
  struct epoll_event events[256];
  uint64_t ticks;
  int count = epoll_wait(poll_fd, events, 256, -1);
  if (count < 0 && errno != EINTR) die("epoll_wait");
  for (int i = 0; i < count; i++) {
    struct connection *c = events[i].data.ptr;
    if (!c)
      armed = read(timer_fd, &ticks, sizeof ticks) > 0 ? 0 : armed;
    else if (c->state == CONNECTING)
      connected(c);
    else if (c->state != DOWN)
      readable(c);
  }
}

static int any_due_unanswered(void) {
  for (int i = 0; i < connection_count; i++)
    if (connections[i].state == BUSY && in_window(connections[i].due)) return 1;
  return 0;
}

// Plays until `end`; when draining, sends nothing and stops when everything due has its answer.
static void run_until(int64_t end, int draining) {
  for (int64_t at; (at = now()) < end && !interrupted && !gave_up;) {
    if (draining && !any_due_unanswered()) return;
    int64_t next = reconnect(at);
    if (is_open_loop() && !draining) {
      send_due(end);
      if (first_free && due_at(due_count) < next) next = due_at(due_count);
    }
    arm(next < end ? next : end);
    wait_for_events();
  }
}

static void count_unanswered(int64_t at) {
  for (int i = 0; i < connection_count; i++)
    if (connections[i].state == BUSY && in_window(connections[i].due)) {
      record(kind_of(&connections[i]), at - connections[i].due);
      unanswered++;
    }
  for (; due_at(due_count) < window_end && due_at(due_count) < at; due_count++)
    if (in_window(due_at(due_count))) {
      record(ALL, at - due_at(due_count));
      unanswered++;
    }
}

static void print_string(const char *text) {
  putchar('"');
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c > 0x7e || c == '"' || c == '\\')
      printf("\\u%04x", c);
    else
      putchar(c);
  }
  putchar('"');
}

static void start(char **argv) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  struct epoll_event event = {.events = EPOLLIN};
  struct sigaction action = {.sa_handler = interrupt};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (getaddrinfo(argv[1], argv[2], &hints, &server)) wrong("HOST is no address or PORT no number");
  if (getenv("AGL_LOAD_HEADERS")) headers = getenv("AGL_LOAD_HEADERS");
  prefix = argv[3];
  connection_count = atoi(argv[4]);
  connections = calloc((size_t)connection_count, sizeof *connections);
  poll_fd = epoll_create1(0);
  timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  if (!connections || poll_fd < 0 || timer_fd < 0) die("start");
  if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, &event)) die("epoll");
  make_attributes();
}

int main(int argc, char **argv) {
  if (argc < 9) wrong("usage: load HOST PORT PREFIX CONNECTIONS WARMUP SECONDS RATE PATIENCE SERVER_PID...");
  start(argv);
  char **pids = argv + 9;
  if (atof(argv[7]) > 0) interval = (double)SECOND / (atof(argv[7]) * STEPS);
  patience = (int64_t)(atof(argv[8]) * 1e9) + CONNECTING_TIME;
  schedule_start = away_since = now();
  run_until(schedule_start + (int64_t)(atof(argv[5]) * 1e9), 0);

  double own = own_cpu(), server_before = server_cpu(pids);
  window_start = now();
  window_end = window_start + (int64_t)(atof(argv[6]) * 1e9);
  schedule_start = window_start;
  failures = broken = due_count = 0;
  run_until(window_end, 0);
  int64_t stopped = now();
  double seconds = (double)(stopped - window_start) / 1e9, server_after = server_cpu(pids);
  own = own_cpu() - own;
  if (is_open_loop()) {
    run_until(stopped + DRAIN, 1);
    count_unanswered(now() < window_end ? stopped : now());
  }
  if (up == 0 && ever_up) away += stopped - away_since;

  printf("{\"seconds\":%.6f,\"rollouts\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"failures\":%" PRIu64
         ",\"broken\":%" PRIu64 ",\"away_seconds\":%.3f,\"gave_up\":%s,\"interrupted\":%s,",
         seconds, rollouts, requests, failures, broken, (double)away / 1e9, gave_up ? "true" : "false",
         interrupted ? "true" : "false");
  printf("\"unanswered\":%" PRIu64 ",\"late_server\":%" PRIu64 ",\"late_loader\":%" PRIu64
         ",\"largest_lateness\":%" PRId64 ",\"loader_cpu\":%.6f,\"server_cpu\":",
         unanswered, late_server, late_loader, lateness, own);
  if (*pids && server_before >= 0 && server_after >= 0)
    printf("%.6f", server_after - server_before);
  else
    printf("null");
  printf(",\"first_failure\":");
  print_string(first_failure);
  for (int kind = 0; kind <= KINDS; kind++) {
    printf(",\"%s\":", KIND_NAMES[kind]);
    histogram_print(&recorded[kind]);
  }
  printf("}\n");
  return 0;
}
