/*
 * The extended calls: a QP that was created with operations, and an extended CQ, have function pointers of their
 * own, which are replaced. A work request is made by several calls between wr_start and wr_complete; it is kept
 * beside the QP until then. The provider's lock on the queue, held from wr_start to wr_complete, protects the kept
 * work requests, too.
 */
#include "attach.h"
#include "table.h"
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

struct kept {
    struct record_send send;
    struct record_item items[];
};

/* A function in libibverbs' structure from version 1.15 on, after wr_atomic_write. */
typedef void flush_function(struct ibv_qp_ex *, uint32_t rkey, uint64_t remote, size_t length, uint8_t type,
                            uint8_t level);

struct extended_qp {
    struct ibv_qp_ex real; /* only its function pointers are used */
    flush_function *flush;
    uint32_t count, room;  /* work requests since wr_start, and room for how many */
    uint32_t items, size;  /* items of each, and bytes */
    uint32_t beyond;       /* work requests that could not be kept */
    uint8_t device;
    _Alignas(16) char kept[];
};

struct extended_cq {
    int (*start_poll)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
    int (*next_poll)(struct ibv_cq_ex *);
    uint64_t wc_flags;
    uint8_t device;
};

TABLE(qps, 16);
TABLE(cqs, 14);

static inline struct extended_qp *extended_of(const struct ibv_qp_ex *qp)
{
    return table_get(&qps, qp);
}

static inline struct kept *kept_at(struct extended_qp *e, uint32_t i)
{
    return (struct kept *)(e->kept + (size_t)i * e->size);
}

/* The work request that is being made, or NULL if there was no room for it. */
static inline struct kept *current(struct extended_qp *e)
{
    return e->count && !e->beyond ? kept_at(e, e->count - 1) : NULL;
}

static struct kept *begin(struct extended_qp *e, const struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode,
                          uint32_t rkey, uint64_t remote_va, uint32_t imm)
{
    struct kept *kept;

    if (e->count == e->room) {
        e->beyond++;
        return NULL;
    }
    kept = kept_at(e, e->count++);
    kept->send = (struct record_send){.wr_id = qp->wr_id,
                                      .remote_va = remote_va,
                                      .rkey = rkey,
                                      .imm = imm,
                                      .opcode = (uint8_t)opcode,
                                      .flags = (uint8_t)((qp->wr_flags & 0x1f) | SEND_EXTENDED)};
    return kept;
}

static inline void add_item(const struct extended_qp *e, struct kept *kept, struct record_item item)
{
    if (kept->send.items < e->items)
        kept->items[kept->send.items++] = item;
}

static inline void add_sge(const struct extended_qp *e, struct kept *kept, uint64_t addr, uint32_t length,
                           uint32_t lkey)
{
    kept->send.length += length;
    add_item(e, kept, sge_item(addr, length, lkey));
}

/* The first item, an address or operands: setters may be called in any order. */
static inline void put_first(const struct extended_qp *e, struct kept *kept, struct record_item item)
{
    uint32_t i = kept->send.items < e->items ? kept->send.items++ : e->items - 1;

    for (; i > 0; i--)
        kept->items[i] = kept->items[i - 1];
    kept->items[0] = item;
}

/* ------------------------------------------------------------------ work requests */

static void wr_start(struct ibv_qp_ex *qp)
{
    struct extended_qp *e = extended_of(qp);

    e->real.wr_start(qp);
    e->count = e->beyond = 0;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
    struct extended_qp *e = extended_of(qp);

    e->count = e->beyond = 0;
    e->real.wr_abort(qp);
}

static int wr_complete(struct ibv_qp_ex *qp)
{
    struct extended_qp *e = extended_of(qp);
    uint64_t psns = 0, before;
    uint32_t slots = 0, at = 0, i, k;
    TURN turn = turn_of(qp_state_in(&qp->qp_base));
    SPAN span = {0};
    int result;

    /* The PSNs of work requests that were not kept cannot be counted: the QP's PSNs are unknown from now on. */
    if (turn.state && e->beyond) {
        turn.state->uncounted = true;
        turn.counts = false;
    }
    for (i = 0; i < e->count; i++) {
        slots += slots_of_send(kept_at(e, i)->send.items);
        if (turn.counts)
            psns += psns_of(turn.state, kept_at(e, i)->send.opcode, kept_at(e, i)->send.length, turn.path_mtu);
    }
    before = turn_take(&turn, psns);
    if (slots) {
        span = record_reserve(slots);
        if (e->beyond || !span.ring)
            record_lose(KIND_SEND, e->device, qp->qp_base.qp_num, false,
                        e->beyond + (span.ring ? 0 : e->count));
    }
    if (span.ring) {
        struct stamp now = record_now();

        for (i = 0; i < e->count; i++) {
            const struct kept *kept = kept_at(e, i);
            uint32_t taken = slots_of_send(kept->send.items);

            slot_head(span_slot(&span, at), &span, RECORD_SEND, taken, e->device, qp->qp_base.qp_num, now);
            memcpy(span_slot(&span, at)->payload, &kept->send, sizeof kept->send);
            for (k = 0; k < kept->send.items; k++)
                ((struct record_item *)span_slot(&span, at + 1 + k / 3)->continued)[k % 3] = kept->items[k];
            span_slot(&span, at + 1)->before = before;
            if (before < OVERLAPPED)
                before += psns_of(turn.state, kept->send.opcode, kept->send.length, turn.path_mtu);
            at += taken;
        }
        record_filled(&span);
    }
    result = e->real.wr_complete(qp);
    /* wr_complete posts all or nothing. */
    if (__builtin_expect(result, 0) && span.ring)
        for (at = 0; at < span.slots && !record_passed(&span); at += span_slot(&span, at)->slots)
            ((struct record_send *)span_slot(&span, at)->payload)->error =
                (uint8_t)(result > 0 ? result : -result);
    if (!turn_end(&turn, result ? psns : 0) && span.ring)
        for (at = 0; at < span.slots && !record_passed(&span); at += span_slot(&span, at)->slots)
            span_slot(&span, at + 1)->before = OVERLAPPED;
    if (span.ring)
        record_commit(&span);
    return result;
}

static void wr_send(struct ibv_qp_ex *qp)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_SEND, 0, 0, 0);
    e->real.wr_send(qp);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_SEND_WITH_IMM, 0, 0, ntohl(imm));
    e->real.wr_send_imm(qp, imm);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_SEND_WITH_INV, 0, 0, rkey);
    e->real.wr_send_inv(qp, rkey);
}

static void wr_send_tso(struct ibv_qp_ex *qp, void *header, uint16_t size, uint16_t mss)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_TSO, 0, 0, 0);
    e->real.wr_send_tso(qp, header, size, mss);
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_RDMA_READ, rkey, remote, 0);
    e->real.wr_rdma_read(qp, rkey, remote);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_RDMA_WRITE, rkey, remote, 0);
    e->real.wr_rdma_write(qp, rkey, remote);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, __be32 imm)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote, ntohl(imm));
    e->real.wr_rdma_write_imm(qp, rkey, remote, imm);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = begin(e, qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote, 0);

    if (kept) {
        kept->send.flags |= SEND_ATOMIC;
        put_first(e, kept, (struct record_item){.compare = compare, .swap_add = swap});
    }
    e->real.wr_atomic_cmp_swp(qp, rkey, remote, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, uint64_t add)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = begin(e, qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote, 0);

    if (kept) {
        kept->send.flags |= SEND_ATOMIC;
        put_first(e, kept, (struct record_item){.swap_add = add});
    }
    e->real.wr_atomic_fetch_add(qp, rkey, remote, add);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = begin(e, qp, IBV_WR_BIND_MW, 0, 0, 0);

    if (kept)
        add_item(e, kept, describe_binding(&kept->send, mw, rkey, info));
    e->real.wr_bind_mw(qp, mw, rkey, info);
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
    struct extended_qp *e = extended_of(qp);

    begin(e, qp, IBV_WR_LOCAL_INV, 0, 0, rkey);
    e->real.wr_local_inv(qp, rkey);
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, const void *value)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = begin(e, qp, 15 /* IBV_WR_ATOMIC_WRITE, newer than some headers */, rkey, remote, 0);

    if (kept)
        kept->send.length = 8;
    e->real.wr_atomic_write(qp, rkey, remote, value);
}

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, size_t length, uint8_t type,
                     uint8_t level)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = begin(e, qp, 14 /* IBV_WR_FLUSH, newer than some headers */, rkey, remote, 0);

    if (kept)
        kept->send.length = (uint32_t)length; /* of the range: 32 bits by A19.4.2 */
    e->flush(qp, rkey, remote, length, type, level);
}

/* ------------------------------------------------------------------ setters */

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t qkey)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = current(e);

    if (kept) {
        kept->send.flags |= SEND_UD;
        put_first(e, kept,
                  (struct record_item){.ah = (uintptr_t)ah, .remote_qpn = remote_qpn, .remote_qkey = qkey});
    }
    e->real.wr_set_ud_addr(qp, ah, remote_qpn, qkey);
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = current(e);

    if (kept) {
        kept->send.flags |= IBV_SEND_INLINE;
        add_sge(e, kept, (uintptr_t)addr, (uint32_t)length, 0);
    }
    e->real.wr_set_inline_data(qp, addr, length);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = current(e);
    size_t i;

    if (kept) {
        kept->send.flags |= IBV_SEND_INLINE;
        for (i = 0; i < count; i++)
            add_sge(e, kept, (uintptr_t)list[i].addr, (uint32_t)list[i].length, 0);
    }
    e->real.wr_set_inline_data_list(qp, count, list);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = current(e);

    if (kept)
        add_sge(e, kept, addr, length, lkey);
    e->real.wr_set_sge(qp, lkey, addr, length);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
    struct extended_qp *e = extended_of(qp);
    struct kept *kept = current(e);
    size_t i;

    for (i = 0; kept && i < count; i++)
        add_sge(e, kept, list[i].addr, list[i].length, list[i].lkey);
    e->real.wr_set_sge_list(qp, count, list);
}

/* ------------------------------------------------------------------ replacing the functions */

/* Every libibverbs with this structure has the pointers up to wr_abort; wr_atomic_write and wr_flush came later,
 * and exist if a QP could be created with them. */
#define EACH(DO)                                                                                             \
    DO(wr_atomic_cmp_swp)                                                                                    \
    DO(wr_atomic_fetch_add)                                                                                  \
    DO(wr_bind_mw)                                                                                           \
    DO(wr_local_inv)                                                                                         \
    DO(wr_rdma_read)                                                                                         \
    DO(wr_rdma_write)                                                                                        \
    DO(wr_rdma_write_imm)                                                                                    \
    DO(wr_send)                                                                                              \
    DO(wr_send_imm)                                                                                          \
    DO(wr_send_inv)                                                                                          \
    DO(wr_send_tso)                                                                                          \
    DO(wr_set_ud_addr)                                                                                       \
    DO(wr_set_inline_data)                                                                                   \
    DO(wr_set_inline_data_list)                                                                              \
    DO(wr_set_sge)                                                                                           \
    DO(wr_set_sge_list)                                                                                      \
    DO(wr_start)                                                                                             \
    DO(wr_complete)                                                                                          \
    DO(wr_abort)

#define WITH_FLUSH (1u << 11)        /* IBV_QP_EX_WITH_FLUSH */
#define WITH_ATOMIC_WRITE (1u << 12) /* IBV_QP_EX_WITH_ATOMIC_WRITE */

static flush_function **flush_of(struct ibv_qp_ex *qp)
{
    return (flush_function **)((char *)qp + offsetof(struct ibv_qp_ex, wr_atomic_write) +
                               sizeof qp->wr_atomic_write);
}

#define SWAP(place, function) __atomic_store_n(&(place), function, __ATOMIC_RELEASE)

/* own_start: a wr_start that is the device's own, if another stands in the QP. */
static bool hook_qp(struct ibv_qp_ex *ex, struct device *device, uint64_t operations, uint32_t max_send_wr,
                    uint32_t max_send_sge, void (*own_start)(struct ibv_qp_ex *))
{
    uint32_t items = (max_send_sge < RECORD_ITEMS - 1 ? max_send_sge : RECORD_ITEMS - 1) + 1;
    uint32_t room = max_send_wr ? max_send_wr : 1;
    uint32_t size = (uint32_t)(sizeof(struct kept) + items * sizeof(struct record_item));
    struct extended_qp *e = calloc(1, sizeof *e + (size_t)room * size);

    if (!e)
        return false;
    e->room = room;
    e->items = items;
    e->size = size;
    e->device = device->number;
#define SAVE(name) e->real.name = ex->name;
    EACH(SAVE)
    if (own_start)
        e->real.wr_start = own_start;
    if (operations & WITH_ATOMIC_WRITE)
        e->real.wr_atomic_write = ex->wr_atomic_write;
    if (operations & WITH_FLUSH)
        e->flush = *flush_of(ex);
    if (!table_put(&qps, ex, e)) {
        free(e);
        return false;
    }
#define PLACE(name)                                                                                          \
    if (ex->name)                                                                                            \
        SWAP(ex->name, name);
    EACH(PLACE)
    if (operations & WITH_ATOMIC_WRITE && ex->wr_atomic_write)
        ex->wr_atomic_write = wr_atomic_write;
    if (e->flush)
        *flush_of(ex) = wr_flush;
    return true;
}

static struct ibv_qp_ex *extended_face(struct ibv_qp *qp, const struct device *device)
{
    __typeof__(&ibv_qp_to_qp_ex) convert;

    BESIDE(convert, device->opened_by, "IBVERBS_1.6", ibv_qp_to_qp_ex);
    return convert ? convert(qp) : NULL;
}

bool extended_hook_qp(struct ibv_qp *qp, uint64_t operations, uint32_t max_send_wr, uint32_t max_send_sge)
{
    struct device *device = device_of(qp->context);
    struct ibv_qp_ex *ex = device ? extended_face(qp, device) : NULL;

    return ex && hook_qp(ex, device, operations, max_send_wr, max_send_sge, NULL);
}

/* What is known of a QP and of a CQ is found by their addresses until they are destroyed for certain: the calls on
 * them, which go through us, need it. By then their memory may be another's already, so only their own is removed. */
void *extended_of_qp(struct ibv_qp *qp)
{
    return table_get(&qps, qp); /* ibv_qp is the first member of ibv_qp_ex */
}

void extended_qp_gone(struct ibv_qp *qp, void *extended)
{
    if (extended)
        table_drop(&qps, qp, extended);
    free(extended);
}

/* ------------------------------------------------------------------ completions */

static void record_current(struct ibv_cq_ex *cq, const struct extended_cq *e)
{
    struct stamp now = record_now();
    struct span span = record_reserve(1);
    uint32_t qpn = cq->read_qp_num(cq);
    struct record_slot *slot;
    struct record_wc *record;

    if (!span.ring) {
        record_lose(KIND_COMPLETION, e->device, qpn, false, 1);
        return;
    }
    slot = span_slot(&span, 0);
    record = (struct record_wc *)slot->payload;
    slot_head(slot, &span, RECORD_WC, 1, e->device, qpn, now);
    *record = (struct record_wc){.wr_id = cq->wr_id, .status = (uint8_t)cq->status};
    if (cq->status == IBV_WC_SUCCESS) {
        record->opcode = (uint8_t)cq->read_opcode(cq);
        record->flags = (uint16_t)cq->read_wc_flags(cq);
        if (e->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
            record->byte_len = cq->read_byte_len(cq);
        if (e->wc_flags & IBV_WC_EX_WITH_SRC_QP)
            record->src_qpn = cq->read_src_qp(cq);
        if (e->wc_flags & IBV_WC_EX_WITH_IMM) {
            if (record->flags & IBV_WC_WITH_IMM)
                record->imm = ntohl(cq->read_imm_data(cq));
            else if (record->flags & IBV_WC_WITH_INV)
                record->imm = (uint32_t)cq->read_imm_data(cq); /* not in network order: ibv_wc_read_invalidated_rkey */
        }
    } else {
        record->vendor_err = cq->read_vendor_err(cq);
    }
    record_commit(&span);
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
    struct extended_cq *e = table_get(&cqs, cq);
    int result = e->start_poll(cq, attr);

    if (!result)
        record_current(cq, e);
    return result;
}

static int next_poll(struct ibv_cq_ex *cq)
{
    struct extended_cq *e = table_get(&cqs, cq);
    int result = e->next_poll(cq);

    if (!result)
        record_current(cq, e);
    return result;
}

bool extended_hook_cq(struct ibv_cq_ex *cq, uint64_t wc_flags)
{
    struct device *device = device_of(cq->context);
    struct extended_cq *e = device ? calloc(1, sizeof *e) : NULL;

    if (!e)
        return false;
    *e = (struct extended_cq){cq->start_poll, cq->next_poll, wc_flags, device->number};
    if (!table_put(&cqs, cq, e)) {
        free(e);
        return false;
    }
    SWAP(cq->next_poll, next_poll);
    SWAP(cq->start_poll, start_poll);
    return true;
}

void *extended_of_cq(struct ibv_cq *cq)
{
    return table_get(&cqs, cq);
}

void extended_cq_gone(struct ibv_cq *cq, void *extended)
{
    if (extended)
        table_drop(&cqs, cq, extended);
    free(extended);
}

/* ------------------------------------------------------------------ attaching */

#define MOST_SGE 32 /* of a QP that was made before: a work request with more is recorded with so many */

void extended_attach_qp(struct ibv_qp_ex *ex, void (*own_start)(struct ibv_qp_ex *), uint32_t room)
{
    struct device *device = device_of(ex->qp_base.context);

    /* wr_atomic_write and wr_flush are not replaced: whether it has them is not known. */
    if (!device || !extended_face(&ex->qp_base, device) || !hook_qp(ex, device, 0, room, MOST_SGE, own_start))
        not_covered(number_of(ex->qp_base.context), "work requests of a QP posted by the ibv_wr_* calls");
}

void extended_attach_cq(struct ibv_cq_ex *cq, int (*own_start)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *))
{
    uint64_t flags = (cq->read_byte_len ? IBV_WC_EX_WITH_BYTE_LEN : 0) |
                     (cq->read_src_qp ? IBV_WC_EX_WITH_SRC_QP : 0) | (cq->read_imm_data ? IBV_WC_EX_WITH_IMM : 0);
    struct extended_cq *e;

    SWAP(cq->start_poll, own_start);
    if (!cq->read_qp_num || !cq->read_opcode || !cq->read_wc_flags || !cq->read_vendor_err ||
        !extended_hook_cq(cq, flags)) {
        not_covered(number_of(cq->context), "an extended completion queue without QP numbers");
        return;
    }
    e = table_get(&cqs, cq);
    e->start_poll = own_start;
}

/* What is no longer there, or has other functions by now, is let alone: not each destruction was seen. */
void extended_detach(void)
{
    struct table_row *row;

#define TAKE_BACK(name)                                                                                      \
    if (ex->name == name)                                                                                    \
        SWAP(ex->name, e->real.name);
    for (row = qps.rows; row < qps.rows + (1u << qps.bits); row++) {
        struct ibv_qp_ex *ex = (struct ibv_qp_ex *)atomic_load(&row->key);
        struct extended_qp *e = atomic_load(&row->value);

        if ((void *)ex == NULL || (void *)ex == TABLE_GONE || !attach_is_there(ex, sizeof *ex + sizeof e->flush))
            continue;
        if (attach_is_way_in((void *)ex->wr_start))
            SWAP(ex->wr_start, e->real.wr_start);
        EACH(TAKE_BACK)
        if (e->real.wr_atomic_write && ex->wr_atomic_write == wr_atomic_write)
            SWAP(ex->wr_atomic_write, e->real.wr_atomic_write);
        if (e->flush && *flush_of(ex) == wr_flush)
            SWAP(*flush_of(ex), e->flush);
    }
    for (row = cqs.rows; row < cqs.rows + (1u << cqs.bits); row++) {
        struct ibv_cq_ex *cq = (struct ibv_cq_ex *)atomic_load(&row->key);
        struct extended_cq *e = atomic_load(&row->value);

        if ((void *)cq == NULL || (void *)cq == TABLE_GONE || !attach_is_there(cq, sizeof *cq))
            continue;
        if (cq->start_poll == start_poll || attach_is_way_in((void *)cq->start_poll))
            SWAP(cq->start_poll, e->start_poll);
        if (cq->next_poll == next_poll)
            SWAP(cq->next_poll, e->next_poll);
    }
}

void extended_wrappers(uint64_t *both)
{
    both[0] = (uintptr_t)start_poll;
    both[1] = (uintptr_t)wr_start;
}
