// The graphs below the PSNs, on the same time axis: rates, outstanding packets, round trips, congestion.

const HEIGHT = 104;
const STEPPED = uPlot.paths.stepped({ align: 1 });
const rate = (v) => rateTicks([v])[0];

// Ticks of bits a nanosecond in one unit.
function rateTicks(splits) {
  const top = Math.max(...splits), [unit, factor] = top >= 1 ? ["Gb/s", 1] : top >= 1e-3 ? ["Mb/s", 1e3] : ["kb/s", 1e6];
  const digits = top * factor < 1 ? 2 : top * factor < 10 ? 1 : 0;
  return splits.map((v) => fixed(v * factor, digits) + " " + unit);
}
const upwards = (u, min, max) => [0, max > 0 ? max * 1.1 : 1];

// Round numbers between two values, for a logarithmic axis: few enough to read.
function decades(min, max) {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) {
      for (const step of steps) { const value = step * 10 ** power; if (value >= min && value <= max) found.push(value); }
    }
    if (found.length <= 5) return found;
  }
  return [10 ** Math.ceil(Math.log10(min)), 10 ** Math.floor(Math.log10(max))];
}

const COMPANIONS = [
  {
    title: "Payload rate",
    wanted: (timeline) => timeline.until > timeline.from,
    keys: [["throughput: repeats included", "round2"], ["goodput: each byte once", "good-line"]],
    y: [{ values: (u, splits) => rateTicks(splits) }],
    series: (c) => [{ stroke: c.round2, width: 1.4, paths: STEPPED, points: { show: false } }, { stroke: c["good-line"], width: 1.6, paths: STEPPED, points: { show: false } }],
    scales: { y: { range: upwards } },
    coarse: true,
    tell: [(v) => rate(v) + ", repeats included", (v) => rate(v) + ", each byte once"],
    data: (timeline, bins) => [rates(timeline, bins, timeline.model.sumBytes), rates(timeline, bins, timeline.model.sumOnce)],
    words: (timeline, width) => `averaged over ${duration(width)}`,
  },
  {
    title: "Outstanding: sent and not yet acknowledged",
    wanted: (timeline) => timeline.until > timeline.from && timeline.acknowledged(),
    keys: [["PSNs (left)", "round1"], ["bytes (right)", "round4"]],
    y: [{ scale: "y", incrs: WHOLE, values: (u, splits) => splits.map(number) },
      { scale: "bytes", side: 1, size: RIGHT, grid: { show: false }, values: (u, splits) => splits.map((v) => size(Math.round(v)).replace(".0 ", " ")) }],
    series: (c) => [{ stroke: c.round1, fill: c.band2, width: 1.4, paths: STEPPED, points: { show: false }, scale: "y" },
      { stroke: c.round4, width: 1.3, dash: [5, 3], paths: STEPPED, points: { show: false }, scale: "bytes" }],
    scales: { y: { range: upwards }, bytes: { range: upwards } },
    tell: [(v) => plural(v, "PSN") + " outstanding", (v) => size(v) + " outstanding"],
    data: (timeline, bins) => [peaks(timeline, bins, "outstanding"), peaks(timeline, bins, "outstanding_bytes")],
    words: () => "the most at each moment",
  },
  {
    title: "ACK round trip",
    wanted: (timeline) => { const rtt = timeline.model.columns.rtt; for (let i = timeline.from; i < timeline.until; i++) if (rtt[i] >= 0) return true; return false; },
    keys: [["from a packet that was sent once to its ACK or response", "ack"]],
    y: [{ splits: (u, axis, min, max) => decades(min, max), filter: (u, splits) => splits, values: (u, splits) => splits.map((v) => duration(v).replace(/\.0+ /, " ")) }],
    series: () => [{ show: true, paths: () => null, points: { show: false } }],
    scales: { y: { distr: 3, range: (u) => u.rttRange ?? [1e3, 1e6] } },
    data: (timeline, bins) => [bins.map(() => null)],
    prepare(u, timeline) {
      const rtt = timeline.model.columns.rtt;
      let least = Infinity, most = 0;
      for (let i = timeline.low; i < timeline.high; i++) if (rtt[i] > 0) { if (rtt[i] < least) least = rtt[i]; if (rtt[i] > most) most = rtt[i]; }
      u.rttRange = least === Infinity ? [1e3, 1e6] : [least / 1.6, most * 1.6];
    },
    paint(u, timeline) {
      const ctx = u.ctx, ratio = window.devicePixelRatio || 1, c = timeline.model.columns, seen = new Set();
      const [min, max] = timeline.view, { left, top, width, height } = u.bbox, [least, most] = u.rttRange.map(Math.log);
      ctx.save(); ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
      ctx.fillStyle = timeline.colours.ack;
      const r = 1.8 * ratio;
      for (let i = timeline.low; i < timeline.high; i++) {
        if (c.rtt[i] <= 0) continue;
        const x = left + (c.time[i] - min) / (max - min) * width, y = top + height - (Math.log(c.rtt[i]) - least) / (most - least) * height;
        const cell = (x | 0) * 8192 + (y | 0);
        if (seen.has(cell)) continue;
        seen.add(cell);
        ctx.fillRect(x - r, y - r, 2 * r, 2 * r);
      }
      ctx.restore();
    },
    words: () => "logarithmic",
  },
  {
    title: "Congestion: CNPs, ECN-CE marks, and the rate",
    wanted: (timeline) => timeline.marks.some((m) => timeline.model.columns.mark_kind[m] === 0) || timeline.model.sumCe[timeline.until] > timeline.model.sumCe[timeline.from],
    keys: [["CNPs", "cnp"], ["CE marks", "ce"], ["rate (right)", "soft"]],
    y: [{ scale: "y", incrs: WHOLE, values: (u, splits) => splits.map(number) },
      { scale: "rate", side: 1, size: RIGHT, grid: { show: false }, values: (u, splits) => rateTicks(splits) }],
    series: (c) => [{ stroke: c.cnp, fill: c.cnp, paths: uPlot.paths.bars({ size: [.9, 6, 2] }), points: { show: false }, scale: "y" },
      { stroke: c.ce, width: 1.6, paths: STEPPED, points: { show: false }, scale: "y" },
      { stroke: c.soft, width: 1.2, paths: STEPPED, points: { show: false }, scale: "rate" }],
    scales: { y: { range: upwards }, rate: { range: upwards } },
    coarse: true,
    tell: [(v) => plural(v, "CNP"), (v) => plural(v, "CE mark"), rate],
    data: (timeline, bins) => [cnps(timeline, bins), counts(timeline, bins, timeline.model.sumCe), rates(timeline, bins, timeline.model.sumBytes)],
    words: (timeline, width) => `counted over ${duration(width)}`,
  },
];

// The first row at or after each edge: one more than there are bins.
function edges(timeline, bins) {
  if (timeline.edgesOf === bins) return timeline.edges;
  const time = timeline.model.columns.time, found = new Array(bins.length + 1);
  let at = timeline.low;
  for (let k = 0; k < bins.length; k++) found[k] = at = lowerBound(time, bins[k], at, timeline.until);
  found[bins.length] = lowerBound(time, bins[bins.length - 1] + bins[1] - bins[0], at, timeline.until);
  timeline.edgesOf = bins;
  return timeline.edges = found;
}

function counts(timeline, bins, sums) {
  const at = edges(timeline, bins);
  return bins.map((_, k) => sums[at[k + 1]] - sums[at[k]]);
}

function rates(timeline, bins, sums) {
  const width = bins[1] - bins[0];
  return counts(timeline, bins, sums).map((bytes) => bytes * 8 / width);
}

function peaks(timeline, bins, name) {
  const at = edges(timeline, bins), values = timeline.model.columns[name];
  let now = at[0] > timeline.from ? values[at[0] - 1] : 0;
  return bins.map((_, k) => {
    let most = now;
    for (let i = at[k]; i < at[k + 1]; i++) if (values[i] > most) most = values[i];
    if (at[k + 1] > at[k]) now = values[at[k + 1] - 1];
    return most;
  });
}

function cnps(timeline, bins) {
  const width = bins[1] - bins[0], found = bins.map(() => 0), c = timeline.model.columns;
  for (const m of timeline.marks) {
    const k = Math.floor((c.mark_time[m] - bins[0]) / width);
    if (c.mark_kind[m] === 0 && k >= 0 && k < found.length) found[k]++;
  }
  return found;
}

class Companion {
  constructor(timeline, kind) {
    this.timeline = timeline;
    this.kind = kind;
    this.note = element("span", { class: "key" });
    const colours = palette();
    const keys = kind.keys.map(([text, colour]) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colours[colour];
      return element("span", { class: "key" }, swatch, text);
    });
    this.box = element("div", { class: "chart" }, element("h3", {}, kind.title, ...keys, this.note));
    timeline.holder.insertBefore(this.box, timeline.tip);
    const hooks = !kind.tell ? {} : { setCursor: [(u) => this.hover(u)] };
    if (kind.paint) hooks.draw = [(u) => { if (timeline.colours && u.rttRange) kind.paint(u, timeline); }];
    const options = chartOptions(timeline, { height: HEIGHT, y: kind.y.map((y) => ({ space: 22, ...y })), series: kind.series(colours), scales: kind.scales, hooks });
    this.plot = new uPlot(options, [[0, 1], ...options.series.slice(1).map(() => [null, null])], this.box);
    this.plot.over.addEventListener("mouseleave", () => timeline.hideTip());
  }

  destroy() { this.plot.destroy(); this.box.remove(); }
  resize(width) { this.plot.setSize({ width, height: HEIGHT }); }

  hover(u) {
    const { idx, left, top } = u.cursor, { timeline, kind } = this;
    if (!u.over.matches(":hover")) return;
    if (idx === null || idx === undefined || left < 0) { timeline.hideTip(); return; }
    const lines = kind.tell.map((words, k) => words(u.data[k + 1][idx] ?? 0));
    const box = u.over.getBoundingClientRect(), home = timeline.holder.getBoundingClientRect();
    timeline.showTip([duration(u.data[0][idx]), ...lines], box.left - home.left + left, box.top - home.top + top);
  }

  draw() {
    const { timeline, kind, plot } = this, [min, max] = timeline.view;
    const fine = Math.max(40, Math.floor(timeline.width() / 4));
    // Bins shorter than the time of a packet would show no rate.
    const count = kind.coarse ? Math.max(24, Math.min(fine, (timeline.high - timeline.low) >> 1)) : fine;
    const width = (max - min) / count, bins = Array.from({ length: count + 1 }, (_, k) => min + k * width);
    kind.prepare?.(plot, timeline);
    plot.setData([bins, ...kind.data(timeline, bins)], true);
    this.note.textContent = kind.words(timeline, width);
  }
}
