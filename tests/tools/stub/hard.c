/*
 * What production programs do and simple ones do not, on the stub device: each does what its name says. A recorder must
 * change nothing of it, and its journal must be right.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#undef ibv_reg_mr

void stub_refuse(int calls);
void stub_yield(int on);
int stub_taken(struct ibv_qp *qp, const uint64_t **wr_ids);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char memory[4096] __attribute__((aligned(4096)));

static void set_up(void)
{
    context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 100, NULL, NULL, 0);
}

static struct ibv_qp *new_qp(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1};
    struct ibv_qp_attr path = {.path_mtu = IBV_MTU_1024, .sq_psn = 100};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);

    ibv_modify_qp(qp, &path, IBV_QP_PATH_MTU | IBV_QP_SQ_PSN);
    return qp;
}

static int post(struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id, .opcode = IBV_WR_SEND};

    return ibv_post_send(qp, &wr, &bad);
}

static int poll_all(void)
{
    struct ibv_wc wc[16];
    int n, total = 0;

    while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
        total += n;
    return total;
}

/* Every destruction fails once; what it was to destroy is used after that, then destroyed. */
static int destroys_in_vain(void)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16};
    struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_RC,
                                       .sq_sig_all = 1,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                       .send_ops_flags = IBV_QP_EX_WITH_SEND,
                                       .cap = {.max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 4}};
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 10, .max_sge = 1}};
    struct ibv_recv_wr *bad, receive = {.wr_id = 50};
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_cq_ex *ex_cq;
    struct ibv_qp_ex *qp;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    int i;

    set_up();
    ex_cq = ibv_create_cq_ex(context, &cq_attr);
    srq = ibv_create_srq(pd, &srq_attr);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(ex_cq);
    attr.srq = srq;
    attr.pd = pd;
    qp = ibv_qp_to_qp_ex(ibv_create_qp_ex(context, &attr));
    for (i = 0; i < 2; i++) {
        if (!i)
            stub_refuse(5);
        if (i) {
            ibv_post_srq_recv(srq, &receive, &bad);
            ibv_wr_start(qp);
            qp->wr_id = 1;
            ibv_wr_send(qp);
            if (ibv_wr_complete(qp))
                return 1;
            if (ibv_start_poll(ex_cq, &poll_attr) || ibv_next_poll(ex_cq) || !ibv_next_poll(ex_cq))
                return 2;
            ibv_end_poll(ex_cq);
        }
        if (ibv_destroy_qp(&qp->qp_base) != (i ? 0 : EBUSY) || ibv_destroy_cq(ibv_cq_ex_to_cq(ex_cq)) != (i ? 0 : EBUSY))
            return 3;
        if (ibv_destroy_srq(srq) != (i ? 0 : EBUSY) || ibv_dereg_mr(mr) != (i ? 0 : EBUSY) ||
            ibv_dealloc_mw(mw) != (i ? 0 : EBUSY))
            return 4;
    }
    return 0;
}

static int opens_often(void)
{
    int i;

    for (i = 0; i < 600; i++) {
        set_up();
        post(new_qp(IBV_QPT_RC), (unsigned)i);
        poll_all();
        ibv_close_device(context);
    }
    return 0;
}

/* Threads post on one QP, some of it refused; then what the QP took is printed in its order. */
static struct ibv_qp *shared;

static void *posts_some(void *arg)
{
    uint64_t i, first = (uintptr_t)arg * 1000 + 0x10000;

    for (i = 0; i < 200; i++) {
        struct ibv_send_wr *bad, wr[3] = {{.wr_id = first + i, .opcode = IBV_WR_SEND, .next = i % 3 ? NULL : &wr[1]},
                                          {.wr_id = 0xbad, .opcode = IBV_WR_SEND, .next = &wr[2]},
                                          {.wr_id = 1, .opcode = IBV_WR_SEND}};

        ibv_post_send(shared, wr, &bad);
    }
    return NULL;
}

static int shares_a_qp(void)
{
    const uint64_t *taken;
    pthread_t thread[4];
    uintptr_t i;
    int n, count;

    set_up();
    shared = new_qp(IBV_QPT_RC);
    post(shared, 0x8000);
    stub_yield(1);
    for (i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, posts_some, (void *)i);
    for (i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    stub_yield(0);
    post(shared, 0x9000);
    count = stub_taken(shared, &taken);
    for (n = 0; n < count; n++)
        printf("%llu\n", (unsigned long long)taken[n]);
    return 0;
}

/* A thread is cancelled in a post that never returns; then more threads than there are rings post. */
static void *posts_and_never_returns(void *arg)
{
    post(arg, 0xb10c);
    return NULL;
}

static void *posts_slowly(void *arg)
{
    int i;

    (void)arg;
    for (i = 0; i < 600; i++) {
        post(shared, (unsigned)i);
        poll_all();
        if (i % 50 == 0)
            usleep(30000);
    }
    return NULL;
}

static int cancels(void)
{
    pthread_t thread;
    void *result;
    int i;

    set_up();
    shared = new_qp(IBV_QPT_RC);
    pthread_create(&thread, NULL, posts_and_never_returns, new_qp(IBV_QPT_RC));
    usleep(100000);
    pthread_cancel(thread);
    if (pthread_join(thread, &result) || result != PTHREAD_CANCELED)
        return 1;
    for (i = 0; i < 8; i++) {
        pthread_create(&thread, NULL, posts_slowly, NULL);
        pthread_join(thread, NULL);
    }
    return 0;
}

/* A thread makes and destroys QPs all the time, and children of this process make their own. */
static void *makes_qps(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
        ibv_destroy_qp(new_qp(IBV_QPT_RC));
    return NULL;
}

static int forks_with_threads(void)
{
    pthread_t thread[2];
    int i, status, stop = 0;

    set_up();
    for (i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, makes_qps, &stop);
    for (i = 0; i < 60; i++) {
        pid_t child = fork();

        if (!child) {
            alarm(20);
            set_up();
            post(new_qp(IBV_QPT_RC), (unsigned)i);
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status)
            return 1;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

/* Fills its ring again and again, and makes a QP and a region from time to time. */
static int sets_up_in_a_burst(void)
{
    struct ibv_qp *qp;
    int i, k;

    set_up();
    qp = new_qp(IBV_QPT_RC);
    for (i = 0; i < 50; i++) {
        for (k = 0; k < 1000; k++)
            post(qp, (unsigned)k);
        poll_all();
        new_qp(IBV_QPT_RC);
        ibv_reg_mr(pd, memory, 16, 0);
    }
    return 0;
}

static int atomics_on_datagrams(void)
{
    struct ibv_sge sge[2] = {{(uintptr_t)memory, 8, 1}, {(uintptr_t)memory, 0, 1}};
    struct ibv_send_wr *bad, wr[2] = {{.wr_id = 1,
                                       .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
                                       .wr.atomic = {0x7008, 5, 6, 0xabe},
                                       .sg_list = sge,
                                       .num_sge = 2,
                                       .next = &wr[1]},
                                      {.wr_id = 2, .opcode = IBV_WR_SEND}};

    set_up();
    return ibv_post_send(new_qp(IBV_QPT_UD), wr, &bad);
}

/* No file of this program may become larger than so many KiB. */
static int limits_files(unsigned kib)
{
    struct rlimit limit = {kib * 1024u, kib * 1024u};

    setrlimit(RLIMIT_FSIZE, &limit);
    set_up();
    return post(new_qp(IBV_QPT_RC), 1) || poll_all() != 1;
}

/* Asks whether another library is there, in each way that there is. */
int mlx5dv_init_obj(void *object, uint64_t type) __attribute__((weak));
int rdma_connect(void *id, void *param) __attribute__((weak));

static int asks_for_a_library(void)
{
    if (mlx5dv_init_obj || rdma_connect)
        return 1;
    if (dlsym(RTLD_DEFAULT, "mlx5dv_init_obj") || dlsym(RTLD_DEFAULT, "rdma_connect"))
        return 2;
    if (dlvsym(RTLD_DEFAULT, "mlx5dv_init_obj", "MLX5_1.2") || !strstr(dlerror(), "mlx5dv_init_obj"))
        return 3;
    set_up();
    return post(new_qp(IBV_QPT_RC), 1);
}

/* Goes on for a while, so that several of these are there at once. */
static int stays(void)
{
    struct ibv_qp *qp;
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC);
    for (i = 0; i < 20; i++) {
        post(qp, (unsigned)i);
        poll_all();
        usleep(100000);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

#define DOES(name)                                                                                           \
    if (!strcmp(what, #name))                                                                                \
    return name()
    DOES(destroys_in_vain);
    DOES(opens_often);
    DOES(shares_a_qp);
    DOES(cancels);
    DOES(forks_with_threads);
    DOES(sets_up_in_a_burst);
    DOES(atomics_on_datagrams);
    DOES(asks_for_a_library);
    DOES(stays);
    if (!strcmp(what, "limits_files"))
        return limits_files((unsigned)atoi(argv[2]));
    fprintf(stderr, "%s is nothing it does\n", what);
    return 99;
}
