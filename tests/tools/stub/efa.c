/* As much of EFA's library as hands a QP's queues to the program. */
#include <infiniband/verbs.h>

int efadv_query_qp_wqs(struct ibv_qp *qp, void *sends, void *receives, uint32_t length);

int efadv_query_qp_wqs(struct ibv_qp *qp, void *sends, void *receives, uint32_t length)
{
    return qp && sends && receives && length == 48 ? 0 : 22;
}
