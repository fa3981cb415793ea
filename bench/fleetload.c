// fleetload: many MQTT 3.1.1 clients in one thread with epoll, told what to do line by line on standard input.
// Each line is a verb and words NAME=VALUE; each is answered with one line of JSON. In a topic or filter, % stands for a
// number: that of a client, or of a message. Between commands and during them, clients go on receiving and acknowledging.
//
//   connect group=G port=P count=N [first=I] [id=PREFIX] [under_way=U] [filter=F] [qos=Q] [timeout=S]
//       N clients; each subscribes to F, with its own number in it, as soon as it is connected.
//   subscribe group=G filter=F count=N [first=I] [under_way=U] [qos=Q] [timeout=S]
//       N filters with the numbers from I on, by the clients of the group in turn.
//   expect count=N [topics=T] [own=1]
//       Forgets what was received; from here on messages numbered below N count. T: number k was published on topic k
//       modulo T, and must come in order there. own: number k is for the client numbered k alone.
//   publish group=G topic=T count=N [first=I] [topics=M] [start=K] [qos=Q] [rate=R] [under_way=U] [window=W] [bytes=B] [timeout=S]
//       Messages numbered from K on; message k goes to topic I + k modulo M. R a second, or as fast as they are taken. At
//       most W of them have not been received yet; what is not received within STALLED is taken for lost.
//   await count=N [timeout=S] [quiet=S]
//       Until N different messages have come, or the time is over, or nothing new has come for so long. Counts are since
//       `expect`, times since the last answer.
//   churn ports=P,P,.. filter=F topic=T first=I rate=R seconds=S [timeout=S]
//       Clients that connect, subscribe, publish twice with QoS 1, get both, and go.
//   close group=G
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLOSED, DIALLING, GREETING, READY };
enum { GROUP_BYTES = 32, NAME_BYTES = 256, LINE_BYTES = 4096, READ_BYTES = 1 << 18, WRITE_AHEAD_BYTES = 16384, EVENTS = 512, SOURCES = 16 };
#define SECOND 1000000000ull
#define STALLED (3 * SECOND)

typedef struct Client {
  int fd, state, armed, is_churning, puts, gets;
  uint32_t number, unacked, port;
  uint16_t last_id;
  uint64_t began, asked;
  char group[GROUP_BYTES];
  uint8_t *in, *out;
  size_t in_len, in_cap, out_len, out_at, out_cap;
} Client;
typedef struct { uint32_t *us; size_t len, cap; } Times;

static int epoll_fd;
static Client **clients;
static size_t clients_len, clients_cap;
static uint64_t closed, refused;
static uint8_t wanted_qos;
static const char *wanted_filter;
static Times connects, subacks, deliveries, cycles;
static uint64_t connected, subscribed, under_way;
// What was received.
static uint8_t *seen;
static int64_t *newest;
static uint64_t seen_len, topics_len, distinct, twice, wrong, disordered, late, first_at, last_at;
static int is_own;
static const uint64_t LATE_US = 1000000;
// Of clients that come and go.
static const char *churn_topic;
static uint64_t churned, churn_failed;

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * SECOND + t.tv_nsec; }
static void fail(const char *what) { printf("{\"error\": \"%s: %s\"}\n", what, strerror(errno)); fflush(stdout); exit(2); }
static void *more(void *p, size_t bytes) { p = realloc(p, bytes); if (!p) fail("memory"); return p; }

static void note(Times *t, uint64_t began) {
  if (t->len == t->cap) { t->cap = t->cap ? t->cap * 2 : 4096; t->us = more(t->us, t->cap * sizeof *t->us); }
  t->us[t->len++] = (uint32_t)((now() - began) / 1000);
}
static int by_size(const void *a, const void *b) { uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b; return x < y ? -1 : x > y; }
static void print_times(const char *name, Times *t) {
  qsort(t->us, t->len, sizeof *t->us, by_size);
  size_t n = t->len;
  printf("\"%s\": {\"count\": %zu, \"p50_us\": %u, \"p99_us\": %u, \"max_us\": %u}", name, n, n ? t->us[n / 2] : 0, n ? t->us[n * 99 / 100] : 0, n ? t->us[n - 1] : 0);
}

// Bytes out

static void put(Client *c, const void *bytes, size_t len) {
  if (c->out_len + len > c->out_cap) { c->out_cap = (c->out_len + len) * 2; c->out = more(c->out, c->out_cap); }
  memcpy(c->out + c->out_len, bytes, len);
  c->out_len += len;
}
static void hang_up(Client *c) {
  if (c->state == CLOSED) return;
  close(c->fd);
  c->state = CLOSED;
  free(c->in); free(c->out);
  c->in = c->out = NULL;
  c->in_len = c->in_cap = c->out_len = c->out_at = c->out_cap = 0;
}
static void lose(Client *c) {  // the broker hung up, or could not be reached
  if (c->state == CLOSED) return;
  if (c->is_churning) { churn_failed++; under_way--; } else { closed++; if (c->state != READY && under_way) under_way--; }
  hang_up(c);
}
static void flush_out(Client *c) {
  if (c->state < GREETING) return;
  while (c->out_at < c->out_len) {
    ssize_t n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at, MSG_NOSIGNAL);
    if (n < 0) { if (errno == EAGAIN) break; lose(c); return; }
    c->out_at += n;
  }
  if (c->out_at == c->out_len) c->out_at = c->out_len = 0;
  int want = c->out_len > 0;
  if (want != c->armed) {
    struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->armed = want;
  }
}
static size_t fill(char *into, const char *template, uint64_t number) {
  size_t n = 0;
  for (const char *p = template; *p && n < NAME_BYTES - 24; p++) if (*p == '%') n += sprintf(into + n, "%llu", (unsigned long long)number); else into[n++] = *p;
  into[n] = 0;
  return n;
}
static size_t head(uint8_t *p, uint8_t first, size_t remaining) {
  size_t n = 0;
  p[n++] = first;
  do { uint8_t b = remaining & 127; remaining >>= 7; p[n++] = b | (remaining ? 128 : 0); } while (remaining);
  return n;
}
static size_t text(uint8_t *p, const char *s, size_t len) { p[0] = len >> 8; p[1] = len; memcpy(p + 2, s, len); return len + 2; }
static uint16_t next_id(Client *c) { if (!++c->last_id) c->last_id = 1; return c->last_id; }

static void send_connect(Client *c, const char *prefix) {
  char id[NAME_BYTES]; uint8_t b[NAME_BYTES + 32];
  size_t len = snprintf(id, sizeof id, "%s%u", prefix, c->number), k = head(b, 0x10, 12 + len);
  memcpy(b + k, "\0\4MQTT\4\2\0\0", 10); k += 10;  // clean session, no keep-alive: the fleet is silent when it is idle
  k += text(b + k, id, len);
  put(c, b, k);
}
static void send_subscribe(Client *c, const char *filter, uint64_t number) {
  char name[NAME_BYTES]; uint8_t b[NAME_BYTES + 32];
  size_t len = fill(name, filter, number), k = head(b, 0x82, 5 + len); uint16_t id = next_id(c);
  b[k++] = id >> 8; b[k++] = id; k += text(b + k, name, len); b[k++] = wanted_qos;
  put(c, b, k);
  c->asked = now();
}
static void send_publish(Client *c, const char *topic, uint64_t topic_number, uint64_t number, int qos, size_t bytes) {
  char name[NAME_BYTES]; static uint8_t b[1 << 17]; uint64_t at = now();
  size_t len = fill(name, topic, topic_number), k = head(b, 0x30 | qos << 1, 2 + len + (qos ? 2 : 0) + bytes);
  k += text(b + k, name, len);
  if (qos) { uint16_t id = next_id(c); b[k++] = id >> 8; b[k++] = id; c->unacked++; }
  memcpy(b + k, &number, 8); memcpy(b + k + 8, &at, 8); memset(b + k + 16, 'x', bytes - 16);
  put(c, b, k + bytes);
}

// Bytes in

static void on_message(Client *c, const uint8_t *payload, size_t len) {
  uint64_t number, at;
  if (c->is_churning) { c->gets++; return; }
  if (len < 16 || !seen) { wrong++; return; }
  memcpy(&number, payload, 8); memcpy(&at, payload + 8, 8);
  if (number >= seen_len || (is_own && number != c->number)) { wrong++; return; }
  if (seen[number]) { twice++; return; }
  seen[number] = 1; distinct++;
  last_at = now(); if (!first_at) first_at = last_at;
  note(&deliveries, at);
  if (deliveries.us[deliveries.len - 1] > LATE_US) late++;
  if (newest) { int64_t *last = newest + number % topics_len; if ((int64_t)number < *last) disordered++; else *last = number; }
}
static void on_suback(Client *c, uint8_t code) {
  note(&subacks, c->asked);
  if (code & 0x80) refused++; else subscribed++;
  if (c->is_churning) { for (int i = 0; i < 2; i++) send_publish(c, churn_topic, c->number, c->number, 1, 32); return; }
  under_way--;
}
static void on_connack(Client *c, uint8_t code) {
  if (code) { lose(c); return; }
  note(&connects, c->began);
  c->state = READY; connected++;
  if (wanted_filter) send_subscribe(c, wanted_filter, c->number); else under_way--;
}
static void on_packet(Client *c, uint8_t first, const uint8_t *p, size_t len) {
  switch (first >> 4) {
    case 2: on_connack(c, len > 1 ? p[1] : 1); break;
    case 3: {
      size_t at = 2 + (p[0] << 8 | p[1]);
      if (first & 6) { uint8_t ack[4] = {0x40, 2, p[at], p[at + 1]}; put(c, ack, 4); at += 2; }
      on_message(c, p + at, len - at);
      break;
    }
    case 4: c->unacked--; c->puts++; break;
    case 9: on_suback(c, p[2]); break;
  }
  if (c->is_churning && c->state == READY && c->puts == 2 && c->gets >= 2) {
    put(c, "\xe0\0", 2); flush_out(c);
    if (c->state == CLOSED) return;
    note(&cycles, c->began); churned++; under_way--; hang_up(c);
  }
}
static void pump(Client *c) {
  static uint8_t buffer[READ_BYTES * 2];
  size_t kept = c->in_len;
  memcpy(buffer, c->in, kept);
  ssize_t n = recv(c->fd, buffer + kept, READ_BYTES, 0);
  if (n == 0) { lose(c); return; }
  if (n < 0) { if (errno != EAGAIN) lose(c); return; }
  size_t have = kept + n, at = 0;
  while (have - at >= 2) {
    size_t i = at + 1, len = 0; int shift = 0, is_whole = 0;
    while (i < have && shift < 28) { uint8_t v = buffer[i++]; len |= (size_t)(v & 127) << shift; shift += 7; if (!(v & 128)) { is_whole = 1; break; } }
    if (!is_whole || have - i < len) break;
    on_packet(c, buffer[at], buffer + i, len);
    if (c->state == CLOSED) return;
    at = i + len;
  }
  c->in_len = have - at;
  if (c->in_len > c->in_cap) { c->in_cap = c->in_len; c->in = more(c->in, c->in_cap); }
  if (c->in_len) memcpy(c->in, buffer + at, c->in_len);
  flush_out(c);
}
static void turn(int wait_ms) {
  struct epoll_event events[EVENTS];
  int n = epoll_wait(epoll_fd, events, EVENTS, wait_ms);
  for (int i = 0; i < n; i++) {
    Client *c = events[i].data.ptr;
    if (!c || c->state == CLOSED) continue;
    if (c->state == DIALLING) {
      if (events[i].events & (EPOLLERR | EPOLLHUP)) { lose(c); continue; }
      c->state = GREETING; c->armed = 1;
      flush_out(c);
    } else if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) pump(c);
    else flush_out(c);
  }
}

// Commands

static char *words[32]; static int words_len;
static const char *word(const char *name, const char *otherwise) {
  size_t len = strlen(name);
  for (int i = 1; i < words_len; i++) if (!strncmp(words[i], name, len) && words[i][len] == '=') return words[i] + len + 1;
  return otherwise;
}
static double number_of(const char *name, double otherwise) { const char *w = word(name, NULL); return w ? atof(w) : otherwise; }

static Client *dial(int port, uint64_t number, const char *prefix, const char *group) {
  Client *c = calloc(1, sizeof *c);
  if (clients_len == clients_cap) { clients_cap = clients_cap ? clients_cap * 2 : 1024; clients = more(clients, clients_cap * sizeof *clients); }
  clients[clients_len++] = c;
  c->number = number; c->port = port; c->began = now(); c->state = DIALLING;
  snprintf(c->group, sizeof c->group, "%s", group);
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->fd < 0) fail("socket");
  int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); setsockopt(c->fd, IPPROTO_IP, 24, &one, sizeof one);  // IP_BIND_ADDRESS_NO_PORT
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + number % SOURCES)};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(c->fd, (void *)&from, sizeof from)) fail("bind");
  if (connect(c->fd, (void *)&to, sizeof to) && errno != EINPROGRESS) fail("connect");
  struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
  send_connect(c, prefix);
  return c;
}
static size_t members(const char *group, Client ***found) {
  static Client **some; static size_t cap; size_t n = 0;
  if (cap < clients_len) { cap = clients_len; some = more(some, cap * sizeof *some); }
  for (size_t i = 0; i < clients_len; i++) if (clients[i]->state == READY && !strcmp(clients[i]->group, group)) some[n++] = clients[i];
  *found = some;
  return n;
}
static void sweep(void) {
  size_t n = 0;
  for (size_t i = 0; i < clients_len; i++) if (clients[i]->state == CLOSED) free(clients[i]); else clients[n++] = clients[i];
  clients_len = n;
}
static void do_connect(void) {
  uint64_t count = number_of("count", 1), first = number_of("first", 0), most = number_of("under_way", 100), began = now(), ends = began + number_of("timeout", 60) * SECOND, made = 0;
  connects.len = subacks.len = connected = subscribed = refused = closed = under_way = 0;
  wanted_filter = word("filter", NULL); wanted_qos = number_of("qos", 0);
  while ((made < count || under_way) && now() < ends) {
    while (made < count && under_way < most) { under_way++; dial(number_of("port", 1883), first + made++, word("id", "fleet"), word("group", "")); }
    turn(10);
  }
  wanted_filter = NULL;
  printf("{\"connected\": %llu, \"subscribed\": %llu, \"refused\": %llu, \"closed\": %llu, \"seconds\": %.3f, ", (unsigned long long)connected, (unsigned long long)subscribed, (unsigned long long)refused, (unsigned long long)closed, (now() - began) / 1e9);
  print_times("connects", &connects); printf(", "); print_times("subacks", &subacks); printf("}\n");
}
static void do_subscribe(void) {
  uint64_t count = number_of("count", 1), first = number_of("first", 0), most = number_of("under_way", 1), began = now(), ends = began + number_of("timeout", 60) * SECOND, made = 0;
  Client **some; size_t n = members(word("group", ""), &some);
  subacks.len = subscribed = refused = closed = under_way = 0; wanted_qos = number_of("qos", 0);
  if (most > n) most = n;
  while (n && (made < count || under_way) && now() < ends) {
    while (made < count && under_way < most) { Client *c = some[made % n]; under_way++; send_subscribe(c, word("filter", "%"), first + made++); flush_out(c); }
    turn(10);
  }
  printf("{\"subscribed\": %llu, \"refused\": %llu, \"seconds\": %.3f, ", (unsigned long long)subscribed, (unsigned long long)refused, (now() - began) / 1e9);
  print_times("subacks", &subacks); printf("}\n");
}
static void do_expect(void) {
  seen_len = number_of("count", 0); topics_len = number_of("topics", 0); is_own = number_of("own", 0);
  seen = more(seen, seen_len + 1); memset(seen, 0, seen_len + 1);
  free(newest); newest = NULL;
  if (topics_len) { newest = more(NULL, topics_len * sizeof *newest); memset(newest, 0xff, topics_len * sizeof *newest); }
  distinct = twice = wrong = disordered = late = first_at = last_at = 0; deliveries.len = 0;
  printf("{}\n");
}
static void do_publish(void) {
  uint64_t count = number_of("count", 1), first = number_of("first", 0), modulo = number_of("topics", 0), start = number_of("start", 0), most = number_of("under_way", 100), window = number_of("window", 0);
  int qos = number_of("qos", 0); size_t bytes = number_of("bytes", 100); double rate = number_of("rate", 0); const char *topic = word("topic", "%");
  Client **some; size_t n = members(word("group", ""), &some), next = 0; uint64_t began = now(), ends = began + number_of("timeout", 600) * SECOND, sent = 0, unacked = 0, unsent = 0, done = 0;
  closed = 0;
  if (bytes < 16) bytes = 16;
  while (n && !done && !closed && now() < ends) {
    uint64_t due = rate ? (uint64_t)((now() - began) / 1e9 * rate) + 1 : count;
    if (due > count) due = count;
    if (window && due > distinct + window && now() - (last_at > began ? last_at : began) < STALLED) due = distinct + window;
    for (size_t full = 0; sent < due && full < n; next++) {
      Client *c = some[next % n];
      if (c->out_len - c->out_at > WRITE_AHEAD_BYTES || (qos && c->unacked >= most)) { full++; continue; }
      full = 0;
      uint64_t k = start + sent++;
      send_publish(c, topic, first + (modulo ? k % modulo : k), k, qos, bytes);
      if (rate) flush_out(c);
    }
    for (size_t i = 0; i < n; i++) if (some[i]->out_len) flush_out(some[i]);
    turn(rate ? 1 : sent < count ? 0 : 5);
    if (sent == count) {
      unacked = unsent = 0;
      for (size_t i = 0; i < n; i++) { unacked += some[i]->unacked; unsent += some[i]->out_len; }
      done = !unacked && !unsent;
    }
  }
  printf("{\"sent\": %llu, \"unacked\": %llu, \"closed\": %llu, \"began_ns\": %llu, \"seconds\": %.6f}\n", (unsigned long long)sent, (unsigned long long)unacked, (unsigned long long)closed, (unsigned long long)began, (now() - began) / 1e9);
}
static void do_await(void) {
  uint64_t count = number_of("count", 0), ends = now() + number_of("timeout", 60) * SECOND, quiet = number_of("quiet", 1e6) * SECOND, began = now();
  for (uint64_t t = began; distinct < count && t < ends && t - (last_at > began ? last_at : began) < quiet; t = now()) turn(10);
  printf("{\"received\": %llu, \"twice\": %llu, \"wrong\": %llu, \"disordered\": %llu, \"late\": %llu, \"closed\": %llu, \"first_ns\": %llu, \"last_ns\": %llu, ", (unsigned long long)distinct, (unsigned long long)twice, (unsigned long long)wrong, (unsigned long long)disordered, (unsigned long long)late, (unsigned long long)closed, (unsigned long long)first_at, (unsigned long long)last_at);
  print_times("deliveries", &deliveries); printf("}\n");
  deliveries.len = 0;
}
static void do_churn(void) {
  int ports[64], ports_len = 0; char list[NAME_BYTES], *rest;
  snprintf(list, sizeof list, "%s", word("ports", ""));
  for (char *p = strtok_r(list, ",", &rest); p && ports_len < 64; p = strtok_r(NULL, ",", &rest)) ports[ports_len++] = atoi(p);
  uint64_t first = number_of("first", 0), began = now(), timeout = number_of("timeout", 10) * SECOND, made = 0; double rate = number_of("rate", 500), seconds = number_of("seconds", 60); uint64_t count = rate * seconds;
  connects.len = subacks.len = cycles.len = churned = churn_failed = refused = under_way = 0;
  wanted_filter = word("filter", "churn/%/+"); churn_topic = word("topic", "churn/%/a"); wanted_qos = 0;
  while (ports_len && (made < count || under_way)) {
    uint64_t due = (now() - began) / 1e9 * rate;
    for (; made < due && made < count; made++) { Client *c = dial(ports[made % ports_len], first + made, "churn", ""); c->is_churning = 1; under_way++; }
    turn(1);
    uint64_t t = now();
    for (size_t i = 0; i < clients_len; i++) if (clients[i]->is_churning && clients[i]->state != CLOSED && t - clients[i]->began > timeout) lose(clients[i]);
    if (clients_len > 1024) sweep();
  }
  wanted_filter = NULL;
  printf("{\"cycles\": %llu, \"failed\": %llu, \"refused\": %llu, \"seconds\": %.3f, ", (unsigned long long)churned, (unsigned long long)churn_failed, (unsigned long long)refused, (now() - began) / 1e9);
  print_times("latency", &cycles); printf(", "); print_times("subacks", &subacks); printf(", "); print_times("connects", &connects); printf("}\n");
}
static void do_close(void) {
  Client **some; size_t n = members(word("group", ""), &some);
  for (size_t i = 0; i < n; i++) { put(some[i], "\xe0\0", 2); flush_out(some[i]); hang_up(some[i]); }
  sweep();
  printf("{\"hung_up\": %zu}\n", n);
}
static void obey(char *line) {
  char *rest;
  words_len = 0;
  for (char *p = strtok_r(line, " \n", &rest); p && words_len < 32; p = strtok_r(NULL, " \n", &rest)) words[words_len++] = p;
  if (!words_len) return;
  const struct { const char *name; void (*run)(void); } verbs[] = {{"connect", do_connect}, {"subscribe", do_subscribe}, {"expect", do_expect}, {"publish", do_publish}, {"await", do_await}, {"churn", do_churn}, {"close", do_close}};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) if (!strcmp(words[0], verbs[i].name)) { verbs[i].run(); fflush(stdout); return; }
  printf("{\"error\": \"no such command: %s\"}\n", words[0]); fflush(stdout);
}
int main(void) {
  static char line[LINE_BYTES]; size_t len = 0;
  epoll_fd = epoll_create1(0);
  struct epoll_event input = {.events = EPOLLIN, .data.ptr = NULL};
  fcntl(0, F_SETFL, O_NONBLOCK);
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, 0, &input)) fail("standard input must be a pipe");
  for (;;) {
    ssize_t n = read(0, line + len, sizeof line - len - 1);
    if (n == 0) return 0;
    if (n > 0) {
      char *end;
      len += n; line[len] = 0;
      while ((end = strchr(line, '\n'))) { size_t used = end - line + 1; char one[LINE_BYTES]; memcpy(one, line, used); one[used] = 0; obey(one); memmove(line, line + used, len - used + 1); len -= used; }
    } else turn(10);
  }
}
