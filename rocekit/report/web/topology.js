// Hosts and the QPs between them: boxes and lines. Few QPs have a line each; many share one line between two hosts.

const EACH_QP_UPTO = 10, HOSTS_UPTO = 200, LINKS_UPTO = 3000;

function drawTopology(model, holder, choose) {
  const topology = model.topology;
  if (!topology || !topology.hosts.length) { holder.remove(); return; }
  const links = topology.links, hosts = topology.hosts;
  const pairs = links.reduce((sum, link) => sum + link.qps.length, 0);
  const picture = hosts.length > HOSTS_UPTO || links.length > LINKS_UPTO ? "Too many to draw: see the table below." : hosts.length === 2 && pairs <= EACH_QP_UPTO ? twoHosts(model, links[0], choose) : manyHosts(model, hosts, links, choose);
  const named = topology.shape && !["pair", "loopback", "other"].includes(topology.shape);
  const words = `${plural(hosts.length, "host")}, ${plural(pairs, "QP pair")}` + (named ? `, shape: ${topology.shape}` : "");
  holder.replaceChildren(element("p", { class: "dim", style: "margin:0 0 6px;font-size:13px" }, words), picture);
}

function troubleOf(connection) {
  const many = connection.retransmitted_packets + connection.naks + connection.rnr_naks + connection.bad_icrc;
  return many ? "var(--nak)" : connection.cnps + connection.ce_marked ? "var(--ce)" : "var(--ack)";
}

function clickable(group, label, action) {
  fill(group, { class: "link", tabindex: 0, role: "button", "aria-label": label, onclick: action,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); action(); } } }, [shape("title", {}, label)]);
  return group;
}

function hostBox(x, y, width, height, words) {
  return [shape("rect", { x, y, width, height, rx: 8, fill: "var(--hover)", stroke: "var(--line)" }),
    text(x + width / 2, y + 20, words, "middle", "", "600")];
}

function twoHosts(model, link, choose) {
  const rows = link.qps.length, height = 44 + rows * 26, width = 760, parts = [];
  parts.push(...hostBox(10, 8, 170, height - 16, link.a), ...hostBox(width - 180, 8, 170, height - 16, link.b));
  link.qps.forEach((pair, k) => {
    const y = 50 + k * 26, connection = model.connections[pair.connections[0]], colour = troubleOf(connection);
    const troubles = connectionTroubles(connection).join(", ");
    const label = `${pair.transport} ${qpn(pair.a_qpn)} – ${qpn(pair.b_qpn)}: ${troubles || "nothing went wrong"}`;
    const group = shape("g", {},
      shape("line", { x1: 180, x2: width - 180, y1: y, y2: y, stroke: "transparent", "stroke-width": 22 }),
      shape("line", { x1: 180, x2: width - 180, y1: y, y2: y, stroke: colour, "stroke-width": 2.5, "stroke-dasharray": troubles && colour === "var(--nak)" ? "7 4" : null }),
      text(168, y + 4, qpn(pair.a_qpn), "end"), text(width - 168, y + 4, qpn(pair.b_qpn)),
      text(width / 2, y - 5, `${pair.transport} · → ${size(pair.bytes_a_to_b)} · ← ${size(pair.bytes_b_to_a)}${troubles ? " · " + troubles : ""}`, "middle", "dim-text"));
    parts.push(clickable(group, label, () => choose(pair.connections[0])));
  });
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Hosts and QPs" }, ...parts);
}

// Few hosts are boxes; many are dots with their names around the circle.
function manyHosts(model, hosts, links, choose) {
  const n = hosts.length, dots = n > 12, radius = Math.max(90, Math.min(300, n * (dots ? 8 : 26)));
  const longest = Math.max(...hosts.map((host) => host.ip.length)) * 7 + 90, rim = dots ? longest : 40;
  const width = 2 * radius + (dots ? 2 * rim : 260), height = 2 * (radius + rim) + 10;
  const angles = hosts.map((_, k) => -Math.PI / 2 + 2 * Math.PI * k / n);
  const place = new Map(hosts.map((host, k) => [host.ip, [width / 2 + radius * Math.cos(angles[k]), height / 2 + radius * Math.sin(angles[k])]]));
  const most = Math.max(1, ...links.map((link) => link.bytes_a_to_b + link.bytes_b_to_a)), parts = [];
  for (const link of links) {
    const [a, b] = [place.get(link.a), place.get(link.b)], ids = link.qps.flatMap((pair) => pair.connections);
    const colours = ids.map((id) => troubleOf(model.connections[id])), bad = colours.includes("var(--nak)");
    const colour = bad ? "var(--nak)" : colours.find((c) => c === "var(--ce)") ?? "var(--ack)";
    const worst = ids.reduce((x, y) => model.connections[y].retransmitted_packets > model.connections[x].retransmitted_packets ? y : x);
    const amount = link.bytes_a_to_b + link.bytes_b_to_a;
    const label = `${link.a} – ${link.b}: ${plural(link.qps.length, "QP pair")}, ${size(amount)}${bad ? ", packets sent again" : ""}`;
    const line = (wide, stroke, dash) => shape("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1], stroke, "stroke-width": wide, "stroke-dasharray": dash });
    parts.push(clickable(shape("g", {}, line(dots ? 8 : 16, "transparent", null), line(1.2 + 4 * amount / most, colour, bad ? "7 4" : null)), label, () => choose(worst)));
  }
  hosts.forEach((host, k) => {
    const [x, y] = place.get(host.ip), words = plural(host.qps.length, "QP");
    if (dots) {
      const left = Math.cos(angles[k]) < -1e-9, turn = angles[k] * 180 / Math.PI + (left ? 180 : 0);
      const name = text(0, 4, left ? `${words}  ${host.ip}` : `${host.ip}  ${words}`, left ? "end" : "start");
      name.setAttribute("transform", `translate(${x} ${y}) rotate(${turn}) translate(${left ? -12 : 12} 0)`);
      parts.push(shape("circle", { cx: x, cy: y, r: 6, fill: "var(--accent)", stroke: "var(--card)", "stroke-width": 2 }), name);
    } else {
      const wide = Math.max(96, host.ip.length * 7 + 16);
      parts.push(shape("rect", { x: x - wide / 2, y: y - 20, width: wide, height: 40, rx: 8, fill: "var(--card)", stroke: "var(--line)" }),
        text(x, y - 3, host.ip, "middle", "", "600"), text(x, y + 12, words, "middle", "dim-text"));
    }
  });
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Hosts and the traffic between them" }, ...parts);
  svg.style.margin = "0 auto";
  return svg;
}
