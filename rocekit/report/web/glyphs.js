// The signs of what happened: each has its own shape, and a colour.

const GLYPHS = {
  nak(ctx, x, y, c) { cross(ctx, x, y, 5, c.nak, 2.4); },
  rnr(ctx, x, y, c) { ctx.fillStyle = c.nak; ctx.fillRect(x - 4.5, y - 5, 3, 10); ctx.fillRect(x + 1.5, y - 5, 3, 10); },
  timeout(ctx, x, y, c) {
    ctx.strokeStyle = c.text; ctx.lineWidth = 1.6; ctx.fillStyle = c.card;
    ctx.beginPath(); ctx.arc(x, y, 5.5, 0, 7); ctx.fill(); ctx.stroke();
    ctx.beginPath(); ctx.moveTo(x, y - 3.5); ctx.lineTo(x, y); ctx.lineTo(x + 2.6, y + 1.2); ctx.stroke();
  },
  repeat(ctx, x, y, c) {
    ctx.strokeStyle = c.round2; ctx.lineWidth = 1.8;
    ctx.beginPath(); ctx.moveTo(x - 7, y - 4); ctx.lineTo(x - 3, y); ctx.lineTo(x - 7, y + 4); ctx.stroke();
  },
  hole(ctx, x, y, c) { ctx.strokeStyle = c.nak; ctx.lineWidth = 1.6; ctx.setLineDash([2, 2]); ctx.strokeRect(x - 3.5, y - 5, 7, 10); ctx.setLineDash([]); },
  missed(ctx, x, y, c) { ctx.strokeStyle = c.soft; ctx.lineWidth = 1.4; ctx.setLineDash([2, 2]); ctx.strokeRect(x - 3.5, y - 5, 7, 10); ctx.setLineDash([]); },
  late(ctx, x, y, c) { ctx.strokeStyle = c.round3; ctx.lineWidth = 1.8; ctx.beginPath(); ctx.arc(x, y, 4, 0, 7); ctx.stroke(); },
  duplicate(ctx, x, y, c) { ctx.strokeStyle = c.round4; ctx.lineWidth = 1.6; ctx.strokeRect(x - 4, y - 2, 6, 6); ctx.strokeRect(x - 1, y - 5, 6, 6); },
  failed(ctx, x, y, c) { ctx.strokeStyle = c.nak; ctx.lineWidth = 1.8; ctx.strokeRect(x - 6, y - 6, 12, 12); cross(ctx, x, y, 3.5, c.nak, 2.2); },
  jump(ctx, x, y, c) { ctx.strokeStyle = c.dim; ctx.lineWidth = 1.6; ctx.beginPath(); ctx.moveTo(x, y + 6); ctx.lineTo(x, y - 6); ctx.lineTo(x - 3, y - 2); ctx.moveTo(x, y - 6); ctx.lineTo(x + 3, y - 2); ctx.stroke(); },
  unsent(ctx, x, y, c) {
    ctx.strokeStyle = c.nak; ctx.lineWidth = 1.7; ctx.fillStyle = c.card;
    ctx.beginPath(); ctx.arc(x, y, 5.5, 0, 7); ctx.fill(); ctx.stroke();
    ctx.beginPath(); ctx.moveTo(x - 3.8, y + 3.8); ctx.lineTo(x + 3.8, y - 3.8); ctx.stroke();
  },
  ce(ctx, x, y, c) { ctx.fillStyle = c.ce; ctx.beginPath(); ctx.moveTo(x, y - 4.5); ctx.lineTo(x + 4, y); ctx.lineTo(x, y + 4.5); ctx.lineTo(x - 4, y); ctx.fill(); },
  cnp(ctx, x, y, c) { ctx.fillStyle = c.cnp; ctx.beginPath(); ctx.moveTo(x - 5, y - 4); ctx.lineTo(x + 5, y - 4); ctx.lineTo(x, y + 5); ctx.fill(); },
  bad_icrc(ctx, x, y, c) {
    ctx.strokeStyle = c.nak; ctx.lineWidth = 1.6; ctx.beginPath(); ctx.moveTo(x, y - 5); ctx.lineTo(x + 5, y + 4); ctx.lineTo(x - 5, y + 4); ctx.closePath(); ctx.stroke();
    ctx.fillStyle = c.nak; ctx.fillRect(x - .8, y - 2, 1.6, 3); ctx.fillRect(x - .8, y + 2, 1.6, 1.4);
  },
  posted(ctx, x, y, c) { ctx.fillStyle = c.wr; ctx.beginPath(); ctx.moveTo(x - 6, y - 4); ctx.lineTo(x, y); ctx.lineTo(x - 6, y + 4); ctx.fill(); },
  polled(ctx, x, y, c) { ctx.strokeStyle = c.wr; ctx.lineWidth = 1.5; ctx.beginPath(); ctx.moveTo(x, y - 4); ctx.lineTo(x + 6, y); ctx.lineTo(x, y + 4); ctx.closePath(); ctx.stroke(); },
  cm(ctx, x, y, c) { ctx.strokeStyle = c.dim; ctx.lineWidth = 1; ctx.setLineDash([4, 3]); ctx.beginPath(); ctx.moveTo(x, y - 6); ctx.lineTo(x, y + 6); ctx.stroke(); ctx.setLineDash([]); },
};

GLYPHS.response_hole = GLYPHS.hole;
const HOLES = new Set(["hole", "response_hole", "missed"]);

function cross(ctx, x, y, r, colour, width) {
  ctx.strokeStyle = colour; ctx.lineWidth = width;
  ctx.beginPath(); ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r); ctx.stroke();
}

// What a mark's number means, and the colours of rows of ticks; all others have the NAK's colour.
const MARKS = ["cnp", "bad_icrc"];
const RUG_COLOURS = { cnp: "cnp", ce: "ce", repeat: "round2", late: "round3", duplicate: "round4", missed: "soft", cm: "dim", jump: "dim", timeout: "text" };

const SHORT_NAMES = {
  nak: "NAK", rnr: "RNR NAK", timeout: "timeouts", repeat: "go-backs", hole: "gaps", response_hole: "gaps", missed: "not captured", late: "reordered", duplicate: "came twice",
  failed: "WC errors", jump: "jumps", unsent: "not sent", ce: "CE", cnp: "CNP", bad_icrc: "bad ICRC", posted: "posted", polled: "polled", cm: "CM",
};

const GLYPH_NAMES = {
  nak: "NAK", rnr: "RNR NAK (wait shaded)", timeout: "timeout (silence shaded)", repeat: "go-back", hole: "PSNs missing", response_hole: "responses missing",
  missed: "not in the capture", late: "reordered", duplicate: "came twice", failed: "WC with error", jump: "PSN jump", unsent: "WR without packets",
  ce: "ECN-CE mark", cnp: "CNP", bad_icrc: "wrong ICRC", posted: "WR posted", polled: "WC polled", cm: "CM message",
};

function legendItem(text, paint, width = 16) {
  const ratio = window.devicePixelRatio || 1;
  const canvas = element("canvas", { width: width * ratio, height: 16 * ratio, "aria-hidden": "true" });
  canvas.style.width = width + "px"; canvas.style.height = "16px";
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  paint(ctx);
  return element("li", {}, canvas, text);
}
