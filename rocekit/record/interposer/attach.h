/*
 * Attaching to a program that was not started by the recorder. rocekit/record/attaching.py writes the request into the
 * program's memory, and has one of the program's own calls load this library and hand it over;
 * tests/record/test_record_attach.py compares the two layouts.
 */
#ifndef ROCEKIT_ATTACH_H
#define ROCEKIT_ATTACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATTACH_LAYOUT 1

enum attach_result {
    ATTACH_DONE = 0,
    ATTACH_LAYOUT_DIFFERS = 1,
    ATTACH_RECORDED_ALREADY = 2, /* or there was no room for its rings: then there is a .failed file */
    ATTACH_NO_DEVICE = 3,
};

/* An object that was found in the program's memory, and the functions that are its own: ways in stand there now. */
struct attach_context {
    uint64_t context, post_send, post_recv, post_srq_recv, poll_cq;
};

struct attach_extended {
    uint64_t object, own; /* own: wr_start of a QP, start_poll of a CQ */
    uint32_t number, room; /* the QPN */
};

struct attach_request {
    uint32_t layout, contexts, qps, cqs;
    uint64_t slots;
    uint32_t rings, unused;
    uint64_t ways_in, ways_end; /* where their code is */
    uint64_t verbs;             /* an address in libibverbs */
    /* The answer: what to call to detach, and which functions stand in the objects now. */
    uint64_t detach, post_send, post_recv, post_srq_recv, poll_cq, start_poll, wr_start;
    char folder[1024], spill[1024];
    struct attach_context context[]; /* then the QPs, then the CQs: struct attach_extended */
};

/* Whether memory is mapped: what is known of an object may be older than its end. */
bool attach_is_there(const void *at, size_t size);
/* Whether a function is one of the ways in. */
bool attach_is_way_in(const void *function);

#endif
