/*
 * Programs that are not linked with libibverbs: they load it, or a plugin that is linked with it, while they run.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*opened)(void);

/* Opens a device of the library of a handle, posts, and polls. */
static int uses(void *handle, uint64_t wr_id)
{
#define GET(name) __typeof__(&name) my_##name = (__typeof__(&name))dlsym(handle, #name)
    GET(ibv_get_device_list);
    GET(ibv_open_device);
    GET(ibv_alloc_pd);
    GET(ibv_create_cq);
    GET(ibv_create_qp);
    GET(ibv_destroy_qp);
    GET(ibv_close_device);
    struct ibv_context *context = my_ibv_open_device(my_ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = my_ibv_alloc_pd(context);
    struct ibv_cq *cq = my_ibv_create_cq(context, 10, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_qp *qp = my_ibv_create_qp(pd, &attr);
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .opcode = IBV_WR_SEND};
    struct ibv_wc wc;

    if (ibv_post_send(qp, &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1)
        return 1;
    opened = (int (*)(void))dlsym(handle, "stub_opened");
    return my_ibv_destroy_qp(qp) || my_ibv_close_device(context);
}

/* argv: the library, and another copy of it. */
static int loads_again(const char *one, const char *other)
{
    void *handle;
    int i;

    for (i = 0; i < 4; i++) {
        handle = dlopen(i % 2 ? other : one, RTLD_NOW | RTLD_LOCAL);
        if (!handle || uses(handle, (unsigned)i) || dlclose(handle))
            return 1;
    }
    return 0;
}

static int loads_both(const char *one, const char *other)
{
    void *handle[2] = {dlopen(one, RTLD_NOW | RTLD_LOCAL), dlopen(other, RTLD_NOW | RTLD_LOCAL)};
    int i;

    if (!handle[0] || !handle[1])
        return 1;
    for (i = 0; i < 6; i++)
        if (uses(handle[i % 2], (unsigned)i))
            return 2;
    /* Each copy opened its own devices. */
    for (i = 0; i < 2; i++) {
        opened = (int (*)(void))dlsym(handle[i], "stub_opened");
        if (opened() != 3)
            return 3 + i;
    }
    return 0;
}

/* A plugin has a function that does it; see plugin.c. */
static int plugs_in(const char *plugin, int how)
{
    void *handle = dlopen(plugin, RTLD_NOW | how);
    int (*does)(uint64_t) = handle ? (int (*)(uint64_t))dlsym(handle, "plugin_uses_verbs") : NULL;

    return !does || does(7);
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "loads_again"))
        return loads_again(argv[2], argv[3]);
    if (argc == 4 && !strcmp(argv[1], "loads_both"))
        return loads_both(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "plugs_in"))
        return plugs_in(argv[2], RTLD_LOCAL);
    if (argc == 3 && !strcmp(argv[1], "plugs_in_deep"))
        return plugs_in(argv[2], RTLD_LOCAL | RTLD_DEEPBIND);
    return 99;
}
