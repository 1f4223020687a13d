// What is shown, to keep: a link to this very view, and the graphs in view as PNG, SVG and CSV.

// Draws into SVG what the PSN graph draws on a canvas: the calls that it and its signs use.
class SvgContext {
  constructor(measure) {
    this.measure = measure;
    this.parts = [];
    this.stack = [];
    this.path = "";
    this.dash = [];
    this.clips = 0;
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "11px sans-serif", textAlign: "left", textBaseline: "top", lineCap: "butt", lineJoin: "miter", globalAlpha: 1 });
    this.move = [0, 0, 1];
  }

  at(x, y) { const [dx, dy, scale] = this.move; return [dx + x * scale, dy + y * scale].map((v) => Math.round(v * 100) / 100); }
  add(text) { this.parts.push(text); }
  save() { this.stack.push({ move: this.move, clips: this.clips, fillStyle: this.fillStyle, strokeStyle: this.strokeStyle, lineWidth: this.lineWidth, font: this.font, textAlign: this.textAlign, textBaseline: this.textBaseline, dash: this.dash }); }
  restore() { const before = this.stack.pop(); for (; this.clips > before.clips; this.clips--) this.add("</g>"); Object.assign(this, before); }
  setTransform() { this.move = [0, 0, 1]; }
  translate(x, y) { const [dx, dy] = this.at(x, y); this.move = [dx, dy, this.move[2]]; }
  scale(x) { this.move = [this.move[0], this.move[1], this.move[2] * x]; }
  beginPath() { this.path = ""; }
  closePath() { this.path += "Z"; }
  moveTo(x, y) { this.path += `M${this.at(x, y)}`; }
  lineTo(x, y) { this.path += `L${this.at(x, y)}`; }
  rect(x, y, w, h) { const [a, b] = this.at(x, y), s = this.move[2]; this.path += `M${a},${b}h${w * s}v${h * s}h${-w * s}Z`; this.box = [a, b, w * s, h * s]; }
  arc(x, y, r, from, to) {
    const [a, b] = this.at(x, y), s = r * this.move[2];
    if (to - from >= 2 * Math.PI - .3) { this.path += `M${a - s},${b}a${s},${s} 0 1 0 ${2 * s},0a${s},${s} 0 1 0 ${-2 * s},0`; return; }
    const [x1, y1, x2, y2] = [a + s * Math.cos(from), b + s * Math.sin(from), a + s * Math.cos(to), b + s * Math.sin(to)];
    this.path += `${this.path ? "L" : "M"}${x1},${y1}A${s},${s} 0 ${to - from > Math.PI ? 1 : 0} 1 ${x2},${y2}`;
  }
  clip() {
    const [x, y, w, h] = this.box, id = `clip${this.parts.length}`;
    this.add(`<clipPath id="${id}"><rect x="${x}" y="${y}" width="${w}" height="${h}"/></clipPath><g clip-path="url(#${id})">`);
    this.clips++;
  }
  lines() { return `fill="none" stroke="${this.strokeStyle}" stroke-width="${this.lineWidth * this.move[2]}"${this.dash.length ? ` stroke-dasharray="${this.dash}"` : ""} stroke-linejoin="${this.lineJoin}"`; }
  stroke() { if (this.path) this.add(`<path d="${this.path}" ${this.lines()}/>`); }
  fill() { if (this.path) this.add(`<path d="${this.path}" fill="${this.fillStyle}"/>`); }
  fillRect(x, y, w, h) { const [a, b] = this.at(x, y), s = this.move[2]; this.add(`<rect x="${a}" y="${b}" width="${Math.max(0, w * s)}" height="${Math.max(0, h * s)}" fill="${this.fillStyle}"/>`); }
  strokeRect(x, y, w, h) { const [a, b] = this.at(x, y), s = this.move[2]; this.add(`<rect x="${a}" y="${b}" width="${Math.max(0, w * s)}" height="${Math.max(0, h * s)}" ${this.lines()}/>`); }
  setLineDash(dash) { this.dash = dash; }
  measureText(words) { this.measure.font = this.font; return this.measure.measureText(words); }
  fillText(words, x, y) {
    const [a, b] = this.at(x, y), anchor = { left: "start", start: "start", right: "end", end: "end", center: "middle" }[this.textAlign];
    const drop = { top: ".85em", middle: ".35em", bottom: "-.2em", alphabetic: "0" }[this.textBaseline] ?? "0";
    this.add(`<text x="${a}" y="${b}" dy="${drop}" text-anchor="${anchor}" fill="${this.fillStyle}" style="font:${escaped(this.font)}">${escaped(words)}</text>`);
  }
  drawImage(canvas, x, y, w, h) { const [a, b] = this.at(x, y); this.add(`<image x="${a}" y="${b}" width="${w}" height="${h}" href="${canvas.toDataURL("image/png")}"/>`); }
}

const escaped = (words) => String(words).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

const titleOf = (chart) => chart.box.querySelector("h3").firstChild.textContent;

// What is in view, in words: the two lines above a picture.
function viewWords(timeline) {
  const [min, max] = timeline.view, model = timeline.model, files = model.capture.files.map((f) => f.split("/").pop()).join(", ");
  const [from, until] = timeTicks([min, max], (max - min) / 10);
  return [`${files}: ${from} to ${until} since its first packet`, `connection ${timeline.lane >> 1}, requests of ${model.laneName(timeline.lane)}`];
}

// The charts in view on one canvas.
function pictureOf(timeline) {
  const ratio = window.devicePixelRatio || 1, colours = palette(), head = 44, title = 18;
  const sheets = timeline.charts.map((chart) => [titleOf(chart), chart.plot.ctx.canvas]);
  const width = Math.max(...sheets.map(([, sheet]) => sheet.width)) / ratio, height = head + sheets.reduce((sum, [, sheet]) => sum + title + sheet.height / ratio, 0);
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio; canvas.height = height * ratio;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.fillStyle = colours.card; ctx.fillRect(0, 0, width, height);
  ctx.textBaseline = "middle"; ctx.fillStyle = colours.text; ctx.font = "600 13px system-ui, sans-serif";
  viewWords(timeline).forEach((words, k) => ctx.fillText(words, 8, 13 + 18 * k));
  let y = head;
  for (const [words, sheet] of sheets) {
    ctx.fillStyle = colours.dim; ctx.font = "600 12px system-ui, sans-serif";
    ctx.fillText(words, 8, y + title / 2);
    ctx.drawImage(sheet, 0, y + title, sheet.width / ratio, sheet.height / ratio);
    y += title + sheet.height / ratio;
  }
  return canvas;
}

// The same as SVG: the PSN graph as lines and words, its axes too; the graphs below it as pictures.
function vectorOf(timeline) {
  const colours = palette(), ratio = window.devicePixelRatio || 1, [psn, ...others] = timeline.charts, head = 44, title = 18;
  const measure = document.createElement("canvas").getContext("2d"), ctx = new SvgContext(measure);
  const { x0, y0, w, h } = psn.geometry, wide = psn.plot.width, plot = psn.plot;
  ctx.textBaseline = "middle"; ctx.font = "11px system-ui, sans-serif";
  const [min, max] = timeline.view, step = (max - min) / 8, times = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((k) => min + k * step);
  const words = timeTicks(times, step / 10);
  ctx.strokeStyle = colours.grid;
  times.forEach((t, k) => {
    const x = x0 + (t - min) / (max - min) * w;
    ctx.beginPath(); ctx.moveTo(x, y0); ctx.lineTo(x, y0 + h); ctx.stroke();
    ctx.fillStyle = colours.dim; ctx.textAlign = "center"; ctx.fillText(words[k], x, y0 + h + 14);
  });
  const [bottom, upper] = psn.y, every = WHOLE.find((n) => (upper - bottom) / n <= 8) ?? upper - bottom;
  for (let p = Math.ceil(bottom / every) * every; p <= upper; p += every) {
    const y = y0 + h - (p - bottom) / (upper - bottom) * h;
    ctx.beginPath(); ctx.moveTo(x0, y); ctx.lineTo(x0 + w, y); ctx.stroke();
    ctx.textAlign = "right"; ctx.fillText(String(wirePsn(p)), x0 - 8, y);
  }
  const bbox = plot.bbox;
  psn.paint({ ctx, bbox });
  let y = head + title + plot.height;
  const below = [];
  for (const chart of others) {
    const sheet = chart.plot.ctx.canvas;
    below.push(`<text x="8" y="${y + 13}" fill="${colours.dim}" style="font:600 12px sans-serif">${escaped(titleOf(chart))}</text>`,
      `<image x="0" y="${y + title}" width="${sheet.width / ratio}" height="${sheet.height / ratio}" href="${sheet.toDataURL("image/png")}"/>`);
    y += title + sheet.height / ratio;
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${wide} ${y}" width="${wide}" height="${y}"><title>${escaped(viewWords(timeline).join(", "))}</title>` +
    `<rect width="100%" height="100%" fill="${colours.card}"/>` +
    viewWords(timeline).map((words, k) => `<text x="8" y="${17 + 18 * k}" fill="${colours.text}" style="font:600 13px sans-serif">${escaped(words)}</text>`).join("") +
    `<text x="8" y="${head + 13}" fill="${colours.dim}" style="font:600 12px sans-serif">PSN over time</text><g transform="translate(0 ${head + title})">${ctx.parts.join("")}</g>${below.join("")}</svg>\n`;
}

// The packets in view, a line each.
function tableOf(timeline) {
  const model = timeline.model, c = model.columns, lines = ["time_ns,frame,from,opcode,psn,payload_bytes,round,did_not_arrive,acknowledged_psn,packets"];
  const [requester, responder] = model.laneEnds(timeline.lane).map(endName), bits = 2 ** model.frame_bits, several = model.capture.files.length > 1;
  for (let i = timeline.low; i < timeline.high; i++) {
    const frame = several ? `${Math.floor(c.frame[i] / bits)}:${c.frame[i] % bits}` : c.frame[i];
    lines.push([c.time[i], frame, model.isResponse(i) ? responder : requester, model.opcode(i), wirePsn(c.psn[i]), c.bytes[i], c.round[i], c.flags[i] & LOST ? 1 : 0, wirePsn(c.acked[i]), c.packets[i]].join(","));
  }
  return lines.join("\n") + "\n";
}

function keep(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// The buttons behind the toolbar.
function saveButtons(timeline) {
  const name = (suffix) => `${(timeline.model.capture.files[0] ?? "rocekit").split("/").pop().replace(/\.[^.]*$/, "")}-connection-${timeline.lane >> 1}${"ab"[timeline.lane & 1]}.${suffix}`;
  const make = (text, label, action) => element("button", { type: "button", title: label, "aria-label": label, onclick: action }, text);
  const copied = async () => {
    let said = "The address of this page is now that of this view: copy it.";
    try { await navigator.clipboard.writeText(location.href); said = "Copied: the address of this view."; } catch { /* not from every page: the address line has it */ }
    timeline.status.textContent = said;
  };
  return element("span", { class: "group" },
    make("Link", "Copy the address of this view", copied),
    make("PNG", "Save the graphs in view as PNG", () => pictureOf(timeline).toBlob((blob) => keep(name("png"), blob), "image/png")),
    make("SVG", "Save the graphs in view as SVG", () => keep(name("svg"), new Blob([vectorOf(timeline)], { type: "image/svg+xml" }))),
    make("CSV", "Save the packets in view as CSV", () => keep(name("csv"), new Blob([tableOf(timeline)], { type: "text/csv" }))));
}
