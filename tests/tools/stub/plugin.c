/* A plugin that is linked with libibverbs; and, as OTHER, a library that interposes a function as others do. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <dlfcn.h>
#include <stdio.h>

#ifdef OTHER
struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *(*next)(struct ibv_device *) =
        (struct ibv_context * (*)(struct ibv_device *)) dlsym(RTLD_NEXT, "ibv_open_device");

    puts("the other one saw it");
    fflush(stdout);
    return next(device);
}
#else
int plugin_uses_verbs(uint64_t wr_id)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .opcode = IBV_WR_SEND};
    struct ibv_wc wc;

    return ibv_post_send(ibv_create_qp(pd, &attr), &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1;
}
#endif
