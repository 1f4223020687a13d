/*
 * Set-up and teardown of queue pairs, completion queues and shared receive queues. These call the kernel anyway, so
 * speed does not matter here.
 *
 * What is known of an object is kept until its destruction has succeeded: it may fail, and the program goes on using
 * the object. The record of it has the time before the call, because another thread may get the same number or key
 * during it.
 */
#include "table.h"
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

TABLE(srqs, 16);
TABLE(qp_states, 16);

static _Atomic uint32_t srq_count;
uint32_t fork_count;

static void after_fork(void)
{
    fork_count++;
}

__attribute__((constructor)) static void start(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

/* ------------------------------------------------------------------ queue pairs */

/* The attributes that were asked for or found. */
static void describe(struct record_modify *record, const struct ibv_qp_attr *attr, uint32_t mask, const void *beside,
                     struct ibv_context *context)
{
    record->mask = mask;
    if (mask & IBV_QP_STATE)
        record->state = attr->qp_state;
    if (mask & IBV_QP_DEST_QPN)
        record->dest_qpn = attr->dest_qp_num;
    if (mask & IBV_QP_SQ_PSN)
        record->sq_psn = attr->sq_psn;
    if (mask & IBV_QP_RQ_PSN)
        record->rq_psn = attr->rq_psn;
    if (mask & IBV_QP_PATH_MTU)
        record->path_mtu = attr->path_mtu;
    if (mask & IBV_QP_QKEY)
        record->qkey = attr->qkey;
    if (mask & IBV_QP_ACCESS_FLAGS)
        record->access = attr->qp_access_flags;
    if (mask & IBV_QP_TIMEOUT)
        record->timeout = attr->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        record->retry_cnt = attr->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        record->rnr_retry = attr->rnr_retry;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        record->min_rnr_timer = attr->min_rnr_timer;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        record->max_rd_atomic = attr->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        record->max_dest_rd_atomic = attr->max_dest_rd_atomic;
    if (mask & IBV_QP_PORT)
        record->port = attr->port_num;
    if (mask & IBV_QP_AV) {
        record->port = attr->ah_attr.port_num;
        record->sgid_index = attr->ah_attr.grh.sgid_index;
        record->sl = attr->ah_attr.sl;
        if (attr->ah_attr.is_global) {
            memcpy(record->dgid, attr->ah_attr.grh.dgid.raw, 16);
            gid_at(beside, context, record->port, record->sgid_index, record->sgid);
            record->flow_label = attr->ah_attr.grh.flow_label;
            record->traffic_class = attr->ah_attr.grh.traffic_class;
            record->hop_limit = attr->ah_attr.grh.hop_limit;
        }
    }
}

struct qp_state *qp_state_of(const struct ibv_qp *qp)
{
    return table_get(&qp_states, qp);
}

static void new_state(const struct ibv_qp *qp)
{
    struct qp_state *state = calloc(1, sizeof *state);

    if (!state)
        return;
    state->datagrams = qp->qp_type == IBV_QPT_UD;
    state->forks = fork_count;
    state->session = record_session;
    if (!table_put(&qp_states, qp, state))
        free(state);
}

#define QUERIED                                                                                              \
    (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | \
     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |                  \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_DEST_QPN | IBV_QP_CAP)

/* The attributes that these kinds of QPs have none of are left out. */
static uint32_t known_of(enum ibv_qp_type type)
{
    uint32_t of_rc = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
                     IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC;
    uint32_t of_connected = IBV_QP_ACCESS_FLAGS | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN;

    if (type == IBV_QPT_UD)
        return QUERIED & ~(of_rc | of_connected);
    return QUERIED & ~IBV_QP_QKEY & ~(type == IBV_QPT_RC ? 0 : of_rc);
}

/*
 * A QP that was made before the recorder was attached, in the first call on it that is seen: the program uses it, so
 * it is there.
 */
struct qp_state *find_qp(struct ibv_qp *qp)
{
    struct device *device = device_of(qp->context);
    struct record_found found = {.qp = {.type = qp->qp_type, .srq = qp->srq ? srq_number(qp->srq) : 0, .covered = 1}};
    enum ibv_qp_state before = qp->state;
    struct ibv_qp_init_attr init = {0};
    struct ibv_qp_attr attr = {0};
    __typeof__(&ibv_query_qp) query;
    struct qp_state *state;
    int saved = errno;

    new_state(qp);
    state = qp_state_of(qp);
    if (state)
        state->found = true;
    BESIDE(query, device->opened_by, "IBVERBS_1.1", ibv_query_qp);
    found.qp.error = !query || query(qp, &attr, QUERIED, &init);
    __atomic_store_n(&qp->state, before, __ATOMIC_RELAXED); /* the query sets it, and the program may read it */
    if (!found.qp.error) {
        uint32_t known = known_of(qp->qp_type);

        if (attr.qp_state < IBV_QPS_RTR) /* it has no peer yet */
            known &= IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY;
        if (attr.qp_state < IBV_QPS_RTS) /* what it would need to send is not set */
            known &= ~(uint32_t)(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
        describe(&found.attributes, &attr, known, device->opened_by, qp->context);
        found.qp.max_send_wr = init.cap.max_send_wr;
        found.qp.max_recv_wr = init.cap.max_recv_wr;
        found.qp.max_send_sge = init.cap.max_send_sge;
        found.qp.max_recv_sge = init.cap.max_recv_sge;
        found.qp.max_inline = init.cap.max_inline_data;
        found.qp.sq_sig_all = init.sq_sig_all != 0;
    }
    record_put(RECORD_QP_FOUND, device->number, qp->qp_num, &found, sizeof found);
    errno = saved;
    return state;
}

static void update_state(const struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct qp_state *state = qp_state_of(qp);

    if (state && mask & IBV_QP_PATH_MTU)
        atomic_store(&state->path_mtu, 128u << attr->path_mtu);
    if (state && mask & IBV_QP_SQ_PSN)
        atomic_store(&state->psns, 0);
    if (state && mask & IBV_QP_SQ_PSN)
        state->found = false; /* from a new start, all is seen */
}

static void qp_created(struct ibv_qp *qp, const struct ibv_qp_cap *cap, int sq_sig_all, uint64_t operations)
{
    struct record_qp record = {
        .type = qp->qp_type,
        .max_send_wr = cap->max_send_wr,
        .max_recv_wr = cap->max_recv_wr,
        .max_send_sge = cap->max_send_sge,
        .max_recv_sge = cap->max_recv_sge,
        .max_inline = cap->max_inline_data,
        .srq = qp->srq ? srq_number(qp->srq) : 0,
        .sq_sig_all = sq_sig_all != 0,
        .extended = operations != 0,
    };

    new_state(qp);
    record.covered = !operations || extended_hook_qp(qp, operations, cap->max_send_wr, cap->max_send_sge);
    record_put(RECORD_QP_CREATED, number_of(qp->context), qp->qp_num, &record, sizeof record);
}

static uint64_t operations_of(const struct ibv_qp_init_attr_ex *attr)
{
    return attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_create_qp)
struct ibv_qp *rocekit_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    REAL(ibv_create_qp);
    struct ibv_qp *qp = real(pd, attr);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, 0);
    return qp;
}

struct ibv_qp *objects_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    struct ibv_qp *qp = device_of(context)->create_qp_ex(context, attr);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, operations_of(attr));
    return qp;
}

WRAPPER(MLX5, "MLX5_1.3", mlx5dv_create_qp)
struct ibv_qp *rocekit_mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                       struct mlx5dv_qp_init_attr *more)
{
    REAL(mlx5dv_create_qp);
    struct ibv_qp *qp = real(context, attr, more);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, operations_of(attr));
    return qp;
}

WRAPPER(EFA, "EFA_1.0", efadv_create_driver_qp)
struct ibv_qp *rocekit_efadv_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint32_t type)
{
    REAL(efadv_create_driver_qp);
    struct ibv_qp *qp = real(pd, attr, type);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, 0);
    return qp;
}

WRAPPER(EFA, "EFA_1.1", efadv_create_qp_ex)
struct ibv_qp *rocekit_efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                          struct efadv_qp_init_attr *efa, uint32_t length)
{
    REAL(efadv_create_qp_ex);
    struct ibv_qp *qp = real(context, attr, efa, length);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, operations_of(attr));
    return qp;
}

/* The program posts by itself from now on, and that takes PSNs, too. */
WRAPPER(EFA, "EFA_1.4", efadv_query_qp_wqs)
int rocekit_efadv_query_qp_wqs(struct ibv_qp *qp, struct efadv_wq_attr *sends, struct efadv_wq_attr *receives,
                               uint32_t length)
{
    REAL(efadv_query_qp_wqs);
    struct qp_state *state = record_is_on() ? qp_state_of(qp) : NULL;

    if (state)
        state->uncounted = true;
    not_covered(UINT8_MAX, "queues that the program drives itself (efadv_query_qp_wqs)");
    return real(qp, sends, receives, length);
}

#define OBJECT_IS_QP 1 /* MLX5DV_OBJ_QP: then the first thing in the object is the QP */

WRAPPER(MLX5, "MLX5_1.2", mlx5dv_init_obj)
int rocekit_mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t type)
{
    REAL(mlx5dv_init_obj);

    if (type & OBJECT_IS_QP && object && record_is_on()) {
        struct ibv_qp *qp = *(struct ibv_qp **)object;
        struct qp_state *state = qp ? qp_state_of(qp) : NULL;

        /* What the program posts by itself takes PSNs, too. */
        if (state)
            state->uncounted = true;
    }
    not_covered(UINT8_MAX, "queues that the program drives itself (mlx5dv_init_obj)");
    return real(object, type);
}

WRAPPER(MLX5, "MLX5_1.7", mlx5dv_devx_obj_create)
struct mlx5dv_devx_obj *rocekit_mlx5dv_devx_obj_create(struct ibv_context *context, const void *in, size_t in_length,
                                                       void *out, size_t out_length)
{
    REAL(mlx5dv_devx_obj_create);
    static _Atomic bool said;

    if (!atomic_exchange(&said, true))
        not_covered(UINT8_MAX, "objects that the program makes by DevX (mlx5dv_devx_obj_create)");
    return real(context, in, in_length, out, out_length);
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_modify_qp)
int rocekit_ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    REAL(ibv_modify_qp);
    struct record_modify record = {0};
    int result, saved;

    describe(&record, attr, (uint32_t)mask, (void *)real, qp->context);
    result = real(qp, attr, mask);
    saved = errno;
    if (!result)
        update_state(qp, attr, mask);
    record.error = (uint8_t)(result > 0 ? result : -result);
    record_put(RECORD_QP_MODIFIED, number_of(qp->context), qp->qp_num, &record, sizeof record);
    errno = saved;
    return result;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_destroy_qp)
int rocekit_ibv_destroy_qp(struct ibv_qp *qp)
{
    REAL(ibv_destroy_qp);
    uint8_t device = number_of(qp->context);
    uint32_t number = qp->qp_num;
    struct qp_state *state = qp_state_of(qp);
    void *extended = extended_of_qp(qp);
    struct stamp before = record_now();
    int result = real(qp), saved = errno;

    if (!result) {
        record_put_at(before, RECORD_QP_DESTROYED, device, number, &number, sizeof number);
        extended_qp_gone(qp, extended);
        if (state)
            table_drop(&qp_states, qp, state);
        free(state);
    }
    errno = saved;
    return result;
}

/* ------------------------------------------------------------------ completion queues */

/* The attributes that the caller's structure has; an old program's has fewer. */
static size_t cq_attr_size(const struct ibv_cq_init_attr_ex *attr)
{
    if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
        return sizeof *attr;
    if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS)
        return offsetof(struct ibv_cq_init_attr_ex, parent_domain);
    return offsetof(struct ibv_cq_init_attr_ex, flags);
}

#define WANTED_OF_WC (IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM)

/* Completions need their QP's number: it is requested even if the program does not. */
#define CREATE_CQ_EX(create)                                                                                 \
    struct ibv_cq_init_attr_ex more = {0};                                                                   \
    struct ibv_cq_ex *cq;                                                                                    \
    memcpy(&more, attr, cq_attr_size(attr));                                                                 \
    more.wc_flags |= WANTED_OF_WC;                                                                           \
    cq = create(&more);                                                                                      \
    if (!cq) {                                                                                               \
        more.wc_flags = attr->wc_flags;                                                                      \
        cq = create(attr);                                                                                   \
    }                                                                                                        \
    if (cq && (!(more.wc_flags & IBV_WC_EX_WITH_QP_NUM) || !extended_hook_cq(cq, more.wc_flags)))            \
        not_covered(number_of(context), "an extended completion queue without QP numbers");                  \
    return cq

struct ibv_cq_ex *objects_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
    struct device *device = device_of(context);

#define CREATE(with) device->create_cq_ex(context, with)
    CREATE_CQ_EX(CREATE);
#undef CREATE
}

WRAPPER(MLX5, "MLX5_1.1", mlx5dv_create_cq)
struct ibv_cq_ex *rocekit_mlx5dv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
                                          struct mlx5dv_cq_init_attr *mlx5)
{
    REAL(mlx5dv_create_cq);

#define CREATE(with) real(context, with, mlx5)
    CREATE_CQ_EX(CREATE);
#undef CREATE
}

WRAPPER(EFA, "EFA_1.2", efadv_create_cq)
struct ibv_cq_ex *rocekit_efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
                                          struct efadv_cq_init_attr *efa, uint32_t length)
{
    REAL(efadv_create_cq);

#define CREATE(with) real(context, with, efa, length)
    CREATE_CQ_EX(CREATE);
#undef CREATE
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_destroy_cq)
int rocekit_ibv_destroy_cq(struct ibv_cq *cq)
{
    REAL(ibv_destroy_cq);
    void *extended = extended_of_cq(cq);
    int result = real(cq), saved = errno;

    if (!result)
        extended_cq_gone(cq, extended);
    errno = saved;
    return result;
}

/* ------------------------------------------------------------------ shared receive queues */

uint32_t srq_number(const struct ibv_srq *srq)
{
    return (uint32_t)(uintptr_t)table_get(&srqs, srq);
}

static void srq_created(struct ibv_srq *srq, const struct ibv_srq_attr *attr)
{
    struct record_srq record = {
        .id = 1 + atomic_fetch_add(&srq_count, 1), .max_wr = attr->max_wr, .max_sge = attr->max_sge};

    if (!table_put(&srqs, srq, (void *)(uintptr_t)record.id))
        record.id = 0;
    record_put(RECORD_SRQ, number_of(srq->context), 0, &record, sizeof record);
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_create_srq)
struct ibv_srq *rocekit_ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    REAL(ibv_create_srq);
    struct ibv_srq *srq = real(pd, attr);

    if (srq)
        srq_created(srq, &attr->attr);
    return srq;
}

struct ibv_srq *objects_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
    struct ibv_srq *srq = device_of(context)->create_srq_ex(context, attr);

    if (srq)
        srq_created(srq, &attr->attr);
    return srq;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_destroy_srq)
int rocekit_ibv_destroy_srq(struct ibv_srq *srq)
{
    REAL(ibv_destroy_srq);
    void *number = table_get(&srqs, srq);
    int result = real(srq), saved = errno;

    if (!result && number)
        table_drop(&srqs, srq, number);
    errno = saved;
    return result;
}
