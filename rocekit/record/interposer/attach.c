/* Beginning and ending to record in a program that was not started by the recorder. */
#define _GNU_SOURCE
#include "attach.h"
#include "verbs.h"

#include <errno.h>
#include <sys/mman.h>

static uint64_t ways_in, ways_end;

bool attach_is_way_in(const void *function)
{
    return (uintptr_t)function >= ways_in && (uintptr_t)function < ways_end;
}

/* msync fails where something in the range is not mapped, and does nothing else to memory that is not a file's. */
bool attach_is_there(const void *at, size_t size)
{
    uintptr_t page = (uintptr_t)at & ~(uintptr_t)(RECORD_PAGE - 1);
    int saved = errno;
    bool there = !msync((void *)page, (uintptr_t)at + size - page, MS_ASYNC);

    errno = saved;
    return there;
}

EXPORT uint64_t record_detach(void)
{
    devices_detach();
    extended_detach();
    references_restore();
    record_switch_off();
    return ATTACH_DONE;
}

static bool attach_context(const struct attach_context *found, const void *library)
{
    struct ibv_context *context = (struct ibv_context *)found->context;
    struct ibv_context_ops own = {0};

    own.post_send = (__typeof__(own.post_send))found->post_send;
    own.post_recv = (__typeof__(own.post_recv))found->post_recv;
    own.post_srq_recv = (__typeof__(own.post_srq_recv))found->post_srq_recv;
    own.poll_cq = (__typeof__(own.poll_cq))found->poll_cq;
    /* It may have been closed since it was found. */
    if (!attach_is_there(context, sizeof *context) || (!attach_is_way_in((void *)context->ops.poll_cq) &&
                                                      (void *)context->ops.poll_cq != (void *)own.poll_cq))
        return false;
    return device_attach(context, &own, library);
}

/* Called in a thread of the program, in the place of one of its verbs calls. */
EXPORT uint64_t record_attach(struct attach_request *request)
{
    const struct attach_extended *extended;
    int saved = errno;
    uint32_t i, devices = 0;

    if (request->layout != ATTACH_LAYOUT)
        return ATTACH_LAYOUT_DIFFERS;
    if (!record_switch_on(request->folder, request->spill, request->slots, request->rings))
        return ATTACH_RECORDED_ALREADY;
    ways_in = request->ways_in;
    ways_end = request->ways_end;
    request->detach = (uintptr_t)record_detach;
    request->post_send = (uintptr_t)data_post_send;
    request->post_recv = (uintptr_t)data_post_recv;
    request->post_srq_recv = (uintptr_t)data_post_srq_recv;
    request->poll_cq = (uintptr_t)data_poll_cq;
    extended_wrappers(&request->start_poll);
    for (i = 0; i < request->contexts; i++)
        devices += attach_context(&request->context[i], (void *)request->verbs);
    extended = (const struct attach_extended *)&request->context[request->contexts];
    for (i = 0; i < request->qps; i++, extended++) {
        struct ibv_qp_ex *ex = (struct ibv_qp_ex *)extended->object;

        if (attach_is_there(ex, sizeof *ex) && ex->qp_base.qp_num == extended->number &&
            ((uintptr_t)ex->wr_start == extended->own || attach_is_way_in((void *)ex->wr_start)))
            extended_attach_qp(ex, (void (*)(struct ibv_qp_ex *))extended->own, extended->room);
    }
    for (i = 0; i < request->cqs; i++, extended++) {
        struct ibv_cq_ex *cq = (struct ibv_cq_ex *)extended->object;

        if (attach_is_there(cq, sizeof *cq) &&
            ((uintptr_t)cq->start_poll == extended->own || attach_is_way_in((void *)cq->start_poll)))
            extended_attach_cq(cq, (int (*)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *))extended->own);
    }
    references_replace();
    errno = saved;
    return devices ? ATTACH_DONE : ATTACH_NO_DEVICE;
}
