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
#include <sys/resource.h>
#include <sys/stat.h>
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
static bool alone; /* children are not recorded */
/* Where the rings of an earlier recording were mapped, if the recorder is attached again. Threads may still have
 * addresses in there. */
static void *rings_before;
uint32_t record_session;
/* In memory; and another, on a disk, for when that has no room. */
static char folders[2][PATH_MAX - 64];
static _Atomic unsigned threads, told;

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
        rings_before = NULL;
    }
    file = NULL;
    record_own = (struct span){0};
    atomic_store(&threads, 0);
    atomic_store(&told, 0);
    atomic_store(&state, alone ? OFF : WANTED);
}

static void follow_forks(void)
{
    static bool done;

    if (!done)
        pthread_atfork(NULL, NULL, after_fork);
    done = true;
}

static bool set_folder(char *folder, const char *where)
{
    if (!where || strlen(where) >= sizeof folders[0])
        return false;
    strcpy(folder, where);
    return true;
}

__attribute__((constructor)) static void start(void)
{
    unsigned long parent = number_from("ROCEKIT_RECORD_PARENT", 0);
    unsigned long slots = number_from("ROCEKIT_RECORD_SLOTS", ring_slots);
    unsigned long rings = number_from("ROCEKIT_RECORD_RINGS", ring_count);

    if (!set_folder(folders[0], getenv("ROCEKIT_RECORD_FOLDER")) || (parent && (pid_t)parent != getppid()))
        return;
    if (slots < 64 || slots > 1ul << 30 || slots & (slots - 1) || !rings || rings > 1024)
        return;
    set_folder(folders[1], getenv("ROCEKIT_RECORD_SPILL"));
    alone = parent != 0;
    ring_slots = slots;
    ring_count = (uint32_t)rings;
    follow_forks();
    atomic_store(&state, WANTED);
}

/* A new file of this process in one of the folders, or -1. A process may come here a second time, as another
 * program, after exec. */
static int new_file(const char *folder, const char *kind, char *path)
{
    int fd = -1, n;

    for (n = 0; *folder && n < 1000; n++) {
        snprintf(path, PATH_MAX, "%s/%d.%d.%s", folder, getpid(), n, kind);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    return fd;
}

/* A text for the recorder: a file is written under another name first, so that it is never read in part. */
static void leave_text(const char *kind, const char *text)
{
    char path[PATH_MAX], whole[PATH_MAX];
    size_t length = strlen(text);
    int fd = -1, i;

    for (i = 0; i < 2 && fd < 0; i++)
        fd = new_file(folders[i], "new", path);
    if (fd < 0)
        return;
    snprintf(whole, sizeof whole, "%.*s.%s", (int)(strlen(path) - strlen(".new")), path, kind);
    if (write(fd, text, length) != (ssize_t)length || rename(path, whole))
        unlink(path);
    close(fd);
}

#define MOST_TOLD 16 /* by a process */

void record_tell(const char *what, const char *which)
{
    int saved = errno;
    char text[1024];

    if (atomic_load(&state) == OFF || atomic_fetch_add(&told, 1) >= MOST_TOLD)
        return;
    snprintf(text, sizeof text, "%s %s", what, which);
    leave_text("told", text);
    errno = saved;
}

static size_t size_of(uint64_t slots)
{
    size_t controls = sizeof(struct record_ring) * (ring_count + 1);

    return RECORD_PAGE * (1 + (controls + RECORD_PAGE - 1) / RECORD_PAGE) + (ring_count + 1) * slots * RECORD_SLOT +
           RECORD_LOSSES * sizeof(struct record_loss);
}

/* A file with room for the rings. Without room now, a later write would end the program by SIGBUS; and a file larger
 * than its limit would end it now, by SIGXFSZ. */
static int file_with_room(const char *folder, size_t size)
{
    struct rlimit limit;
    char path[PATH_MAX];
    int fd;

    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && size > limit.rlim_cur) {
        errno = EFBIG;
        return -1;
    }
    fd = new_file(folder, "ring", path);
    if (fd < 0)
        return -1;
    do
        errno = posix_fallocate(fd, 0, (off_t)size);
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

#define LEAST_SLOTS 1024 /* of a ring that is made smaller than was asked for */

/* In memory, else on the disk, else with smaller rings. */
static int any_file(void)
{
    uint64_t slots = ring_slots;
    int fd, reason = 0, i;

    for (;;) {
        for (i = 0; i < 2; i++) {
            if (!*folders[i])
                continue;
            fd = file_with_room(folders[i], size_of(slots));
            if (fd >= 0) {
                ring_slots = slots;
                return fd;
            }
            if (!reason || errno == ENOSPC || errno == EFBIG)
                reason = errno;
        }
        if (rings_before || slots / 2 < LEAST_SLOTS || (reason != ENOSPC && reason != EFBIG && reason != ENOMEM))
            break;
        slots /= 2;
    }
    errno = reason;
    return -1;
}

static uint64_t pid_namespace(void)
{
    struct stat found;

    return stat("/proc/self/ns/pid", &found) ? 0 : (uint64_t)found.st_ino;
}

static bool map_file(void)
{
    int saved = errno, fd = any_file();
    struct record_file *map;
    char text[16];

    file_size = size_of(ring_slots);
    ring_bits = (unsigned)__builtin_ctzl(ring_slots);
    map = fd < 0 ? MAP_FAILED
                 : mmap(rings_before, file_size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE | (rings_before ? MAP_FIXED : 0), fd, 0);
    if (map == MAP_FAILED) {
        snprintf(text, sizeof text, "%d", errno);
        leave_text("failed", text);
    }
    if (fd >= 0)
        close(fd);
    errno = saved;
    if (map == MAP_FAILED)
        return false;
    map->layout = RECORD_LAYOUT;
    map->rings = ring_count + 1;
    map->slots = ring_slots;
    map->pid = (uint32_t)getpid();
    map->follows = forked_from;
    map->started_real = clock_ns(CLOCK_REALTIME);
    map->started_mono = clock_ns(CLOCK_MONOTONIC);
    map->pid_namespace = pid_namespace();
    strncpy(map->program, program_invocation_short_name, sizeof map->program - 1);
    errno = saved;
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
    size_t controls =
        (sizeof(struct record_ring) * (ring_count + 1) + RECORD_PAGE - 1) / RECORD_PAGE * RECORD_PAGE;

    return (struct record_slot *)((char *)file + RECORD_PAGE + controls) + (size_t)i * ring_slots;
}

#define MOST_PROBES 64

/* A queue's place in the table, or NULL if there is none left near where it belongs. */
static struct record_loss *loss_of(uint64_t key)
{
    struct record_loss *table = (struct record_loss *)slots_at(ring_count + 1);
    uint64_t at = key * 0x9e3779b97f4a7c15ULL >> 32, found;
    unsigned i;

    for (i = 0; i < MOST_PROBES; i++) {
        struct record_loss *loss = &table[(at + i) & (RECORD_LOSSES - 1)];

        found = atomic_load_explicit(&loss->key, memory_order_relaxed);
        if (found == key)
            return loss;
        if (!found && (atomic_compare_exchange_strong(&loss->key, &found, key) || found == key))
            return loss;
    }
    return NULL;
}

void record_lose(enum record_kind kind, uint8_t device, uint32_t number, bool srq, uint32_t records)
{
    struct record_ring *ring = record_own.ring;
    struct record_loss *loss;
    _Atomic uint64_t *count;

    if (!ring)
        return; /* nothing is recorded */
    loss = kind == KIND_OTHER
               ? NULL
               : loss_of(LOSS_USED | (srq ? LOSS_SRQ : 0) | (uint64_t)device << 32 | number);
    if (loss)
        count = (_Atomic uint64_t *[]){&loss->sends, &loss->receives, &loss->completions}[kind];
    else
        count = (_Atomic uint64_t *[]){&ring->lost_sends, &ring->lost_receives, &ring->lost_completions,
                                       &ring->lost_others}[kind];
    atomic_fetch_add_explicit(count, records, memory_order_relaxed);
    atomic_fetch_add_explicit(&file->losses, 1, memory_order_release);
}

static struct span ring_of(uint32_t which, uint8_t thread)
{
    return (struct span){.ring = ring_at(which),
                         .base = slots_at(which),
                         .mask = ring_slots - 1,
                         .bits = (uint8_t)ring_bits,
                         .thread = thread};
}

/* Give this thread its ring; false if nothing is recorded. */
bool record_join(void)
{
    uint32_t number;

    if (!record_is_on())
        return false;
    number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    record_own = ring_of(1 + number % ring_count, (uint8_t)(number > 255 ? 255 : number));
    return true;
}

void record_put(enum record_type type, uint8_t device, uint32_t number, const void *payload, size_t length)
{
    record_put_at(record_now(), type, device, number, payload, length);
}

void record_put_at(struct stamp when, enum record_type type, uint8_t device, uint32_t number, const void *payload,
                   size_t length)
{
    size_t first = sizeof((struct record_slot *)0)->payload, done;
    uint32_t slots = length > first ? slots_of((uint32_t)(length - first)) : 1, i;
    struct span own, span;

    if (!record_own.ring && !record_join())
        return;
    own = ring_of(0, record_own.thread);
    span = record_reserve_in(&own, slots);
    if (!span.ring) {
        record_lose(KIND_OTHER, device, number, false, 1);
        return;
    }
    slot_head(span_slot(&span, 0), &span, type, slots, device, number, when);
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

/* ------------------------------------------------------------------ attaching */

static void fixed_size(uint64_t slots, uint32_t rings)
{
    /* The rings take the place of those before, which threads may still write to: they must be as large. */
    if (rings_before)
        return;
    ring_slots = slots;
    ring_count = rings;
}

bool record_switch_on(const char *folder, const char *spill, uint64_t slots, uint32_t rings)
{
    int now = OFF;

    if (!set_folder(folders[0], folder) || !atomic_compare_exchange_strong(&state, &now, OPENING))
        return false;
    *folders[1] = 0;
    set_folder(folders[1], *spill ? spill : NULL);
    fixed_size(slots, rings);
    alone = true;
    forked_from = 0;
    follow_forks();
    atomic_store(&told, 0);
    record_session++;
    now = map_file() ? ON : OFF;
    atomic_store_explicit(&state, now, memory_order_release);
    return now == ON;
}

/* Memory of nobody else takes the place of the rings: a thread that is in a record may finish writing it. */
void record_switch_off(void)
{
    int now = ON;

    if (!atomic_compare_exchange_strong(&state, &now, OFF))
        return;
    rings_before = file;
    if (mmap(file, file_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        madvise(file, file_size, MADV_DONTNEED);
}
