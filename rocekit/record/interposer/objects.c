/*
 * Set-up and teardown: devices, queue pairs, memory, address handles. These call the kernel anyway, so speed does
 * not matter here.
 */
#include "table.h"
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

TABLE(devices, 10);
TABLE(srqs, 16);
TABLE(qp_states, 16);

static _Atomic uint32_t device_count, srq_count;
static _Atomic uint32_t generation; /* of the table of devices: threads' copies of entries may be old */
static __thread struct {
    struct ibv_context *context;
    struct device *device;
    uint32_t generation;
} last __attribute__((tls_model("initial-exec")));

/* libibverbs calls some of its own exported functions through the wrappers. */
static __thread int inside __attribute__((tls_model("initial-exec")));

/* ------------------------------------------------------------------ devices */

struct device *device_of(struct ibv_context *context)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);

    if (__builtin_expect(context != last.context || now != last.generation, 0)) {
        last.device = table_get(&devices, context);
        last.context = context;
        last.generation = now;
    }
    return last.device;
}

static uint8_t number_of(struct ibv_context *context)
{
    struct device *device = device_of(context);

    return device ? device->number : UINT8_MAX;
}

/* Replace a function in the extended context, if this libibverbs and this device have it. */
#define HOOK(field, ours)                                                                                    \
    do {                                                                                                     \
        struct verbs_context *extended = verbs_get_ctx_op(context, field);                                   \
        if (extended) {                                                                                      \
            device->field = extended->field;                                                                 \
            extended->field = ours;                                                                          \
        }                                                                                                    \
    } while (0)

/* A closed device's entry is kept: another thread may be reading it, and there are few. */
static struct device *new_device(struct ibv_context *context)
{
    struct device *device = calloc(1, sizeof *device);
    struct record_device record = {{0}};

    if (!device)
        return NULL;
    device->number = (uint8_t)atomic_fetch_add(&device_count, 1);
    device->ops = context->ops;
    if (!table_put(&devices, context, device)) {
        free(device);
        return NULL;
    }
    memcpy(record.name, context->device->name, strnlen(context->device->name, sizeof record.name - 1));
    record_put(RECORD_DEVICE, device->number, device->number, &record, sizeof record);
    return device;
}

void device_hook(struct ibv_context *context)
{
    struct device *device;

    if (!context || context->ops.post_send == data_post_send || !record_is_on())
        return;
    if (atomic_load(&device_count) >= UINT8_MAX || !(device = new_device(context))) {
        not_covered(UINT8_MAX, "devices opened after the first 255");
        return;
    }
    atomic_fetch_add(&generation, 1);
    context->ops.post_send = data_post_send;
    context->ops.post_recv = data_post_recv;
    context->ops.post_srq_recv = data_post_srq_recv;
    context->ops.poll_cq = data_poll_cq;
    /* Empty in old libraries if the device has no windows. */
    if (context->ops.alloc_mw)
        context->ops.alloc_mw = objects_alloc_mw;
    if (context->ops.bind_mw)
        context->ops.bind_mw = data_bind_mw;
    if (context->ops.dealloc_mw)
        context->ops.dealloc_mw = objects_dealloc_mw;
    HOOK(create_qp_ex, objects_create_qp_ex);
    HOOK(create_cq_ex, objects_create_cq_ex);
    HOOK(create_srq_ex, objects_create_srq_ex);
    HOOK(alloc_dm, objects_alloc_dm);
    HOOK(reg_dm_mr, objects_reg_dm_mr);
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    REAL(ibv_open_device);
    struct ibv_context *context = real(device);

    device_hook(context);
    return context;
}

EXPORT struct ibv_context *ibv_import_device(int fd)
{
    REAL(ibv_import_device);
    struct ibv_context *context = real(fd);

    device_hook(context);
    return context;
}

EXPORT struct ibv_context *mlx5dv_open_device(struct ibv_device *device, struct mlx5dv_context_attr *attr)
{
    REAL(mlx5dv_open_device);
    struct ibv_context *context = real(device, attr);

    device_hook(context);
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    REAL(ibv_close_device);

    /* The next context may get the same memory: the entry is removed first, so that it is not found for that one. */
    table_take(&devices, context);
    atomic_fetch_add(&generation, 1);
    return real(context);
}

/* ------------------------------------------------------------------ queue pairs */

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
    if (!table_put(&qp_states, qp, state))
        free(state);
}

static void update_state(const struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    struct qp_state *state = qp_state_of(qp);

    if (state && mask & IBV_QP_PATH_MTU)
        atomic_store(&state->path_mtu, 128u << attr->path_mtu);
    if (state && mask & IBV_QP_SQ_PSN)
        atomic_store(&state->psns, 0);
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

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
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

EXPORT struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
                                       struct mlx5dv_qp_init_attr *more)
{
    REAL(mlx5dv_create_qp);
    struct ibv_qp *qp = real(context, attr, more);

    if (qp)
        qp_created(qp, &attr->cap, attr->sq_sig_all, operations_of(attr));
    return qp;
}

EXPORT int mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t type)
{
    REAL(mlx5dv_init_obj);

    not_covered(UINT8_MAX, "queues that the program drives itself (mlx5dv_init_obj)");
    return real(object, type);
}

static void gid_at(struct ibv_context *context, uint8_t port, uint8_t index, uint8_t *gid)
{
    static _Atomic(__typeof__(&ibv_query_gid)) found;
    __typeof__(&ibv_query_gid) query = atomic_load(&found);
    union ibv_gid value;
    int saved = errno;

    if (!query) {
        query = (__typeof__(&ibv_query_gid))library_function(VERBS, "IBVERBS_1.1", "ibv_query_gid");
        atomic_store(&found, query);
    }
    if (query && !query(context, port ? port : 1, index, &value))
        memcpy(gid, value.raw, 16);
    errno = saved;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    REAL(ibv_modify_qp);
    struct record_modify record = {.mask = (uint32_t)mask};
    int result, saved;

    if (mask & IBV_QP_STATE)
        record.state = attr->qp_state;
    if (mask & IBV_QP_DEST_QPN)
        record.dest_qpn = attr->dest_qp_num;
    if (mask & IBV_QP_SQ_PSN)
        record.sq_psn = attr->sq_psn;
    if (mask & IBV_QP_RQ_PSN)
        record.rq_psn = attr->rq_psn;
    if (mask & IBV_QP_PATH_MTU)
        record.path_mtu = attr->path_mtu;
    if (mask & IBV_QP_QKEY)
        record.qkey = attr->qkey;
    if (mask & IBV_QP_ACCESS_FLAGS)
        record.access = attr->qp_access_flags;
    if (mask & IBV_QP_TIMEOUT)
        record.timeout = attr->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        record.retry_cnt = attr->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        record.rnr_retry = attr->rnr_retry;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        record.min_rnr_timer = attr->min_rnr_timer;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        record.max_rd_atomic = attr->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        record.max_dest_rd_atomic = attr->max_dest_rd_atomic;
    if (mask & IBV_QP_PORT)
        record.port = attr->port_num;
    if (mask & IBV_QP_AV) {
        record.port = attr->ah_attr.port_num;
        record.sgid_index = attr->ah_attr.grh.sgid_index;
        record.sl = attr->ah_attr.sl;
        if (attr->ah_attr.is_global) {
            memcpy(record.dgid, attr->ah_attr.grh.dgid.raw, 16);
            gid_at(qp->context, record.port, record.sgid_index, record.sgid);
            record.flow_label = attr->ah_attr.grh.flow_label;
            record.traffic_class = attr->ah_attr.grh.traffic_class;
            record.hop_limit = attr->ah_attr.grh.hop_limit;
        }
    }
    result = real(qp, attr, mask);
    saved = errno;
    if (!result)
        update_state(qp, attr, mask);
    record.error = (uint8_t)(result > 0 ? result : -result);
    record_put(RECORD_QP_MODIFIED, number_of(qp->context), qp->qp_num, &record, sizeof record);
    errno = saved;
    return result;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
    REAL(ibv_destroy_qp);
    uint8_t device = number_of(qp->context);
    uint32_t number = qp->qp_num;

    record_put(RECORD_QP_DESTROYED, device, number, &number, sizeof number);
    extended_unhook_qp(qp);
    free(table_take(&qp_states, qp));
    return real(qp);
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

EXPORT struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
                                          struct mlx5dv_cq_init_attr *mlx5)
{
    REAL(mlx5dv_create_cq);

#define CREATE(with) real(context, with, mlx5)
    CREATE_CQ_EX(CREATE);
#undef CREATE
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    REAL(ibv_destroy_cq);

    extended_unhook_cq(cq);
    return real(cq);
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

EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
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

EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
    REAL(ibv_destroy_srq);

    table_take(&srqs, srq);
    return real(srq);
}

/* ------------------------------------------------------------------ memory */

static struct ibv_mr *mr_registered(struct ibv_mr *mr, uint64_t iova, unsigned int access)
{
    struct record_mr record;

    if (!mr || inside)
        return mr;
    record = (struct record_mr){.addr = iova,
                                .length = mr->length,
                                .host_addr = (uintptr_t)mr->addr,
                                .lkey = mr->lkey,
                                .rkey = mr->rkey,
                                .access = access};
    record_put(RECORD_MR, number_of(mr->context), 0, &record, sizeof record);
    return mr;
}

EXPORT struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    REAL(ibv_reg_mr);
    struct ibv_mr *mr;

    inside++;
    mr = real(pd, addr, length, access);
    inside--;
    return mr_registered(mr, (uintptr_t)addr, (unsigned int)access);
}

EXPORT struct ibv_mr *(ibv_reg_mr_iova)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    REAL(ibv_reg_mr_iova);
    struct ibv_mr *mr;

    inside++;
    mr = real(pd, addr, length, iova, access);
    inside--;
    return mr_registered(mr, iova, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
    REAL(ibv_reg_mr_iova2);

    return mr_registered(real(pd, addr, length, iova, access), iova, access);
}

EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                        int access)
{
    REAL(ibv_reg_dmabuf_mr);

    return mr_registered(real(pd, offset, length, iova, fd, access), iova, (unsigned int)access);
}

struct ibv_mr *objects_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
                                 unsigned int access)
{
    struct ibv_mr *mr = device_of(pd->context)->reg_dm_mr(pd, dm, offset, length, access);

    return mr_registered(mr, access & IBV_ACCESS_ZERO_BASED ? 0 : offset, access);
}

static void mr_gone(const struct ibv_mr *mr)
{
    struct record_mr record = {
        .addr = (uintptr_t)mr->addr, .length = mr->length, .lkey = mr->lkey, .rkey = mr->rkey};

    record_put(RECORD_MR_GONE, number_of(mr->context), 0, &record, sizeof record);
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    REAL(ibv_rereg_mr);
    struct ibv_mr before = *mr;
    int result = real(mr, flags, pd, addr, length, access), saved = errno;

    if (!result) {
        mr_gone(&before);
        mr_registered(mr, (uintptr_t)mr->addr, flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : ~0u);
    }
    errno = saved;
    return result;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    REAL(ibv_dereg_mr);

    mr_gone(mr);
    return real(mr);
}

struct ibv_dm *objects_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
    struct ibv_dm *dm = device_of(context)->alloc_dm(context, attr);
    struct record_dm record = {.dm = (uintptr_t)dm, .length = attr->length};

    if (dm)
        record_put(RECORD_DM, number_of(context), 0, &record, sizeof record);
    return dm;
}

struct ibv_mw *objects_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    struct ibv_mw *mw = device_of(pd->context)->ops.alloc_mw(pd, type);
    struct record_mw record = {.type = (uint8_t)type};

    if (mw) {
        record.rkey = mw->rkey;
        record_put(RECORD_MW, number_of(pd->context), 0, &record, sizeof record);
    }
    return mw;
}

int objects_dealloc_mw(struct ibv_mw *mw)
{
    struct record_mw record = {.gone = 1, .type = (uint8_t)mw->type, .rkey = mw->rkey};
    struct ibv_context *context = mw->context;

    record_put(RECORD_MW, number_of(context), 0, &record, sizeof record);
    return device_of(context)->ops.dealloc_mw(mw);
}

/* ------------------------------------------------------------------ address handles, events */

static struct ibv_ah *ah_created(struct ibv_ah *ah, const struct ibv_ah_attr *attr)
{
    struct record_ah record;

    if (!ah || inside)
        return ah;
    record = (struct record_ah){.ah = (uintptr_t)ah, .port = attr->port_num};
    if (attr->is_global) {
        record.sgid_index = attr->grh.sgid_index;
        record.flow_label = attr->grh.flow_label;
        record.traffic_class = attr->grh.traffic_class;
        record.hop_limit = attr->grh.hop_limit;
        memcpy(record.dgid, attr->grh.dgid.raw, 16);
        gid_at(ah->context, record.port, record.sgid_index, record.sgid);
    }
    record_put(RECORD_AH, number_of(ah->context), 0, &record, sizeof record);
    return ah;
}

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    REAL(ibv_create_ah);

    return ah_created(real(pd, attr), attr);
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                            uint8_t port)
{
    REAL(ibv_create_ah_from_wc);
    static _Atomic(__typeof__(&ibv_init_ah_from_wc)) found;
    __typeof__(&ibv_init_ah_from_wc) init = atomic_load(&found);
    struct ibv_ah_attr attr = {.port_num = port};
    struct ibv_ah *ah;
    int saved;

    inside++;
    ah = real(pd, wc, grh, port);
    inside--;
    saved = errno;
    if (!init) {
        init = (__typeof__(&ibv_init_ah_from_wc))library_function(VERBS, "IBVERBS_1.1", "ibv_init_ah_from_wc");
        atomic_store(&found, init);
    }
    if (ah && init && !init(pd->context, port, wc, grh, &attr))
        ah_created(ah, &attr);
    errno = saved;
    return ah;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    REAL(ibv_get_async_event);
    int result = real(context, event), saved = errno;
    struct record_async record = {0};
    uint32_t number = 0;

    if (result)
        return result;
    record.type = event->event_type;
    switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        number = event->element.qp->qp_num;
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        record.srq = srq_number(event->element.srq);
        break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
        record.port = (uint32_t)event->element.port_num;
        break;
    default:
        break;
    }
    record_put(RECORD_ASYNC, number_of(context), number, &record, sizeof record);
    errno = saved;
    return result;
}
