"""``cq-ex``: an extended CQ whose completions have the device's timestamps."""

from __future__ import annotations

import itertools
import statistics
import time

from rocekit.endpoint import WaitWays
from rocekit.errors import ScenarioError
from rocekit.scenarios.ping_sr import PingSr
from rocekit.scenarios.scenario import Samples, ScenarioRun


class ExtendedCq(PingSr):
    """A ping-pong whose SENDs complete on an extended CQ with the device's timestamps.

    1. beside the ordinary CQ for receives (ibv_create_cq) there is an extended one for sends
       (ibv_create_cq_ex, wc_flags IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP); a device
       without timestamps (rxe) refuses it, and needs --no-timestamps;
    2. ping and pong as in ping-sr (ibv_post_send, ibv_post_recv);
    3. receives are polled by ibv_poll_cq; sends by ibv_start_poll, ibv_next_poll and ibv_end_poll, and only
       the requested fields are read: wr_id, status, ibv_wc_read_qp_num, ibv_wc_read_opcode,
       ibv_wc_read_completion_ts;
    4. the timestamps (ibv_wc_read_completion_ts) must not decrease; the time between two of them is
       printed, in ticks of the device's clock, beside the program's time.
    """

    name = "cq-ex"
    summary = "A ping-pong with an extended CQ: the device's completion timestamps, where it has them."
    extended = True
    ways = WaitWays(cq="poll")

    def client(self, run: ScenarioRun) -> Samples:
        started = time.perf_counter_ns()
        samples = super().client(run)
        total = time.perf_counter_ns() - started
        if not run.endpoint.stamps:
            run.notes.append("sends completed on an extended CQ, without timestamps")
            return samples
        stamps = [stamp for _, stamp in run.stamps]
        if len(stamps) != run.plan.iterations * run.plan.qps:
            raise ScenarioError(f"{len(stamps)} completions have a timestamp, of {run.plan.iterations}")
        between = [after - before for before, after in itertools.pairwise(stamps)]
        if between and min(between) < 0:
            raise ScenarioError("the device's completion timestamps decrease")
        if between:
            run.notes.append(
                f"completion timestamps: {stamps[-1] - stamps[0]} ticks of the device's clock from first to "
                f"last, {statistics.median(between):.0f} between two; {total} ns by the program's clock"
            )
        return samples
