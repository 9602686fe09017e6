// Closed-loop HTTP load for a store: start a rollout, add four spans, finish, again and again, over a
// number of keep-alive connections. One thread, no libraries. Prints one JSON object.
//
//   load HOST PORT CONNECTIONS WARMUP_SECONDS SECONDS SERVER_PID...
//
// Latency is from the first byte written to the last byte read. The CPU time of the server's
// processes is read at both ends of the measured time.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { SPANS = 4, STEPS = SPANS + 2, ATTRIBUTES = 8, ATTRIBUTE_CHARS = 80, BUFFER = 65536 };
enum { KINDS = 3 };
static const char *const KIND_NAMES[KINDS] = {"start_rollout", "add_span", "update_attempt"};

struct connection {
  int socket, step;
  size_t out_size, out_done, in_size;
  double sent_at;
  char rollout_id[64], attempt_id[64];
  char out[BUFFER], in[BUFFER];
};

struct latencies {
  float *seconds;
  size_t count, room;
};

static struct latencies recorded[KINDS];
static uint64_t rollouts, failures, span_number;
static int measuring;
static char attributes[ATTRIBUTES * (ATTRIBUTE_CHARS + 32)];

static void die(const char *what) {
  fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double own_cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double process_cpu(int pid) {
  char path[64], text[1024], *after_name;
  unsigned long user, system;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) die(path);
  size_t size = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[size] = 0;
  after_name = strrchr(text, ')');
  if (!after_name ||
      sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
    die(path);
  return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static double server_cpu(char **pids) {
  double seconds = 0;
  while (*pids) seconds += process_cpu(atoi(*pids++));
  return seconds;
}

static void record(int kind, double seconds) {
  struct latencies *l = &recorded[kind];
  if (l->count == l->room) {
    l->room = l->room ? 2 * l->room : 65536;
    l->seconds = realloc(l->seconds, l->room * sizeof *l->seconds);
    if (!l->seconds) die("memory");
  }
  l->seconds[l->count++] = (float)seconds;
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

static void send_rest(struct connection *c) {
  while (c->out_done < c->out_size) {
    ssize_t n = send(c->socket, c->out + c->out_done, c->out_size - c->out_done, MSG_NOSIGNAL);
    if (n < 0) die("send");
    c->out_done += (size_t)n;
  }
}

static void next_request(struct connection *c) {
  static char body[BUFFER / 2];
  char path[256] = "/v1/agl/rollouts";
  int size = make_body(c, body, sizeof body);
  if (c->step == STEPS - 1)
    snprintf(path, sizeof path, "/v1/agl/rollouts/%s/attempts/%s", c->rollout_id, c->attempt_id);
  else if (c->step > 0)
    strcpy(path, "/v1/agl/spans");
  c->out_size = (size_t)snprintf(c->out, sizeof c->out,
                                 "POST %s HTTP/1.1\r\nHost: store\r\nContent-Type: application/json\r\n"
                                 "Content-Length: %d\r\n\r\n%s",
                                 path, size, body);
  c->out_done = c->in_size = 0;
  c->sent_at = now();
  send_rest(c);
}

static int take_id(const char *text, const char *key, char *into, size_t room) {
  const char *from = strstr(text, key), *to;
  if (!from) return 0;
  from = strchr(from + strlen(key), '"') + 1;
  to = strchr(from, '"');
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
  if (!length || length > end) die("answer without content-length");
  size_t whole = (size_t)(end + 4 - c->in) + strtoul(length + 17, NULL, 10);
  return c->in_size >= whole ? whole : 0;
}

static void finish_answer(struct connection *c) {
  int ok = !strncmp(c->in + 9, "20", 2);
  if (measuring) record(c->step == 0 ? 0 : c->step == STEPS - 1 ? 2 : 1, now() - c->sent_at);
  if (ok && c->step == 0)
    ok = take_id(c->in, "\"rollout_id\"", c->rollout_id, sizeof c->rollout_id) &&
         take_id(c->in, "\"attempt_id\"", c->attempt_id, sizeof c->attempt_id);
  if (!ok) {
    if (!failures++) fprintf(stderr, "load: %.600s\n", c->in);
    c->step = 0;
    return;
  }
  c->step = (c->step + 1) % STEPS;
  if (c->step == 0 && measuring) rollouts++;
}

static void readable(struct connection *c) {
  ssize_t n = recv(c->socket, c->in + c->in_size, sizeof c->in - 1 - c->in_size, 0);
  if (n <= 0) die("the server closed a connection");
  c->in_size += (size_t)n;
  if (answer_size(c)) {
    finish_answer(c);
    next_request(c);
  }
}

static void open_connection(struct connection *c, const char *host, int port, int poll) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
  int on = 1;
  if (inet_pton(AF_INET, host, &to.sin_addr) != 1) die(host);
  c->socket = socket(AF_INET, SOCK_STREAM, 0);
  if (c->socket < 0 || connect(c->socket, (struct sockaddr *)&to, sizeof to)) die("connect");
  setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event)) die("epoll");
  next_request(c);
}

static void run_until(int poll, double end) {
  struct epoll_event events[256];
  for (double left; (left = end - now()) > 0;) {
    int count = epoll_wait(poll, events, 256, (int)(left * 1000) + 1);
    if (count < 0) die("epoll_wait");
    for (int i = 0; i < count; i++) readable(events[i].data.ptr);
  }
}

static int ascending(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

static void print_latencies(const char *name, struct latencies *l) {
  qsort(l->seconds, l->count, sizeof *l->seconds, ascending);
  size_t last = l->count ? l->count - 1 : 0;
  double unit = l->count ? 1e3 : 0;
  static float none[1];
  const float *s = l->count ? l->seconds : none;
  printf("\"%s\":{\"count\":%zu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f}", name, l->count,
         unit * s[last / 2], unit * s[(size_t)(0.99 * (double)last)], unit * s[last]);
}

int main(int argc, char **argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: load HOST PORT CONNECTIONS WARMUP_SECONDS SECONDS SERVER_PID...\n");
    return 2;
  }
  int port = atoi(argv[2]), count = atoi(argv[3]);
  char **pids = argv + 6;
  struct connection *connections = calloc((size_t)count, sizeof *connections);
  int poll = epoll_create1(0);
  if (!connections || poll < 0) die("start");
  make_attributes();
  for (int i = 0; i < count; i++) open_connection(&connections[i], argv[1], port, poll);
  run_until(poll, now() + atof(argv[4]));

  double began = now(), own = own_cpu(), server = server_cpu(pids);
  measuring = 1;
  run_until(poll, began + atof(argv[5]));
  double seconds = now() - began;
  own = own_cpu() - own;
  server = server_cpu(pids) - server;

  struct latencies all = {0};
  for (int kind = 0; kind < KINDS; kind++) all.room += recorded[kind].count;
  all.seconds = malloc((all.room + 1) * sizeof *all.seconds);
  if (!all.seconds) die("memory");
  for (int kind = 0; kind < KINDS; kind++) {
    memcpy(all.seconds + all.count, recorded[kind].seconds, recorded[kind].count * sizeof(float));
    all.count += recorded[kind].count;
  }
  printf("{\"seconds\":%.3f,\"rollouts\":%llu,\"requests\":%zu,\"failures\":%llu,"
         "\"rollouts_per_second\":%.2f,\"loader_cpu_share\":%.3f,\"server_cpu_share\":%.3f,"
         "\"server_cpu_us_per_request\":%.1f,",
         seconds, (unsigned long long)rollouts, all.count, (unsigned long long)failures,
         (double)rollouts / seconds, own / seconds, server / seconds,
         all.count ? 1e6 * server / (double)all.count : 0.0);
  print_latencies("all", &all);
  for (int kind = 0; kind < KINDS; kind++) {
    printf(",");
    print_latencies(KIND_NAMES[kind], &recorded[kind]);
  }
  printf("}\n");
  return 0;
}
