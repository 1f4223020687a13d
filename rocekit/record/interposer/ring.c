/*
 * The rings: making a process's file, and writing records into it. After the file is mapped nothing here waits,
 * allocates or calls the kernel, apart from page faults and clock_gettime.
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
/* Shows whether this library was built from the sources beside it. */
__attribute__((used)) static const char sources[] = "rocekit interposer of sources " ROCEKIT_SOURCES;
#endif

enum { OFF, WANTED, OPENING, ON };

static _Atomic int state;
static struct record_file *file;
static size_t file_size;
static uint32_t ring_count = 8;
static uint64_t ring_slots = 1 << 15;
static unsigned ring_bits; /* the bits of a slot's number that are its index in the ring */
static uint32_t forked_from;
static char folder[PATH_MAX - 64];
static _Atomic unsigned threads;

__thread struct span record_own;
__thread struct record_clocks record_clocks;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#define READING_NS 1000 /* the two clocks are not read at the same moment: a smaller difference is no step */

void record_look_at_clocks(void)
{
    uint64_t before = clock_ns(CLOCK_MONOTONIC), real = clock_ns(CLOCK_REALTIME), after;
    int64_t seen;
    int tries;

    for (tries = 0; (after = clock_ns(CLOCK_MONOTONIC)) - before > READING_NS && tries < 3; tries++) {
        before = after;
        real = clock_ns(CLOCK_REALTIME);
    }
    seen = (int64_t)(real - (before + (after - before) / 2));
    if (!record_clocks.looked || seen - record_clocks.offset > READING_NS ||
        record_clocks.offset - seen > READING_NS)
        record_clocks.offset = seen;
    record_clocks.looked = after;
}

static unsigned long number_from(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

/* The child of a fork has its parent's rings mapped and must not write to them. */
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
    record_own = (struct span){0};
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

/* Tell the recorder the reason, in a file instead of the rings. */
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

    /* A process may come here a second time, as another program, after exec. */
    for (n = 0; n < 1000; n++) {
        snprintf(path, sizeof path, "%s/%d.%d.ring", folder, getpid(), n);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0)
            break;
        if (errno != EEXIST)
            return -1;
    }
    /* Without room now, a later write would end the program by SIGBUS. */
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

/* Devices are opened off the data path, so the file exists before the first work request. Only a child that uses
 * its parent's devices comes here later. */
bool record_is_on(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);

    if (__builtin_expect(now == ON, 1))
        return true;
    if (now == OFF)
        return false;
    while (now != WANTED || !atomic_compare_exchange_strong(&state, &now, OPENING)) {
        /* Another thread opens its first device at the same time. */
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

void record_lose(struct record_ring *ring, uint32_t records, enum record_kind kind)
{
    _Atomic uint64_t *count[] = {&ring->lost_sends, &ring->lost_receives, &ring->lost_completions,
                                 &ring->lost_others};

    atomic_fetch_add_explicit(count[kind], records, memory_order_relaxed);
}

/* Give this thread its ring; false if nothing is recorded. */
bool record_join(void)
{
    uint32_t number, which;

    if (!record_is_on())
        return false;
    number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    which = number % ring_count;
    record_own = (struct span){.ring = ring_at(which),
                               .base = slots_at(which),
                               .mask = ring_slots - 1,
                               .bits = (uint8_t)ring_bits,
                               .thread = (uint8_t)(number > 255 ? 255 : number)};
    return true;
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
