// Small charts: curves as SVG, so that style sheets colour them; what has many cells on a canvas.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 46, right: 10, top: 6, bottom: 22 };
const HEIGHT = 210;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const TIMES = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

// Ticks at 1, 2 or 5 times a power of ten; of a time, at whole minutes, hours or days.
function ticks(low, high, most, time = false) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const fits = (one) => one >= rough * 0.999;
  const step = (time && rough > 1 && TIMES.find(fits)) || [1, 2, 5, 10].map((times) => times * power).find(fits);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

// Ticks of a logarithmic axis.
function logTicks(low, high, most) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const times of [1, 2, 5]) found.push(times * 10 ** power);
  }
  const inside = found.filter((at) => at >= low && at <= high);
  return inside.length <= most ? inside : inside.filter((at) => Math.log10(at) % 1 === 0);
}

// At most so many points, of every stretch the last.
function thinned(points, most) {
  const every = Math.ceil(points.length / most);
  return every < 2 ? points : points.filter((_, i) => i % every === every - 1 || i === points.length - 1);
}

function extent(values, fallback) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low > high) return fallback;
  return low === high ? [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05] : [low, high];
}

// A figure with curves; `draw(series)` draws them anew. A series has a name, a colour's name, points and may be dashed.
export class Curves {
  constructor(title, { x, y, zero = false, log = false, time = false }) {
    this.x = x; this.y = y; this.zero = zero; this.log = log; this.time = time; this.series = [];
    this.note = element("span", { class: "faint" });
    this.svg = drawn("svg", { height: HEIGHT, role: "img", "aria-label": title });
    this.read = element("div", { class: "read", hidden: "" });
    this.figure = element("figure", {}, element("h2", {}, title, this.note), this.svg, this.read);
    this.svg.addEventListener("pointermove", (event) => this.show(event));
    this.svg.addEventListener("pointerleave", () => { this.read.hidden = true; this.cross?.remove(); });
  }

  draw(series) {
    this.series = series.filter((one) => one.points.length);
    const width = this.svg.clientWidth;
    if (!width) return;
    const all = this.series.flatMap((one) => one.points);
    const [, right] = extent(all.map((point) => point[0]), [0, 1]);
    const heights = [...all.map((point) => point[1]), ...this.series.flatMap((one) => one.band?.flat() ?? [])];
    let [low, high] = extent(heights, [0, 1]);
    if (this.zero) low = Math.min(0, low);
    const room = (high - low) * 0.04;
    high += room; low -= this.zero ? 0 : room;
    const across = width - MARGIN.left - MARGIN.right, down = HEIGHT - MARGIN.top - MARGIN.bottom;
    const left = this.logFrom(), end = Math.max(right, 1e-12);
    this.px = left
      ? (value) => MARGIN.left + (Math.log(Math.max(value, left) / left) / Math.log(end / left)) * across
      : (value) => MARGIN.left + (value / end) * across;
    this.py = (value) => MARGIN.top + (1 - (value - low) / (high - low)) * down;
    const parts = [];
    for (const at of ticks(low, high, 4)) {
      parts.push(drawn("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.py(at), y2: this.py(at) }));
      parts.push(drawn("text", { x: MARGIN.left - 6, y: this.py(at) + 4, "text-anchor": "end" }, this.y(at)));
    }
    const most = Math.max(2, Math.floor(across / 90));
    for (const at of left ? logTicks(left, end, most) : ticks(0, end, most, this.time)) {
      const anchor = this.px(at) > width - 30 ? "end" : "middle";
      parts.push(drawn("text", { x: this.px(at), y: HEIGHT - 6, "text-anchor": anchor }, this.x(at)));
    }
    for (const one of this.series) {
      if (one.band) {
        const edge = (which) => one.points.map(([x], i) => `${this.px(x).toFixed(1)} ${this.py(one.band[i][which]).toFixed(1)}`);
        parts.push(drawn("path", { class: "band", d: `M${[...edge(0), ...edge(1).reverse()].join("L")}Z` }));
        parts.at(-1).style.cssText = `fill: var(${one.colour})`;
      }
      const points = thinned(one.points, 2 * across).map(([x, y]) => `${this.px(x).toFixed(1)} ${this.py(y).toFixed(1)}`);
      const style = `stroke: var(${one.colour})`;
      parts.push(drawn("path", { class: one.dashed ? "curve dashed" : "curve", d: `M${points.join("L")}` }));
      parts.at(-1).style.cssText = style;
      if (points.length === 1) {
        const [x, y] = points[0].split(" ");
        parts.push(drawn("circle", { cx: x, cy: y, r: 2.5 }));
        parts.at(-1).style.cssText = `fill: var(${one.colour})`;
      }
    }
    this.svg.replaceChildren(...parts);
  }

  // Where a logarithmic axis begins: only if some curves end so much earlier than others that they would be crammed.
  logFrom() {
    const ends = this.series.map((one) => one.points.at(-1)[0]);
    if (!this.log || !ends.length || Math.max(...ends) <= 10 * Math.min(...ends)) return 0;
    return Math.min(...this.series.map((one) => one.points[0][0]).filter((x) => x > 0));
  }

  // The values of all curves nearest to the pointer.
  show(event) {
    if (!this.series.length || !this.px) return;
    const box = this.svg.getBoundingClientRect(), at = event.clientX - box.left;
    const nearest = (points) => points.reduce((best, point) =>
      Math.abs(this.px(point[0]) - at) < Math.abs(this.px(best[0]) - at) ? point : best);
    const found = this.series.map((one) => [one, nearest(one.points)]);
    const x = found.map(([, point]) => point[0]).reduce((a, b) => Math.abs(this.px(b) - at) < Math.abs(this.px(a) - at) ? b : a);
    this.cross?.remove();
    this.cross = drawn("line", { class: "cross", x1: this.px(x), x2: this.px(x), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    this.svg.append(this.cross);
    const lines = found.slice(0, 12).map(([one, point]) => {
      const chip = element("span", { class: "chip" });
      chip.style.background = `var(${one.colour})`;
      return element("div", {}, chip, `${one.name}: ${this.y(point[1])} at ${this.x(point[0])}`);
    });
    this.read.replaceChildren(...lines);
    this.read.hidden = false;
    const left = at > box.width / 2 ? at - this.read.offsetWidth - 4 : at + 18;
    this.read.style.left = `${Math.max(4, left)}px`;
  }
}

// A canvas as wide as its figure, sharp on any screen. `hint(x, y)` tells what is at a place, in parts of its size.
class Canvas {
  constructor(title, height) {
    this.canvas = element("canvas", { role: "img", "aria-label": title });
    this.height = height;
    this.read = element("div", { class: "read", hidden: "" });
    this.legend = element("div", { class: "legend" });
    this.figure = element("figure", {}, element("h2", {}, title), this.canvas, this.legend, this.read);
    this.canvas.style.height = `${height}px`;
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const text = this.hint?.((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
      this.read.hidden = !text;
      this.read.textContent = text ?? "";
      const at = event.clientX - box.left;
      this.read.style.left = `${Math.max(4, at > box.width / 2 ? at - this.read.offsetWidth - 4 : at + 18)}px`;
    });
    this.canvas.addEventListener("pointerleave", () => { this.read.hidden = true; });
  }

  start() {
    const scale = window.devicePixelRatio || 1, width = this.canvas.clientWidth;
    if (!width) return null;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    return this.canvas.getContext("2d");
  }

  explain(entries) {
    this.legend.replaceChildren(...entries.map(([name, text]) => {
      const chip = element("span", { class: "chip" });
      chip.style.background = `var(${name})`;
      return element("span", {}, chip, text);
    }));
  }
}

const MOST_ROWS = 400, MOST_COLUMNS = 1200;

// Client × round. Cells are drawn once, as a pixel each, on a sheet that is then stretched; many clients share a row.
export class Raster extends Canvas {
  constructor(clients, rounds) {
    super("Who took part when", Math.min(300, Math.max(90, clients * 5)));
    this.clients = clients;
    this.rows = Math.min(clients, MOST_ROWS);
    this.every = Math.ceil(rounds / MOST_COLUMNS);
    this.sheet = element("canvas");
    this.sheet.width = Math.ceil(rounds / this.every);
    this.sheet.height = this.rows;
    this.explain([["--complete", "all steps"], ["--partial", "some steps"], ["--silent", "no reply"],
      ["--unused", "not used"], ["--rejected", "rejected"]]);
    this.clear();
  }

  clear() {
    this.done = 0;
    this.sheet.getContext("2d").clearRect(0, 0, this.sheet.width, this.sheet.height);
  }

  draw(rounds) {
    const names = ["--complete", "--partial", "--silent", "--unused", "--rejected"];
    const colours = names.map(colour), pen = this.sheet.getContext("2d");
    for (; this.done < rounds.length; this.done++) {
      const { who = [] } = rounds[this.done], column = Math.floor(this.done / this.every);
      for (let i = 0; i < who.length; i += 2) {
        pen.fillStyle = colours[kind(who[i + 1])];
        pen.fillRect(column, Math.floor((who[i] * this.rows) / this.clients), 1, 1);
      }
    }
    const canvas = this.start();
    if (!canvas) return;
    const shown = Math.min(this.sheet.width, Math.max(20, Math.ceil(this.done / this.every)));
    canvas.imageSmoothingEnabled = false;
    canvas.drawImage(this.sheet, 0, 0, shown, this.rows, 0, 0, this.canvas.width, this.canvas.height);
    this.hint = (x, y) => {
      const round = Math.min(rounds.length, Math.floor(x * shown) * this.every + 1);
      const client = Math.floor(y * this.clients), who = rounds[round - 1]?.who ?? [];
      const at = who.findIndex((value, i) => i % 2 === 0 && value === client);
      const what = at < 0 ? "not sampled" : told(who[at + 1]);
      return rounds.length ? `round ${round}, client ${client}: ${what}` : "";
    };
  }
}

// 0 all steps, 1 some, 2 no reply, 3 not used, 4 rejected
export function kind(code) {
  return code >= 400 ? 4 : code >= 200 ? 3 : code === 0 ? 2 : code < 100 ? 1 : 0;
}

function told(code) {
  const share = `${code % 200} % of its steps`;
  return ["all steps", share, "no reply", `${share}, not used`, "rejected"][kind(code)];
}

// Stacked bars of every round, or of as many rounds together as fit a bar.
class Stacked extends Canvas {
  // `amounts(round)` has one number per layer, bottom to top; `colours` their names in the style sheet.
  stack(rounds, total, colours, amounts, tell) {
    const canvas = this.start();
    if (!canvas || !rounds.length) return;
    const { width, height } = this.canvas;
    const every = Math.ceil(rounds.length / Math.max(1, Math.floor(width / 2)));
    const bars = [];
    rounds.forEach((round, i) => {
      const bar = (bars[Math.floor(i / every)] ??= colours.map(() => 0));
      amounts(round).forEach((amount, layer) => { bar[layer] += amount; });
    });
    const most = Math.max(1, ...bars.map((bar) => bar.reduce((a, b) => a + b)));
    const slots = Math.max(Math.min(20, total), bars.length);
    colours.forEach((name, layer) => {
      canvas.fillStyle = colour(name);
      bars.forEach((bar, i) => {
        const below = bar.slice(0, layer).reduce((a, b) => a + b, 0);
        const left = Math.round((i * width) / slots), right = Math.round(((i + 1) * width) / slots);
        const top = Math.round(height * (1 - (below + bar[layer]) / most)), bottom = Math.round(height * (1 - below / most));
        canvas.fillRect(left, top, Math.max(1, right - left - (right - left > 4 ? 1 : 0)), bottom - top);
      });
    });
    this.hint = (x) => {
      const i = Math.floor(x * slots);
      return bars[i] ? `round ${i * every + 1}: ${tell(bars[i])}` : "";
    };
  }
}

// How many of each cohort did all, some or none of their steps.
export class Cohorts extends Stacked {
  constructor() {
    super("Stragglers: the cohort of every round", 110);
    this.explain([["--complete", "all steps"], ["--partial", "some steps"], ["--silent", "no reply"],
      ["--unused", "not used"], ["--rejected", "rejected"]]);
  }

  draw(rounds, total) {
    const order = [0, 1, 3, 4, 2], names = ["all steps", "some", "not used", "rejected", "no reply"];
    const amounts = ({ who = [] }) => order.map((one) => who.filter((code, i) => i % 2 && kind(code) === one).length);
    const tell = (bar) => names.map((name, k) => [bar[k], name]).filter(([n]) => n).map(([n, name]) => `${n} ${name}`).join(", ");
    this.stack(rounds, total, ["--complete", "--partial", "--unused", "--rejected", "--silent"], amounts, tell);
  }
}

// What the bytes of every round were for, in one direction.
export class Bytes extends Stacked {
  constructor(title, direction, format) {
    super(`${title}, by what they are for`, 110);
    this.direction = direction;
    this.format = format;
  }

  draw(rounds, total) {
    const spent = (round) => round.bytes?.[this.direction] ?? {};
    const kinds = [...new Set(rounds.flatMap((round) => Object.keys(spent(round))))].sort();
    const colours = kinds.map((_, i) => `--c${i}`);
    this.figure.hidden = !kinds.length;
    this.explain(kinds.map((name, i) => [colours[i], name]));
    const tell = (bar) => kinds.map((name, k) => `${name} ${this.format(bar[k])}`).join(", ");
    this.stack(rounds, total, colours, (round) => kinds.map((name) => spent(round)[name] ?? 0), tell);
  }
}

// A metric of every client, the worst first.
export class PerClient extends Canvas {
  constructor(metric) {
    super(`${metric[0].toUpperCase()}${metric.slice(1)} of every client, worst first`, 110);
    this.explain([["--worst", "worst tenth"], ["--complete", "others"]]);
  }

  draw(values, { format, share, higher, round }) {
    const canvas = this.start();
    const sorted = Object.entries(values).filter(([, value]) => value !== null);
    sorted.sort((a, b) => (higher ? 1 : -1) * (a[1] - b[1]));
    if (!canvas || !sorted.length) return [];
    const { width, height } = this.canvas;
    const most = share ? 1 : Math.max(...sorted.map(([, value]) => Math.abs(value)), 1e-12);
    const tenth = Math.ceil(sorted.length / 10), names = [colour("--worst"), colour("--complete")];
    sorted.forEach(([, value], i) => {
      const left = Math.round((i * width) / sorted.length), right = Math.round(((i + 1) * width) / sorted.length);
      const tall = Math.max(2, Math.round((height * Math.abs(value)) / most));
      canvas.fillStyle = names[i < tenth ? 0 : 1];
      canvas.fillRect(left, height - tall, Math.max(1, right - left - (right - left > 4 ? 1 : 0)), tall);
    });
    this.hint = (x) => {
      const found = sorted[Math.floor(x * sorted.length)];
      return found ? `client ${found[0]}: ${format(found[1])} after round ${round}` : "";
    };
    return sorted;
  }
}
