// One transfer between its two hosts, time going down: every packet is an arrow, long silences are written.

const LADDER = { width: 720, left: 190, right: 560, row: 27, most: 400, slant: 9 };

function ladderItems(model, transfer) {
  const c = model.columns, lane = c.t_lane[transfer], first = c.t_psn[transfer], last = c.t_last_psn[transfer];
  const [from, until] = model.rows(lane), items = [];
  const happenings = model.happenings(lane).filter((h) => c.h_transfer[h] === c.t_id[transfer]);
  const end = Math.max(model.end(transfer), ...happenings.map((h) => c.h_time[h]));
  const low = lowerBound(c.time, c.t_first[transfer], from, until), high = lowerBound(c.time, end + 1, low, until);
  for (let i = low; i < high; i++) {
    const ack = model.isAck(i), psn = c.psn[i];
    const own = ack ? psn >= first && (psn <= last || c.time[i] === c.t_acked[transfer]) : psn + c.span[i] > first && psn <= last;
    if (!own) continue;
    items.push({ time: c.time[i], row: i, back: model.isResponse(i), ack, first: psn, last: ack ? psn : psn + c.span[i] - 1,
      round: c.round[i], count: c.packets[i], bytes: c.bytes[i], lost: (c.flags[i] & LOST) !== 0 });
  }
  for (const h of happenings) {
    const kind = model.kind(h);
    if (kind === "hole" || kind === "response_hole" || kind === "failed" || kind === "timeout") items.push({ time: c.h_time[h] - (kind === "failed" ? 0 : .5), happening: h, kind, first: c.h_psn[h], last: c.h_last_psn[h] });
  }
  const posted = model.column("t_posted", transfer), polled = model.column("t_polled", transfer);
  if (posted >= 0) items.push({ time: posted, kind: "posted" });
  if (polled >= 0) items.push({ time: polled, kind: "polled" });
  return items.sort((a, b) => a.time - b.time);
}

// Consecutive packets become one arrow.
function foldLadder(items, model) {
  const folded = [];
  for (const item of items) {
    const before = folded[folded.length - 1];
    const plain = before && item.row !== undefined && before.row !== undefined && !item.ack && !before.ack && !before.lost && !item.lost
      && before.back === item.back && before.round === item.round && item.first === before.last + 1
      && !(model.columns.flags[item.row] & (CE | DUPLICATE | LATE)) && !model.isReadRequest(item.row);
    if (plain) { before.last = item.last; before.count += item.count; before.bytes += item.bytes; before.until = item.time; }
    else folded.push({ ...item, until: item.time });
  }
  return folded;
}

function drawLadder(model, transfer) {
  const c = model.columns, lane = c.t_lane[transfer], every = ladderItems(model, transfer);
  const fold = every.length > 60, items = fold ? foldLadder(every, model) : every.map((item) => ({ ...item, until: item.time }));
  const shown = items.slice(0, LADDER.most), origin = shown.length ? shown[0].time : c.t_first[transfer];
  const steps = shown.slice(1).map((item, k) => item.time - shown[k].until).sort((a, b) => a - b);
  const usual = steps.length ? steps[Math.floor(steps.length / 2)] : 0;
  const { left, right, row, width, slant } = LADDER, parts = [];
  let y = 52, before = origin;
  for (const item of shown) {
    const gap = item.time - before;
    if (gap > Math.max(20 * usual, 50_000)) {
      parts.push(...silence(y, gap));
      y += 34;
    }
    parts.push(text(left - 14, y + 4, "+" + duration(item.time - origin), "end", "dim-text"));
    parts.push(...ladderStep(model, item, y, slant));
    y += row;
    before = item.until;
  }
  if (items.length > shown.length) { parts.push(text((left + right) / 2, y + 6, `… ${number(items.length - shown.length)} more`, "middle", "dim-text")); y += row; }
  const [requester, responder] = model.laneEnds(lane), height = y + 14;
  const rails = [left, right].map((x) => shape("line", { x1: x, x2: x, y1: 40, y2: height - 6, stroke: "var(--line)", "stroke-width": 2 }));
  const names = [[left, requester, "requester"], [right, responder, "responder"]].flatMap(([x, end, role]) => [
    text(x, 16, endName(end), "middle", "", "600"), text(x, 31, role, "middle", "dim-text")]);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
    "aria-label": `Ladder diagram of transfer ${c.t_id[transfer]}, ${plural(items.length, "step")}` }, ...rails, ...names, ...parts);
  return [svg, fold];
}

function text(x, y, words, anchor = "start", kind = "", weight = null) {
  return shape("text", { x, y, "text-anchor": anchor, class: kind || null, "font-weight": weight }, words);
}

function silence(y, gap) {
  const { left, right } = LADDER, middle = (left + right) / 2;
  const zigzag = [left, right].map((x) => shape("path", { d: `M${x} ${y - 8} l-4 4 l8 4 l-8 4 l8 4 l-4 4`, fill: "none", stroke: "var(--soft)", "stroke-width": 1.4 }));
  return [shape("rect", { x: left, y: y - 10, width: right - left, height: 24, fill: "var(--timeout)" }),
    ...zigzag, text(middle, y + 6, `${duration(gap)} without a packet of this transfer`, "middle", "dim-text")];
}

function ladderStep(model, item, y, slant) {
  const { left, right } = LADDER, middle = (left + right) / 2;
  if (item.kind === "posted" || item.kind === "polled") {
    const words = item.kind === "posted" ? "▸ WR posted" : "◂ WC polled";
    return [shape("circle", { cx: left, cy: y, r: 4, fill: "var(--wr)" }), text(left + 12, y + 4, words)];
  }
  if (item.kind === "failed") return [shape("circle", { cx: left, cy: y, r: 5, fill: "var(--nak)" }), text(left + 12, y + 4, "✕ " + model.words(item.happening)[0], "start", "", "600")];
  if (item.kind === "timeout") return [text(left + 12, y + 4, "◷ " + (model.words(item.happening)[2] ?? "timeout"), "start", "dim-text")];
  if (item.kind === "hole" || item.kind === "response_hole") {
    const back = item.kind === "response_hole", start = back ? right : left, tip = back ? middle - 46 : middle + 46;
    return [shape("line", { x1: start, y1: y, x2: tip, y2: y + slant / 2, stroke: "var(--nak)", "stroke-width": 1.5, "stroke-dasharray": "4 4" }),
      ...crossAt(tip, y + slant / 2), text(middle, y - 6, psnRange(item.first, item.last) + " not in the capture", "middle", "dim-text")];
  }
  const nak = item.ack && (model.columns.syndrome[item.row] >> 5 & 1) !== 0;
  const colour = nak ? "var(--nak)" : item.ack ? "var(--ack)" : `var(--round${Math.min(4, item.round)})`;
  const [x1, x2] = item.back ? [right, left] : [left, right], stop = item.lost ? x1 + (x2 - x1) * .72 : x2;
  const y2 = y + slant * (item.lost ? .72 : 1), made = [shape("line", { x1, y1: y, x2: stop, y2, stroke: colour, "stroke-width": item.count > 1 ? 3.5 : 1.8 })];
  if (item.lost) made.push(...crossAt(stop, y2));
  else {
    const d = item.back ? 7 : -7;
    made.push(shape("path", { d: `M${x2} ${y2} l${d} -5 l0 9 z`, fill: colour }));
  }
  const opcode = model.opcode(item.row).replace(/^(RC|UC|UD|XRC)_/, "").replace("RDMA_", "");
  const name = item.ack ? model.syndrome(item.row) : item.count > 1 ? plural(item.count, "packet") : opcode;
  const again = item.round > 1 ? `, ${ordinal(item.round)} time` : "", amount = item.bytes ? ` · ${number(item.bytes)} B` : "";
  const marks = [item.lost ? "did not arrive" : "", model.columns.flags[item.row] & CE ? "CE" : "", model.columns.flags[item.row] & DUPLICATE ? "came twice" : ""].filter(Boolean);
  made.push(text(middle, y - 3, `${psnRange(item.first, item.last)} ${name}${amount}${again}`, "middle"));
  made.push(text(right + 14, y + 4, `frame ${model.frameName(model.columns.frame[item.row])}${item.count > 1 ? " …" : ""}${marks.length ? " · " + marks.join(", ") : ""}`, "start", "dim-text"));
  return made;
}

function crossAt(x, y) {
  return [[-5, -5, 5, 5], [-5, 5, 5, -5]].map(([a, b, d, e]) => shape("line", { x1: x + a, y1: y + b, x2: x + d, y2: y + e, stroke: "var(--nak)", "stroke-width": 2.4 }));
}
