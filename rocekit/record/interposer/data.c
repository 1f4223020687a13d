/*
 * The data path: posts and polls. A record is written before its call and committed after it: the program may free
 * a work request as soon as another thread has polled its completion, so the lists are not read after the
 * provider's call, except to find which one was refused.
 */
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>

static inline uint32_t kept_items(uint32_t items)
{
    return items < RECORD_ITEMS ? items : RECORD_ITEMS;
}

static inline struct record_item *item_at(const struct span *span, uint32_t first, uint32_t i)
{
    struct record_slot *slot = span_slot(span, first + 1 + i / 3);

    return (struct record_item *)slot->continued + i % 3;
}

/* A BIND_MW has none, whatever num_sge is. */
static inline uint32_t sges_of(const struct ibv_send_wr *wr)
{
    return wr->num_sge > 0 && wr->opcode != IBV_WR_BIND_MW ? (uint32_t)wr->num_sge : 0;
}

/* A WR's items beside its SGEs: an address for UD, operands for atomics, the region of a BIND_MW. */
static inline uint32_t extra_items(const struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
    bool binds = wr->opcode == IBV_WR_BIND_MW;
    bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

    /* An atomic on a UD QP has both; the provider refuses it. */
    return (qp->qp_type == IBV_QPT_UD && !binds) + (atomic || binds);
}

static inline uint32_t send_slots(const struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
    return slots_of_send(kept_items(sges_of(wr) + extra_items(qp, wr)));
}

/* psns: the PSNs of the QP's earlier sends; this one's are added, unless they are not known. */
static inline __attribute__((always_inline)) uint32_t
write_send(const struct span *span, uint32_t first, uint8_t device, const struct ibv_qp *qp,
           const struct ibv_send_wr *wr, struct stamp now, const struct qp_state *state, uint32_t path_mtu,
           uint64_t *psns)
{
    struct record_slot *slot = span_slot(span, first);
    struct record_send *send = (struct record_send *)slot->payload;
    uint32_t sges = sges_of(wr), items = 0, length = 0, slots, i;

    send->wr_id = wr->wr_id;
    send->opcode = (uint8_t)wr->opcode;
    send->flags = (uint8_t)(wr->send_flags & 0x1f);
    send->remote_va = 0;
    send->rkey = 0;
    send->imm = 0;
    send->error = 0;
    switch (wr->opcode) {
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        send->imm = ntohl(wr->imm_data);
        /* fall through */
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_READ:
        send->remote_va = wr->wr.rdma.remote_addr;
        send->rkey = wr->wr.rdma.rkey;
        break;
    case IBV_WR_SEND_WITH_IMM:
        send->imm = ntohl(wr->imm_data);
        break;
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
        send->imm = wr->invalidate_rkey;
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        send->remote_va = wr->wr.atomic.remote_addr;
        send->rkey = wr->wr.atomic.rkey;
        send->flags |= SEND_ATOMIC;
        /* The verbs structure has a FETCH_ADD's only operand where a CMP_SWAP has the value to compare. */
        if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
            *item_at(span, first, items++) =
                (struct record_item){.compare = wr->wr.atomic.compare_add, .swap_add = wr->wr.atomic.swap};
        else
            *item_at(span, first, items++) = (struct record_item){.swap_add = wr->wr.atomic.compare_add};
        break;
    case IBV_WR_BIND_MW:
        *item_at(span, first, 0) =
            describe_binding(send, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
        items = 1;
        length = send->length;
        break;
    default:
        break;
    }
    if (qp->qp_type == IBV_QPT_UD && wr->opcode != IBV_WR_BIND_MW) {
        send->flags |= SEND_UD;
        *item_at(span, first, items++) = (struct record_item){.ah = (uintptr_t)wr->wr.ud.ah,
                                                              .remote_qpn = wr->wr.ud.remote_qpn,
                                                              .remote_qkey = wr->wr.ud.remote_qkey};
    }
    for (i = 0; i < sges; i++) {
        const struct ibv_sge *sge = &wr->sg_list[i];

        length += sge->length;
        if (items < RECORD_ITEMS)
            *item_at(span, first, items++) = sge_item(sge->addr, sge->length, sge->lkey);
    }
    send->items = (uint8_t)items;
    send->length = length;
    span_slot(span, first + 1)->before = *psns;
    if (*psns < OVERLAPPED)
        *psns += psns_of(state, wr->opcode, length, path_mtu);
    slots = slots_of_send(items);
    slot_head(slot, span, RECORD_SEND, slots, device, qp->qp_num, now);
    return slots;
}

/* Mark the WRs from `bad` on as refused; all of them if it is not in the list. */
#define REFUSE(type, span, wr, bad, result)                                                                  \
    do {                                                                                                     \
        __typeof__(wr) w;                                                                                    \
        uint32_t at = 0;                                                                                     \
        bool refused;                                                                                        \
        for (w = (wr); w && w != (bad); w = w->next)                                                         \
            ;                                                                                                \
        refused = !w;                                                                                        \
        for (w = (wr); w && at < (span)->slots && !record_passed(span); w = w->next) {                       \
            struct record_slot *slot = span_slot(span, at);                                                  \
            refused = refused || w == (bad);                                                                 \
            if (refused)                                                                                     \
                ((struct type *)slot->payload)->error = (uint8_t)((result) > 0 ? (result) : -(result));      \
            at += slot->slots;                                                                               \
        }                                                                                                    \
    } while (0)

static uint32_t length_of(const struct ibv_send_wr *wr)
{
    uint32_t length = 0, i;

    for (i = 0; i < sges_of(wr); i++)
        length += wr->sg_list[i].length;
    return length;
}

/* The PSNs of the WRs from `bad` on; of all of them if it is not in the list. */
static uint64_t psns_refused(const struct turn *turn, const struct ibv_send_wr *wr, const struct ibv_send_wr *bad)
{
    const struct ibv_send_wr *w = wr;
    uint64_t psns = 0;

    while (w && w != bad)
        w = w->next;
    for (w = w ? w : wr; w; w = w->next)
        psns += psns_of(turn->state, w->opcode, length_of(w), turn->path_mtu);
    return psns;
}

/* The call's PSNs turned out not to be certain. */
static __attribute__((noinline)) void say_overlapped(const struct span *span)
{
    uint32_t at;

    for (at = 0; at < span->slots && !record_passed(span); at += span_slot(span, at)->slots)
        span_slot(span, at + 1)->before = OVERLAPPED;
}

int data_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct device *device = device_of(qp->context);
    struct ibv_send_wr *w;
    uint32_t slots = 0, records = 0, at = 0;
    uint64_t psns = 0, refused = 0;
    TURN turn = turn_of(qp_state_in(qp));
    SPAN span = {0};
    int result;

    for (w = wr; w; w = w->next, records++) {
        slots += send_slots(qp, w);
        if (turn.counts)
            psns += psns_of(turn.state, w->opcode, length_of(w), turn.path_mtu);
    }
    psns = turn_take(&turn, psns);
    span = record_reserve(slots);
    if (__builtin_expect(span.ring != NULL, 1)) {
        struct stamp now = record_now();

        for (w = wr; w; w = w->next)
            at += write_send(&span, at, device->number, qp, w, now, turn.state, turn.path_mtu, &psns);
        record_filled(&span);
    } else {
        record_lose(KIND_SEND, device->number, qp->qp_num, false, records);
    }
    result = device->ops.post_send(qp, wr, bad);
    if (__builtin_expect(result, 0)) {
        int saved = errno;

        if (span.ring)
            REFUSE(record_send, &span, wr, *bad, result);
        if (turn.counts)
            refused = psns_refused(&turn, wr, *bad);
        errno = saved;
    }
    if (__builtin_expect(!turn_end(&turn, refused), 0) && span.ring)
        say_overlapped(&span);
    if (span.ring)
        record_commit(&span);
    return result;
}

/* Binding a type 1 window is a work request, too. The new key is returned in the window. */
int data_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    struct device *device = device_of(qp->context);
    struct ibv_send_wr wr = {.wr_id = bind->wr_id,
                             .opcode = IBV_WR_BIND_MW,
                             .send_flags = bind->send_flags,
                             .bind_mw = {.mw = mw, .rkey = mw->rkey, .bind_info = bind->bind_info}};
    SPAN span = record_reserve(send_slots(qp, &wr));
    uint64_t unknown = NO_PSN;
    struct record_send *send;
    int result, saved;

    if (!span.ring) {
        record_lose(KIND_SEND, device->number, qp->qp_num, false, 1);
        return device->ops.bind_mw(qp, mw, bind);
    }
    write_send(&span, 0, device->number, qp, &wr, record_now(), NULL, 0, &unknown);
    record_filled(&span);
    result = device->ops.bind_mw(qp, mw, bind);
    saved = errno;
    send = (struct record_send *)span_slot(&span, 0)->payload;
    if (!record_passed(&span)) {
        send->rkey = mw->rkey;
        send->error = (uint8_t)(result > 0 ? result : -result);
    }
    record_commit(&span);
    errno = saved;
    return result;
}

static inline uint32_t recv_slots(const struct ibv_recv_wr *wr)
{
    uint32_t items = kept_items((uint32_t)(wr->num_sge > 0 ? wr->num_sge : 0));

    return items > 1 ? 1 + (items + 1) / 3 : 1;
}

static uint32_t write_recv(const struct span *span, uint32_t first, uint8_t device, uint32_t qpn, uint32_t srq,
                           const struct ibv_recv_wr *wr, struct stamp now)
{
    struct record_slot *slot = span_slot(span, first);
    struct record_recv *recv = (struct record_recv *)slot->payload;
    uint32_t sges = (uint32_t)(wr->num_sge > 0 ? wr->num_sge : 0), items = kept_items(sges), i;
    uint32_t slots = recv_slots(wr);

    slot_head(slot, span, RECORD_RECV, slots, device, qpn, now);
    recv->wr_id = wr->wr_id;
    recv->srq = srq;
    recv->items = (uint8_t)items;
    recv->error = 0;
    recv->cut = sges > items;
    for (i = 0; i < items; i++) {
        const struct ibv_sge *sge = &wr->sg_list[i];

        *(i ? item_at(span, first, i - 1) : &recv->sge) = sge_item(sge->addr, sge->length, sge->lkey);
    }
    return slots;
}

int data_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct device *device = device_of(qp->context);
    struct ibv_recv_wr *w;
    uint32_t slots = 0, records = 0, at = 0;
    SPAN span = {0};
    struct stamp now;
    int result;

    if (record_session)
        qp_state_in(qp);
    for (w = wr; w; w = w->next, records++)
        slots += recv_slots(w);
    span = record_reserve(slots);
    if (!span.ring) {
        record_lose(KIND_RECEIVE, device->number, qp->qp_num, false, records);
        return device->ops.post_recv(qp, wr, bad);
    }
    now = record_now();
    for (w = wr; w; w = w->next)
        at += write_recv(&span, at, device->number, qp->qp_num, 0, w, now);
    record_filled(&span);
    result = device->ops.post_recv(qp, wr, bad);
    if (__builtin_expect(result, 0)) {
        int saved = errno;

        REFUSE(record_recv, &span, wr, *bad, result);
        errno = saved;
    }
    record_commit(&span);
    return result;
}

int data_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct device *device = device_of(srq->context);
    uint32_t number = srq_number(srq);
    struct ibv_recv_wr *w;
    uint32_t slots = 0, records = 0, at = 0;
    SPAN span = {0};
    struct stamp now;
    int result;

    for (w = wr; w; w = w->next, records++)
        slots += recv_slots(w);
    span = record_reserve(slots);
    if (!span.ring) {
        record_lose(KIND_RECEIVE, device->number, number, true, records);
        return device->ops.post_srq_recv(srq, wr, bad);
    }
    now = record_now();
    for (w = wr; w; w = w->next)
        at += write_recv(&span, at, device->number, 0, number, w, now);
    record_filled(&span);
    result = device->ops.post_srq_recv(srq, wr, bad);
    if (__builtin_expect(result, 0)) {
        int saved = errno;

        REFUSE(record_recv, &span, wr, *bad, result);
        errno = saved;
    }
    record_commit(&span);
    return result;
}

int data_poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
    struct device *device = device_of(cq->context);
    int polled = device->ops.poll_cq(cq, entries, wc), i;
    struct span span;
    struct stamp now;

    if (polled <= 0)
        return polled;
    now = record_now();
    span = record_reserve((uint32_t)polled);
    for (i = 0; !span.ring && i < polled; i++)
        record_lose(KIND_COMPLETION, device->number, wc[i].qp_num, false, 1);
    if (!span.ring)
        return polled;
    for (i = 0; i < polled; i++) {
        struct record_slot *slot = span_slot(&span, (uint32_t)i);
        struct record_wc *record = (struct record_wc *)slot->payload;
        bool good = wc[i].status == IBV_WC_SUCCESS;

        slot_head(slot, &span, RECORD_WC, 1, device->number, wc[i].qp_num, now);
        record->wr_id = wc[i].wr_id;
        record->status = (uint8_t)wc[i].status;
        record->opcode = good ? (uint8_t)wc[i].opcode : 0;
        record->flags = good ? (uint16_t)wc[i].wc_flags : 0;
        record->byte_len = good ? wc[i].byte_len : 0;
        record->src_qpn = good ? wc[i].src_qp : 0;
        record->vendor_err = wc[i].vendor_err;
        record->imm = 0;
        if (record->flags & IBV_WC_WITH_IMM)
            record->imm = ntohl(wc[i].imm_data);
        else if (record->flags & IBV_WC_WITH_INV)
            record->imm = wc[i].invalidated_rkey;
    }
    record_commit(&span);
    return polled;
}
