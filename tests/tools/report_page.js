// What tests/test_report_page.py asks a report's page for.
window.probe = {
  // How many different colours a canvas shows: more than a few where something is drawn.
  colours(canvas) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3]) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    return seen.size;
  },

  // Where the packet of a frame is drawn, in the window.
  place(frame) {
    const timeline = rocekit.page.timeline, chart = timeline.charts[0], c = rocekit.model.columns;
    const row = c.frame.subarray(timeline.from, timeline.until).indexOf(frame) + timeline.from;
    const box = chart.box.querySelector("canvas").getBoundingClientRect();
    const middle = (chart.psnY(c.psn[row]) + chart.psnY(c.psn[row] + c.span[row])) / 2;
    return [box.left + chart.x(c.time[row]), box.top + middle];
  },

  // Where the first sign of a kind is drawn, in the window.
  sign(kind) {
    const chart = rocekit.page.timeline.charts[0], box = chart.box.querySelector("canvas").getBoundingClientRect();
    const [x, y] = chart.drawn.find(([, , e]) => e >= 0 && rocekit.model.kind(e) === kind);
    return [box.left + x, box.top + y];
  },

  // How many packets were sent again, and near how many of them that colour is seen.
  repeats(canvas) {
    const dot = document.createElement("canvas").getContext("2d");
    dot.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--round2");
    dot.fillRect(0, 0, 1, 1);
    const [r, g, b] = dot.getImageData(0, 0, 1, 1).data;
    const c = rocekit.model.columns, chart = rocekit.page.timeline.charts[0], ratio = devicePixelRatio;
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const has = (x, y) => { const k = 4 * (y * width + x); return data[k] === r && data[k + 1] === g && data[k + 2] === b; };
    let again = 0, found = 0;
    for (let i = 0; i < c.time.length; i++) {
      if (c.round[i] < 2) continue;
      again++;
      const x = Math.round(chart.x(c.time[i]) * ratio), y = Math.round(chart.psnY(c.psn[i]) * ratio);
      let near = false;
      for (let dx = -10; dx <= 10 && !near; dx++) for (let dy = -10; dy <= 10 && !near; dy++) near = has(x + dx, y + dy);
      found += near;
    }
    return [again, found];
  },

  // What the focus is on, in a few letters.
  focus() {
    const at = document.activeElement;
    return (at.textContent || at.getAttribute("aria-label") || "").trim().slice(0, 20);
  },

  // The directive of the page's policy that forbids an image from a server.
  forbidden() {
    return new Promise((done) => {
      document.addEventListener("securitypolicyviolation", (event) => done(event.violatedDirective));
      new Image().src = "http://127.0.0.1:9/x.png";
    });
  },

  drawn: () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
};
