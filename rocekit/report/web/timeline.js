// The graphs of one lane over one time axis: the part in view, and how to move and zoom.

// Space at the left and right of every plot, so that all of them line up.
const LEFT = 84, RIGHT = 72;

class Timeline {
  constructor(model, holder, { onTransfer, onView }) {
    this.model = model;
    this.onTransfer = onTransfer;
    this.onView = onView;
    this.lane = -1;
    this.charts = [];
    this.selected = -1;
    this.finding = null;
    this.queued = false;
    this.drawnCount = 0;
    this.toolbar = element("div", { class: "bar", role: "toolbar", "aria-label": "Move through the graphs" });
    this.legend = element("ul", { class: "legend", "aria-label": "Legend" });
    this.overview = element("canvas", { class: "overview", "aria-hidden": "true" });
    this.holder = element("div", { class: "charts", tabindex: 0, role: "application",
      "aria-label": "Packets over time. Arrow keys move, plus and minus zoom, n and p go to the next and previous event, Shift-N and Shift-P to those of the chosen finding, Home shows all.",
      onkeydown: (event) => this.key(event) });
    this.tip = element("div", { class: "tip", hidden: true });
    this.status = element("p", { class: "status", role: "status", "aria-live": "polite" });
    const card = element("div", { class: "card" }, this.toolbar, this.legend, this.overview, this.holder, this.status);
    holder.replaceChildren(card);
    this.holder.append(this.tip);
    this.buttons();
    this.wheel();
    this.overviewPointer();
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  buttons() {
    const make = (text, label, action) => element("button", { type: "button", title: label, "aria-label": label, onclick: action }, text);
    const group = (...buttons) => element("span", { class: "group" }, ...buttons);
    this.toolbar.append(
      group(make("◀", "Earlier (left arrow)", () => this.pan(-.3)), make("▶", "Later (right arrow)", () => this.pan(.3))),
      group(make("−", "Zoom out (minus)", () => this.zoom(2)), make("+", "Zoom in (plus)", () => this.zoom(.5))),
      group(make("All", "Show everything (Home)", () => this.home())),
      group(make("‹ event", "Previous event (p)", () => this.event(-1)), make("event ›", "Next event (n)", () => this.event(1))),
      this.casesGroup = element("span", { class: "group", hidden: true }), saveButtons(this),
      element("span", { class: "dim grow", style: "font-size:12px" }, "Drag: zoom. Shift-drag or arrow keys: move. Click, then wheel: zoom. Double click: everything."));
  }

  // Show a lane: the requests of one side and their responses.
  show(lane) {
    const model = this.model, c = model.columns;
    this.lane = lane;
    this.selected = -1;
    this.finding = null;
    this.caseButtons();
    [this.from, this.until] = model.rows(lane);
    this.happenings = model.happenings(lane);
    this.marks = model.marks(lane);
    const times = [];
    if (this.until > this.from) times.push(c.time[this.from], c.time[this.until - 1]);
    for (const list of [this.happenings.map((h) => c.h_time[h]), this.marks.map((m) => c.mark_time[m])]) {
      if (list.length) times.push(list[0], list[list.length - 1]);
    }
    for (const h of this.happenings) if (model.kind(h) === "unsent" && !(c.h_from[h] >= times[0])) times.unshift(c.h_from[h]);
    for (const t of model.transfers(lane)) {
      const posted = model.column("t_posted", t), polled = model.column("t_polled", t);
      if (posted >= 0) times.push(posted);
      if (polled >= 0) times.push(polled);
      if (times.length > 4096) times.splice(0, times.length, Math.min(...times), Math.max(...times));
    }
    const begin = times.length ? Math.min(...times) : 0, end = times.length ? Math.max(...times) : 1000;
    const margin = Math.max(1000, (end - begin) * .02);
    this.all = [begin - margin, end + margin];
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
    for (const title of this.holder.querySelectorAll(".chart")) title.remove();
    this.makeLegend();
    if (this.until > this.from || this.happenings.length || this.marks.length) {
      this.charts.push(new PsnChart(this));
      for (const kind of COMPANIONS) if (kind.wanted(this)) this.charts.push(new Companion(this, kind));
    } else {
      this.holder.append(element("p", { class: "chart notice" }, "No packets in this direction."));
    }
    this.view = null;
    this.setView(...this.all);
  }

  makeLegend() {
    const c = palette(), model = this.model, cols = model.columns, items = [];
    const bar = (text, colour) => items.push(legendItem(text, (x) => { x.fillStyle = colour; x.fillRect(6, 1, 4, 14); }));
    let most = 1, reads = false, acks = false, ce = false, lost = false;
    for (let i = this.from; i < this.until; i++) {
      if (cols.round[i] > most) most = cols.round[i];
      if (cols.flags[i] & RESPONSE) acks = true;
      if (cols.flags[i] & CE) ce = true;
      if (cols.flags[i] & LOST) lost = true;
      if (cols.span[i] > 1 && !reads) reads = model.isReadRequest(i);
    }
    ["sent once", "2nd time", "3rd time", "4th or later"].slice(0, Math.min(4, most)).forEach((text, k) => bar(text, c["round" + (k + 1)]));
    if (lost) items.push(legendItem("did not arrive", (x) => { x.strokeStyle = c.nak; x.lineWidth = 1.6; x.strokeRect(4, 2, 8, 12); x.fillStyle = c.round1; x.fillRect(6.5, 3, 3, 10); }));
    if (reads) items.push(legendItem("READ request", (x) => { x.strokeStyle = c.round1; x.lineWidth = 1.4; x.setLineDash([2, 2]); x.beginPath(); x.moveTo(8, 0); x.lineTo(8, 12); x.stroke(); x.setLineDash([]); x.lineWidth = 2.4; x.beginPath(); x.moveTo(3, 13); x.lineTo(13, 13); x.stroke(); }));
    if (acks) items.push(legendItem("acknowledged up to", (x) => { x.strokeStyle = c.ack; x.lineWidth = 1.8; x.beginPath(); x.moveTo(0, 13); x.lineTo(8, 13); x.lineTo(8, 4); x.lineTo(16, 4); x.stroke(); }));
    if (model.transfers(this.lane).length) items.push(legendItem("work request", (x) => { x.fillStyle = c.band2; x.strokeStyle = c["band-line"]; x.fillRect(1, 3, 14, 10); x.strokeRect(1, 3, 14, 10); }));
    const kinds = new Set(this.happenings.map((h) => model.kind(h)));
    for (const m of this.marks) kinds.add(MARKS[cols.mark_kind[m]]);
    if (ce) kinds.add("ce");
    if (cols.t_posted && model.transfers(this.lane).some((t) => cols.t_posted[t] >= 0)) { kinds.add("posted"); kinds.add("polled"); }
    for (const kind of Object.keys(GLYPH_NAMES)) if (kinds.has(kind)) items.push(legendItem(GLYPH_NAMES[kind], (x) => GLYPHS[kind](x, 8, 8, c)));
    this.legend.replaceChildren(...items);
  }

  setView(min, max) {
    const whole = this.all[1] - this.all[0];
    const width = Math.max(20, Math.min(whole, max - min));
    let begin = (min + max - width) / 2;
    begin = Math.max(this.all[0], Math.min(this.all[1] - width, begin));
    if (this.view && this.view[0] === begin && this.view[1] === begin + width) return;
    this.view = [begin, begin + width];
    this.queue();
  }

  queue() {
    if (this.queued) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.redraw(); });
  }

  redraw() {
    if (!this.view) return;
    const time = this.model.columns.time, [min, max] = this.view;
    this.low = lowerBound(time, min, this.from, this.until);
    this.high = lowerBound(time, max, this.low, this.until);
    this.colours = palette();
    for (const chart of this.charts) chart.draw();
    this.drawOverview();
    this.drawnCount++;
    this.onView?.(this);
  }

  zoom(factor, at = null) {
    const [min, max] = this.view, centre = at ?? (min + max) / 2;
    this.setView(centre - (centre - min) * factor, centre + (max - centre) * factor);
  }

  pan(share) { const [min, max] = this.view, by = (max - min) * share; this.setView(min + by, max + by); }
  home() { this.setView(...this.all); }

  key(event) {
    if (event.target !== this.holder || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.pan(-.15), ArrowRight: () => this.pan(.15), ArrowUp: () => this.zoom(.7), ArrowDown: () => this.zoom(1 / .7),
      "+": () => this.zoom(.5), "=": () => this.zoom(.5), "-": () => this.zoom(2), Home: () => this.home(), 0: () => this.home(),
      n: () => this.event(1), p: () => this.event(-1), N: () => this.case(1), P: () => this.case(-1), Escape: () => this.hideTip(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
    if (!["n", "p", "N", "P", "Escape"].includes(event.key)) this.tellView();
  }

  // What is in view, for those who hear it.
  tellView() {
    const c = this.model.columns, [min, max] = this.view;
    const low = lowerBound(c.time, min, this.from, this.until), high = lowerBound(c.time, max, low, this.until);
    let again = 0, lost = 0;
    for (let i = low; i < high; i++) { if (c.round[i] > 1) again++; if (c.flags[i] & LOST) lost++; }
    const events = this.happenings.filter((h) => c.h_time[h] >= min && c.h_time[h] <= max).length;
    this.status.textContent = `In view: ${duration(min)} to ${duration(max)}, ${plural(high - low, "packet")}, ${number(again)} sent again, ${number(lost)} did not arrive, ${plural(events, "event")}.`;
  }

  // The buttons that step through the cases of a finding.
  caseButtons() {
    const cases = this.finding?.place?.cases ?? [], make = (text, label, action) => element("button", { type: "button", title: label, "aria-label": label, onclick: action }, text);
    this.casesGroup.hidden = cases.length < 2;
    this.casesGroup.replaceChildren(make("‹", "Previous case of this finding (Shift-P)", () => this.case(-1)),
      make(`${this.finding?.rule ?? ""}: ${plural(cases.length, "case")}`, "All cases of this finding", () => this.allCases()),
      make("›", "Next case of this finding (Shift-N)", () => this.case(1)));
  }

  case(step) {
    const cases = this.finding?.place?.cases ?? [];
    if (!cases.length) { this.status.textContent = "No finding is chosen: choose one of the findings first."; return; }
    this.caseAt = this.caseAt === undefined ? (step > 0 ? 0 : cases.length - 1) : (this.caseAt + step + cases.length) % cases.length;
    const [begin, end] = cases[this.caseAt], width = Math.max(end - begin, 20_000);
    this.setView(begin - width * .3, end + width * .3);
    this.status.textContent = `${this.finding.rule}: case ${this.caseAt + 1} of ${cases.length}, at ${duration(begin)}${end > begin ? `, ${duration(end - begin)} long` : ""}`;
  }

  allCases() {
    const cases = this.finding.place.cases, begin = cases[0][0], end = Math.max(...cases.map(([, last]) => last)), width = Math.max(end - begin, 20_000);
    this.caseAt = undefined;
    this.setView(begin - width * .1, end + width * .1);
  }

  // To the next or previous happening; zoom in where it is too small.
  event(step) {
    const c = this.model.columns;
    if (!this.happenings.length) { this.status.textContent = "Nothing went wrong in this direction."; return; }
    const times = this.happenings.map((h) => c.h_time[h]);
    const at = this.lastEvent?.lane === this.lane ? this.lastEvent.at + step
      : step > 0 ? lowerBound(times, this.view[0]) : lowerBound(times, this.view[1]) - 1;
    const place = Math.max(0, Math.min(times.length - 1, at));
    this.lastEvent = { lane: this.lane, at: place };
    const h = this.happenings[place], width = this.view[1] - this.view[0];
    const wait = c.h_until[h] - c.h_from[h];
    const near = Math.min(width, Math.max(wait * 3, (this.all[1] - this.all[0]) / 50, 20_000));
    this.setView(c.h_time[h] - near / 2, c.h_time[h] + near / 2);
    const [what, detail] = this.model.words(h);
    this.status.textContent = `Event ${number(place + 1)} of ${number(times.length)}: ${duration(c.h_time[h])} ${what}: ${detail}`;
  }

  select(transfer) { this.selected = transfer; this.queue(); }

  focusFinding(finding) {
    this.finding = finding;
    this.caseAt = undefined;
    this.caseButtons();
    const span = finding.place.span, model = this.model, t = model.placeOfTransfer.get(finding.transfer) ?? -1;
    if (span) {
      let [begin, end] = span;
      const width = Math.max(end - begin, 2_000);
      // The whole transfer, if that is not much longer.
      const first = t < 0 ? begin : model.columns.t_first[t], last = t < 0 ? end : model.end(t);
      if (first <= end && last >= begin && last - first < 6 * width) { begin = Math.min(begin, first); end = Math.max(end, last); }
      const margin = Math.max(end - begin, 2_000) * .15;
      this.setView(begin - margin, end + margin);
    } else this.home();
    this.queue();
  }

  wheel() {
    this.holder.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== this.holder) return;
      const over = this.charts[0]?.plot.over;
      if (!over) return;
      event.preventDefault();
      const box = over.getBoundingClientRect(), [min, max] = this.view;
      const share = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
      else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), min + (max - min) * share);
    }, { passive: false });
    // Shift-drag moves; without Shift, uPlot's own drag zooms.
    this.holder.addEventListener("mousedown", (event) => {
      this.holder.focus({ preventScroll: true });
      const over = event.target.closest(".u-over");
      if (!event.shiftKey || !over) return;
      event.preventDefault(); event.stopPropagation();
      const width = over.getBoundingClientRect().width, start = event.clientX, view = this.view.slice();
      const move = (e) => { const by = (start - e.clientX) / width * (view[1] - view[0]); this.setView(view[0] + by, view[1] + by); };
      const stop = () => { window.removeEventListener("mousemove", move); window.removeEventListener("mouseup", stop); };
      window.addEventListener("mousemove", move); window.addEventListener("mouseup", stop);
    }, true);
  }

  drawOverview() {
    const canvas = this.overview, ratio = window.devicePixelRatio || 1, c = this.colours, cols = this.model.columns;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * ratio; canvas.height = height * ratio;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    const left = LEFT, plot = width - left - RIGHT, [min, max] = this.all;
    const x = (t) => left + (t - min) / (max - min) * plot;
    ctx.fillStyle = c.grid; ctx.fillRect(left, 4, plot, height - 8);
    const bins = this.overviewBins(Math.floor(plot)), most = Math.max(1, ...bins);
    ctx.fillStyle = c.soft;
    bins.forEach((b, k) => { if (b) { const h = Math.max(1.5, b / most * (height - 10)); ctx.fillRect(left + k, height - 4 - h, 1, h); } });
    const seen = new Set();
    for (const h of this.happenings) {
      const at = Math.round(x(cols.h_time[h])), kind = this.model.kind(h);
      if (kind === "cm" || seen.has(at)) continue;
      seen.add(at);
      ctx.fillStyle = kind === "repeat" || kind === "late" || kind === "duplicate" ? c.round2 : c.nak;
      ctx.fillRect(at - .75, 1, 1.5, 9);
    }
    ctx.strokeStyle = c.accent; ctx.lineWidth = 1.5; ctx.fillStyle = c.band2;
    const a = x(this.view[0]), w = Math.max(3, x(this.view[1]) - a);
    ctx.fillRect(a, 1, w, height - 2); ctx.strokeRect(a, 1, w, height - 2);
    ctx.fillStyle = c.dim; ctx.font = "11px system-ui, sans-serif"; ctx.textBaseline = "middle"; ctx.textAlign = "right";
    ctx.fillText("overview", left - 8, height / 2);
  }

  overviewBins(count) {
    const key = this.lane + ":" + count;
    if (this.binsKey === key) return this.bins;
    const time = this.model.columns.time, [min, max] = this.all, bins = new Array(count).fill(0);
    let at = this.from;
    for (let k = 0; k < count; k++) {
      const next = lowerBound(time, min + (k + 1) / count * (max - min), at, this.until);
      bins[k] = next - at; at = next;
    }
    this.binsKey = key;
    return this.bins = bins;
  }

  overviewPointer() {
    const go = (event) => {
      const box = this.overview.getBoundingClientRect(), [min, max] = this.all;
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      const centre = min + share * (max - min), half = (this.view[1] - this.view[0]) / 2;
      this.setView(centre - half, centre + half);
    };
    this.overview.addEventListener("pointerdown", (event) => { this.overview.setPointerCapture(event.pointerId); go(event); });
    this.overview.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
  }

  resize() {
    for (const chart of this.charts) chart.resize(this.width());
    this.queue();
  }

  width() { return Math.max(280, this.holder.clientWidth); }

  showTip(lines, left, top) {
    this.tip.replaceChildren(element("b", {}, lines[0]), ...lines.slice(1).map((line) => element("div", {}, line)));
    this.tip.hidden = false;
    const room = this.holder.clientWidth, width = this.tip.offsetWidth;
    this.tip.style.left = Math.max(0, left + width + 24 > room ? left - width - 14 : left + 14) + "px";
    this.tip.style.top = Math.max(0, top + 12) + "px";
    this.status.textContent = lines.join(" · ");
  }

  hideTip() { this.tip.hidden = true; }
}

// Steps of an axis that counts.
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9];

// What all charts share: the axes, the crosshair, and dragging.
function chartOptions(timeline, { height, y, series, hooks, cursor = {}, scales = {}, last = false }) {
  const colours = palette();
  const axis = { stroke: colours.dim, font: "11px system-ui, sans-serif", grid: { stroke: colours.grid, width: 1 }, ticks: { stroke: colours.line, width: 1 } };
  return {
    width: timeline.width(), height, legend: { show: false },
    padding: [8, y.length > 1 ? 0 : RIGHT, last ? 0 : 7, 0],
    scales: { x: { time: false, range: () => timeline.view }, ...scales },
    cursor: {
      sync: { key: "rocekit", scales: ["x", null] }, focus: { prox: -1 }, points: { show: false },
      drag: { x: true, y: false, setScale: false }, ...cursor,
      bind: { dblclick: () => () => { timeline.home(); } },
    },
    axes: [
      { ...axis, show: last, size: last ? 30 : 4, space: 95, values: (u, splits, at, space, step) => timeTicks(splits, step) },
      ...y.map((one) => ({ ...axis, size: LEFT, ...one })),
    ],
    series: [{}, ...series],
    hooks: {
      ...hooks,
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const min = u.posToVal(u.select.left, "x"), max = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        timeline.setView(min, max);
      }],
    },
  };
}
