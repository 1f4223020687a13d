/* A program that posts one work request by verbs, takes the QP's queues, and posts another. */
#include <infiniband/verbs.h>

int efadv_query_qp_wqs(struct ibv_qp *qp, void *sends, void *receives, uint32_t length);

static int post(struct ibv_qp *qp, uint64_t wr_id)
{
    struct ibv_send_wr wr = {.wr_id = wr_id, .opcode = IBV_WR_SEND}, *bad;

    return ibv_post_send(qp, &wr, &bad);
}

int main(void)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct ibv_qp_attr to = {.path_mtu = IBV_MTU_1024, .sq_psn = 100};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    char queues[2][48];

    return ibv_modify_qp(qp, &to, IBV_QP_PATH_MTU | IBV_QP_SQ_PSN) || post(qp, 1) ||
           efadv_query_qp_wqs(qp, queues[0], queues[1], 48) || post(qp, 2);
}
