/*
 * Set-up and teardown of memory regions, windows, address handles; asynchronous events.
 */
#include "verbs.h"

#include <errno.h>
#include <string.h>

/* libibverbs calls some of its own exported functions through the wrappers. */
static __thread int inside __attribute__((tls_model("initial-exec")));

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

WRAPPER(VERBS, "IBVERBS_1.1", ibv_reg_mr)
struct ibv_mr *rocekit_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    REAL(ibv_reg_mr);
    struct ibv_mr *mr;

    inside++;
    mr = real(pd, addr, length, access);
    inside--;
    return mr_registered(mr, (uintptr_t)addr, (unsigned int)access);
}

WRAPPER(VERBS, "IBVERBS_1.7", ibv_reg_mr_iova)
struct ibv_mr *rocekit_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    REAL(ibv_reg_mr_iova);
    struct ibv_mr *mr;

    inside++;
    mr = real(pd, addr, length, iova, access);
    inside--;
    return mr_registered(mr, iova, (unsigned int)access);
}

WRAPPER(VERBS, "IBVERBS_1.8", ibv_reg_mr_iova2)
struct ibv_mr *rocekit_ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
    REAL(ibv_reg_mr_iova2);

    return mr_registered(real(pd, addr, length, iova, access), iova, access);
}

WRAPPER(VERBS, "IBVERBS_1.12", ibv_reg_dmabuf_mr)
struct ibv_mr *rocekit_ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
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

/* The time is that before the call: another thread may get the same key during it. */
static void mr_gone(struct stamp before, const struct ibv_mr *mr)
{
    struct record_mr record = {
        .addr = (uintptr_t)mr->addr, .length = mr->length, .lkey = mr->lkey, .rkey = mr->rkey};

    record_put_at(before, RECORD_MR_GONE, number_of(mr->context), 0, &record, sizeof record);
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_rereg_mr)
int rocekit_ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    REAL(ibv_rereg_mr);
    struct ibv_mr before = *mr;
    struct stamp when = record_now();
    int result = real(mr, flags, pd, addr, length, access), saved = errno;

    if (!result) {
        mr_gone(when, &before);
        mr_registered(mr, (uintptr_t)mr->addr, flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : ~0u);
    }
    errno = saved;
    return result;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_dereg_mr)
int rocekit_ibv_dereg_mr(struct ibv_mr *mr)
{
    REAL(ibv_dereg_mr);
    struct ibv_mr gone = *mr;
    struct stamp before = record_now();
    int result = real(mr), saved = errno;

    if (!result)
        mr_gone(before, &gone);
    errno = saved;
    return result;
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
    struct stamp before = record_now();
    int result = device_of(context)->ops.dealloc_mw(mw), saved = errno;

    if (!result)
        record_put_at(before, RECORD_MW, number_of(context), 0, &record, sizeof record);
    errno = saved;
    return result;
}

/* ------------------------------------------------------------------ address handles, events */

void gid_at(const void *beside, struct ibv_context *context, uint8_t port, uint8_t index, uint8_t *gid)
{
    __typeof__(&ibv_query_gid) query;
    union ibv_gid value;
    int saved = errno;

    BESIDE(query, beside, "IBVERBS_1.1", ibv_query_gid);
    if (query && !query(context, port ? port : 1, index, &value))
        memcpy(gid, value.raw, 16);
    errno = saved;
}

static struct ibv_ah *ah_created(const void *beside, struct ibv_ah *ah, const struct ibv_ah_attr *attr)
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
        gid_at(beside, ah->context, record.port, record.sgid_index, record.sgid);
    }
    record_put(RECORD_AH, number_of(ah->context), 0, &record, sizeof record);
    return ah;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_create_ah)
struct ibv_ah *rocekit_ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    REAL(ibv_create_ah);

    return ah_created((void *)real, real(pd, attr), attr);
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_create_ah_from_wc)
struct ibv_ah *rocekit_ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
                                            uint8_t port)
{
    REAL(ibv_create_ah_from_wc);
    __typeof__(&ibv_init_ah_from_wc) init;
    struct ibv_ah_attr attr = {.port_num = port};
    struct ibv_ah *ah;
    int saved;

    inside++;
    ah = real(pd, wc, grh, port);
    inside--;
    saved = errno;
    BESIDE(init, real, "IBVERBS_1.1", ibv_init_ah_from_wc);
    if (ah && init && !init(pd->context, port, wc, grh, &attr))
        ah_created((void *)real, ah, &attr);
    errno = saved;
    return ah;
}

WRAPPER(VERBS, "IBVERBS_1.1", ibv_get_async_event)
int rocekit_ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
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
