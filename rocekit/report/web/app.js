// Makes the page: the capture, findings, connections, graphs, one transfer, all transfers, what is unknown.

const byId = (id) => document.getElementById(id);

function connectionTroubles(c) {
  return [[c.retransmitted_packets, "sent again"], [c.naks, "NAK"], [c.rnr_naks, "RNR NAK"], [c.cnps, "CNP"], [c.ce_marked, "CE"],
    [c.doubled, "came twice"], [c.bad_icrc, "wrong ICRC"]].filter(([count]) => count).map(([count, word]) => `${number(count)} ${word}`);
}

class Page {
  constructor(model) {
    this.model = model;
    this.head();
    this.findings();
    this.connectionList();
    this.graphs();
    this.transferList();
    this.theme();
    this.printing();
    // Where the link led: remember() may have replaced the address since.
    window.addEventListener("hashchange", (event) => this.follow(new URL(event.newURL).hash));
    if (!this.follow()) this.begin();
    this.started = true;
  }

  head() {
    const { capture, connections, findings, model = this.model } = this;
    const m = this.model, files = m.capture.files.map((f) => f.split("/").pop()).join(", ");
    byId("files").textContent = files;
    byId("when").textContent = (m.capture.began ? `${m.capture.began}, ${duration(m.capture.duration_ns)}` : "an empty capture") + (m.journal ? ", with a journal" : "");
    byId("nothing").replaceChildren(...[m.capture.nothing, m.capture.notice].filter(Boolean).map((n) => element("p", { class: "notice bad", role: "alert" }, n)));
    const lines = (id, words) => byId(id).replaceChildren(...words.slice(0, 6).map((line) => element("span", {}, line, element("br"))));
    lines("places", m.capture.places);
    lines("unknown", m.capture.unknown);
    const errors = m.findings.filter((f) => f.severity === "error").length, warnings = m.findings.filter((f) => f.severity === "warning").length;
    const only = errors && errors === m.findings.length ? (errors === 1 ? "error" : "errors") : warnings && warnings === m.findings.length ? (warnings === 1 ? "warning" : "warnings") : null;
    const stalled = m.capture.stalled_ns;
    const sum = (name) => m.connections.reduce((total, c) => total + c[name], 0);
    const tile = (name, value, note = "", kind = "") => element("div", { class: kind || null }, element("dt", {}, name), element("dd", {}, value, note ? " " : null, note ? element("small", {}, note) : null));
    byId("tiles").replaceChildren(
      tile("Findings", number(m.findings.length), only ?? [errors ? plural(errors, "error") : "", warnings ? plural(warnings, "warning") : ""].filter(Boolean).join(", "), errors ? "bad" : warnings ? "warn" : ""),
      tile("Time stalled", stalled ? duration(stalled) : "none", stalled ? "by at least one connection" : "", stalled ? "warn" : ""),
      tile("Sent again", number(sum("retransmitted_packets")), "packets", sum("retransmitted_packets") ? "warn" : ""),
      tile("RoCE packets", number(m.capture.roce_packets), m.capture.frames !== m.capture.roce_packets ? `of ${plural(m.capture.frames, "frame")}` : "", m.capture.nothing ? "warn" : ""),
      tile("Connections", number(m.connections.length)),
      tile("Transfers", number(m.transferCount + m.left_out)),
      tile("Payload", size(sum("bytes"))),
      tile("ICRC", m.capture.bad_icrc ? number(m.capture.bad_icrc) + " wrong" : m.capture.unchecked_icrc === m.capture.roce_packets ? "not checked" : "valid", m.capture.unchecked_icrc ? number(m.capture.unchecked_icrc) + " unchecked" : "", m.capture.bad_icrc ? "bad" : ""));
    // Zeros would read as if all were well.
    if (m.capture.nothing) for (const one of [...byId("tiles").children]) if (one.querySelector("dt").textContent !== "RoCE packets") one.remove();
    const notices = m.capture.damage.map((d) => `${d.file}: ${d.message}`);
    if (m.capture.interrupted) notices.unshift("Interrupted: only the part of the capture read until then is reported.");
    for (const met of m.capture.limits_met) notices.push(met.meaning + ".");
    if (m.capture.dropped) notices.push(`The capturing machine dropped ${plural(m.capture.dropped, "packet")}: they are not in the capture.`);
    if (m.capture.malformed_packets) notices.push(`${plural(m.capture.malformed_packets, "packet")} malformed.`);
    const foreign = m.capture.other_frames["UDP port 4791, not RoCE"];
    if (foreign && !m.capture.nothing) notices.push(`Not judged: ${plural(foreign, "frame")} to UDP port 4791 that are not RoCE, probably another program's.`);
    if (m.rowCount && m.rows_stand_for > m.rowCount) notices.push(`${number(m.rows_stand_for)} packets are drawn as ${number(m.rowCount)} bars: neighbouring plain packets share a bar; packets sent again, losses and marks are all drawn.`);
    byId("damage").replaceChildren(...notices.map((n) => element("p", { class: "notice bad" }, n)));
    this.paths(m.capture.paths);
  }

  // What happened between the capture points, of several captures of the same traffic.
  paths(found) {
    if (!found.length) return;
    const names = { packets: "packets", missing: "not at the second", missed_second: "arrived, missed by the second", overtaken: "overtaken", doubled: "came twice", only_second: "only at the second", outside: "outside" };
    const trouble = (p) => p.missing + p.overtaken + p.doubled, shown = found.filter(trouble).concat(found.filter((p) => !trouble(p))).slice(0, 20);
    const cell = (p, name) => element("td", { class: "right" + (name === "missing" && p[name] ? " bad-text" : name !== "packets" && p[name] ? " warn-text" : "") }, number(p[name]));
    const head = element("thead", {}, element("tr", {}, ...["direction", "capture points"].map((n) => element("th", { scope: "col" }, n)), ...Object.values(names).map((n) => element("th", { scope: "col", class: "right" }, n))));
    const rows = shown.map((p) => element("tr", {}, element("td", {}, p.way), element("td", {}, p.between), ...Object.keys(names).map((name) => cell(p, name))));
    const more = found.length > shown.length ? [element("p", { class: "dim" }, `${number(found.length - shown.length)} more directions`)] : [];
    byId("paths").replaceChildren(element("h2", {}, "Between the capture points"), element("div", { class: "scroll" }, element("table", { "aria-label": "Between the capture points" }, head, element("tbody", {}, ...rows))), ...more);
  }

  findings() {
    const list = byId("finding-list"), found = this.model.findings;
    if (!found.length) {
      list.replaceChildren(element("li", { class: "notice" }, this.model.capture.no_findings));
      return;
    }
    // The most severe first, and of these the most costly.
    const rank = { error: 0, warning: 1, info: 2 }, cost = (f) => f.cost.added_ns ?? 0;
    const order = found.map((_, k) => k).sort((a, b) => rank[found[a].severity] - rank[found[b].severity] || cost(found[b]) - cost(found[a]) || a - b);
    this.bySeverity = order;
    // Many alike findings are one card, that of the worst, with a list of the others.
    const alike = new Map();
    for (const k of order) if (found[k].worst !== null && found[k].worst !== k) alike.set(found[k].worst, [...(alike.get(found[k].worst) ?? []), k]);
    const make = (k) => [this.finding(found[k], k, alike.get(k) ?? [])];
    const single = order.filter((k) => found[k].worst === null || found[k].worst === k);
    const first = single.length > 14 ? 10 : single.length;
    list.replaceChildren(...single.slice(0, first).flatMap(make));
    if (single.length > first) list.append(this.moreFindings(single.slice(first), make, ""));
  }

  // A button that replaces itself with findings.
  moreFindings(numbers, make, which) {
    const more = () => { const made = numbers.flatMap(make); rest.replaceWith(...made); made[0].querySelector("a")?.focus(); };
    const rest = element("li", {}, element("button", { type: "button", onclick: more }, `Show ${number(numbers.length)} more${which}`));
    return rest;
  }

  // The findings that are like the one of a card, a line each.
  alikeList(numbers) {
    if (!numbers.length) return null;
    const line = (n) => {
      const f = this.model.findings[n], where = f.connection === null ? "" : `connection ${f.connection}: `;
      return element("li", { id: `finding-${n}` }, f.place ? element("a", { href: `#finding=${n}` }, where + f.title) : where + f.title, f.cost.added_ns ? ` (${duration(f.cost.added_ns)})` : "");
    };
    const list = element("ul", { class: "alike" });
    const open = () => { if (!list.children.length) list.append(...numbers.map(line)); };
    return element("details", { ontoggle: open }, element("summary", {}, `${number(numbers.length)} more like this`), list);
  }

  finding(f, k, alike = []) {
    const cost = [];
    if (f.cost.added_ns) cost.push(element("li", {}, element("b", {}, duration(f.cost.added_ns)), " of delay"));
    if (f.cost.repeated_packets) cost.push(element("li", {}, element("b", {}, number(f.cost.repeated_packets)), " packets sent again"));
    if (f.cost.repeated_bytes) cost.push(element("li", {}, element("b", {}, size(f.cost.repeated_bytes)), " sent again"));
    const links = [];
    if (f.place) links.push(element("a", { href: `#finding=${k}`, "aria-label": `Show in the graph: ${f.rule}${f.connection === null ? "" : ", connection " + f.connection}` }, "Show in the graph"));
    if (f.transfer !== null) links.push(" ", element("a", { href: `#t=${f.transfer}` }, `Transfer ${f.transfer}`));
    const frames = f.frames.slice(0, 12).join(", ") + (f.frames.length > 12 ? ` … (${f.frames.length} frames)` : "");
    return element("li", { class: "finding " + f.severity, id: `finding-${k}` },
      element("div", { class: "head" }, element("span", { class: "severity" }, f.severity), element("span", { class: "rule" }, f.rule),
        cost.length ? element("ul", { class: "cost", "aria-label": "Cost" }, ...cost) : null, element("span", { class: "grow" }), ...links),
      f.all === null ? null : element("p", { class: "title" }, `${f.rule} ${f.all}; ${f.connection === null ? "one of them" : "the worst"}:`),
      element("p", { class: "title" }, f.title),
      this.alikeList(alike),
      this.advice(f),
      element("div", { class: "more" }, [f.connection === null ? "" : `connection ${f.connection}`, frames ? `frames ${frames}` : ""].filter(Boolean).join(" · ")));
  }

  // The same advice is written once.
  advice(f) {
    this.advised ??= new Set();
    const words = element("p", { class: "advice" }, "→ " + f.advice);
    if (!this.advised.has(f.advice)) { this.advised.add(f.advice); return words; }
    return element("details", {}, element("summary", {}, "What to do: as above"), words);
  }

  connectionList() {
    const model = this.model, every = model.connections;
    drawTopology(model, byId("topology"), (id) => this.openConnection(id, true));
    if (!every.length) {
      byId("connection-table").replaceChildren(element("p", { class: "notice" }, "No connections."));
      return;
    }
    byId("connections-title").append(element("small", {}, "choose one to draw it"));
    const trouble = (c) => c.retransmitted_packets + c.naks + c.rnr_naks + c.bad_icrc;
    this.connections = new WindowedTable(byId("connection-table"), {
      label: "Connections", rows: every.map((_, i) => i), empty: "No match.", choose: (i) => this.openConnection(i, false), open: () => goTo("graph"),
      columns: [
        { label: "#", right: true, value: (i) => i, text: (i) => String(every[i].id) },
        { label: "Transport", value: (i) => every[i].transport, text: (i) => every[i].transport },
        { label: "A", value: (i) => endName(every[i].a), text: (i) => endName(every[i].a) },
        { label: "B", value: (i) => endName(every[i].b), text: (i) => endName(every[i].b) },
        { label: "Packets", right: true, value: (i) => every[i].packets, text: (i) => number(every[i].packets) },
        { label: "Transfers", right: true, value: (i) => every[i].transfers, text: (i) => number(every[i].transfers) },
        { label: "Payload", right: true, value: (i) => every[i].bytes, text: (i) => size(every[i].bytes) },
        { label: "MTU", right: true, value: (i) => every[i].path_mtu ?? 0, text: (i) => every[i].path_mtu ? String(every[i].path_mtu) : "?" },
        { label: "Paired by", value: (i) => every[i].paired_by ?? "", text: (i) => ({ cm: "CM exchange", psn: "PSNs" })[every[i].paired_by] ?? every[i].paired_by ?? "not paired" },
        { label: "Application", value: (i) => every[i].used_by ?? "", text: (i) => every[i].used_by ?? "unknown" },
        { label: "Trouble", right: false, value: (i) => -trouble(every[i]), text: (i) => connectionTroubles(every[i]).join(", ") || "none", style: (i) => trouble(every[i]) ? "warn-text" : "dim" },
      ],
    });
  }

  graphs() {
    const holder = byId("graph-body");
    if (!this.model.connections.length) {
      holder.replaceChildren(element("p", { class: "notice" }, "Nothing to draw."));
      return;
    }
    this.direction = element("div", { class: "bar", role: "group", "aria-label": "Direction" });
    const body = element("div");
    holder.replaceChildren(this.direction, body);
    this.timeline = new Timeline(this.model, body, { onTransfer: (t) => this.openTransfer(t), onView: () => this.remember() });
  }

  // The side that is drawn first: where something went wrong, or else the one with more packets.
  bestLane(id) {
    const m = this.model, weight = (lane) => { const [a, b] = m.rows(lane); return (b - a) + 1e6 * m.happenings(lane).filter((h) => m.kind(h) !== "cm").length; };
    return weight(2 * id + 1) > weight(2 * id) ? 2 * id + 1 : 2 * id;
  }

  openConnection(id, scroll) {
    this.openLane(this.bestLane(id));
    this.connections?.reveal(id);
    if (scroll) goTo("graph");
  }

  openLane(lane) {
    if (this.timeline.lane === lane) return;
    const id = lane >> 1, m = this.model, c = m.connections[id];
    const heading = byId("graph-title");
    heading.replaceChildren(`Connection ${c.id}`, element("small", {}, `${c.transport} · ${endName(c.a)} ⇄ ${endName(c.b)}${c.path_mtu ? " · MTU " + c.path_mtu : ""}${c.used_by ? " · " + c.used_by : ""}${["UC", "UD"].includes(c.transport) ? "" : " · " + c.timeout[lane & 1]}`));
    const button = (one) => {
      const [a, b] = m.rows(one);
      return element("button", { type: "button", "aria-pressed": String(one === lane), onclick: () => this.openLane(one) }, `Requests of ${m.laneName(one)} (${plural(b - a, "packet")})`);
    };
    const chooser = m.connections.length > 1 ? [element("label", {}, "Connection ", this.chooser(id))] : [];
    this.direction.replaceChildren(...chooser, element("span", { class: "group" }, button(2 * id), button(2 * id + 1)));
    byId("timeouts").textContent = ["UC", "UD"].includes(c.transport) ? "" : c.waits[lane & 1];
    this.timeline.show(lane);
  }

  chooser(id) {
    const m = this.model, select = element("select", { onchange: () => this.openConnection(Number(select.value), false) });
    const near = m.connections.length > 300 ? m.connections.slice(Math.max(0, id - 100), id + 200) : m.connections;
    for (const c of near) select.append(element("option", { value: c.id }, `${c.id}: ${endName(c.a)} ⇄ ${endName(c.b)}`));
    select.value = String(id);
    return select;
  }

  openTransfer(t, scroll = false) {
    const m = this.model, c = m.columns;
    this.openLane(c.t_lane[t]);
    this.timeline.select(t);
    this.table?.reveal(t);
    this.connections?.reveal(c.t_lane[t] >> 1);
    const story = m.stories[c.t_id[t]];
    const heading = byId("transfer-title");
    const name = (story?.title ?? m.operation(t)) + ` ${number(c.t_bytes[t])} bytes`;
    const wr = m.wr(t);
    heading.replaceChildren(`Transfer ${c.t_id[t]}`, element("small", {}, [name, m.laneName(c.t_lane[t]), m.status(t), wr === null ? "" : `WR ${wr}${m.completion(t) ? " " + m.completion(t) : ""}`, `duration ${duration(m.took(t))}`].filter(Boolean).join(" · ")));
    const [ladder, folded] = drawLadder(m, t);
    const words = story ? this.story(story) : element("p", { class: "dim" }, c.t_events[t] ? plural(c.t_events[t], "event") + ": see the ladder and the graphs." : "Nothing went wrong with this transfer.");
    byId("transfer-body").replaceChildren(element("div", { class: "split" },
      element("div", { class: "card" }, element("h3", {}, "What happened"), words,
        element("div", { class: "bar" }, element("button", { type: "button", onclick: () => this.zoomTo(t) }, "Show in the graph"))),
      element("div", { class: "card ladder", tabindex: 0, role: "group", "aria-label": "Ladder diagram" }, element("h3", {}, "Ladder"),
        element("p", { class: "dim", style: "margin:0 0 4px;font-size:12px" }, "Times are those at the capture point." + (folded ? " Consecutive packets share one thick arrow." : "")), ladder)));
    if (scroll) goTo("transfer");
  }

  story(story) {
    const origin = story.steps.length ? story.steps[0][0] : 0;
    const steps = story.steps.map(([time, what, detail, trouble]) => element("li", {},
      element("time", {}, "+" + duration(time - origin)), element("span", { class: trouble ? "trouble" : null }, element("b", {}, what), " ", detail)));
    return element("div", {}, element("p", { style: "margin:0 0 6px" }, story.verdict), element("ol", { class: "story" }, ...steps), ...story.notes.map((n) => element("p", { class: "dim", style: "margin:2px 0;font-size:13px" }, n)));
  }

  zoomTo(t) {
    const m = this.model, c = m.columns, begin = this.timeline.charts[0]?.began?.(t) ?? c.t_first[t];
    const end = Math.max(m.end(t), m.column("t_polled", t)), width = Math.max(2_000, end - begin);
    this.timeline.setView(begin - width * .25, end + width * .25);
    goTo("graph");
  }

  transferList() {
    const m = this.model, c = m.columns, holder = byId("transfer-table");
    byId("transfers-title").append(element("small", { id: "transfer-count", "aria-live": "polite" }));
    if (!m.transferCount) {
      holder.replaceChildren(element("p", { class: "notice" }, "No transfers."));
      byId("transfer-body").replaceChildren(element("p", { class: "notice" }, "No transfers."));
      return;
    }
    const bad = (t) => c.t_events[t] > 0 || !["acked", "sent"].includes(m.status(t)) || (m.completion(t) ?? "SUCCESS") !== "SUCCESS";
    const troubles = (t) => [[c.t_again[t], "sent again"], [c.t_naks[t], "NAK"], [c.t_rnrs[t], "RNR NAK"], [c.t_timeouts[t], "timeout"]].filter(([n]) => n).map(([n, w]) => `${number(n)} ${w}`).join(", ");
    const columns = [
      { label: "#", right: true, value: (t) => c.t_id[t], text: (t) => String(c.t_id[t]) },
      { label: "Conn.", right: true, value: (t) => c.t_lane[t] >> 1, text: (t) => String(c.t_lane[t] >> 1) },
      { label: "Operation", value: (t) => m.operation(t), text: (t) => m.operation(t) },
      { label: "From → to", value: (t) => m.laneName(c.t_lane[t]), text: (t) => m.laneName(c.t_lane[t]) },
      { label: "Bytes", right: true, value: (t) => c.t_bytes[t], text: (t) => number(c.t_bytes[t]) },
      { label: "Packets", right: true, value: (t) => c.t_packets[t], text: (t) => number(c.t_packets[t]) },
      { label: "PSN", right: true, value: (t) => c.t_psn[t], text: (t) => String(wirePsn(c.t_psn[t])) },
      { label: "At", right: true, value: (t) => c.t_first[t], text: (t) => duration(c.t_first[t]) },
      { label: "Duration", right: true, value: (t) => m.took(t), text: (t) => duration(m.took(t)) },
      { label: "Status", value: (t) => m.status(t), text: (t) => m.status(t), style: (t) => ["acked", "sent"].includes(m.status(t)) ? "" : "bad-text" },
      { label: "Trouble", value: (t) => -(c.t_events[t]), text: (t) => troubles(t) || (c.t_events[t] ? plural(c.t_events[t], "event") : ""), style: () => "warn-text" },
    ];
    if (m.journal) columns.splice(1, 0, { label: "WR", right: true, value: (t) => Number(m.wr(t) ?? -1), text: (t) => m.wr(t) ?? "" });
    if (m.journal) columns.push({ label: "WC", value: (t) => m.completion(t) ?? "", text: (t) => m.completion(t) ?? "", style: (t) => (m.completion(t) ?? "SUCCESS") === "SUCCESS" ? "dim" : "bad-text" });
    const search = element("input", { type: "search", placeholder: "READ, 10.9.0.1, acked, WR 7, #12 …", "aria-label": "Filter transfers by any word", oninput: () => apply() });
    const only = element("input", { type: "checkbox", onchange: () => apply() });
    const table = element("div");
    holder.replaceChildren(element("div", { class: "bar" }, element("label", {}, "Filter ", search), element("label", {}, only, " only with trouble")), table);
    this.table = new WindowedTable(table, { label: "Transfers", rows: Array.from({ length: m.transferCount }, (_, t) => t), columns, empty: "No transfer matches the filter.", choose: (t) => this.openTransfer(t), open: () => goTo("transfer") });
    const words = (t) => [m.operation(t), m.laneName(c.t_lane[t]), m.status(t), m.wr(t) === null ? "" : "wr " + m.wr(t), "#" + c.t_id[t], m.completion(t) ?? "", troubles(t)].join(" ").toLowerCase();
    const apply = () => {
      const wanted = search.value.trim().toLowerCase();
      // "WR 7" and "#12" mean those alone, everything else any part of a row.
      const exact = /^(wr |#)(\d+)$/.exec(wanted);
      const fits = !wanted ? null : exact ? (t) => exact[1] === "#" ? String(c.t_id[t]) === exact[2] : m.wr(t) === exact[2] : (t) => words(t).includes(wanted);
      this.table.filter(fits || only.checked ? (t) => (!only.checked || bad(t)) && (!fits || fits(t)) : null);
      count();
    };
    const count = () => {
      const left = m.left_out ? `; ${number(m.left_out)} more without trouble are only counted` : "";
      byId("transfer-count").textContent = `${number(this.table.shown.length)} of ${number(m.transferCount)}${left}`;
    };
    count();
  }

  // Where to start: the connection of the most severe finding, or else the busiest; and its most troubled transfer.
  begin() {
    const m = this.model, c = m.columns;
    if (!m.connections.length) return;
    const found = (this.bySeverity ?? []).map((k) => m.findings[k]).find((f) => f.place);
    if (found) this.openLane(found.place.lane);
    else this.openLane(this.bestLane(m.connections.reduce((best, x) => x.packets > m.connections[best].packets ? x.id : best, 0)));
    const own = m.transfers(this.timeline.lane);
    const worst = found?.transfer != null && m.placeOfTransfer.has(found.transfer) ? m.placeOfTransfer.get(found.transfer)
      : own.length ? own.reduce((best, t) => c.t_events[t] > c.t_events[best] || (c.t_events[t] === c.t_events[best] && m.took(t) > m.took(best)) ? t : best) : m.transferCount ? 0 : -1;
    const lane = this.timeline.lane;
    if (worst >= 0 && c.t_lane[worst] === lane) this.openTransfer(worst);
    else if (worst >= 0) { this.openTransfer(worst); this.openLane(lane); }
    this.connections?.reveal(lane >> 1);
  }

  // The address is that of what is shown: lane, view, transfer and finding. It can be copied at any time.
  remember() {
    clearTimeout(this.remembering);
    if (!this.started) return;
    this.remembering = setTimeout(() => {
      const { lane, view, selected, finding } = this.timeline;
      const parts = [`view=${lane}:${view.map(Math.round).join(":")}`];
      if (selected >= 0) parts.push(`t=${this.model.columns.t_id[selected]}`);
      if (finding) parts.push(`finding=${this.model.findings.indexOf(finding)}`);
      try { history.replaceState(null, "", "#" + parts.join("&")); } catch { /* inside another page */ }
    }, 150);
  }

  // #view=LANE:FROM:UNTIL&t=16&finding=2
  restore(words) {
    const m = this.model, [lane, from, until] = (words.get("view") ?? "").split(":").map(Number), t = m.placeOfTransfer.get(Number(words.get("t") ?? NaN));
    if (!(lane >= 0 && lane < 2 * m.connections.length && until > from)) return false;
    if (t !== undefined) this.openTransfer(t);
    this.openLane(lane);
    this.connections?.reveal(lane >> 1);
    const finding = m.findings[Number(words.get("finding") ?? NaN)];
    if (finding?.place?.lane === lane) { this.timeline.focusFinding(finding); }
    if (t !== undefined && m.columns.t_lane[t] === lane) this.timeline.select(t);
    this.timeline.setView(from, until);
    return true;
  }

  // Addresses within the page: #finding=2, #t=16, #c=0, or a whole view.
  follow(address = location.hash) {
    if (/^#view=/.test(address) && this.timeline) return this.restore(new URLSearchParams(address.slice(1)));
    const wanted = /^#(finding|t|c)=(\d+)$/.exec(address);
    if (!wanted || !this.timeline) return false;
    const at = Number(wanted[2]), m = this.model;
    if (wanted[1] === "finding" && m.findings[at]?.place) {
      const f = m.findings[at];
      if (f.transfer !== null && m.placeOfTransfer.has(f.transfer)) this.openTransfer(m.placeOfTransfer.get(f.transfer));
      this.openLane(f.place.lane);
      this.connections?.reveal(f.place.lane >> 1);
      this.timeline.focusFinding(f);
      goTo("graph");
      return true;
    }
    if (wanted[1] === "t" && m.placeOfTransfer.has(at)) { this.openTransfer(m.placeOfTransfer.get(at), true); return true; }
    if (wanted[1] === "c" && m.connections[at]) { this.openConnection(at, true); return true; }
    return false;
  }

  theme() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const modes = ["system", "light", "dark"];
    let mode = "system";
    try { mode = modes.includes(localStorage.getItem("rocekit-theme")) ? localStorage.getItem("rocekit-theme") : mode; } catch { /* a page from a file may have no storage */ }
    const apply = (shown = mode) => {
      document.documentElement.dataset.theme = shown === "system" ? (dark.matches ? "dark" : "light") : shown;
      byId("theme").textContent = "Theme: " + mode;
      this.recolour();
    };
    byId("theme").addEventListener("click", () => {
      mode = modes[(modes.indexOf(mode) + 1) % 3];
      try { localStorage.setItem("rocekit-theme", mode); } catch { /* see above */ }
      apply();
    });
    dark.addEventListener("change", () => apply());
    this.applyTheme = apply;
    apply();
  }

  // Axes and signs are on canvas: draw them again in the new colours.
  recolour() {
    const timeline = this.timeline;
    if (!timeline || timeline.lane < 0) return;
    const { lane, view, selected, finding } = timeline;
    timeline.show(lane);
    Object.assign(timeline, { selected, finding });
    timeline.setView(...view);
  }

  printing() {
    const tables = () => [this.connections, this.table].filter(Boolean);
    window.addEventListener("beforeprint", () => { this.applyTheme("light"); this.timeline?.redraw(); for (const t of tables()) t.draw(true, true); });
    window.addEventListener("afterprint", () => { this.applyTheme(); for (const t of tables()) t.draw(true); });
  }
}

loadModel().then((model) => {
  const page = new Page(model);
  byId("loading").remove();
  window.rocekit = { model, page };
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.ready = "true"; }));
}).catch((error) => {
  byId("loading").textContent = "This report cannot be shown: " + error.message;
  byId("loading").className = "notice bad";
  console.error(error);
});
