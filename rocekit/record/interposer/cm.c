/*
 * The connection manager: the events that a program gets, and its calls. librdmacm's own changes of queue pairs
 * go through ibv_create_qp and ibv_modify_qp, and are recorded there.
 */
#include "verbs.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

enum { CALL_CONNECT, CALL_ACCEPT, CALL_REJECT, CALL_DISCONNECT };

static void put_address(uint8_t *where, const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        memcpy(where, address, sizeof(struct sockaddr_in));
    else if (address->sa_family == AF_INET6)
        memcpy(where, address, sizeof(struct sockaddr_in6));
}

static void put_private_data(struct record_cm *record, const void *data, uint8_t length)
{
    if (data && length) {
        record->private_length = length;
        memcpy(record->private_data, data, length);
    }
}

static void put_params(struct record_cm *record, const struct rdma_conn_param *param)
{
    record->has_params = 1;
    record->responder_resources = param->responder_resources;
    record->initiator_depth = param->initiator_depth;
    record->retry_count = param->retry_count;
    record->rnr_retry_count = param->rnr_retry_count;
    record->flow_control = param->flow_control;
    record->srq = param->srq;
    record->remote_qpn = param->qp_num;
    put_private_data(record, param->private_data, param->private_data_len);
}

/* The bytes of the record, without unused room for private data. */
static void put(enum record_type type, const struct rdma_cm_id *id, struct record_cm *record)
{
    struct device *device = id->verbs ? device_of(id->verbs) : NULL;

    record->id = (uintptr_t)id;
    put_address(record->src, &id->route.addr.src_addr);
    put_address(record->dst, &id->route.addr.dst_addr);
    record_put(type, device ? device->number : UINT8_MAX, id->qp ? id->qp->qp_num : 0, record,
               offsetof(struct record_cm, private_data) + record->private_length);
}

WRAPPER(RDMACM, "RDMACM_1.0", rdma_get_cm_event)
int rocekit_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    REAL(rdma_get_cm_event);
    int result = real(channel, event), saved = errno;
    struct record_cm record = {0};
    const struct rdma_cm_event *e;

    if (result || !record_is_on())
        return result;
    e = *event;
    record.listen_id = (uintptr_t)e->listen_id;
    record.status = e->status;
    record.what = e->event;
    if (e->id->ps == RDMA_PS_UDP || e->id->ps == RDMA_PS_IPOIB) {
        if (e->event == RDMA_CM_EVENT_ESTABLISHED || e->event == RDMA_CM_EVENT_MULTICAST_JOIN) {
            record.remote_qpn = e->param.ud.qp_num;
            record.qkey = e->param.ud.qkey;
        }
        if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_ESTABLISHED ||
            e->event == RDMA_CM_EVENT_REJECTED)
            put_private_data(&record, e->param.ud.private_data, e->param.ud.private_data_len);
    } else if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST || e->event == RDMA_CM_EVENT_CONNECT_RESPONSE ||
               e->event == RDMA_CM_EVENT_ESTABLISHED) {
        put_params(&record, &e->param.conn);
    } else if (e->event == RDMA_CM_EVENT_REJECTED || e->event == RDMA_CM_EVENT_DISCONNECTED) {
        put_private_data(&record, e->param.conn.private_data, e->param.conn.private_data_len);
    }
    put(RECORD_CM_EVENT, e->id, &record);
    errno = saved;
    return result;
}

/* A call is recorded before it is made, so that its events come after it. A failure is recorded once more. */
static struct record_cm asked(uint32_t what, const struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
    struct record_cm record = {.what = what};

    if (param && record_is_on())
        put_params(&record, param);
    if (record_is_on())
        put(RECORD_CM_CALL, id, &record);
    return record;
}

static int answered(int result, const struct rdma_cm_id *id, struct record_cm *record)
{
    int saved = errno;

    if (result && record_is_on()) {
        record->status = saved;
        put(RECORD_CM_CALL, id, record);
    }
    errno = saved;
    return result;
}

WRAPPER(RDMACM, "RDMACM_1.0", rdma_connect)
int rocekit_rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    REAL(rdma_connect);
    struct record_cm record = asked(CALL_CONNECT, id, param);

    return answered(real(id, param), id, &record);
}

WRAPPER(RDMACM, "RDMACM_1.0", rdma_accept)
int rocekit_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    REAL(rdma_accept);
    struct record_cm record = asked(CALL_ACCEPT, id, param);

    return answered(real(id, param), id, &record);
}

WRAPPER(RDMACM, "RDMACM_1.0", rdma_reject)
int rocekit_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
    REAL(rdma_reject);
    struct rdma_conn_param param = {.private_data = data, .private_data_len = length};
    struct record_cm record = asked(CALL_REJECT, id, &param);

    return answered(real(id, data, length), id, &record);
}

WRAPPER(RDMACM, "RDMACM_1.0", rdma_disconnect)
int rocekit_rdma_disconnect(struct rdma_cm_id *id)
{
    REAL(rdma_disconnect);
    struct record_cm record = asked(CALL_DISCONNECT, id, NULL);

    return answered(real(id), id, &record);
}
