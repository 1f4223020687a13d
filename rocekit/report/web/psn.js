// The PSN graph: which PSN was sent when and how often, and what was acknowledged.

const RASTER_ABOVE = 30_000, BANDS_UPTO = 3_000, SIGNS_UPTO = 150, RUG_ROW = 11;

class PsnChart {
  constructor(timeline) {
    this.timeline = timeline;
    this.model = timeline.model;
    this.y = [0, 1];
    this.rugs = [];
    this.counts = {};
    this.box = element("div", { class: "chart" }, element("h3", {}, "PSN over time"));
    timeline.holder.insertBefore(this.box, timeline.tip);
    this.make();
    this.box.addEventListener("click", () => { if (this.hit?.transfer >= 0) timeline.onTransfer(this.hit.transfer); });
  }

  make() {
    const options = chartOptions(this.timeline, {
      height: Math.max(300, Math.min(460, window.innerHeight * .5)), last: true,
      scales: { y: { range: () => this.y } },
      y: [{ incrs: WHOLE, values: (u, splits) => splits.map((v) => Number.isInteger(v) ? String(wirePsn(v)) : "") }],
      series: [{ show: true, paths: () => null, points: { show: false } }],
      hooks: { draw: [(u) => this.paint(u)], setCursor: [(u) => this.hover(u)] },
    });
    this.plot = new uPlot(options, [[0, 1], [null, null]], this.box);
    this.plot.over.addEventListener("mouseleave", () => this.timeline.hideTip());
  }

  destroy() { this.plot.destroy(); this.box.remove(); }
  resize(width) { this.plot.setSize({ width, height: this.plot.height }); }

  draw() {
    this.fit();
    const [min, max] = this.timeline.view;
    this.plot.setData([[min, max], [null, null]], false);
    this.plot.setScale("x", { min, max });
    this.plot.setScale("y", { min: this.y[0], max: this.y[1] });
    this.plot.redraw(false, true);
  }

  // The PSNs in view, with room for what is drawn above them.
  fit() {
    const { low, high, happenings } = this.timeline, c = this.model.columns, [min, max] = this.timeline.view;
    let least = Infinity, most = -Infinity;
    for (let i = low; i < high; i++) {
      const psn = c.psn[i], end = psn + c.span[i];
      if (psn < least) least = psn;
      if (end > most) most = end;
    }
    if (least === Infinity) {
      for (const h of happenings) if (c.h_until[h] >= min && c.h_from[h] <= max && c.h_psn[h]) { least = Math.min(least, c.h_psn[h]); most = Math.max(most, c.h_last_psn[h] + 1); }
    }
    if (least === Infinity && this.timeline.until > this.timeline.from) {
      const near = Math.min(this.timeline.until - 1, low);
      least = c.psn[near]; most = least + c.span[near];
    }
    if (least === Infinity) [least, most] = [0, 1];
    this.crowd();
    // Work requests without packets are drawn above, but not far above the packets.
    const highest = most + Math.max(4, (most - least) * .5);
    if (!this.rugs.includes("unsent")) {
      for (const h of happenings) if (this.model.kind(h) === "unsent" && c.h_until[h] >= min && c.h_from[h] <= max) most = Math.max(most, Math.min(highest, c.h_psn[h] + 1));
    }
    const margin = Math.max(.8, (most - least) * .07), height = this.plot.over.clientHeight || 300;
    const room = Math.max(.11, ((this.rugs.length + 1) * RUG_ROW + 6) / height);
    this.y = [least - margin, most + (most - least + 2 * margin) * room];
  }

  // Kinds with more signs in view than fit on the packets: each gets a row of ticks at the top.
  crowd() {
    const { happenings, marks, low, high, view: [min, max] } = this.timeline, c = this.model.columns, counts = {};
    for (const e of happenings) if (c.h_time[e] >= min && c.h_time[e] <= max) { const kind = this.model.kind(e); counts[kind] = (counts[kind] ?? 0) + 1; }
    for (const m of marks) if (c.mark_time[m] >= min && c.mark_time[m] <= max) { const kind = MARKS[c.mark_kind[m]]; counts[kind] = (counts[kind] ?? 0) + 1; }
    counts.ce = this.model.sumCe[high] - this.model.sumCe[low];
    this.rugs = Object.keys(GLYPH_NAMES).filter((kind) => counts[kind] > SIGNS_UPTO);
    this.counts = counts;
  }

  // One tick of a row.
  tick(ctx, kind, x) {
    const k = this.rugs.indexOf(kind);
    if (k < 0) return null;
    const y = this.geometry.y0 + 4 + k * RUG_ROW;
    ctx.fillStyle = this.timeline.colours[RUG_COLOURS[kind] ?? "nak"];
    ctx.fillRect(x - .75, y, 1.5, RUG_ROW - 3);
    return y + RUG_ROW / 2;
  }

  rugNames(ctx) {
    ctx.font = "10px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "left";
    ctx.fillStyle = this.timeline.colours.dim;
    const { x0, y0, w } = this.geometry;
    this.rugs.forEach((kind, k) => ctx.fillText(`${number(this.counts[kind])} ${SHORT_NAMES[kind]}`, x0 + w + 5, y0 + 3 + (k + .5) * RUG_ROW));
  }

  paint(u) {
    const ctx = u.ctx, ratio = window.devicePixelRatio || 1, { left, top, width, height } = u.bbox, timeline = this.timeline;
    const [min, max] = timeline.view, [bottom, upper] = this.y;
    if (!timeline.colours) return;
    this.geometry = { x0: left / ratio, y0: top / ratio, w: width / ratio, h: height / ratio };
    const { x0, y0, w, h } = this.geometry;
    this.x = (t) => x0 + (t - min) / (max - min) * w;
    this.psnY = (p) => y0 + h - (p - bottom) / (upper - bottom) * h;
    ctx.save();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.beginPath(); ctx.rect(x0, y0, w, h); ctx.clip();
    ctx.lineCap = "butt";
    this.waits(ctx);
    this.bands(ctx);
    const many = timeline.high - timeline.low > RASTER_ABOVE;
    if (!many) this.bars(ctx);
    this.staircase(ctx);
    if (many) this.raster(ctx, ratio);
    this.journal(ctx);
    this.unsent(ctx);
    this.signs(ctx);
    this.rings(ctx);
    ctx.restore();
    ctx.save();
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.rugNames(ctx);
    ctx.restore();
  }

  // The silence before a timeout, and the wait after an RNR NAK.
  waits(ctx) {
    const { happenings, colours } = this.timeline, c = this.model.columns, [min, max] = this.timeline.view;
    const { y0, h } = this.geometry;
    const labels = [];
    let painted = -Infinity;
    for (const e of happenings) {
      if (c.h_until[e] <= c.h_from[e] || this.model.kind(e) === "unsent" || c.h_until[e] < min || c.h_from[e] > max) continue;
      const a = this.x(c.h_from[e]), b = Math.max(a + 1, this.x(c.h_until[e])), kind = this.model.kind(e);
      if (b - a <= 1.5 && a - painted < 1) continue;
      painted = a;
      ctx.fillStyle = kind === "rnr" ? colours.wait : colours.timeout;
      ctx.fillRect(a, y0, b - a, h);
      labels.push([a, b, kind, c.h_until[e] - c.h_from[e], e]);
    }
    let last = -Infinity;
    ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "top"; ctx.textAlign = "left";
    for (const [a, b, kind, wait, e] of labels) {
      const [, detail, label] = this.model.words(e), power = /2\^(\d+)/.exec(detail);
      const word = label ?? `${kind === "rnr" ? "RNR wait" : "timeout"} ${duration(wait)}`, code = power && kind !== "rnr" ? ` (4.096 µs × 2^${power[1]})` : "";
      const text = [word + code, word, duration(wait)].find((t) => ctx.measureText(t).width < b - a - 6);
      if (!text || a < last) continue;
      ctx.fillStyle = colours.dim;
      ctx.fillText(text, Math.max(a, this.geometry.x0) + 3, y0 + 3);
      last = a + ctx.measureText(text).width + 8;
    }
  }

  // Each work request, or transfer, from its post to its ACK.
  bands(ctx) {
    const { colours, lane, selected } = this.timeline, model = this.model, c = model.columns, [min, max] = this.timeline.view;
    const seen = [];
    for (const t of model.transfers(lane)) {
      const begin = this.began(t), end = Math.max(model.end(t), model.column("t_polled", t));
      if (end < min || begin > max || c.t_last_psn[t] < this.y[0] || c.t_psn[t] > this.y[1]) continue;
      seen.push([t, begin, end]);
      if (seen.length > BANDS_UPTO) break;
    }
    if (seen.length > BANDS_UPTO) seen.length = 0;
    ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "top"; ctx.textAlign = "left";
    for (const [t, begin, end] of seen) {
      const a = Math.max(this.geometry.x0 - 2, this.x(begin)), b = Math.min(this.geometry.x0 + this.geometry.w + 2, this.x(end));
      const y1 = this.psnY(c.t_last_psn[t] + 1), y2 = this.psnY(c.t_psn[t]);
      ctx.fillStyle = c.t_id[t] % 2 ? colours.band : colours.band2;
      ctx.fillRect(a, y1, Math.max(1, b - a), y2 - y1);
      if (y2 - y1 > 4) { ctx.strokeStyle = colours["band-line"]; ctx.lineWidth = .8; ctx.strokeRect(a, y1, Math.max(1, b - a), y2 - y1); }
      const text = model.name(t);
      if (y2 - y1 >= 13 && b - a > ctx.measureText(text).width + 20) { ctx.fillStyle = colours.text; ctx.fillText(text, a + 12, y1 + 2); }
    }
    if (selected >= 0 && c.t_lane[selected] === lane) {
      const a = this.x(this.began(selected)), b = this.x(Math.max(model.end(selected), model.column("t_polled", selected)));
      const y1 = this.psnY(c.t_last_psn[selected] + 1), y2 = this.psnY(c.t_psn[selected]);
      ctx.strokeStyle = colours.accent; ctx.lineWidth = 2;
      ctx.strokeRect(a - 2, y1 - 2, Math.max(4, b - a + 4), Math.max(4, y2 - y1 + 4));
    }
  }

  began(t) {
    const posted = this.model.column("t_posted", t), first = this.model.columns.t_first[t];
    return posted >= 0 ? Math.min(posted, first) : first;
  }

  colourOf(row) { return this.timeline.colours["round" + Math.min(4, this.model.columns.round[row])]; }

  bars(ctx) {
    const { low, high } = this.timeline, c = this.model.columns, model = this.model;
    const wide = high - low > 4000 ? 2 : high - low > 800 ? 3 : 4;
    const acks = [], reads = [], groups = [[], [], [], []];
    for (let i = low; i < high; i++) {
      if (model.isAck(i)) acks.push(i);
      else if (!(c.flags[i] & RESPONSE) && model.isReadRequest(i)) reads.push(i);
      else groups[Math.min(4, c.round[i]) - 1].push(i);
    }
    groups.forEach((rows, k) => {
      ctx.fillStyle = this.timeline.colours["round" + (k + 1)];
      for (const i of rows) {
        const y1 = this.psnY(c.psn[i] + c.span[i]), y2 = this.psnY(c.psn[i]), tall = Math.max(1.6, y2 - y1 - (y2 - y1 > 5 ? 1 : 0));
        ctx.fillRect(this.x(c.time[i]) - wide / 2, y1, wide, tall);
      }
    });
    for (const i of reads) {
      const x = this.x(c.time[i]), y1 = this.psnY(c.psn[i] + c.span[i]), y2 = this.psnY(c.psn[i]);
      ctx.strokeStyle = this.colourOf(i); ctx.lineWidth = 1.2; ctx.setLineDash([2, 2]);
      ctx.beginPath(); ctx.moveTo(x, y1); ctx.lineTo(x, y2); ctx.stroke(); ctx.setLineDash([]);
      ctx.lineWidth = 2.4; ctx.beginPath(); ctx.moveTo(x - 5, y2 - 1); ctx.lineTo(x + 5, y2 - 1); ctx.stroke();
    }
    ctx.strokeStyle = this.timeline.colours.nak; ctx.lineWidth = 1.6;
    for (let i = low; i < high; i++) {
      if (!(c.flags[i] & LOST)) continue;
      const y1 = this.psnY(c.psn[i] + c.span[i]), tall = Math.max(5, this.psnY(c.psn[i]) - y1);
      ctx.strokeRect(this.x(c.time[i]) - wide / 2 - 2, y1 - 1, wide + 4, tall + 1);
    }
    if (acks.length < 3000) {
      ctx.fillStyle = this.timeline.colours.ack;
      for (const i of acks) if (c.syndrome[i] >> 5 === 0) { ctx.beginPath(); ctx.arc(this.x(c.time[i]), this.psnY(c.psn[i] + 1), 2.4, 0, 7); ctx.fill(); }
    }
  }

  // Many packets: pixels of one image; what was sent again is on top.
  raster(ctx, ratio) {
    const { low, high, colours } = this.timeline, c = this.model.columns, { x0, y0, w, h } = this.geometry;
    const W = Math.max(1, Math.round(w * ratio)), H = Math.max(1, Math.round(h * ratio));
    const rank = new Uint8Array(W * H), [min, max] = this.timeline.view, [bottom, upper] = this.y;
    const sx = W / (max - min), sy = H / (upper - bottom), time = c.time, psn = c.psn, span = c.span, round = c.round;
    const isAck = new Uint8Array(256);
    for (const value of Object.keys(this.model.opcodes)) if (/_ACKNOWLEDGE$/.test(this.model.opcodes[value])) isAck[value] = 1;
    for (let i = low; i < high; i++) {
      if (isAck[c.opcode[i]]) continue;
      const x = Math.min(W - 1, ((time[i] - min) * sx) | 0), r = c.flags[i] & LOST ? 5 : round[i] > 4 ? 4 : round[i];
      let y = H - (((psn[i] - bottom) * sy) | 0) - 1;
      const top = Math.max(0, Math.min(y, H - 1 - (((psn[i] + span[i] - bottom) * sy) | 0)));
      for (; y >= top; y--) {
        const at = y * W + x;
        if (rank[at] < r) { rank[at] = r; if (x + 1 < W && rank[at + 1] < r) rank[at + 1] = r; }
      }
    }
    const image = new ImageData(W, H), pixels = new Uint32Array(image.data.buffer);
    const rgba = [0, 1, 2, 3, 4, 5].map((k) => k ? colourNumber(colours[k < 5 ? "round" + k : "nak"]) : 0);
    for (let at = 0; at < rank.length; at++) if (rank[at]) pixels[at] = rgba[rank[at]];
    this.sheet ??= document.createElement("canvas");
    this.sheet.width = W; this.sheet.height = H;
    this.sheet.getContext("2d").putImageData(image, 0, 0);
    ctx.drawImage(this.sheet, x0, y0, w, h);
  }

  staircase(ctx) {
    const { low, high, from, until, colours } = this.timeline, c = this.model.columns;
    if (from === until || !this.timeline.acknowledged()) return;
    ctx.strokeStyle = colours.ack; ctx.lineWidth = 1.5; ctx.lineJoin = "round";
    ctx.beginPath();
    const start = Math.max(from, low - 1);
    let y = this.psnY(c.acked[start]), px = this.x(Math.max(c.time[start], this.timeline.view[0]));
    ctx.moveTo(px, y);
    let value = c.acked[start];
    for (let i = start + 1; i < high; i++) {
      if (c.acked[i] === value) continue;
      const x = this.x(c.time[i]);
      value = c.acked[i];
      if (x - px < .7) { y = this.psnY(value); continue; }
      ctx.lineTo(px, y);
      ctx.lineTo(x, y);
      y = this.psnY(value); px = x;
      ctx.lineTo(x, y);
    }
    ctx.lineTo(px, y);
    ctx.lineTo(this.x(Math.min(this.timeline.view[1], c.time[until - 1])), y);
    ctx.stroke();
  }

  journal(ctx) {
    const { lane, colours } = this.timeline, model = this.model, c = model.columns, [min, max] = this.timeline.view;
    if (!c.t_posted) return;
    const seen = new Set();
    for (const t of model.transfers(lane)) {
      for (const [kind, time, psn] of [["posted", c.t_posted[t], c.t_psn[t]], ["polled", c.t_polled[t], c.t_last_psn[t] + 1]]) {
        if (time < 0 || time < min || time > max) continue;
        const x = this.x(time), y = this.psnY(psn), cell = kind + (x >> 2) + ":" + (y >> 2);
        if (seen.has(cell)) continue;
        seen.add(cell);
        GLYPHS[kind](ctx, x, y, colours);
      }
    }
  }

  // Work requests without packets: from their post to their sign, at the PSN that would have been theirs.
  unsent(ctx) {
    const { happenings, colours, view: [min, max] } = this.timeline, c = this.model.columns, seen = new Set();
    if (this.rugs.includes("unsent")) return;
    for (const e of happenings) {
      if (this.model.kind(e) !== "unsent" || c.h_until[e] < min || c.h_from[e] > max) continue;
      const a = this.x(c.h_from[e]), b = this.x(c.h_until[e]), y = this.unsentY(e), cell = (a | 0) + ":" + (b | 0) + ":" + (y | 0);
      if (seen.has(cell)) continue;
      seen.add(cell);
      ctx.strokeStyle = colours.nak; ctx.lineWidth = 1.2; ctx.setLineDash([2, 3]);
      ctx.beginPath(); ctx.moveTo(a, y); ctx.lineTo(b, y); ctx.stroke(); ctx.setLineDash([]);
      GLYPHS.posted(ctx, a, y, colours);
    }
  }

  unsentY(e) { return Math.max(this.geometry.y0 + 10 + this.rugs.length * RUG_ROW, Math.min(this.geometry.y0 + this.geometry.h - 8, this.psnY(this.model.columns.h_psn[e] + .5))); }

  signs(ctx) {
    const { happenings, marks, low, high, colours } = this.timeline, model = this.model, c = model.columns, [min, max] = this.timeline.view;
    const { x0, y0, w, h } = this.geometry, seen = new Set();
    this.drawn = [];
    const once = (kind, x, y) => { const cell = kind + (x | 0) + ":" + (y >> 1); if (seen.has(cell)) return false; seen.add(cell); return true; };
    let label = -Infinity;
    for (const e of happenings) {
      const time = c.h_time[e], kind = model.kind(e);
      if (time < min || time > max) continue;
      const x = this.x(time);
      if (this.rugs.includes(kind)) {
        if (once(kind, x, 0)) this.drawn.push([x, this.tick(ctx, kind, x), e, -1]);
        continue;
      }
      if (kind === "cm") {
        if (!once(kind, x, 0)) continue;
        ctx.strokeStyle = colours.soft; ctx.lineWidth = 1; ctx.setLineDash([4, 3]);
        ctx.beginPath(); ctx.moveTo(x, y0); ctx.lineTo(x, y0 + h); ctx.stroke(); ctx.setLineDash([]);
        const text = model.words(e)[0];
        ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "bottom";
        const wide = ctx.measureText(text).width, at = x + wide + 6 > x0 + w ? x - wide - 3 : x + 3;
        if (at > label) { ctx.fillStyle = colours.dim; ctx.textAlign = "left"; ctx.fillText(text, at, y0 + h - 3); label = at + wide + 4; }
        this.drawn.push([x, y0 + h - 8, e, -1]);
        continue;
      }
      if (kind === "unsent") {
        const y = this.unsentY(e);
        if (once(kind, x, y)) { GLYPHS.unsent(ctx, x, y, colours); this.drawn.push([x, y, e, -1]); }
        continue;
      }
      const y = this.psnY(HOLES.has(kind) ? (c.h_psn[e] + c.h_last_psn[e] + 1) / 2 : c.h_psn[e] + .5);
      if (!once(kind, x, y)) continue;
      if (HOLES.has(kind) && this.psnY(c.h_psn[e]) - this.psnY(c.h_last_psn[e] + 1) > 14) {
        const y1 = this.psnY(c.h_last_psn[e] + 1), y2 = this.psnY(c.h_psn[e]);
        ctx.strokeStyle = kind === "missed" ? colours.soft : colours.nak; ctx.lineWidth = 1.5; ctx.setLineDash([3, 2]);
        ctx.strokeRect(x - 4, y1, 8, y2 - y1); ctx.setLineDash([]);
      } else GLYPHS[kind](ctx, x, y, colours);
      this.drawn.push([x, y, e, -1]);
    }
    if (model.sumCe[high] - model.sumCe[low] > 0) {
      for (let i = low; i < high; i++) {
        if (!(c.flags[i] & CE)) continue;
        const x = this.x(c.time[i]), crowded = this.rugs.includes("ce"), y = crowded ? 0 : this.psnY(c.psn[i] + c.span[i] / 2);
        if (!once("ce", x, y)) continue;
        if (crowded) this.tick(ctx, "ce", x); else GLYPHS.ce(ctx, x, y, colours);
      }
    }
    for (const m of marks) {
      const time = c.mark_time[m], kind = MARKS[c.mark_kind[m]];
      if (time < min || time > max) continue;
      const x = this.x(time), y = y0 + this.rugs.length * RUG_ROW + (kind === "cnp" ? 22 : 36);
      if (!once(kind, x, y)) continue;
      const at = this.tick(ctx, kind, x);
      if (at === null) GLYPHS[kind](ctx, x, y, colours);
      this.drawn.push([x, at ?? y, -1, m]);
    }
  }

  // Where the chosen finding's frames are.
  rings(ctx) {
    const place = this.timeline.finding?.place;
    if (!place || place.lane !== this.timeline.lane) return;
    const [min, max] = this.timeline.view;
    ctx.strokeStyle = this.timeline.colours.accent; ctx.lineWidth = 1.6;
    for (const [time, psn] of place.at) {
      if (time < min || time > max) continue;
      ctx.beginPath(); ctx.arc(this.x(time), this.psnY(psn + .5), 9, 0, 7); ctx.stroke();
    }
  }

  hover(u) {
    const { left, top } = u.cursor, timeline = this.timeline;
    this.hit = null;
    if (left === undefined || left < 0 || top < 0 || !this.x || !u.over.matches(":hover")) { if (u.over.matches(":hover") === false) return; timeline.hideTip(); return; }
    const x = left + this.geometry.x0, y = top + this.geometry.y0, c = this.model.columns;
    const sign = this.nearestSign(x, y);
    const lines = sign ? this.signWords(sign) : this.rowWords(this.nearestRow(x, y));
    if (!lines) { timeline.hideTip(); return; }
    const box = u.over.getBoundingClientRect(), home = timeline.holder.getBoundingClientRect();
    timeline.showTip(lines, box.left - home.left + left, box.top - home.top + top);
  }

  nearestSign(x, y) {
    let best = null, least = 81;
    for (const sign of this.drawn ?? []) {
      const d = (sign[0] - x) ** 2 + (sign[1] - y) ** 2;
      if (d < least) { least = d; best = sign; }
    }
    return best;
  }

  nearestRow(x, y) {
    const { low, high, view: [min, max] } = this.timeline, c = this.model.columns, reach = (max - min) / this.geometry.w * 12;
    const at = min + (x - this.geometry.x0) / this.geometry.w * (max - min);
    const a = lowerBound(c.time, at - reach, low, high), b = lowerBound(c.time, at + reach, a, high);
    const step = Math.max(1, Math.floor((b - a) / 50_000));
    let best = -1, least = 24 * 24;
    for (let i = a; i < b; i += step) {
      const y1 = this.psnY(c.psn[i] + c.span[i]), y2 = this.psnY(c.psn[i]);
      const dy = y < y1 ? y1 - y : y > y2 ? y - y2 : 0, dx = this.x(c.time[i]) - x, d = dx * dx + dy * dy;
      if (d < least) { least = d; best = i; }
    }
    return best;
  }

  signWords([, , e, m]) {
    const c = this.model.columns;
    if (e < 0) {
      const what = c.mark_kind[m] === 0 ? "CNP: the sender slows down" : "wrong ICRC: the receiver drops it";
      return [what, `frame ${this.model.frameName(c.mark_frame[m])} · ${duration(c.mark_time[m])}`];
    }
    const [what, detail] = this.model.words(e);
    const place = this.model.placeOfTransfer.get(c.h_transfer[e]) ?? -1;
    this.hit = { transfer: place };
    return [`${GLYPH_NAMES[this.model.kind(e)]}: ${what}`, detail, duration(c.h_time[e]), ...(place >= 0 ? ["of " + this.model.name(place)] : [])];
  }

  rowWords(i) {
    if (i < 0) return null;
    const model = this.model, c = model.columns, lane = this.timeline.lane;
    const transfer = model.transferAt(lane, c.psn[i]);
    this.hit = { transfer, row: i };
    const many = c.packets[i] > 1 ? ` and ${number(c.packets[i] - 1)} more` : "";
    const lines = [`frame ${model.frameName(c.frame[i])}${many} · ${model.opcode(i)}`];
    const last = model.isAck(i) ? c.psn[i] : c.psn[i] + c.span[i] - 1;
    lines.push(`${psnRange(c.psn[i], last)}${c.bytes[i] ? " · " + number(c.bytes[i]) + " bytes" : ""} · at ${duration(c.time[i])}`);
    const notes = [];
    if (c.round[i] > 1) notes.push(`sent again (${ordinal(c.round[i])} time)`);
    if (c.flags[i] & LOST) notes.push("did not arrive (NAK)");
    if (c.flags[i] & DUPLICATE) notes.push("came twice");
    if (c.flags[i] & LATE) notes.push("reordered");
    if (c.flags[i] & CE) notes.push("ECN-CE marked");
    if (model.isAck(i)) notes.push(model.syndrome(i));
    if (c.rtt[i] >= 0) notes.push("round trip " + duration(c.rtt[i]));
    if (notes.length) lines.push(notes.join(" · "));
    if (transfer >= 0) lines.push(`transfer ${c.t_id[transfer]}: ${model.name(transfer)}, ${number(c.t_bytes[transfer])} bytes, ${model.status(transfer)}`);
    return lines;
  }
}

Timeline.prototype.acknowledged = function () { return !["UC", "UD"].includes(this.model.connections[this.lane >> 1].transport); };

function colourNumber(text) {
  const [r, g, b] = text.match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
}
