// The live page: keeps what the server sends about every run, and draws it.

import { Bytes, Cohorts, Curves, PerClient, Raster, element, kind } from "./charts.js";

const OPEN_AT_FIRST = 4; // runs whose clients are shown without being asked for
const LISTED = 6; // clients, replies and changes in a note
const runs = new Map();
const line = document.getElementById("line");
const embedded = document.getElementById("events"); // in a report, which is sent nothing
let curves = new Map(), pending = false, over = false;

// ---------------------------------------------------------------- words

const units = ["B", "kB", "MB", "GB", "TB"];
function bytes(count) {
  let unit = 0;
  for (; count >= 1000 && unit < 4; unit++) count /= 1000;
  return `${unit === 0 || count >= 100 ? count.toFixed(0) : +count.toFixed(1)} ${units[unit]}`;
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [unit, size, most] of [["s", 1, 120], ["min", 60, 60], ["h", 3600, 48]]) {
    if (seconds < size * most) return `${+(seconds / size).toFixed(unit === "s" && seconds >= 10 ? 0 : 1)} ${unit}`;
  }
  return `${+(seconds / 86400).toFixed(1)} days`;
}
const percent = (value) => `${+(100 * value).toFixed(1)} %`;
const short = (value) => String(+value.toPrecision(4));
const tenths = (number) => (number * 4 % 2 === 1 ? 2 * Math.round(number * 5) / 10 : number).toFixed(1); // ties to even, as in tables
const merit = (run, value) => value === null || value === undefined ? "–" : run.share ? `${tenths(100 * value)} %` : short(value);
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- what arrives

function begin(list) {
  document.getElementById("details").replaceChildren();
  runs.clear();
  for (const described of list) runs.set(described.run, clean({ ...described, status: {} }));
  curves = new Map();
  document.getElementById("curves").replaceChildren();
  for (const run of runs.values()) {
    run.view = view(run, runs.size === 1 || run.run < OPEN_AT_FIRST);
    document.getElementById("details").append(run.view.box);
  }
}

function clean(run) {
  return Object.assign(run, {
    history: [], up: 0, down: 0, best: null, last: null, personalised: null, points: [], personal: [], losses: [], sent: [],
    clients_now: null, sampled: new Map(), rejected: [], changes: [],
  });
}

function add(run, round) {
  run.history.push(round);
  run.up += round.up; run.down += round.down;
  const place = [round.round, run.up + run.down, round.simulated ?? null];
  if (round.merit !== undefined) {
    run.last = round.merit;
    const better = run.higher_is_better ? Math.max : Math.min;
    run.best = run.best === null ? round.merit : better(run.best, round.merit);
    run.points.push([place, round.merit]);
  }
  if (round.personalised !== undefined) { run.personalised = round.personalised; run.personal.push([place, round.personalised]); }
  if (round.loss !== undefined) run.losses.push([place, round.loss]);
  if (round.clients) run.clients_now = [round.round, round.clients];
  run.sent.push([place, run.up + run.down]);
  for (let i = 0; i < (round.who ?? []).length; i += 2) {
    const count = run.sampled.get(round.who[i]) ?? [0, 0];
    count[0]++;
    if (kind(round.who[i + 1]) !== 0 && round.who[i + 1] % 200 < 100) count[1]++;
    run.sampled.set(round.who[i], count);
  }
  for (const [client, why] of round.rejected ?? []) run.rejected.push(`round ${round.round}: client ${client}: ${why}`);
  run.changes.push(...(round.changes ?? []));
}

// ---------------------------------------------------------------- what is drawn

function view(run, open) {
  const summary = element("summary"), tiles = element("dl", { class: "tiles" });
  const progress = element("progress", { max: run.rounds, value: 0, "aria-label": "rounds" });
  const notes = element("div");
  const box = element("details", {}, summary, progress, tiles);
  box.open = open;
  const raster = new Raster(run.clients, run.rounds), cohorts = new Cohorts(), each = new PerClient(run.metric);
  const spent = [new Bytes("Bytes from clients", "up", bytes), new Bytes("Bytes to clients", "down", bytes)];
  const figures = [raster, cohorts, each, ...spent].map((one) => one.figure);
  box.append(element("div", { class: "inside" }, ...figures), notes);
  box.addEventListener("toggle", schedule);
  return { box, summary, tiles, progress, raster, cohorts, each, spent, notes };
}

const AXES = [
  ["rounds", 0, (value) => `${+value.toFixed(1)}`],
  ["bytes", 1, bytes],
  ["simulated time", 2, duration],
];

// A curve for every group of runs that differ in nothing but the seed: their mean, and a band over all of them.
function series(list, field, axis, extra = {}) {
  const groups = new Map();
  for (const run of list) groups.set(run.group, [...(groups.get(run.group) ?? []), run]);
  return [...groups.values()].map((seeds) => {
    const known = seeds.map((run) => run[field].filter(([place]) => place[axis] !== null)).filter((one) => one.length);
    const by = known.map((points) => new Map(points.map((point) => [point[0][0], point])));
    const rounds = [...(by[0]?.keys() ?? [])].filter((round) => by.every((one) => one.has(round)));
    const at = rounds.map((round) => by.map((one) => one.get(round)));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const several = by.length > 1;
    return {
      name: (several ? `${seeds[0].algorithm}, ${seeds.length} seeds` : seeds[0].name) + (extra.suffix ?? ""),
      colour: `--c${seeds[0].group % 16}`, dashed: extra.dashed ?? false,
      points: at.map((found) => [mean(found.map(([place]) => place[axis])), mean(found.map(([, value]) => value))]),
      band: several ? at.map((found) => found.map(([, value]) => value)).map((all) => [Math.min(...all), Math.max(...all)]) : null,
    };
  });
}

function panels() {
  const list = [...runs.values()], first = list[0], y = first.share ? percent : short;
  const merits = AXES.map(([name, axis, x]) => [
    `Mean ${first.metric} over ${name}`, { x, y, log: axis > 0, time: axis === 2 },
    [...series(list, "points", axis), ...series(list, "personal", axis, { dashed: true, suffix: ", personalised" })],
  ]);
  return [
    ...merits,
    ["Training loss over rounds", { x: AXES[0][2], y: short }, series(list, "losses", 0)],
    ["Bytes sent, both ways", { x: AXES[0][2], y: bytes, zero: true }, series(list, "sent", 0)],
  ].filter(([, , shown]) => shown.some((one) => one.points.length));
}

function drawCurves() {
  const found = panels();
  for (const [title, options] of found) {
    if (!curves.has(title)) curves.set(title, new Curves(title, options));
  }
  const figures = found.map(([title]) => curves.get(title).figure), place = document.getElementById("curves");
  if (figures.length !== place.children.length) place.replaceChildren(...figures); // how wide each is depends on all
  for (const [title, , shown] of found) {
    const dashed = shown.some((one) => one.dashed && one.points.length);
    curves.get(title).note.textContent = dashed ? " – – personalised" : "";
    curves.get(title).draw(shown);
  }
}

function standing(run) {
  const { state = "…", left } = run.status;
  return state === "running" && left !== undefined && left !== null ? `running, ${duration(left)} left` : state;
}

function tiles(run) {
  const last = run.history.at(-1), now = [0, 0, 0, 0, 0];
  for (let i = 1; i < (last?.who ?? []).length; i += 2) now[kind(last.who[i])]++;
  const found = [
    ["state", run.status.state ?? "…"], ["round", `${run.history.length} / ${run.rounds}`],
    [`best ${run.metric}`, merit(run, run.best)], ["last", merit(run, run.last)],
    ["personalised", merit(run, run.personalised)], ["bytes up", bytes(run.up)], ["bytes down", bytes(run.down)],
    ["took", duration(last?.seconds)],
  ];
  if (last?.simulated !== undefined) found.push(["simulated", duration(last.simulated)]);
  if (run.status.state === "running") found.push(["time left", run.status.left === null || run.status.left === undefined ? "–" : `≈ ${duration(run.status.left)}`]);
  found.push(["all/some/none", now.slice(0, 3).join(" / ")], ["rejected", String(run.rejected.length)]);
  return found.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

function notes(run, sorted) {
  const found = [];
  const note = (text) => found.push(element("p", { class: "note" }, text));
  if (sorted.length) {
    const worst = sorted.slice(0, LISTED).map(([client, value]) => `${client} (${merit(run, value)})`).join(", ");
    note(`Worst clients after round ${run.clients_now[0]}: ${worst}. Median ${merit(run, sorted[Math.floor(sorted.length / 2)][1])}.`);
  }
  const late = [...run.sampled].filter(([, [, missed]]) => missed > 1).sort((a, b) => b[1][1] - a[1][1] || a[0] - b[0]);
  if (late.length) note(`Most often incomplete or silent: ${late.slice(0, LISTED).map(([client, [n, missed]]) => `client ${client} (${missed} of ${plural(n, "round")})`).join(", ")}.`);
  for (const [title, lines] of [["Rejected replies", run.rejected], ["Who came and went", run.changes]]) {
    if (!lines.length) continue;
    note(`${title}: ${lines.length}${lines.length > LISTED ? ", the last of them:" : ":"}`);
    found.push(element("ul", { class: "note" }, ...lines.slice(-LISTED).map((one) => element("li", {}, one))));
  }
  if (run.status.ended) note(`${run.status.state}: ${run.status.ended}`);
  return found;
}

function drawRun(run) {
  const { box, summary, tiles: list, progress, raster, cohorts, each, spent, notes: below } = run.view;
  const chip = element("span", { class: "chip" });
  chip.style.background = `var(--c${run.group % 16})`;
  summary.replaceChildren(chip, `${run.name}: ${run.algorithm} on ${run.dataset}, ${plural(run.clients, "client")}, seed ${run.seed}`);
  if (!box.open) return;
  progress.value = run.history.length;
  list.replaceChildren(...tiles(run));
  raster.draw(run.history);
  cohorts.draw(run.history, run.rounds);
  for (const one of spent) one.draw(run.history, run.rounds);
  const [round, values] = run.clients_now ?? [0, {}];
  each.figure.hidden = !run.clients_now;
  const format = (value) => merit(run, value);
  const sorted = run.clients_now ? each.draw(values, { format, share: run.share, higher: run.higher_is_better, round }) : [];
  below.replaceChildren(...notes(run, sorted));
}

function drawTable() {
  const table = document.getElementById("runs"), list = [...runs.values()];
  table.hidden = list.length < 2;
  if (table.hidden) return;
  const keys = Object.keys(list[0].differs ?? {}), simulated = list.some((run) => run.history.at(-1)?.simulated !== undefined);
  const names = ["run", "state", "rounds", `best ${list[0].metric}`, "last", "personalised", "up", "down", ...(simulated ? ["simulated"] : []), "rejected", ...keys];
  table.tHead.replaceChildren(element("tr", {}, ...names.map((name) => element("th", {}, name))));
  const worth = (run) => run.best === null ? -Infinity : run.higher_is_better ? run.best : -run.best;
  list.sort((a, b) => worth(b) - worth(a) || a.run - b.run);
  table.tBodies[0].replaceChildren(...list.map((run) => {
    const chip = element("span", { class: "chip" });
    chip.style.background = `var(--c${run.group % 16})`;
    const cells = [standing(run), `${run.history.length}/${run.rounds}`, merit(run, run.best), merit(run, run.last), merit(run, run.personalised),
      bytes(run.up), bytes(run.down), ...(simulated ? [duration(run.history.at(-1)?.simulated)] : []), String(run.rejected.length), ...keys.map((key) => run.differs[key])];
    return element("tr", {}, element("td", {}, chip, run.name), ...cells.map((cell) => element("td", {}, cell)));
  }));
}

function drawHead() {
  if (embedded) return;
  const list = [...runs.values()], going = list.filter((run) => run.status.state === "running");
  const title = list.length === 1 ? list[0].name : plural(list.length, "run");
  document.getElementById("title").textContent = title;
  const done = list.length === 1 ? `${list[0].history.length}/${list[0].rounds} ${merit(list[0], list[0].last)} · ` : "";
  document.title = `${done}${title} · efl watch`;
  if (over) return;
  const left = Math.max(...going.map((run) => run.status.left ?? 0));
  const ended = list.length === 1 ? list[0].status.state ?? "" : "no run is going on";
  say(going.length ? `live: ${list.length === 1 ? "running" : `${going.length} of ${list.length} running`}${left > 0 ? `, ≈ ${duration(left)} left` : ""}` : ended,
    ["damaged", "deleted", "diverged"].includes(list[0]?.status.state) && list.length === 1);
}

function say(text, bad = false) {
  line.textContent = text;
  line.classList.toggle("bad", bad);
}

function draw() {
  pending = false;
  if (!runs.size || document.hidden) return;
  drawHead();
  drawTable();
  drawCurves();
  for (const run of runs.values()) drawRun(run);
  document.body.dataset.rounds = [...runs.values()].reduce((sum, run) => sum + run.history.length, 0);
}

function schedule() {
  if (!pending) { pending = true; setTimeout(() => requestAnimationFrame(draw), 60); }
}

// ---------------------------------------------------------------- the connection

const acts = {
  runs: (data) => begin(data.runs),
  reset: ({ run, ...judged }) => Object.assign(clean(runs.get(run)), judged).view.raster.clear(),
  rounds: (data) => data.rounds.forEach((round) => add(runs.get(data.run), round)),
  status: ({ run, ...status }) => { runs.get(run).status = status; },
};

function connect() {
  const source = new EventSource(`events${location.search}`);
  for (const [name, act] of Object.entries(acts)) {
    source.addEventListener(name, (event) => { act(JSON.parse(event.data)); schedule(); });
  }
  source.addEventListener("end", () => { over = true; source.close(); say("efl watch has ended; this is how things stood"); });
  source.addEventListener("open", () => { if (!runs.size) say("waiting for a run to start …"); });
  source.addEventListener("error", () => { if (!over) say("the connection is lost; trying again …", true); });
}

if (embedded) {
  for (const [name, data] of JSON.parse(embedded.textContent)) acts[name](data);
  schedule();
} else connect();

// Colours of canvases do not follow the style sheet by themselves.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const run of runs.values()) run.view.raster.clear();
  schedule();
});
window.addEventListener("resize", schedule);
document.addEventListener("visibilitychange", schedule);
