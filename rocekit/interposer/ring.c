/*
 * The rings: how a process gets its file, and how records get into it. After the file is mapped nothing here
 * waits, allocates or calls the kernel, apart from page faults and what clock_gettime does.
 */
#define _GNU_SOURCE
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef ROCEKIT_SOURCES
/* For whoever asks whether this library belongs to the sources beside it. */
__attribute__((used)) static const char sources[] = "rocekit interposer of sources " ROCEKIT_SOURCES;
#endif

enum { OFF, WANTED, OPENING, ON };

static _Atomic int state;
static struct record_file *file;
static size_t file_size;
static uint32_t ring_count = 8;
static uint64_t ring_slots = 1 << 15;
static unsigned ring_bits; /* of a slot's number, its place in the ring */
static uint32_t forked_from;
static char folder[PATH_MAX - 64];
static _Atomic unsigned threads;

/* 0: this thread has not written yet; else its number + 1. */
static __thread unsigned self __attribute__((tls_model("initial-exec")));

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How far the real clock is from the monotonic one, as this thread last saw it. Both are slewed alike
 * (clock_adjtime(2)), and so only a step changes it: looking once in a millisecond is enough, and saves half of
 * what a record costs. */
static __thread struct {
    uint64_t looked;
    int64_t real;
} offset __attribute__((tls_model("initial-exec")));

#define LOOK_NS 1000000u
#define READING_NS 1000 /* the two clocks cannot be read at the same moment: a difference below is no step */

static __attribute__((noinline)) void look_at_clocks(void)
{
    uint64_t before = clock_ns(CLOCK_MONOTONIC), real = clock_ns(CLOCK_REALTIME), after;
    int64_t seen;
    int tries;

    for (tries = 0; (after = clock_ns(CLOCK_MONOTONIC)) - before > READING_NS && tries < 3; tries++) {
        before = after;
        real = clock_ns(CLOCK_REALTIME);
    }
    seen = (int64_t)(real - (before + (after - before) / 2));
    if (!offset.looked || seen - offset.real > READING_NS || offset.real - seen > READING_NS)
        offset.real = seen;
    offset.looked = after;
}

struct stamp record_now(void)
{
    uint64_t mono = clock_ns(CLOCK_MONOTONIC);

    if (__builtin_expect(mono - offset.looked > LOOK_NS, 0))
        look_at_clocks();
    return (struct stamp){.mono = mono, .real = mono + (uint64_t)offset.real};
}

static unsigned long number_from(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

/* The child of a fork has its parent's rings mapped and must not write there. */
static void after_fork(void)
{
    int before = atomic_load(&state);

    if (before == OFF)
        return;
    if (before == ON) {
        forked_from = file->pid;
        munmap(file, file_size);
    }
    file = NULL;
    self = 0;
    atomic_store(&threads, 0);
    atomic_store(&state, getenv("ROCEKIT_RECORD_PARENT") ? OFF : WANTED);
}

__attribute__((constructor)) static void start(void)
{
    const char *where = getenv("ROCEKIT_RECORD_FOLDER");
    unsigned long parent = number_from("ROCEKIT_RECORD_PARENT", 0);
    unsigned long slots = number_from("ROCEKIT_RECORD_SLOTS", ring_slots);
    unsigned long rings = number_from("ROCEKIT_RECORD_RINGS", ring_count);

    if (!where || strlen(where) >= sizeof folder || (parent && (pid_t)parent != getppid()))
        return;
    if (slots < 64 || slots > 1ul << 30 || slots & (slots - 1) || !rings || rings > 1024)
        return;
    strcpy(folder, where);
    ring_slots = slots;
    ring_bits = (unsigned)__builtin_ctzl(slots);
    ring_count = (uint32_t)rings;
    pthread_atfork(NULL, NULL, after_fork);
    atomic_store(&state, WANTED);
}

/* There is nobody to tell but the recorder: a file with the reason in place of one with rings. */
static void tell_failure(int reason)
{
    char path[PATH_MAX], text[16];
    int fd, length;

    snprintf(path, sizeof path, "%s/%d.failed", folder, getpid());
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    length = snprintf(text, sizeof text, "%d", reason);
    if (write(fd, text, (size_t)length) != length)
        unlink(path);
    close(fd);
}

static int new_file(void)
{
    char path[PATH_MAX];
    int fd, n;

    /* A process may come by a second time, in another program's clothes, by exec. */
    for (n = 0; n < 1000; n++) {
        snprintf(path, sizeof path, "%s/%d.%d.ring", folder, getpid(), n);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0)
            break;
        if (errno != EEXIST)
            return -1;
    }
    /* Without room now, writing would end the program by SIGBUS later. */
    if (fd < 0)
        return -1;
    do
        errno = posix_fallocate(fd, 0, (off_t)file_size);
    while (errno == EINTR);
    if (errno) {
        int reason = errno;

        close(fd);
        unlink(path);
        errno = reason;
        return -1;
    }
    return fd;
}

static bool map_file(void)
{
    int saved = errno, fd;
    struct record_file *map;

    file_size = RECORD_PAGE * (1 + (sizeof(struct record_ring) * ring_count + RECORD_PAGE - 1) / RECORD_PAGE) +
                ring_count * ring_slots * RECORD_SLOT;
    fd = new_file();
    map = fd < 0 ? MAP_FAILED
                 : mmap(NULL, file_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        tell_failure(errno);
    if (fd >= 0)
        close(fd);
    errno = saved;
    if (map == MAP_FAILED)
        return false;
    map->layout = RECORD_LAYOUT;
    map->rings = ring_count;
    map->slots = ring_slots;
    map->pid = (uint32_t)getpid();
    map->follows = forked_from;
    map->started_real = clock_ns(CLOCK_REALTIME);
    map->started_mono = clock_ns(CLOCK_MONOTONIC);
    strncpy(map->program, program_invocation_short_name, sizeof map->program - 1);
    file = map;
    atomic_store_explicit(&map->magic, RECORD_MAGIC, memory_order_release);
    return true;
}

/* Devices are opened off the data path, so the file is there before the first work request. Only a child that
 * goes on with its parent's devices comes here later. */
bool record_is_on(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);

    if (__builtin_expect(now == ON, 1))
        return true;
    if (now == OFF)
        return false;
    while (now != WANTED || !atomic_compare_exchange_strong(&state, &now, OPENING)) {
        /* Another thread opens its first device at the same moment. */
        if (now == ON || now == OFF)
            return now == ON;
        sched_yield();
        now = atomic_load_explicit(&state, memory_order_acquire);
    }
    now = map_file() ? ON : OFF;
    atomic_store_explicit(&state, now, memory_order_release);
    return now == ON;
}

static struct record_ring *ring_at(uint32_t i)
{
    return (struct record_ring *)((char *)file + RECORD_PAGE) + i;
}

static struct record_slot *slots_at(uint32_t i)
{
    size_t controls = (sizeof(struct record_ring) * ring_count + RECORD_PAGE - 1) / RECORD_PAGE * RECORD_PAGE;

    return (struct record_slot *)((char *)file + RECORD_PAGE + controls) + (size_t)i * ring_slots;
}

static void lose(struct record_ring *ring, uint32_t records, enum record_kind kind)
{
    _Atomic uint64_t *count[] = {&ring->lost_sends, &ring->lost_receives, &ring->lost_completions,
                                 &ring->lost_others};

    atomic_fetch_add_explicit(count[kind], records, memory_order_relaxed);
}

struct span record_reserve(uint32_t slots, uint32_t records, enum record_kind kind)
{
    struct span span = {0};
    struct record_ring *ring;
    uint64_t head;
    uint32_t which;

    if (!record_is_on())
        return span;
    if (!self)
        self = 1 + atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    which = (self - 1) % ring_count;
    ring = ring_at(which);
    head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    do {
        if (head + slots - ring->tail_seen > ring_slots) {
            ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
            if (head + slots - ring->tail_seen > ring_slots) {
                lose(ring, records, kind);
                return span;
            }
        }
    } while (!atomic_compare_exchange_weak_explicit(&ring->head, &head, head + slots, memory_order_relaxed,
                                                    memory_order_relaxed));
    span.ring = ring;
    span.base = slots_at(which);
    span.mask = ring_slots - 1;
    span.at = head;
    span.slots = slots;
    span.thread = (uint8_t)(self > 256 ? 255 : self - 1);
    return span;
}

static void mark(const struct span *span, uint64_t bit)
{
    uint32_t i;

    for (i = 0; i < span->slots; i++)
        atomic_store_explicit(&span_slot(span, i)->commit, ((span->at + i) >> ring_bits) + 1 + bit,
                              memory_order_release);
}

void record_filled(const struct span *span)
{
    mark(span, RECORD_FILLED);
}

void record_commit(const struct span *span)
{
    mark(span, 0);
}

void record_put(enum record_type type, uint8_t device, uint32_t number, const void *payload, size_t length)
{
    struct stamp now = record_now();
    size_t first = sizeof((struct record_slot *)0)->payload, done;
    uint32_t slots = length > first ? slots_of((uint32_t)(length - first)) : 1, i;
    struct span span = record_reserve(slots, 1, KIND_OTHER);

    if (!span.ring)
        return;
    slot_head(span_slot(&span, 0), &span, type, slots, device, number, now);
    done = length < first ? length : first;
    memcpy(span_slot(&span, 0)->payload, payload, done);
    for (i = 1; i < slots; i++) {
        size_t left = length - done;
        size_t part = left < RECORD_CONTINUED ? left : RECORD_CONTINUED;

        memcpy(span_slot(&span, i)->continued, (const char *)payload + done, part);
        done += part;
    }
    record_commit(&span);
}
