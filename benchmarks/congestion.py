"""DCQCN's rates in generated traffic beside the published algorithm (Zhu et al., SIGCOMM 2015).

    .venv/bin/python benchmarks/congestion.py
    .venv/bin/python benchmarks/congestion.py --senders 8 --milliseconds 60

Two comparisons of an incast, with the paper's constants:

- Step by step. Every CNP that arrived and every frame that was sent, as the captures of the simulation show
  them, goes into a second implementation of the equations (``Published``), which shares nothing with the
  package. Compared are the rates after each CNP and each step up.
- As a whole. A model of the same incast in steps of 1 µs, which knows no packets, windows or pauses: rates
  and queue are real numbers, RED marks a flow's bytes by chance, and CNPs come at most each 50 µs. Compared
  are the link's and the flows' mean rates, after they have climbed to their share.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import rocekit
from rocekit.soft.traffic import FlowPlan, PatternSettings, TrafficPlan, pattern, run_traffic

LINE = 40e9
G, K, TIMER, BYTES, F, R_AI, R_HAI = 1 / 256, 55_000, 55_000, 10_000_000, 5, 40e6, 400e6
KMIN, KMAX, PMAX, CNP_NS = 5_000, 200_000, 0.01, 50_000
MINIMUM = 10e6
MTU, HEADERS = 4096, 12 + 4 + 28 + 38
#: From a marked packet's arrival at the switch to the cut at its sender, without the queue.
FEEDBACK_NS = 5_000


class Published:
    """One flow's rate by the paper's equations; α's timer and the rate's run at their times."""

    def __init__(self) -> None:
        self.rate = self.target = LINE
        self.alpha = 1.0
        self.t = self.bc = 0
        self.count = 0.0
        self.alpha_at = self.rate_at = float("inf")

    def until(self, now: float) -> None:
        while min(self.alpha_at, self.rate_at) <= now:
            if self.alpha_at <= self.rate_at:
                self.alpha *= 1 - G
                self.alpha_at += K
            else:
                self.t += 1
                self.rate_at += TIMER
                self.up()

    def cnp(self, now: float) -> None:
        self.until(now)
        self.target = self.rate
        self.rate = max(MINIMUM, self.rate * (1 - self.alpha / 2))
        self.alpha = (1 - G) * self.alpha + G
        self.t = self.bc = 0
        self.count = 0.0
        self.alpha_at, self.rate_at = now + K, now + TIMER

    def sent(self, size: float, now: float) -> None:
        self.until(now)
        self.count += size
        if self.count >= BYTES:
            self.count -= BYTES
            self.bc += 1
            self.up()

    def up(self) -> None:
        if min(self.t, self.bc) > F:
            self.target += R_HAI
        elif max(self.t, self.bc) > F:
            self.target += R_AI
        self.target = min(self.target, LINE)
        self.rate = min(LINE, (self.target + self.rate) / 2)


def incast(senders: int, milliseconds: int, seed: int) -> TrafficPlan:
    flow = FlowPlan("", 0, 0, path_mtu=MTU, sizes=(65_536,), depth=16)
    settings = PatternSettings(
        hosts=senders + 1, duration_ns=milliseconds * 1_000_000, rate_bps=round(LINE), flow=flow, seed=seed
    )
    return pattern("incast", settings)


def events_of(folder: Path, plan: TrafficPlan) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
    """Of each sender its events: (time, 0, bytes of a frame), (time, 1, …) a CNP, (time, 2, a new rate)."""
    found: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for tap in ("sent", "delivered"):
        capture = folder / f"{tap}.pcapng"
        run_traffic(replace(plan, tap=tap), capture=capture, journal=folder / f"{tap}.journal.jsonl")
        packets = rocekit.analyze(capture).packets
        cnp = packets.opcode == 0x81
        data = (packets.payload_length > 0) & (packets.dest_qpn > 1)
        chosen = data if tap == "sent" else cnp
        ends = packets.src if tap == "sent" else packets.dst
        headers = {0x06: 28, 0x0A: 28}  # WRITE FIRST and ONLY have a RETH
        for time_ns, end, opcode, size in zip(
            packets.time_ns[chosen].tolist(),
            ends[chosen].tolist(),
            packets.opcode[chosen].tolist(),
            packets.payload_length[chosen].tolist(),
            strict=True,
        ):
            frame = size + headers.get(opcode, 12) + 4 + 28 + 38
            found[packets.addresses[end]].append((time_ns, int(tap == "delivered"), frame))
    addresses = {h.name: h.address for h in plan.hosts}
    for line in (folder / "sent.journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "rate_changed":
            found[addresses[event["qp"]["device"]]].append((event["time_ns"], 2, event["rate_bps"]))
    for end in sorted(found):
        yield end, sorted(found[end], key=lambda e: (e[0], (1, 0, 2)[e[1]]))


def step_by_step(plan: TrafficPlan) -> list[float]:
    """The relative differences of all rates."""
    differences = []
    with tempfile.TemporaryDirectory() as folder:
        for _, events in events_of(Path(folder), plan):
            flow = Published()
            for now, kind, value in events:
                if kind == 1:
                    flow.cnp(now)
                elif kind == 0:
                    flow.sent(value, now)
                else:
                    flow.until(now)
                    differences.append(abs(value - flow.rate) / flow.rate)
    return differences


def model(senders: int, milliseconds: int, seed: int) -> tuple[float, list[float]]:
    """Of the model, the means over the second half of the run: of the link in bit/s, and of each flow."""
    draw = random.Random(seed)
    flows = [Published() for _ in range(senders)]
    next_cnp = [0.0] * senders
    coming: list[tuple[float, int]] = []
    sums, out, queue = [0.0] * senders, 0.0, 0.0
    total = milliseconds * 1000
    for microsecond in range(total):
        now = microsecond * 1000.0
        for _, n in [c for c in coming if c[0] <= now]:
            flows[n].cnp(now)
        coming = [c for c in coming if c[0] > now]
        chance = 0.0 if queue <= KMIN else 1.0 if queue > KMAX else PMAX * (queue - KMIN) / (KMAX - KMIN)
        arrived = 0.0
        for n, flow in enumerate(flows):
            size = flow.rate / 8e6  # in a microsecond
            flow.sent(size, now)
            arrived += size
            if microsecond >= total // 2:
                sums[n] += size
            frames = size / (MTU + HEADERS)
            at_receiver = now + queue * 8e9 / LINE
            if chance and at_receiver >= next_cnp[n] and draw.random() < 1 - (1 - chance) ** frames:
                next_cnp[n] = at_receiver + CNP_NS
                coming.append((at_receiver + FEEDBACK_NS, n))
        left = min(queue + arrived, LINE / 8e6)
        queue += arrived - left
        out += left if microsecond >= total // 2 else 0.0
    seconds = (total - total // 2) / 1e6
    return out * 8 / seconds, [s * 8 / seconds for s in sums]


def simulated(plan: TrafficPlan) -> tuple[float, list[float]]:
    """The same of the generated traffic: whole frames that arrived in the second half of the posts' time."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "x.pcapng"
        run = run_traffic(plan, capture=capture)
        packets = rocekit.analyze(capture).packets
        end = run.started_ns + plan.duration_ns
        half = end - plan.duration_ns // 2
        data = (packets.payload_length > 0) & (packets.dest_qpn > 1)
        late = data & (packets.time_ns >= half) & (packets.time_ns < end)
        rates = []
        for flow in run.flows:
            mine = late & (packets.src == packets.addresses.index(flow.addresses[0]))
            size = int(packets.payload_length[mine].sum()) + int(mine.sum()) * HEADERS
            rates.append(size * 8e9 / (end - half))
        return sum(rates), rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--senders", type=int, default=4)
    parser.add_argument("--milliseconds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(f"incast of {given.senders} senders, {LINE / 1e9:g} Gb/s, {given.milliseconds} ms")
    for seed in range(given.seeds):
        plan = incast(given.senders, given.milliseconds, seed)
        differences = step_by_step(plan)
        print(
            f"seed {seed}: {len(differences):,} rates step by step: greatest difference "
            f"{100 * max(differences):.3f} %, median {100 * statistics.median(differences):.4f} %"
        )
        (link, flows), (model_link, model_flows) = (
            simulated(plan),
            model(given.senders, given.milliseconds, seed),
        )
        mean, model_mean = statistics.fmean(flows), statistics.fmean(model_flows)
        print(
            f"  second half: link {link / 1e9:.2f} Gb/s, model {model_link / 1e9:.2f} "
            f"({100 * (link / model_link - 1):+.1f} %); mean of a flow {mean / 1e9:.3f} Gb/s, model "
            f"{model_mean / 1e9:.3f} ({100 * (mean / model_mean - 1):+.1f} %); "
            f"least to most {min(flows) / 1e9:.2f}–{max(flows) / 1e9:.2f}, model "
            f"{min(model_flows) / 1e9:.2f}–{max(model_flows) / 1e9:.2f}"
        )


if __name__ == "__main__":
    main()
