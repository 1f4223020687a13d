// Numbers and names as in the program's text output; and functions that make elements.

const number = (value) => value.toLocaleString("en-US");
const plural = (count, one, many) => number(count) + " " + (count === 1 ? one : many ?? one + "s");
const fixed = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

// As in wire/words.py: four digits, without decimals where the value has none.
function duration(ns) {
  const size = Math.abs(ns);
  const units = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
  const [unit, factor] = units.find(([, f]) => Math.round(size / f * 10) / 10 < 1000) ?? units[3];
  const value = ns / factor, whole = ns % factor === 0 || size >= 1000 * factor;
  return fixed(value, whole ? 0 : Math.abs(value) < 10 ? 3 : Math.abs(value) < 100 ? 2 : 1) + " " + unit;
}

function size(count) {
  if (count < 1e4) return number(count) + " B";
  let value = count / 1024, unit = "KiB";
  for (const larger of ["MiB", "GiB", "TiB"]) if (value >= 1024) { value /= 1024; unit = larger; }
  return fixed(value, 1) + " " + unit;
}

const qpn = (value) => value === null ? "QP ?" : "QP 0x" + value.toString(16);
const endName = (end) => (end.ip ?? "?") + " " + qpn(end.qpn);
const wirePsn = (psn) => ((psn % PSN_MODULO) + PSN_MODULO) % PSN_MODULO;
const psnRange = (first, last) => "PSN " + wirePsn(first) + (last > first ? "–" + wirePsn(last) : "");
const ordinal = (n) => n + (n === 2 ? "nd" : n === 3 ? "rd" : "th");

// Ticks of a time axis: the same unit and number of digits for all of them.
function timeTicks(values, step) {
  const top = Math.max(...values.map(Math.abs), step);
  const [unit, factor] = top < 1e4 ? ["ns", 1] : top < 1e7 ? ["µs", 1e3] : top < 1e10 ? ["ms", 1e6] : ["s", 1e9];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / factor) - 1e-9)));
  return values.map((v) => fixed(v / factor, digits) + " " + unit);
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  fill(made, attributes, children);
  return made;
}

// Show a section and put the focus there, so that keys and screen readers go on from it.
function goTo(id) {
  const section = document.getElementById(id);
  section.scrollIntoView({ block: "start" });
  section.focus({ preventScroll: true });
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(made, attributes, children);
  return made;
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
}

// The colours of the style sheet, for what is drawn on canvas.
function palette() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (known, name) => known[name] ??= style.getPropertyValue("--" + name).trim() });
}
