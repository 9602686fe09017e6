// The least that a server can do: answers every HTTP request with the same 201, over keep-alive
// connections, in one thread. What the load generator reaches against it is its own ceiling. Prints
// its port on 127.0.0.1 and ends with its standard input.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 65536, PADDING = 900 };

struct connection {
  int socket;
  size_t in_size;
  char in[BUFFER];
};

static char answer[PADDING + 512];
static size_t answer_size;

static void die(const char *what) {
  fprintf(stderr, "endpoint: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void make_answer(void) {
  char body[PADDING + 256];
  int size = snprintf(body, sizeof body,
                      "{\"rollout_id\":\"ro-0123456789ab\",\"attempt_id\":\"at-01234567\",\"padding\":\"%0*d\"}",
                      PADDING, 0);
  answer_size = (size_t)snprintf(answer, sizeof answer,
                                 "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
                                 "Content-Length: %d\r\n\r\n%s",
                                 size, body);
}

// The size of a whole request at the start of the buffer, or 0 when bytes are missing.
static size_t request_size(struct connection *c) {
  c->in[c->in_size] = 0;
  char *end = strstr(c->in, "\r\n\r\n");
  if (!end) return 0;
  char *length = strcasestr(c->in, "\r\ncontent-length:");
  size_t whole = (size_t)(end + 4 - c->in) + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
  return c->in_size >= whole ? whole : 0;
}

static void drop(struct connection *c) {
  close(c->socket);
  free(c);
}

static void readable(struct connection *c) {
  ssize_t n = recv(c->socket, c->in + c->in_size, sizeof c->in - 1 - c->in_size, 0);
  if (n <= 0) {
    drop(c);
    return;
  }
  c->in_size += (size_t)n;
  for (size_t size; (size = request_size(c));) {
    if (send(c->socket, answer, answer_size, MSG_NOSIGNAL) != (ssize_t)answer_size) {
      drop(c);
      return;
    }
    memmove(c->in, c->in + size, c->in_size -= size);
  }
}

static void watch(int poll, int descriptor, void *what) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
  if (epoll_ctl(poll, EPOLL_CTL_ADD, descriptor, &event)) die("epoll");
}

static void take(int poll, int listener) {
  int on = 1;
  struct connection *c = calloc(1, sizeof *c);
  if (!c) die("memory");
  c->socket = accept(listener, NULL, NULL);
  if (c->socket < 0) die("accept");
  setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  watch(poll, c->socket, c);
}

int main(void) {
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof here;
  struct epoll_event events[256];
  static int listener, input;
  int poll = epoll_create1(0);
  listener = socket(AF_INET, SOCK_STREAM, 0);
  if (poll < 0 || listener < 0 || bind(listener, (struct sockaddr *)&here, size) ||
      listen(listener, 4096) || getsockname(listener, (struct sockaddr *)&here, &size))
    die("listen");
  make_answer();
  watch(poll, listener, &listener);
  watch(poll, input, &input);
  printf("%d\n", ntohs(here.sin_port));
  fflush(stdout);
  for (;;) {
    int count = epoll_wait(poll, events, 256, -1);
    if (count < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < count; i++) {
      if (events[i].data.ptr == &input) return 0;
      if (events[i].data.ptr == &listener)
        take(poll, listener);
      else
        readable(events[i].data.ptr);
    }
  }
}
