/*
 * The layout of the shared memory between a recorded program and `rocekit record`. rocekit/record/ring.py reads
 * it; tests/record/test_record_ring.py compares the two.
 *
 * A process that opens a verbs device makes one file in the recorder's folder and maps it: a header, one
 * control block for each ring, the rings. A ring is an array of 64-byte slots; a record takes one or more
 * consecutive ones. Each thread writes to a ring of its own while there are enough; further threads share rings,
 * which is correct, too: slots are reserved by compare-and-swap and committed one by one. The first ring is for what
 * is not on the data path: a burst of work requests does not take its room. Behind the rings is a table that counts
 * what had no room, by QP.
 */
#ifndef ROCEKIT_RECORD_H
#define ROCEKIT_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define RECORD_MAGIC 0x31434552454b4f52ULL /* "ROKEREC1", little endian */
#define RECORD_LAYOUT 6
#define RECORD_PAGE 4096
#define RECORD_LOSSES 4096 /* queues whose lost records are counted apart; a power of two */
#define RECORD_SLOT 64
#define RECORD_CONTINUED 48 /* payload bytes of a record's second and further slots */
#define RECORD_ITEMS 64     /* the most SGEs (and one address or pair of operands) of a record; rxe has 32 */

/* Set in a commit word until the recorded call returns. */
#define RECORD_FILLED (1ULL << 63)

/* Set in a record's type if its call was left otherwise than by returning: its thread was cancelled. */
#define RECORD_LEFT 0x80

enum record_type {
    RECORD_SEND = 1,
    RECORD_RECV = 2,
    RECORD_WC = 3,
    RECORD_DEVICE = 10,
    RECORD_QP_CREATED = 11,
    RECORD_QP_MODIFIED = 12,
    RECORD_QP_DESTROYED = 13,
    RECORD_MR = 14,
    RECORD_MR_GONE = 15,
    RECORD_AH = 16,
    RECORD_SRQ = 17,
    RECORD_ASYNC = 18,
    RECORD_CM_EVENT = 19,
    RECORD_CM_CALL = 20,
    RECORD_MW = 21,
    RECORD_DM = 22,
    RECORD_NOT_COVERED = 23,
    /* 24 is made by the reader */
    RECORD_QP_FOUND = 25,
    RECORD_DEVICE_FOUND = 26,
};

struct record_file {
    _Atomic uint64_t magic; /* written last */
    uint32_t layout;
    uint32_t rings;
    uint64_t slots; /* of each ring, a power of two */
    uint32_t pid;
    uint32_t follows; /* the process that this one was forked from with devices open, or 0 */
    uint64_t started_real, started_mono;
    uint64_t pid_namespace; /* in which pid counts: the inode of /proc/self/ns/pid, or 0 */
    _Atomic uint64_t losses; /* changes whenever the table of lost records has changed */
    char program[64];
};

struct record_ring {
    _Alignas(64) _Atomic uint64_t head; /* the next slot to reserve; slot numbers never wrap */
    uint64_t tail_seen;                 /* a late copy of tail, so that writers do not touch its cache line */
    _Alignas(64) _Atomic uint64_t tail; /* written by the reader: slots before it may be used again */
    _Alignas(64) _Atomic uint64_t lost_sends;
    _Atomic uint64_t lost_receives, lost_completions, lost_others;
};

/* What a queue has lost. The counts in struct record_ring are of what is in no queue, or found no place here. */
struct record_loss {
    _Atomic uint64_t key; /* LOSS_USED, LOSS_SRQ, the device's number << 32, the QPN or the SRQ's number; 0: free */
    _Atomic uint64_t sends, receives, completions;
};

#define LOSS_USED (1ULL << 63)
#define LOSS_SRQ (1ULL << 40)

struct record_slot {
    _Atomic uint64_t commit; /* once written, the ring's round: 1 at first */
    union {
        struct {
            uint8_t type, slots, device, thread;
            uint32_t number; /* the QPN, if the record has one */
            uint64_t mono, real;
            uint8_t payload[32];
        };
        struct {
            uint64_t before; /* in a send's second slot: the PSNs of the QP's earlier sends, NO_PSN or OVERLAPPED */
            uint8_t continued[RECORD_CONTINUED];
        };
    };
};

/* 16 bytes: a scatter/gather element, or the data of UD, atomics and memory windows beside the SGEs. */
struct record_item {
    union {
        struct {
            uint64_t addr;
            uint32_t length, lkey;
        };
        struct {
            uint64_t ah;
            uint32_t remote_qpn, remote_qkey;
        };
        struct {
            uint64_t compare, swap_add;
        };
        struct {
            uint64_t size;
            uint32_t mr_lkey, mr_rkey;
        };
    };
};

/* flags of record_send: enum ibv_send_flags below 1 << 5, and these */
#define SEND_EXTENDED (1 << 5) /* posted by the ibv_wr_* calls */
#define SEND_UD (1 << 6)       /* the first item is an address */
#define SEND_ATOMIC (1 << 7)   /* the first item is the operands */

#define NO_PSN UINT64_MAX
#define OVERLAPPED (UINT64_MAX - 1) /* another thread posted on the QP during the call: their order is not known */

/* A send has at least two slots: the second one's head is needed. A BIND_MW has the window's start, new key, access
 * rights (as imm), old key (as length), and one item: its size and its region's keys. */
struct record_send {
    uint64_t wr_id, remote_va;
    uint32_t rkey, imm, length; /* imm: immediate in host order, or the rkey to invalidate */
    uint8_t opcode, flags, items, error;
};

struct record_recv {
    uint64_t wr_id;
    uint32_t srq;
    uint8_t items, error, cut, unused;
    struct record_item sge;
};

struct record_wc {
    uint64_t wr_id;
    uint32_t byte_len, imm, vendor_err, src_qpn;
    uint16_t flags;
    uint8_t status, opcode;
    uint32_t unused;
};

struct record_device {
    char name[64];
};

struct record_qp {
    uint32_t type, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline, srq;
    uint8_t sq_sig_all, extended, error, covered;
};

struct record_modify {
    uint32_t mask, state, dest_qpn, sq_psn, rq_psn, path_mtu, qkey, access;
    uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
    uint8_t max_rd_atomic, max_dest_rd_atomic, port, sgid_index;
    uint8_t sgid[16], dgid[16];
    uint32_t flow_label;
    uint8_t traffic_class, hop_limit, sl, error;
};

/* A QP that was made before the recorder was attached. Its PSNs are left out: the provider's are those of packets,
 * which are behind those of posts. */
struct record_found {
    struct record_modify attributes;
    struct record_qp qp;
};

struct record_mr {
    uint64_t addr, length, host_addr; /* addr: as used by SGEs and remote programs */
    uint32_t lkey, rkey, access, unused;
};

struct record_ah {
    uint64_t ah;
    uint8_t sgid[16], dgid[16];
    uint32_t flow_label;
    uint8_t traffic_class, hop_limit, port, sgid_index;
};

struct record_srq {
    uint32_t id, max_wr, max_sge, unused;
};

struct record_async {
    uint32_t type, port, srq, unused;
};

struct record_cm {
    uint64_t id, listen_id;
    int32_t status; /* of an event; the errno of a call */
    uint32_t what, remote_qpn, qkey;
    uint8_t responder_resources, initiator_depth, retry_count, rnr_retry_count;
    uint8_t flow_control, srq, private_length, has_params;
    uint8_t src[28], dst[28]; /* sockaddr_in or sockaddr_in6 */
    uint8_t private_data[256];
};

struct record_mw {
    uint32_t rkey;
    uint8_t gone, type, unused[2]; /* gone: deallocated, not allocated */
};

struct record_dm {
    uint64_t dm, length;
};

struct record_text {
    char text[80];
};

_Static_assert(sizeof(struct record_slot) == RECORD_SLOT, "a slot is a cache line");
_Static_assert(sizeof(struct record_item) == 16, "an item");
_Static_assert(sizeof(struct record_send) == 32 && sizeof(struct record_recv) == 32, "fit the first slot");
_Static_assert(sizeof(struct record_wc) == 32, "fits the first slot");
_Static_assert(RECORD_CONTINUED % sizeof(struct record_item) == 0, "items do not cross slots");

/* ------------------------------------------------------------------ writing */

struct stamp {
    uint64_t mono, real;
};

enum record_kind { KIND_SEND, KIND_RECEIVE, KIND_COMPLETION, KIND_OTHER };

/* Slots [at, at + slots) of a ring; ring is NULL if nothing is to be written. */
struct span {
    struct record_ring *ring;
    struct record_slot *base;
    uint64_t mask, at;
    uint32_t slots;
    uint8_t bits, thread; /* bits: of a slot's number, those that are its index */
};

/* The ring that this thread writes to, without its slots; no ring before its first record. */
extern __thread struct span record_own __attribute__((tls_model("initial-exec")));

/* The difference between the real and the monotonic clock, as this thread last read it. Both are slewed alike
 * (clock_adjtime(2)), so only a step changes it: reading it once a millisecond is enough, and halves the cost of a
 * record. */
struct record_clocks {
    uint64_t looked;
    int64_t offset;
};
extern __thread struct record_clocks record_clocks __attribute__((tls_model("initial-exec")));

#define RECORD_LOOK_NS 1000000u

/* Not inlined: records seldom need it. */
void record_look_at_clocks(void);
bool record_join(void);
/* Count records that had no room; srq: whether the number is a shared receive queue's. */
void record_lose(enum record_kind kind, uint8_t device, uint32_t number, bool srq, uint32_t records);
bool record_is_on(void);

/* Begin and end recording in a program that was not started by the recorder. */
bool record_switch_on(const char *folder, const char *spill, uint64_t slots, uint32_t rings);
void record_switch_off(void);
/* How often this library was attached; 0 if it was preloaded. */
extern uint32_t record_session;

/* Tell the recorder, apart from the rings, that something is not recorded. */
void record_tell(const char *what, const char *which);

/* A whole record off the data path: reserve, write, commit. The second one with an earlier time. */
void record_put(enum record_type type, uint8_t device, uint32_t number, const void *payload, size_t length);

static inline struct stamp record_now(void)
{
    struct timespec now;
    uint64_t mono;

    clock_gettime(CLOCK_MONOTONIC, &now);
    mono = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    if (__builtin_expect(mono - record_clocks.looked > RECORD_LOOK_NS, 0))
        record_look_at_clocks();
    return (struct stamp){.mono = mono, .real = mono + (uint64_t)record_clocks.offset};
}

void record_put_at(struct stamp when, enum record_type type, uint8_t device, uint32_t number, const void *payload,
                   size_t length);

/* Reserve room in a ring. If there is none, the caller counts what is lost. Neither waits nor allocates. */
static inline struct span record_reserve_in(const struct span *own, uint32_t slots)
{
    struct record_ring *ring = own->ring;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    struct span span;

    do {
        if (__builtin_expect(head + slots - ring->tail_seen > own->mask + 1, 0)) {
            ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
            if (head + slots - ring->tail_seen > own->mask + 1)
                return (struct span){0};
        }
    } while (!atomic_compare_exchange_weak_explicit(&ring->head, &head, head + slots, memory_order_relaxed,
                                                    memory_order_relaxed));
    span = *own;
    span.at = head;
    span.slots = slots;
    return span;
}

/* In this thread's ring. */
static inline struct span record_reserve(uint32_t slots)
{
    if (__builtin_expect(!record_own.ring, 0) && !record_join())
        return (struct span){0};
    return record_reserve_in(&record_own, slots);
}

static inline struct record_slot *span_slot(const struct span *span, uint32_t i)
{
    return &span->base[(span->at + i) & span->mask];
}

static inline void record_mark(const struct span *span, uint64_t bit)
{
    uint32_t i;

    for (i = 0; i < span->slots; i++)
        atomic_store_explicit(&span_slot(span, i)->commit, ((span->at + i) >> span->bits) + 1 + bit,
                              memory_order_release);
}

/* Mark the slots as written, before the call; if the program dies in the call, they stay so. */
static inline void record_filled(const struct span *span)
{
    record_mark(span, RECORD_FILLED);
}

/* Whether the reader has given up waiting for a record that was filled long ago; its slots are others' by now. */
static inline bool record_passed(const struct span *span)
{
    return atomic_load_explicit(&span->ring->tail, memory_order_relaxed) > span->at;
}

static inline void record_commit(struct span *span)
{
    if (__builtin_expect(!record_passed(span), 1))
        record_mark(span, 0);
    span->ring = NULL;
}

/* Runs as the scope of a span ends. It is committed by then, unless the thread was cancelled in the recorded call or
 * left it by an exception: then its records say so, and the ring is not held up. */
static inline void record_leave(struct span *span)
{
    uint32_t at;

    if (__builtin_expect(!span->ring, 1))
        return;
    if (!record_passed(span)) {
        for (at = 0; at < span->slots; at += span_slot(span, at)->slots)
            span_slot(span, at)->type |= RECORD_LEFT;
        record_mark(span, 0);
    }
    span->ring = NULL;
}

#define SPAN __attribute__((cleanup(record_leave))) struct span

static inline uint32_t slots_of_send(uint32_t items)
{
    return items ? 1 + (items + 2) / 3 : 2;
}

static inline uint32_t slots_of(uint32_t continued)
{
    return 1 + (continued + RECORD_CONTINUED - 1) / RECORD_CONTINUED;
}

static inline void slot_head(struct record_slot *slot, const struct span *span, enum record_type type,
                             uint32_t slots, uint8_t device, uint32_t number, struct stamp now)
{
    slot->type = (uint8_t)type;
    slot->slots = (uint8_t)slots;
    slot->device = device;
    slot->thread = span->thread;
    slot->number = number;
    slot->mono = now.mono;
    slot->real = now.real;
}

#endif
