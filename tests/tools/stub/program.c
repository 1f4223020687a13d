/*
 * Programs for the recorder to record, on the stub device: each does what its name says, and no more. What they
 * do is what the tests count.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#undef ibv_reg_mr

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[1 << 16] __attribute__((aligned(4096)));

static struct ibv_context *open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    return ibv_open_device(list[0]);
}

static void set_up(void)
{
    context = open_device();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 100, NULL, NULL, 0);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static struct ibv_qp *new_qp(enum ibv_qp_type type, int signals_all)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = type,
                                    .sq_sig_all = signals_all,
                                    .cap = {.max_send_wr = 64, .max_recv_wr = 32, .max_send_sge = 8}};

    return ibv_create_qp(pd, &attr);
}

static struct ibv_sge sge_of(size_t at, uint32_t length)
{
    return (struct ibv_sge){.addr = (uintptr_t)memory + at, .length = length, .lkey = mr->lkey};
}

static int post_one(struct ibv_qp *qp, uint64_t wr_id, uint32_t length, unsigned int flags)
{
    struct ibv_sge sge = sge_of(0, length);
    struct ibv_send_wr wr = {
        .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags};
    struct ibv_send_wr *bad;

    return ibv_post_send(qp, &wr, &bad);
}

static int post_receive(struct ibv_qp *qp, uint64_t wr_id, int sges)
{
    struct ibv_sge list[8];
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = list, .num_sge = sges}, *bad;
    int i;

    for (i = 0; i < sges; i++)
        list[i] = sge_of((size_t)i * 256, 256);
    return ibv_post_recv(qp, &wr, &bad);
}

static int poll_all(void)
{
    struct ibv_wc wc[4];
    int n, total = 0;

    while ((n = ibv_poll_cq(cq, 4, wc)) > 0)
        total += n;
    return total;
}

/* ------------------------------------------------------------------ what they do */

static int each_operation(void)
{
    struct ibv_qp *qp;
    struct ibv_sge sges[5];
    struct ibv_send_wr *bad, wr[7] = {
        {.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED},
        {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0x11223344)},
        {.wr_id = 3, .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = 0x777},
        {.wr_id = 4, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {0x123456789000, 0xabc}},
        {.wr_id = 5, .opcode = IBV_WR_RDMA_READ, .wr.rdma = {0x7000, 0xabd}, .send_flags = IBV_SEND_FENCE},
        {.wr_id = 6, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .wr.atomic = {0x7008, 5, 6, 0xabe}},
        {.wr_id = 7, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .wr.atomic = {0x7010, 9, 0, 0xabe},
         .send_flags = IBV_SEND_SIGNALED},
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 0x42, .rq_psn = 7,
                               .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}}};
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 0);
    memcpy(attr.ah_attr.grh.dgid.raw, (uint8_t[16]){[10] = 0xff, 0xff, 10, 9, 0, 2}, 16);
    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0xfffffe;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 6;
    ibv_modify_qp(qp, &attr,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    for (i = 0; i < 3; i++)
        post_receive(qp, 100 + (unsigned)i, i * 2 + 1);
    for (i = 0; i < 7; i++) {
        sges[i % 5] = sge_of(0, 8);
        wr[i].sg_list = sges;
        wr[i].num_sge = 1;
        wr[i].next = i < 6 ? &wr[i + 1] : NULL;
    }
    for (i = 0; i < 5; i++)
        sges[i] = sge_of((size_t)i * 4096, 1000u + (unsigned)i);
    wr[3].num_sge = 5;
    if (ibv_post_send(qp, wr, &bad) || poll_all() != 5)
        return 1;
    ibv_destroy_qp(qp);
    ibv_dereg_mr(mr);
    return 0;
}

static int datagrams(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}};
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = {.wr_id = 1, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};

    set_up();
    memcpy(attr.grh.dgid.raw, (uint8_t[16]){[10] = 0xff, 0xff, 10, 9, 0, 9}, 16);
    sge = sge_of(0, 64);
    wr.sg_list = &sge;
    wr.wr.ud.ah = ibv_create_ah(pd, &attr);
    wr.wr.ud.remote_qpn = 0x99;
    wr.wr.ud.remote_qkey = 0x11111111;
    return ibv_post_send(new_qp(IBV_QPT_UD, 1), &wr, &bad) || poll_all() != 1;
}

static int bad_in_the_middle(void)
{
    struct ibv_send_wr wr[5], *bad = NULL;
    struct ibv_sge sge;
    struct ibv_recv_wr receive[3] = {{.wr_id = 1}, {.wr_id = 0xbad}, {.wr_id = 3}}, *bad_receive = NULL;
    struct ibv_qp_attr attr = {.path_mtu = IBV_MTU_1024, .sq_psn = 50};
    struct ibv_qp *qp;
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    ibv_modify_qp(qp, &attr, IBV_QP_PATH_MTU | IBV_QP_SQ_PSN);
    sge = sge_of(0, 32);
    for (i = 0; i < 5; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = i == 2 ? 0xbad : (unsigned)i,
                                     .next = i < 4 ? &wr[i + 1] : NULL,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND};
    receive[0].next = &receive[1];
    receive[1].next = &receive[2];
    if (!ibv_post_send(qp, wr, &bad) || bad != &wr[2])
        return 1;
    if (!ibv_post_recv(qp, receive, &bad_receive) || bad_receive != &receive[1])
        return 2;
    post_one(qp, 5, 8, 0);
    return poll_all() != 4;
}

static int failing(void)
{
    struct ibv_send_wr *bad, wr = {.wr_id = 5, .opcode = IBV_WR_RDMA_READ, .wr.rdma = {0x7000, 0}};
    struct ibv_qp *qp;

    set_up();
    qp = new_qp(IBV_QPT_RC, 0);
    return ibv_post_send(qp, &wr, &bad) || post_one(qp, 6, 10, 0) || poll_all() != 2;
}

static int extended(void)
{
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 16};
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        .cap = {.max_send_wr = 8, .max_recv_wr = 4, .max_send_sge = 4, .max_inline_data = 64}};
    struct ibv_poll_cq_attr poll_attr = {0};
    struct ibv_data_buf bufs[2] = {{memory, 10}, {memory + 10, 20}};
    struct ibv_sge sges[2];
    struct ibv_cq_ex *ex_cq;
    struct ibv_qp_ex *qp;
    int polled = 0;

    set_up();
    ex_cq = ibv_create_cq_ex(context, &cq_attr);
    cq = ibv_cq_ex_to_cq(ex_cq);
    attr.send_cq = attr.recv_cq = cq;
    attr.pd = pd;
    qp = ibv_qp_to_qp_ex(ibv_create_qp_ex(context, &attr));
    post_receive(&qp->qp_base, 50, 1);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qp, 0xabc, 0x5000);
    sges[0] = sge_of(0, 100);
    sges[1] = sge_of(100, 200);
    ibv_wr_set_sge_list(qp, 2, sges);
    qp->wr_id = 2;
    ibv_wr_send_imm(qp, htonl(0xcafe));
    ibv_wr_set_inline_data_list(qp, 2, bufs);
    qp->wr_id = 3;
    ibv_wr_atomic_cmp_swp(qp, 0xabd, 0x5008, 1, 2);
    ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
    if (ibv_wr_complete(qp))
        return 1;
    ibv_wr_start(qp); /* never posted */
    qp->wr_id = 4;
    ibv_wr_send(qp);
    ibv_wr_abort(qp);
    ibv_wr_start(qp); /* refused, all of it */
    qp->wr_id = 5;
    ibv_wr_send(qp);
    qp->wr_id = 0xbad;
    ibv_wr_send(qp);
    if (!ibv_wr_complete(qp))
        return 2;
    if (ibv_start_poll(ex_cq, &poll_attr))
        return 3;
    do
        polled++;
    while (!ibv_next_poll(ex_cq));
    ibv_end_poll(ex_cq);
    ibv_destroy_qp(&qp->qp_base);
    ibv_destroy_cq(cq);
    return polled != 4;
}

/* A window of each type, bound in each way that there is; then one that is refused. */
static int windows(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 8, .max_send_sge = 4}};
    struct ibv_mw_bind_info info;
    struct ibv_mw_bind bind = {.wr_id = 1};
    struct ibv_send_wr *bad, wr = {.wr_id = 2, .opcode = IBV_WR_BIND_MW, .bind_mw = {.rkey = 0x501}};
    struct ibv_mw *mw[3];
    struct ibv_qp_ex *qp;
    int i;

    set_up();
    attr.send_cq = attr.recv_cq = cq;
    attr.pd = pd;
    qp = ibv_qp_to_qp_ex(ibv_create_qp_ex(context, &attr));
    for (i = 0; i < 3; i++)
        mw[i] = ibv_alloc_mw(pd, i ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
    /* Longer than 32 bits can tell. */
    info = (struct ibv_mw_bind_info){mr, (uintptr_t)memory + 64, 5ull << 32, IBV_ACCESS_REMOTE_WRITE};
    bind.bind_info = info;
    if (ibv_bind_mw(&qp->qp_base, mw[0], &bind))
        return 1;
    wr.bind_mw.mw = mw[1];
    wr.bind_mw.bind_info = info;
    if (ibv_post_send(&qp->qp_base, &wr, &bad))
        return 2;
    ibv_wr_start(qp);
    qp->wr_id = 3;
    ibv_wr_bind_mw(qp, mw[2], 0x501, &info);
    qp->wr_id = 4;
    ibv_wr_local_inv(qp, 0x501);
    if (ibv_wr_complete(qp))
        return 3;
    bind.wr_id = 0xbad;
    if (ibv_bind_mw(&qp->qp_base, mw[0], &bind) != EPERM)
        return 4;
    for (i = 0; i < 3; i++)
        ibv_dealloc_mw(mw[i]);
    return poll_all() != 4;
}

/* FLUSH and ATOMIC WRITE; by its pointer where this header is older than FLUSH. */
static int placement(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = 1 << 11 /* FLUSH */ | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_SEND,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 8, .max_send_sge = 4}};
    struct ibv_qp_attr path = {.path_mtu = IBV_MTU_1024, .sq_psn = 70};
    void (*flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
    struct ibv_qp_ex *qp;

    set_up();
    attr.send_cq = attr.recv_cq = cq;
    attr.pd = pd;
    qp = ibv_qp_to_qp_ex(ibv_create_qp_ex(context, &attr));
    ibv_modify_qp(&qp->qp_base, &path, IBV_QP_PATH_MTU | IBV_QP_SQ_PSN);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    memcpy(&flush, &qp->wr_atomic_write + 1, sizeof flush);
    flush(qp, 0xabc, 0x6000, 1 << 20, 1, 0);
    qp->wr_id = 2;
    ibv_wr_atomic_write(qp, 0xabd, 0x6008, memory);
    qp->wr_id = 3;
    ibv_wr_send(qp);
    if (ibv_wr_complete(qp))
        return 1;
    if (poll_all() != 3)
        return 2;
    ibv_destroy_qp(&qp->qp_base);
    return 0;
}

/* As many SGEs as a device may have, and more than a record holds. */
static int many_sges(void)
{
    struct ibv_sge sges[100];
    struct ibv_send_wr *bad_send, send = {.sg_list = sges, .opcode = IBV_WR_SEND};
    struct ibv_recv_wr *bad_receive, receive = {.sg_list = sges};
    const int counts[] = {32, 64, 100};
    struct ibv_qp *qp;
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    for (i = 0; i < 100; i++)
        sges[i] = sge_of((size_t)i * 16, 16);
    for (i = 0; i < 3; i++) {
        send.wr_id = receive.wr_id = (unsigned)counts[i];
        send.num_sge = receive.num_sge = counts[i];
        if (ibv_post_recv(qp, &receive, &bad_receive) || ibv_post_send(qp, &send, &bad_send))
            return 1;
    }
    return poll_all() != 6;
}

static int shared_receives(void)
{
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = 10, .max_sge = 1}};
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_recv_wr wr = {.num_sge = 1}, *bad;
    struct ibv_qp *qp[2];
    struct ibv_sge sge;
    int i;

    set_up();
    attr.srq = ibv_create_srq(pd, &srq_attr);
    attr.send_cq = attr.recv_cq = cq;
    sge = sge_of(0, 512);
    wr.sg_list = &sge;
    for (i = 0; i < 4; i++, wr.wr_id++)
        ibv_post_srq_recv(attr.srq, &wr, &bad);
    for (i = 0; i < 2; i++)
        qp[i] = ibv_create_qp(pd, &attr);
    post_one(qp[0], 1, 10, 0);
    post_one(qp[1], 2, 20, 0);
    return poll_all() != 4;
}

static int never_polls(void)
{
    struct ibv_qp *qp;
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    for (i = 0; i < 100; i++)
        post_one(qp, (unsigned)i, 8, 0);
    return 0;
}

static int killed(void)
{
    never_polls();
    kill(getpid(), SIGKILL);
    return 1;
}

static int crashes_while_posting(void)
{
    never_polls();
    return post_one(new_qp(IBV_QPT_RC, 1), 0xdead, 8, 0);
}

/* Posts and polls far more than the rings hold, as fast as it can. */
static int flood_of(int count)
{
    struct ibv_qp_attr attr = {.path_mtu = IBV_MTU_1024, .sq_psn = 0xfffff0};
    struct ibv_qp *qp;
    int i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    ibv_modify_qp(qp, &attr, IBV_QP_PATH_MTU | IBV_QP_SQ_PSN);
    for (i = 0; i < count; i++) {
        post_one(qp, 1u << 20 | (unsigned)i, 8, 0);
        if (poll_all() != 1)
            return 1;
    }
    return 0;
}

static int flood(void)
{
    return flood_of(200000);
}

/* The same on two QPs: the first posts three times as much. A shared queue gets receives, which nothing takes. */
static int floods(void)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 64, .max_sge = 1}};
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    struct ibv_qp *qps[2];
    struct ibv_srq *srq;
    int i;

    set_up();
    srq = ibv_create_srq(pd, &attr);
    qps[0] = new_qp(IBV_QPT_RC, 1);
    qps[1] = new_qp(IBV_QPT_RC, 1);
    for (i = 0; i < 80000; i++) {
        post_one(qps[i % 4 == 3], 1u << 20 | (unsigned)i, 8, 0);
        ibv_post_srq_recv(srq, &wr, &bad); /* refused once the queue is full */
        if (poll_all() != 1)
            return 1;
    }
    return 0;
}

/* What this file of the parent in /proc says behind these words; -1 where it says nothing. */
static long long of_parent(const char *file_name, const char *words)
{
    char path[64], line[256];
    long long number = -1;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/%s", getppid(), file_name);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, words, strlen(words)))
            number = atoll(line + strlen(words));
    if (file)
        fclose(file);
    return number;
}

/* The recorder starts a program before it has loaded all that it needs itself: it reads files for that. */
static void let_the_recorder_load(void)
{
    long long before, now = of_parent("io", "rchar:");
    int looks = 50;

    do {
        before = now;
        usleep(100000);
        now = of_parent("io", "rchar:");
    } while (now != before && --looks);
}

/* Posts and polls so many times a second, for so many s, asleep in between; then says how many bytes its parent
 * wrote meanwhile, and how often it woke up. */
static int paced(double rate, double seconds)
{
    struct timespec from, now;
    long long written, woken;
    double passed = 0;
    struct ibv_qp *qp;
    unsigned i = 0;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    let_the_recorder_load();
    written = of_parent("io", "wchar:");
    woken = of_parent("status", "voluntary_ctxt_switches:");
    clock_gettime(CLOCK_MONOTONIC, &from);
    while (passed < seconds) {
        for (; i < passed * rate; i++) {
            post_one(qp, 1u << 20 | i, 8, 0);
            if (poll_all() != 1)
                return 1;
        }
        usleep(300);
        clock_gettime(CLOCK_MONOTONIC, &now);
        passed = now.tv_sec - from.tv_sec + (now.tv_nsec - from.tv_nsec) / 1e9;
    }
    fprintf(stderr, "%u posted\n", i);
    printf("%lld %lld %.3f\n", of_parent("io", "wchar:") - written,
           of_parent("status", "voluntary_ctxt_switches:") - woken, passed);
    return 0;
}

static int forks(void)
{
    struct ibv_qp *qp;
    int status;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    post_one(qp, 1, 8, 0);
    if (!fork()) {
        post_one(qp, 2, 16, 0);
        exit(0);
    }
    wait(&status);
    post_one(qp, 3, 24, 0);
    return poll_all() != 2;
}

static void *one_of_many(void *arg)
{
    struct ibv_context *mine = open_device();
    struct ibv_pd *my_pd = ibv_alloc_pd(mine);
    struct ibv_cq *my_cq = ibv_create_cq(mine, 100, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = my_cq, .recv_cq = my_cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    struct ibv_qp *qp = ibv_create_qp(my_pd, &attr);
    struct ibv_wc wc;
    uint64_t i;

    for (i = 0; i < 500; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8};
        struct ibv_send_wr *bad, wr = {.wr_id = (uintptr_t)arg * 1000 + i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

        if (ibv_post_send(qp, &wr, &bad) || ibv_poll_cq(my_cq, 1, &wc) != 1)
            exit(9);
    }
    return NULL;
}

static int threads(void)
{
    pthread_t thread[20];
    uintptr_t i;

    for (i = 0; i < 20; i++)
        pthread_create(&thread[i], NULL, one_of_many, (void *)i);
    for (i = 0; i < 20; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

/* As NCCL does it; argv[2] names the library. */
static int loads(const char *library, int by_version)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
#define GET(name) __typeof__(&name) my_##name = by_version ? dlvsym(handle, #name, "IBVERBS_1.1") : dlsym(handle, #name)
    GET(ibv_get_device_list);
    GET(ibv_open_device);
    GET(ibv_alloc_pd);
    GET(ibv_create_cq);
    GET(ibv_create_qp);
    GET(ibv_reg_mr);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1};

    context = my_ibv_open_device(my_ibv_get_device_list(NULL)[0]);
    pd = my_ibv_alloc_pd(context);
    attr.send_cq = attr.recv_cq = cq = my_ibv_create_cq(context, 10, NULL, NULL, 0);
    mr = my_ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    return post_one(my_ibv_create_qp(pd, &attr), 1, 8, 0) || poll_all() != 1;
}

/* Which mmap is next depends on who asks: an interposed dlsym must not stand in between. */
static int asks_for_next(void)
{
    return !dlsym(RTLD_NEXT, "mmap") || !dlsym(RTLD_DEFAULT, "getpid") || dlsym(RTLD_DEFAULT, "no_such_function") ||
           !dlvsym(RTLD_NEXT, "pthread_create", "GLIBC_2.2.5");
}

static int waits_for_a_signal(void)
{
    puts("waiting");
    fflush(stdout);
    sleep(60);
    return 0;
}

static int opens_and_closes(void)
{
    int i;

    for (i = 0; i < 20; i++) {
        set_up();
        post_one(new_qp(IBV_QPT_RC, 1), (unsigned)i, 8, 0);
        poll_all();
        ibv_close_device(context);
    }
    return 0;
}

/* Nanoseconds for posting one work request and polling its completion: the median of rounds of 1000 pairs. */
static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int pairs(int rounds)
{
    static double took[10000];
    struct timespec from, to;
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = {.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {0x1000, 0xabc}};
    struct ibv_qp *qp;
    struct ibv_wc wc;
    int round, i;

    set_up();
    qp = new_qp(IBV_QPT_RC, 1);
    sge = sge_of(0, 64);
    wr.sg_list = &sge;
    for (round = 0; round < rounds; round++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (i = 0; i < 1000; i++) {
            wr.wr_id = 1u << 20 | (unsigned)i;
            if (ibv_post_send(qp, &wr, &bad) || ibv_poll_cq(cq, 1, &wc) != 1)
                return 1;
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        took[round] = ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / 1000;
    }
    qsort(took, (size_t)rounds, sizeof *took, compare);
    printf("%.2f %.2f %.2f\n", took[rounds / 4], took[rounds / 2], took[rounds * 3 / 4]);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

#define DOES(name)                                                                                           \
    if (!strcmp(what, #name))                                                                                \
    return name()
    DOES(each_operation);
    DOES(datagrams);
    DOES(bad_in_the_middle);
    DOES(failing);
    DOES(extended);
    DOES(windows);
    DOES(placement);
    DOES(many_sges);
    DOES(shared_receives);
    DOES(never_polls);
    DOES(killed);
    DOES(crashes_while_posting);
    DOES(flood);
    DOES(floods);
    DOES(forks);
    DOES(threads);
    DOES(asks_for_next);
    DOES(waits_for_a_signal);
    DOES(opens_and_closes);
    if (!strcmp(what, "pairs"))
        return pairs(atoi(argv[2]));
    if (!strcmp(what, "flood_of"))
        return flood_of(atoi(argv[2]));
    if (!strcmp(what, "paced"))
        return paced(atof(argv[2]), argc > 3 ? atof(argv[3]) : 1.5);
    if (!strcmp(what, "loads"))
        return loads(argv[2], 0);
    if (!strcmp(what, "loads_by_version"))
        return loads(argv[2], 1);
    return 99;
}
