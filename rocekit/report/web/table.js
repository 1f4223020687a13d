// A table of any length: only the rows in view are in the page. Its heads sort it; keys move through it, and a
// screen reader hears the row that they choose.

const ROW_HEIGHT = 28;

class WindowedTable {
  // columns: {label, value(i), text(i), right, style(i)}; rows: indices; choose(i) when one is chosen;
  // open(i), if there is one, when Enter is pressed on it.
  constructor(holder, { label, columns, rows, choose, open, empty }) {
    this.name = holder.id || label.toLowerCase().replaceAll(" ", "-");
    this.open = open;
    this.columns = columns;
    this.all = this.shown = Array.from(rows);
    this.choose = choose;
    this.empty = empty;
    this.chosen = null;
    this.sorted = null;
    this.drawn = [-1, -1];
    this.heads = columns.map((column, at) => {
      const button = element("button", { type: "button", onclick: () => this.sort(at) }, column.label);
      return element("th", { scope: "col", class: column.right ? "right" : null }, button);
    });
    this.body = element("tbody");
    this.table = element("table", { role: "grid", tabindex: 0, "aria-label": label, "aria-description": "Arrow keys choose a row" + (open ? ", Enter goes to it" : ""),
      "aria-rowcount": this.all.length + 1, onkeydown: (event) => this.key(event) },
      element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    this.scroll = element("div", { class: "scroll", onscroll: () => this.draw() }, this.table);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-row]");
      if (row) this.select(Number(row.dataset.row), true);
    });
    holder.replaceChildren(this.scroll);
    this.draw(true);
  }

  filter(keep) {
    this.shown = keep ? this.all.filter(keep) : this.all.slice();
    this.order();
  }

  sort(at) {
    const down = this.sorted && this.sorted[0] === at ? !this.sorted[1] : this.columns[at].right === true;
    this.sorted = [at, down];
    this.heads.forEach((head, k) => {
      if (k === at) head.setAttribute("aria-sort", down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
      const arrow = k === at ? [element("span", { "aria-hidden": "true" }, down ? " ▾" : " ▴")] : [];
      head.firstChild.replaceChildren(this.columns[k].label, ...arrow);
    });
    this.shown = this.shown.slice();
    this.order();
  }

  order() {
    if (this.sorted) {
      const [at, down] = this.sorted, value = this.columns[at].value, sign = down ? -1 : 1;
      const keys = new Map(this.shown.map((i) => [i, value(i)]));
      this.shown.sort((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        return (x < y ? -1 : x > y ? 1 : a - b) * sign;
      });
    }
    this.scroll.scrollTop = 0;
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
    this.draw(true);
  }

  select(i, tell) {
    this.chosen = i;
    this.draw(true);
    if (tell) this.choose(i);
  }

  reveal(i) {
    const at = this.shown.indexOf(i);
    if (at >= 0 && (at * ROW_HEIGHT < this.scroll.scrollTop || (at + 2) * ROW_HEIGHT > this.scroll.scrollTop + this.scroll.clientHeight)) {
      this.scroll.scrollTop = Math.max(0, at * ROW_HEIGHT - this.scroll.clientHeight / 2);
    }
    this.select(i, false);
  }

  key(event) {
    if (event.target !== this.table) return;
    if (event.key === "Enter" && this.open && this.shown.includes(this.chosen)) { event.preventDefault(); this.open(this.chosen); return; }
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.shown.length) return;
    event.preventDefault();
    const at = this.shown.indexOf(this.chosen);
    const next = Math.max(0, Math.min(this.shown.length - 1, at < 0 ? 0 : at + step));
    this.reveal(this.shown[next]);
    this.choose(this.shown[next]);
  }

  draw(anew = false, every = false) {
    const count = this.shown.length;
    let from = Math.max(0, Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - 10);
    let until = Math.min(count, from + Math.ceil((this.scroll.clientHeight || 440) / ROW_HEIGHT) + 20);
    if (every) [from, until] = [0, Math.min(count, 500)];
    if (!anew && from === this.drawn[0] && until === this.drawn[1]) return;
    this.drawn = [from, until];
    const rows = [this.spacer(from)];
    for (let k = from; k < until; k++) rows.push(this.row(this.shown[k], k));
    rows.push(this.spacer(count - until));
    if (!count) rows.push(element("tr", {}, element("td", { colspan: this.columns.length, class: "dim" }, this.empty)));
    this.body.replaceChildren(...rows);
    const at = this.shown.indexOf(this.chosen);
    if (at >= from && at < until) this.table.setAttribute("aria-activedescendant", this.rowName(this.chosen));
    else this.table.removeAttribute("aria-activedescendant");
  }

  row(i, k) {
    const cells = this.columns.map((column) => {
      const style = [column.right ? "right" : "", column.style ? column.style(i) ?? "" : ""].join(" ").trim();
      return element("td", { class: style || null }, column.text(i));
    });
    return element("tr", { id: this.rowName(i), "data-row": i, "aria-rowindex": k + 2, "aria-selected": i === this.chosen ? "true" : null }, ...cells);
  }

  rowName(i) { return `${this.name}-row-${i}`; }

  spacer(rows) {
    const cell = element("td", { colspan: this.columns.length });
    cell.style.height = rows * ROW_HEIGHT + "px";
    return element("tr", { class: "spacer", "aria-hidden": "true" }, cell);
  }
}
