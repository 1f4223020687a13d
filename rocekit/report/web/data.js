// The document in the page, unpacked once into typed arrays. rocekit/report/pack.py wrote it.

const RESPONSE = 1, CE = 2, DUPLICATE = 4, LATE = 8, LOST = 16;
const PSN_MODULO = 2 ** 24;

async function unpackDocument(text) {
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const end = data.length - 4;
  const length = new DataView(data.buffer).getUint32(end, true);
  const meta = JSON.parse(new TextDecoder().decode(data.subarray(end - length, end)));
  const columns = {};
  for (const [name, column] of Object.entries(meta.columns)) {
    columns[name] = column.planes ? unpackColumn(data, column.at, column.planes, column.length)
      : new Float64Array(column.length).fill(column.value);
  }
  return { ...meta, columns };
}

// Plane k holds byte k of every value; values are zigzag-coded differences.
function unpackColumn(data, at, planes, length) {
  const narrow = planes < 4;
  const values = new Float64Array(length);
  if (planes > 6) return unpackWide(data, at, planes, length, values);
  let sum = 0;
  for (let i = 0; i < length; i++) {
    let coded = data[at + i];
    if (narrow) {
      if (planes > 1) coded |= data[at + length + i] << 8;
      if (planes > 2) coded |= data[at + 2 * length + i] << 16;
      sum += (coded >>> 1) ^ -(coded & 1);
    } else {
      for (let k = 1, weight = 256; k < planes; k++, weight *= 256) coded += data[at + k * length + i] * weight;
      sum += coded % 2 ? -(coded + 1) / 2 : coded / 2;
    }
    values[i] = sum;
  }
  return values;
}

// Differences of 2^48 and more, as between broken clocks: a double cannot add them exactly.
function unpackWide(data, at, planes, length, values) {
  let sum = 0n;
  for (let i = 0; i < length; i++) {
    let coded = 0n;
    for (let k = planes - 1; k >= 0; k--) coded = coded << 8n | BigInt(data[at + k * length + i]);
    sum += coded & 1n ? -(coded >> 1n) - 1n : coded >> 1n;
    values[i] = Number(sum);
  }
  return values;
}

// The first place in the sorted values[from, until) that is not below value.
function lowerBound(values, value, from = 0, until = values.length) {
  while (from < until) {
    const middle = (from + until) >> 1;
    if (values[middle] < value) from = middle + 1; else until = middle;
  }
  return from;
}

class Model {
  constructor(document) {
    Object.assign(this, document);
    const c = this.columns;
    this.rowCount = c.time.length;
    this.transferCount = c.t_id.length;
    this.sumBytes = new Float64Array(this.rowCount + 1);
    this.sumOnce = new Float64Array(this.rowCount + 1);
    this.sumCe = new Float64Array(this.rowCount + 1);
    for (let i = 0; i < this.rowCount; i++) {
      this.sumBytes[i + 1] = this.sumBytes[i] + c.bytes[i];
      const again = c.round[i] > 1 || c.flags[i] & DUPLICATE;
      this.sumOnce[i + 1] = this.sumOnce[i] + (again ? 0 : c.bytes[i]);
      this.sumCe[i + 1] = this.sumCe[i] + (c.flags[i] & CE ? c.packets[i] : 0);
    }
    this.placeOfTransfer = new Map();
    this.transfersOfLane = new Map();
    for (let i = 0; i < this.transferCount; i++) {
      this.placeOfTransfer.set(c.t_id[i], i);
      this.add(this.transfersOfLane, c.t_lane[i], i);
    }
    this.happeningsOfLane = new Map();
    for (let i = 0; i < c.h_time.length; i++) this.add(this.happeningsOfLane, c.h_lane[i], i);
    this.marksOfLane = new Map();
    for (let i = 0; i < c.mark_time.length; i++) this.add(this.marksOfLane, c.mark_lane[i], i);
  }

  add(map, key, value) {
    const list = map.get(key);
    if (list) list.push(value); else map.set(key, [value]);
  }

  rows(lane) { return [this.columns.lane_first[lane], this.columns.lane_first[lane + 1]]; }
  transfers(lane) { return this.transfersOfLane.get(lane) ?? []; }
  happenings(lane) { return this.happeningsOfLane.get(lane) ?? []; }
  marks(lane) { return this.marksOfLane.get(lane) ?? []; }
  kind(happening) { return this.happenings_.kinds[this.columns.h_kind[happening]]; }
  words(happening) { return this.happenings_.words[happening] ?? [this.kind(happening), ""]; }

  opcode(row) { return this.opcodes[this.columns.opcode[row]] ?? "opcode " + this.columns.opcode[row]; }
  syndrome(row) { return this.syndromes[this.columns.syndrome[row]] ?? ""; }
  isResponse(row) { return (this.columns.flags[row] & RESPONSE) !== 0; }
  isAck(row) { return /_ACKNOWLEDGE$/.test(this.opcode(row)); }
  isReadRequest(row) { return /READ_REQUEST$/.test(this.opcode(row)); }

  frameName(reference) {
    const file = Math.floor(reference / 2 ** this.frame_bits);
    const number = reference % 2 ** this.frame_bits;
    return this.capture.files.length > 1 ? file + ":" + number.toLocaleString("en-US") : number.toLocaleString("en-US");
  }

  // The last transfer of the lane that contains this PSN; -1 without one.
  transferAt(lane, psn) {
    const c = this.columns, list = this.transfers(lane);
    let low = 0, high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (c.t_psn[list[middle]] <= psn) low = middle + 1; else high = middle;
    }
    for (let k = low - 1; k >= 0 && k > low - 4; k--) {
      if (psn <= c.t_last_psn[list[k]]) return list[k];
    }
    return -1;
  }

  wr(transfer) { return this.transfers_.wr_ids?.[transfer] ?? null; }
  operation(transfer) { return this.transfers_.operations[this.columns.t_operation[transfer]]; }
  status(transfer) { return this.transfers_.statuses[this.columns.t_status[transfer]]; }
  completion(transfer) {
    const at = this.columns.t_completion?.[transfer] ?? -1;
    return at < 0 ? null : this.transfers_.completions[at];
  }
  column(name, transfer) { return this.columns[name] ? this.columns[name][transfer] : -1; }
  end(transfer) { return Math.max(this.columns.t_last[transfer], this.columns.t_acked[transfer]); }
  took(transfer) { return this.end(transfer) - this.columns.t_first[transfer]; }
  name(transfer) {
    const wr = this.wr(transfer);
    return (wr === null ? "#" + this.columns.t_id[transfer] : "WR " + wr) + " " + this.operation(transfer);
  }

  laneEnds(lane) {
    const connection = this.connections[lane >> 1];
    return lane & 1 ? [connection.b, connection.a] : [connection.a, connection.b];
  }
  laneName(lane) { return this.laneEnds(lane).map(endName).join(" → "); }
}

async function loadModel() {
  const packed = document.getElementById("data");
  const parts = await unpackDocument(packed.textContent);
  packed.textContent = "";
  parts.transfers_ = parts.transfers; parts.happenings_ = parts.happenings;
  delete parts.transfers; delete parts.happenings;
  return new Model(parts);
}
