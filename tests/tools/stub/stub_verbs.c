/*
 * A libibverbs that needs no kernel: one device whose queue pairs carry out what is posted at once, and say so
 * in their completion queue. Tests and the microbenchmark of the interposer run on it. A receive completes when
 * the QP (or one on the same SRQ) is sent to: a QP sends to itself.
 */
#include <infiniband/verbs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUEUE 4096
#define REFUSED 0xbad /* a WR with this wr_id is refused */
#define FLUSH 14      /* IBV_WR_FLUSH and IBV_WC_FLUSH, newer than some headers */
#define FLUSHED 8
#define FATAL 0xdead  /* the program dies in the middle of posting this one */
#define BLOCKS 0xb10c /* posting this one never returns */
#define TAKEN 4096    /* as many accepted work requests of a QP are remembered */

struct cq {
    struct ibv_cq_ex ex;
    struct ibv_wc wc[QUEUE];
    unsigned put, got;
    struct ibv_wc *now;
};

struct receives {
    uint64_t wr_id[QUEUE];
    unsigned put, got;
};

struct srq {
    struct ibv_srq srq;
    struct receives receives;
};

struct qp {
    struct ibv_qp_ex ex;
    void (*after_ex[4])(void); /* where newer headers have wr_flush */
    struct receives receives;
    int signals_all, failed;
    struct ibv_send_wr built[64];
    int count;
    pthread_mutex_t lock;
    uint64_t taken[TAKEN];
    int taken_count;
};

static struct ibv_device device = {.name = "stub0", .dev_name = "uverbs0"};
static uint32_t numbers = 100;
static int opened, refusals, yields;

/* ------------------------------------------------------------------ for the tests alone */

/* The next so many calls that destroy something fail. */
void stub_refuse(int calls)
{
    refusals = calls;
}

static int refuses(void)
{
    return refusals > 0 ? refusals--, EBUSY : 0;
}

/* From now on other threads come first while a work request is being posted. */
void stub_yield(int on)
{
    yields = on;
}

/* The work requests that a QP accepted, in the order in which it took them. */
int stub_taken(struct ibv_qp *qp, const uint64_t **wr_ids)
{
    *wr_ids = ((struct qp *)qp)->taken;
    return ((struct qp *)qp)->taken_count;
}

/* How often devices of this copy of the library were opened. */
int stub_opened(void)
{
    return opened;
}

/* ------------------------------------------------------------------ the data path */

static void complete(struct ibv_cq *ibv_cq, const struct ibv_wc *wc)
{
    struct cq *cq = (struct cq *)ibv_cq;

    cq->wc[cq->put++ % QUEUE] = *wc;
}

static const enum ibv_wc_opcode done_as[] = {
    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
    [IBV_WR_SEND] = IBV_WC_SEND,
    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
    [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
    [IBV_WR_LOCAL_INV] = IBV_WC_LOCAL_INV,
    [IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
    [IBV_WR_SEND_WITH_INV] = IBV_WC_SEND,
    [FLUSH] = (enum ibv_wc_opcode)FLUSHED,
    [IBV_WR_ATOMIC_WRITE] = IBV_WC_ATOMIC_WRITE,
};

static void carry_out(struct qp *qp, const struct ibv_send_wr *wr)
{
    struct ibv_qp *base = &qp->ex.qp_base;
    struct receives *receives = base->srq ? &((struct srq *)base->srq)->receives : &qp->receives;
    struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = base->qp_num, .opcode = done_as[wr->opcode]};
    int arrives = wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM ||
                   wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    int i;

    for (i = 0; i < wr->num_sge; i++)
        wc.byte_len += wr->sg_list[i].length;
    if (wr->opcode == IBV_WR_BIND_MW)
        wr->bind_mw.mw->rkey = wr->bind_mw.rkey;
    if (qp->failed)
        wc.status = IBV_WC_WR_FLUSH_ERR;
    else if (wr->opcode == IBV_WR_RDMA_READ && wr->wr.rdma.rkey == 0)
        wc.status = IBV_WC_REM_ACCESS_ERR, wc.vendor_err = 0x88, qp->failed = 1;
    if (wc.status || qp->signals_all || wr->send_flags & IBV_SEND_SIGNALED)
        complete(base->send_cq, &wc);
    if (wc.status || !arrives || receives->got == receives->put)
        return;
    wc.wr_id = receives->wr_id[receives->got++ % QUEUE];
    wc.opcode = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    wc.src_qp = base->qp_num;
    if (wr->opcode == IBV_WR_SEND_WITH_IMM || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = wr->imm_data;
    } else if (wr->opcode == IBV_WR_SEND_WITH_INV) {
        wc.wc_flags = IBV_WC_WITH_INV;
        wc.invalidated_rkey = wr->invalidate_rkey;
    }
    complete(base->recv_cq, &wc);
}

static int post_send(struct ibv_qp *ibv_qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct qp *qp = (struct qp *)ibv_qp;
    int result = 0;

    if (yields)
        sched_yield();
    pthread_mutex_lock(&qp->lock);
    for (; wr && !result; wr = wr->next) {
        if (wr->wr_id == REFUSED) {
            *bad = wr;
            result = EINVAL;
            break;
        }
        if (wr->wr_id == FATAL)
            raise(SIGSEGV);
        if (wr->wr_id == BLOCKS) {
            pthread_mutex_unlock(&qp->lock);
            for (;;)
                pause();
        }
        qp->taken[qp->taken_count++ % TAKEN] = wr->wr_id;
        carry_out(qp, wr);
    }
    pthread_mutex_unlock(&qp->lock);
    if (yields)
        sched_yield();
    return result;
}

static int put_receives(struct receives *receives, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    for (; wr; wr = wr->next) {
        if (wr->wr_id == REFUSED || receives->put - receives->got == QUEUE) {
            *bad = wr;
            return ENOMEM;
        }
        receives->wr_id[receives->put++ % QUEUE] = wr->wr_id;
    }
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return put_receives(&((struct qp *)qp)->receives, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    return put_receives(&((struct srq *)srq)->receives, wr, bad);
}

static int poll_cq(struct ibv_cq *ibv_cq, int entries, struct ibv_wc *wc)
{
    struct cq *cq = (struct cq *)ibv_cq;
    int n = 0;

    while (n < entries && cq->got != cq->put)
        wc[n++] = cq->wc[cq->got++ % QUEUE];
    return n;
}

/* ------------------------------------------------------------------ the extended calls */

static struct ibv_send_wr *add(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
    struct qp *qp = (struct qp *)ex;
    struct ibv_send_wr *wr = &qp->built[qp->count++];

    memset(wr, 0, sizeof *wr);
    wr->wr_id = ex->wr_id;
    wr->opcode = opcode;
    wr->send_flags = ex->wr_flags;
    return wr;
}

static void wr_start(struct ibv_qp_ex *ex)
{
    ((struct qp *)ex)->count = 0;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
    ((struct qp *)ex)->count = 0;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
    struct qp *qp = (struct qp *)ex;
    int i;

    for (i = 0; i < qp->count; i++)
        if (qp->built[i].wr_id == REFUSED)
            return ENOMEM;
    for (i = 0; i < qp->count; i++)
        carry_out(qp, &qp->built[i]);
    return 0;
}

static void wr_send(struct ibv_qp_ex *ex)
{
    add(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    add(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
    add(ex, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    struct ibv_send_wr *wr = add(ex, IBV_WR_RDMA_READ);

    wr->wr.rdma.rkey = rkey;
    wr->wr.rdma.remote_addr = remote;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    (void)rkey, (void)remote;
    add(ex, IBV_WR_RDMA_WRITE);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, __be32 imm)
{
    (void)rkey, (void)remote;
    add(ex, IBV_WR_RDMA_WRITE_WITH_IMM)->imm_data = imm;
}

static void wr_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap)
{
    (void)rkey, (void)remote, (void)compare, (void)swap;
    add(ex, IBV_WR_ATOMIC_CMP_AND_SWP);
}

static void wr_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, uint64_t value)
{
    (void)rkey, (void)remote, (void)value;
    add(ex, IBV_WR_ATOMIC_FETCH_AND_ADD);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
    struct ibv_send_wr *wr = add(ex, IBV_WR_BIND_MW);

    wr->bind_mw.mw = mw;
    wr->bind_mw.rkey = rkey;
    wr->bind_mw.bind_info = *info;
}

static void wr_flush(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, size_t length, uint8_t type, uint8_t level)
{
    (void)rkey, (void)remote, (void)length, (void)type, (void)level;
    add(ex, (enum ibv_wr_opcode)FLUSH);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote, const void *value)
{
    (void)rkey, (void)remote, (void)value;
    add(ex, IBV_WR_ATOMIC_WRITE);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
    (void)rkey;
    add(ex, IBV_WR_LOCAL_INV);
}

static void set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    (void)ex, (void)ah, (void)qpn, (void)qkey;
}

static void set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
    (void)ex, (void)addr, (void)length;
}

static void set_inline_data_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *list)
{
    (void)ex, (void)count, (void)list;
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
    (void)ex, (void)lkey, (void)addr, (void)length;
}

static void set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list)
{
    (void)ex, (void)count, (void)list;
}

static int next_poll(struct ibv_cq_ex *ex)
{
    struct cq *cq = (struct cq *)ex;

    if (cq->got == cq->put)
        return ENOENT;
    cq->now = &cq->wc[cq->got++ % QUEUE];
    ex->wr_id = cq->now->wr_id;
    ex->status = cq->now->status;
    return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    (void)attr;
    return next_poll(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
    (void)ex;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->qp_num;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
    return ((struct cq *)ex)->now->wc_flags;
}

/* ------------------------------------------------------------------ set-up */

static struct ibv_qp *make_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *send_cq,
                              struct ibv_cq *recv_cq, struct ibv_srq *srq, enum ibv_qp_type type, int signals_all)
{
    struct qp *qp = calloc(1, sizeof *qp);
    struct ibv_qp *base = &qp->ex.qp_base;

    base->context = context;
    base->pd = pd;
    base->send_cq = send_cq;
    base->recv_cq = recv_cq;
    base->srq = srq;
    base->qp_type = type;
    base->qp_num = __atomic_fetch_add(&numbers, 1, __ATOMIC_RELAXED);
    qp->signals_all = signals_all;
    pthread_mutex_init(&qp->lock, NULL);
    return base;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    return make_qp(pd->context, pd, a->send_cq, a->recv_cq, a->srq, a->qp_type, a->sq_sig_all);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *a)
{
    struct ibv_qp *base = make_qp(context, a->pd, a->send_cq, a->recv_cq, a->srq, a->qp_type, a->sq_sig_all);
    struct ibv_qp_ex *ex = &((struct qp *)base)->ex;

    ex->wr_start = wr_start;
    ex->wr_abort = wr_abort;
    ex->wr_complete = wr_complete;
    ex->wr_send = wr_send;
    ex->wr_send_imm = wr_send_imm;
    ex->wr_send_inv = wr_send_inv;
    ex->wr_rdma_read = wr_rdma_read;
    ex->wr_rdma_write = wr_rdma_write;
    ex->wr_rdma_write_imm = wr_rdma_write_imm;
    ex->wr_atomic_cmp_swp = wr_cmp_swp;
    ex->wr_atomic_fetch_add = wr_fetch_add;
    ex->wr_bind_mw = wr_bind_mw;
    ex->wr_local_inv = wr_local_inv;
    ex->wr_atomic_write = wr_atomic_write;
    *(void **)(&ex->wr_atomic_write + 1) = (void *)wr_flush;
    ex->wr_set_ud_addr = set_ud_addr;
    ex->wr_set_inline_data = set_inline_data;
    ex->wr_set_inline_data_list = set_inline_data_list;
    ex->wr_set_sge = set_sge;
    ex->wr_set_sge_list = set_sge_list;
    return base;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return (struct ibv_qp_ex *)qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if (mask & IBV_QP_STATE)
        qp->state = attr->qp_state;
    return 0;
}

/* As of a QP that is connected. A query sets the QP's state, as libibverbs does. */
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    (void)mask;
    *attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                 .path_mtu = IBV_MTU_1024,
                                 .dest_qp_num = 0x42,
                                 .sq_psn = 0x777,
                                 .timeout = 14,
                                 .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}}};
    memcpy(attr->ah_attr.grh.dgid.raw, (uint8_t[16]){[10] = 0xff, 0xff, 10, 9, 0, 2}, 16);
    *init = (struct ibv_qp_init_attr){.qp_type = qp->qp_type,
                                      .sq_sig_all = ((struct qp *)qp)->signals_all,
                                      .cap = {.max_send_wr = 64, .max_recv_wr = 32, .max_send_sge = 8}};
    qp->state = attr->qp_state;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
    if (refuses())
        return EBUSY;
    free(qp);
    return 0;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    struct cq *cq = calloc(1, sizeof *cq);

    cq->ex.context = context;
    cq->ex.start_poll = start_poll;
    cq->ex.next_poll = next_poll;
    cq->ex.end_poll = end_poll;
    cq->ex.read_opcode = read_opcode;
    cq->ex.read_vendor_err = read_vendor_err;
    cq->ex.read_wc_flags = read_wc_flags;
    if (attr->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
        cq->ex.read_byte_len = read_byte_len;
    if (attr->wc_flags & IBV_WC_EX_WITH_IMM)
        cq->ex.read_imm_data = read_imm_data;
    if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
        cq->ex.read_qp_num = read_qp_num;
    return &cq->ex;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int vector)
{
    struct cq *cq = calloc(1, sizeof *cq);

    (void)cqe, (void)cq_context, (void)channel, (void)vector;
    cq->ex.context = context;
    return (struct ibv_cq *)cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    if (refuses())
        return EBUSY;
    free(cq);
    return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct srq *srq = calloc(1, sizeof *srq);

    (void)attr;
    srq->srq.context = pd->context;
    return &srq->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
    if (refuses())
        return EBUSY;
    free(srq);
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);

    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    struct ibv_mr *mr = calloc(1, sizeof *mr);

    (void)iova, (void)access;
    mr->context = pd->context;
    mr->addr = addr;
    mr->length = length;
    mr->lkey = __atomic_fetch_add(&numbers, 1, __ATOMIC_RELAXED);
    mr->rkey = mr->lkey + 0x10000;
    return mr;
}

/* As in rdma-core: through the procedure linkage table, where an interposer hears of it. */
#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    if (refuses())
        return EBUSY;
    free(mr);
    return 0;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct ibv_mw *mw = calloc(1, sizeof *mw);

    mw->context = pd->context;
    mw->type = type;
    mw->rkey = 0x500;
    return mw;
}

static int bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    struct ibv_send_wr wr = {.wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags};

    if (wr.wr_id == REFUSED)
        return EPERM;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = mw->rkey + 1;
    carry_out((struct qp *)qp, &wr);
    return 0;
}

static int dealloc_mw(struct ibv_mw *mw)
{
    if (refuses())
        return EBUSY;
    free(mw);
    return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct ibv_ah *ah = calloc(1, sizeof *ah);

    (void)attr;
    ah->context = pd->context;
    return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
    free(ah);
    return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    static const uint8_t mapped[16] = {[10] = 0xff, 0xff, 10, 9, 0, 1};

    (void)context, (void)port;
    if (index > 1)
        return -1;
    memcpy(gid->raw, mapped, 16);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    event->event_type = IBV_EVENT_PORT_ERR;
    event->element.port_num = 1;
    (void)context;
    return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **list = calloc(2, sizeof *list);

    list[0] = &device;
    if (count)
        *count = 1;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

struct ibv_context *ibv_open_device(struct ibv_device *of)
{
    struct verbs_context *verbs = calloc(1, sizeof *verbs);
    struct ibv_context *context = &verbs->context;

    opened++;
    verbs->sz = sizeof *verbs;
    verbs->create_qp_ex = create_qp_ex;
    verbs->create_cq_ex = create_cq_ex;
    context->abi_compat = __VERBS_ABI_IS_EXTENDED;
    context->device = of;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.post_srq_recv = post_srq_recv;
    context->ops.poll_cq = poll_cq;
    context->ops.alloc_mw = alloc_mw;
    context->ops.bind_mw = bind_mw;
    context->ops.dealloc_mw = dealloc_mw;
    return context;
}

int ibv_close_device(struct ibv_context *context)
{
    free((char *)context - offsetof(struct verbs_context, context));
    return 0;
}
