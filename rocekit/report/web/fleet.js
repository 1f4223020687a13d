// The page of a fleet: which hosts stand out, when it began, and for each number the command that shows its packets.

const byId = (id) => document.getElementById(id);
const share = (lost, packets) => packets ? (lost ? (100 * lost / packets).toPrecision(2) + " %" : "0") : "";
const way = (row) => `${row.src} → ${row.dst}`;
const maybe = (value, words = number) => value === null || value === undefined ? "" : words(value);

class FleetPage {
  constructor(model) {
    this.model = model;
    this.head();
    this.verdict();
    this.comparison();
    this.timeline();
    this.tables();
    this.matrix();
    this.theme();
    byId("command").querySelector("button").addEventListener("click", () => this.copy());
  }

  head() {
    const m = this.model, t = m.total;
    byId("lake").textContent = m.lake;
    const shown = m.span[0] || m.span[1] ? `; shown: ${m.span[0] ?? "the beginning"} to ${m.span[1] ?? "the end"}` : "";
    byId("when").textContent = t.began ? `${t.began} to ${t.ended}, by the captures' own clocks${shown}` : "no capture could be read";
    const tile = (name, value, note = "", kind = "") => element("div", { class: kind || null }, element("dt", {}, name), element("dd", {}, value, note ? " " : null, note ? element("small", {}, note) : null));
    const sum = (name, value, words = number(value)) => this.numberLink(words, m.commands[name]);
    byId("tiles").replaceChildren(
      tile("Hosts that stand out", m.judged ? sum("hosts", m.hosts.length) : "?", "", m.hosts.length ? "bad" : ""),
      tile("Packets lost", sum("lost", m.lost), "at least", m.lost ? "warn" : ""),
      tile("Ways with troubles", sum("troubled_ways", m.troubled_ways), element("span", {}, "of ", sum("all_ways", m.all_ways)), m.troubled_ways ? "warn" : ""),
      tile("RoCE packets", sum("packets", t.packets), "in all captures"),
      tile("Captures", sum("captures", t.captures), t.unreadable ? sum("unreadable", t.unreadable, `${number(t.unreadable)} unreadable`) : "", t.unreadable ? "warn" : ""),
      tile("Capture points", sum("points", t.points)));
    const notices = [];
    const notice = (name, value, what, rest) => { if (value) notices.push([sum(name, value, plural(value, what)), rest]); };
    notice("unreadable", t.unreadable, "capture", " could not be read: see Captures. Nothing is known of what only they have.");
    notice("notices", t.notices, "capture", " could not be judged as a whole: see Captures.");
    notice("dropped", t.dropped, "packet", " dropped by the capturing machines: in no capture.");
    byId("damage").replaceChildren(...notices.map((parts) => element("p", { class: "notice bad" }, ...parts)));
    byId("unknown").textContent = "A loss that several captures show counts once: as the point that shows most, or as counted between two points. Times are of the captures' own clocks, which may differ; Between capture points says by how much, where it is known.";
  }

  show(command) {
    const box = byId("command");
    box.hidden = !command;
    box.querySelector("code").textContent = command ?? "";
    box.querySelector("button").textContent = "Copy";
  }

  async copy() {
    const box = byId("command"), code = box.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      box.querySelector("button").textContent = "Copied";
    } catch { // a page from a file may not write to the clipboard
      getSelection().selectAllChildren(code);
      box.querySelector("button").textContent = "Selected";
    }
  }

  commandLink(command) {
    return command ? element("button", { type: "button", class: "show", onclick: () => this.show(command), title: command }, "Show the command") : null;
  }

  // A number that shows, when it is pressed, the command that lists what it is made of.
  numberLink(words, command) {
    return element("button", { type: "button", class: "number", title: command, onclick: () => this.show(command) }, words);
  }

  verdict() {
    const m = this.model, card = (kind, row, label) => element("li", { class: "finding " + kind },
      element("div", { class: "head" }, element("span", { class: "severity" }, label), element("span", { class: "rule" }, row.first_ns ? "" : ""), element("span", { class: "grow" }), this.commandLink(row.command)),
      element("p", { class: "title" }, row.words));
    const cards = m.hosts.map((row) => card("error", row, row.host)).concat(m.links.map((row) => card("warning", row, way(row))));
    const first = cards.slice(0, 12), rest = cards.slice(12);
    if (!cards.length) first.push(element("li", { class: "notice" }, !m.judged ? "Not judged: a run was stopped before its end. The same `rocekit fleet analyze` completes it." : m.lost ? "No host stands out: losses are spread, or too few to judge." : "No losses in these captures."));
    byId("host-list").replaceChildren(...first);
    if (rest.length) {
      const more = element("li", {}, element("button", { type: "button", onclick: () => more.replaceWith(...rest) }, `Show ${number(rest.length)} more`));
      byId("host-list").append(more);
    }
    if (!m.judged_whole) byId("verdict-title").append(element("small", {}, "of the whole LAKE, not only of the time shown"));
  }

  table(id, label, rows, columns, empty = "None.") {
    const holder = byId(id);
    if (!rows.length) { holder.replaceChildren(element("p", { class: "notice" }, empty)); return; }
    const made = new WindowedTable(holder, { label, rows: rows.map((_, i) => i), empty, choose: (i) => this.show(rows[i].command ?? rows[i].b_command ?? rows[i].a_command),
      columns: columns.map(([name, value, words, style]) => ({ label: name, right: words !== undefined && words !== null,
        value: (i) => value(rows[i]) ?? -1, text: (i) => words ? maybe(value(rows[i]), words) : String(value(rows[i]) ?? ""), style: style ? (i) => style(rows[i]) : undefined })) });
    if (rows.length < 14) made.scroll.style.maxHeight = "none";
  }

  tables() {
    const m = this.model, bad = (name) => (r) => r[name] ? "bad-text" : null;
    const hint = (id, words) => byId(id).append(element("small", {}, words));
    for (const id of ["first-title", "ways-title"]) hint(id, "click a row for the command that shows its packets");
    this.table("first-table", "First troubles", m.first, [
      ["When", (r) => r.at_utc], ["What", (r) => r.rule], ["From → to", way], ["Lost", (r) => r.lost_packets, number, bad("lost_packets")],
      ["Where", (r) => r.place ? r.place + " the capture point" : r.lost_packets ? "unknown" : ""], ["Delay", (r) => r.added_ns, duration], ["Seen at", (r) => r.at]], "No trouble in this time.");
    this.table("together-table", "What began together", m.together, [
      ["Began", (r) => r.at], ["Within", (r) => r.span_ns, duration], ["Ways", (r) => r.ways, number], ["Rules", (r) => r.rules.join(", ")], ["First", (r) => r.first]], "No trouble in this time.");
    this.table("ways-table", "Worst ways", m.ways, [
      ["From → to", way], ["Lost", (r) => r.lost_packets, number, bad("lost_packets")], ["Share", (r) => r.packets ? r.lost_packets / r.packets : 0, (v) => share(v, 1)], ["Packets", (r) => r.packets, number],
      ["Troubles", (r) => r.troubles, number], ["Delay", (r) => r.added_ns, duration], ["First", (r) => r.first]], "No troubles.");
    this.table("addresses-table", "Hosts", m.addresses, [
      ["Host", (r) => r.host], ["Lost to it", (r) => r.to, number, bad("to")], ["Share", (r) => r.to_packets ? r.to / r.to_packets : 0, (v) => share(v, 1)],
      ["Lost from it", (r) => r.from, number, bad("from")], ["Share ", (r) => r.from_packets ? r.from / r.from_packets : 0, (v) => share(v, 1)], ["Peers", (r) => r.peers, number]]);
    this.table("rules-table", "Findings", m.rules, [
      ["Severity", (r) => r.severity, null, (r) => r.severity === "error" ? "bad-text" : r.severity === "warning" ? "warn-text" : null], ["Rule", (r) => r.rule], ["Findings", (r) => r.findings, number],
      ["Captures", (r) => r.captures, number], ["Delay", (r) => r.added_ns || null, duration], ["First", (r) => r.first]], "No findings.");
    this.table("paths-table", "Between capture points", m.paths, [
      ["From → to", way], ["First point", (r) => r.first_point], ["Second point", (r) => r.second_point], ["Packets", (r) => r.packets, number],
      ["Never arrived", (r) => r.order_by === "files" ? null : r.missing, number, bad("missing")], ["Overtaken", (r) => r.overtaken, number], ["Came twice", (r) => r.doubled, number], ["Corrupted", (r) => r.corrupted, number]],
      "No two captures have the same traffic between hosts with troubles.");
    if (m.clocks.length) {
      byId("clocks-table").before(element("h3", { style: "margin-top:14px" }, "Clocks"));
      this.table("clocks-table", "Clocks", m.clocks, [
        ["Capture point", (r) => r.point], ["Other point", (r) => r.other_point], ["Hosts", (r) => `${r.a_ip}, ${r.b_ip}`], ["Packets in common", (r) => r.common, number],
        ["Other's clock ahead", (r) => r.offset_ns, duration], ["At most off by", (r) => r.bound_ns, duration], ["Error", (r) => r.error ?? ""]]);
    } else byId("clocks-table").remove();
    this.table("captures-table", "Captures", m.points, [
      ["Point", (r) => r.point], ["Taken at", (r) => r.taken_at ? r.taken_at + (r.taken_surely ? "" : ", probably") : "unknown"], ["RoCE packets", (r) => r.roce_packets, number],
      ["Troubles", (r) => r.troubles, number], ["Lost", (r) => r.lost_packets, number, bad("lost_packets")], ["Says", (r) => r.error ?? r.notice ?? r.damage ?? "", null, (r) => r.error ? "bad-text" : "warn-text"]]);
  }

  // Rows are ways between hosts, columns are times; the darker, the more troubles.
  timeline() {
    const t = this.model.timeline, holder = byId("timeline-body");
    if (!t.pairs.length) { holder.replaceChildren(element("p", { class: "dim", style: "margin:0" }, "No trouble in this time.")); return; }
    const label = 8 + 7 * Math.max(...t.pairs.map((p) => way(p).length)), step = Math.max(3, Math.floor(Math.min(960 / t.bins, 28))), rowHeight = 20;
    const width = label + t.bins * step + 8, height = t.pairs.length * rowHeight + 28;
    const most = Math.max(...t.pairs.flatMap((p) => p.cells.map(([, n]) => n))), parts = [];
    t.pairs.forEach((pair, k) => {
      const y = k * rowHeight, group = shape("g", { class: "link" });
      group.append(shape("rect", { x: 0, y, width, height: rowHeight - 2, fill: "transparent" }), this.text(label - 8, y + 13, way(pair), "end"),
        shape("line", { x1: label, x2: label + t.bins * step, y1: y + rowHeight - 2, y2: y + rowHeight - 2, stroke: "var(--grid)" }));
      for (const [bin, n, command] of pair.cells) {
        const cell = shape("rect", { x: label + bin * step, y: y + 1, width: Math.max(2, step - 1), height: rowHeight - 4, fill: "var(--nak)", "fill-opacity": 0.35 + 0.65 * Math.log1p(n) / Math.log1p(most) });
        cell.append(shape("title", {}, `${way(pair)}: ${plural(n, "trouble")} at +${duration(bin * t.width_ns)}`));
        cell.addEventListener("click", (event) => { event.stopPropagation(); this.show(command); });
        group.append(cell);
      }
      this.pressable(group, way(pair), pair.command);
      parts.push(group);
    });
    const ticks = Math.min(6, t.bins);
    for (let k = 0; k < ticks; k++) {
      const bin = Math.floor(k * t.bins / ticks);
      parts.push(this.text(label + bin * step, height - 8, "+" + duration(bin * t.width_ns), "start", "dim-text"));
    }
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Troubles by way and time" }, ...parts);
    svg.style.maxWidth = "100%"; svg.style.height = "auto";
    holder.replaceChildren(element("p", { class: "dim", style: "margin:0 0 6px;font-size:13px" },
      `Each row is a way from one host to another, the earliest first; each column ${duration(t.width_ns)} from ${t.began} on.`), svg);
  }

  matrix() {
    const x = this.model.matrix, holder = byId("matrix-body"), n = x.hosts.length;
    if (!n) { holder.replaceChildren(element("p", { class: "dim", style: "margin:0" }, "No traffic.")); return; }
    const label = 8 + 7 * Math.max(...x.hosts.map((h) => h.length)), step = n > 24 ? 16 : 22, size = label + n * step + 10;
    const worst = Math.max(1e-12, ...x.cells.map(([, , lost, packets]) => lost / Math.max(1, packets))), parts = [];
    x.hosts.forEach((host, k) => {
      parts.push(this.text(label - 6, label + k * step + step / 2 + 4, host, "end"));
      const top = this.text(0, 0, host, "start");
      top.setAttribute("transform", `translate(${label + k * step + step / 2 + 4} ${label - 6}) rotate(-90)`);
      parts.push(top);
    });
    for (const [from, to, lost, packets, command] of x.cells) {
      const cell = shape("rect", { x: label + to * step, y: label + from * step, width: step - 2, height: step - 2, rx: 3, fill: lost ? "var(--nak)" : "var(--ack)", "fill-opacity": lost ? 0.35 + 0.65 * lost / Math.max(1, packets) / worst : 0.28 });
      const words = `${x.hosts[from]} → ${x.hosts[to]}: ${plural(lost, "packet")} of ${number(packets)} lost`;
      if (lost) { const group = shape("g", { class: "link" }, cell); this.pressable(group, words, command); parts.push(group); }
      else { cell.append(shape("title", {}, words)); cell.addEventListener("click", () => this.show(command)); parts.push(cell); }
    }
    const svg = shape("svg", { viewBox: `0 0 ${size} ${size}`, width: size, height: size, role: "group", "aria-label": "Losses from each host to each other" }, ...parts);
    svg.style.maxWidth = "100%"; svg.style.height = "auto";
    const of = x.of > n ? ` The ${number(n)} hosts with most losses, of ${number(x.of)}.` : "";
    holder.replaceChildren(element("p", { class: "dim", style: "margin:0 0 6px;font-size:13px" }, "Rows send, columns receive. Red: packets were lost, the darker the more of them; green: none; empty: no traffic." + of), svg);
  }

  comparison() {
    const c = this.model.comparison;
    if (!c) return;
    byId("comparison").hidden = false;
    const [a, b] = c.names, [x, y] = c.totals;
    byId("comparison-title").textContent = `${a} and ${b}`;
    const side = (t, k, rest) => [this.numberLink(number(t.lost), c.commands[k]), ` of ${number(t.packets)}${rest} (${share(t.lost, t.packets) || "no traffic"})`];
    byId("comparison-title").append(element("small", {}, "lost: ", ...side(x, 0, " packets"), ", then ", ...side(y, 1, "")));
    const words = (r, s) => r[s + "_packets"] === null || r[s + "_packets"] === 0 ? "no traffic" : share(r[s + "_lost"], r[s + "_packets"]);
    const rate = (r, s) => (r[s + "_lost"] ?? 0) / Math.max(1, r[s + "_packets"] ?? 0);
    this.table("comparison-table", "Comparison", c.rows, [
      ["From → to", way], [`Lost, ${a}`, (r) => r.a_lost, number], [`share, ${a}`, (r) => words(r, "a")], [`Lost, ${b}`, (r) => r.b_lost, number], [`share, ${b}`, (r) => words(r, "b")],
      [`Delay, ${a}`, (r) => r.a_added_ns, duration], [`Delay, ${b}`, (r) => r.b_added_ns, duration],
      ["What changed", (r) => !r.a_packets ? "no traffic before" : !r.b_packets ? "no traffic after" : rate(r, "b") > rate(r, "a") ? "more lost" : rate(r, "b") < rate(r, "a") ? "less lost" : "the same", null, (r) => r.a_packets && r.b_packets && rate(r, "b") > rate(r, "a") ? "bad-text" : null]],
      "Nothing was lost in either.");
  }

  pressable(group, words, command) {
    fill(group, { tabindex: 0, role: "button", "aria-label": words, onclick: () => this.show(command),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.show(command); } } }, [shape("title", {}, words)]);
  }

  text(x, y, words, anchor, kind = "") {
    return shape("text", { x, y, "text-anchor": anchor, class: kind || null }, words);
  }

  theme() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)"), modes = ["system", "light", "dark"];
    let mode = "system";
    const apply = () => {
      document.documentElement.dataset.theme = mode === "system" ? (dark.matches ? "dark" : "light") : mode;
      byId("theme").textContent = "Theme: " + mode;
    };
    byId("theme").addEventListener("click", () => { mode = modes[(modes.indexOf(mode) + 1) % 3]; apply(); });
    dark.addEventListener("change", apply);
    apply();
  }
}

(async () => {
  const packed = byId("data");
  try {
    const model = await unpackDocument(packed.textContent);
    packed.textContent = "";
    window.rocekit = { model, page: new FleetPage(model) };
    byId("loading").remove();
  } catch (error) {
    byId("loading").textContent = "This page cannot be shown: " + error.message;
    throw error;
  }
  document.documentElement.dataset.ready = "";
})();
