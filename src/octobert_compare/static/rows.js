// Rows of a file: agreement, rows per second and the rows that differ, while both models answer them.
import { post, wasCancelled } from "./api.js";
import { clear, fail, number, onModel, reopened, state } from "./state.js";
import { scale, times } from "./times.js";

const byId = (id) => document.getElementById(id);
const { element } = page;
const figure = byId("growth");
const speed = byId("speed");
// Rows of the table; the CSV file has all of them.
const LISTED = 200;
const REDRAWN_MS = 200;
let work = null;
let dropped = null;
let shownJob = null;

// What was chosen, dropped or pasted, as [name, content].
function given() {
  const file = dropped ?? byId("file").files[0];
  if (file) return [file.name, file];
  const text = byId("pasted").value;
  if (!text.trim()) throw new Error("There are no rows: choose a file, or paste rows with a header.");
  const line = text.trimStart().split("\n")[0];
  const suffix = /^[[{]/.test(line) ? "jsonl" : line.includes("\t") ? "tsv" : "csv";
  return [`pasted.${suffix}`, new Blob([text])];
}

async function compare() {
  clear("rows-error");
  reset();
  try {
    const [name, content] = given();
    begin();
    const job = { points: [], changed: [], rows: 0, sides: [], name, chart: null, speed: null, timer: null, found: null, embeds: state.model.head === "embedding" };
    shownJob = job;
    const query = new URLSearchParams({ model: state.model.name, name });
    await post(`rows?${query}`, content, { signal: work.signal, onEvent: (found) => (found.rows ? started(job, found) : grown(job, found)) });
    byId("rows-status").textContent = `All ${number(job.rows, 9)} rows of ${name} are done.`;
  } catch (error) {
    byId("rows-status").textContent = wasCancelled(error) ? "Cancelled. The figures are those of the rows that were done." : "";
    if (!wasCancelled(error)) fail(error, "rows-error");
  } finally {
    end();
  }
}

function begin() {
  work = new AbortController();
  byId("start").disabled = true;
  byId("cancel").hidden = byId("progress").hidden = false;
  byId("progress").removeAttribute("value");
  byId("rows-status").textContent = "Reading the rows …";
}

function end() {
  byId("start").disabled = false;
  byId("cancel").hidden = byId("progress").hidden = true;
}

function started(job, found) {
  if (reopened(found)) times.clear();
  Object.assign(job, { rows: found.rows, sides: found.sides, metric: found.metric });
  byId("progress").max = found.rows;
}

function grown(job, found) {
  job.points.push(point(job, found));
  job.changed.push(...found.changed);
  byId("progress").value = found.done;
  byId("rows-status").textContent = `${number(found.done, 9)} of ${number(job.rows, 9)} rows of ${job.name}`;
  job.found = found;
  // Of many short steps, only some are drawn.
  if (job.timer === null || found.done === job.rows) draw(job);
  if (found.changed.length) list(job, found.changed);
}

function draw(job) {
  clearTimeout(job.timer);
  if (job !== shownJob) return;
  const drawn = job.points.length;
  job.timer = setTimeout(() => {
    job.timer = null;
    if (job.points.length > drawn) draw(job);
  }, REDRAWN_MS);
  tiles(job, job.found);
  speed.hidden = false;
  job.speed ??= speeds(job);
  job.speed.redraw();
  if (job.found.agreement === null || job.sides.length === 1) return;
  figure.hidden = false;
  job.chart ??= chart(job, job.found.likeness);
  job.chart.redraw();
}

function point(job, found) {
  const rates = job.sides.map((side) => [`${side.name} rows/s`, found.done / found.seconds[side.name]]);
  return { rows: found.done, agreement: found.agreement, flips: job.changed.length + found.changed.length, ...Object.fromEntries(rates) };
}

function tiles(job, found) {
  const names = job.sides.map((side) => side.name);
  const rates = names.map((name) => found.done / found.seconds[name]);
  const tile = (title, value, small) => element("div", {}, element("dt", {}, title), element("dd", {}, value, element("small", {}, small)));
  const shown = [tile("Rows per second", number(rates.at(-1)), names.length > 1 ? `8 bits; float ${number(rates[0])}: ${number(rates[1] / rates[0], 2)} ×` : "8 bits")];
  if (names.length > 1) {
    const share = found.likeness === "agreement" ? `${(100 * found.agreement).toFixed(1)} %` : number(found.agreement, 5);
    const name = found.likeness[0].toUpperCase() + found.likeness.slice(1);
    // Embeddings are compared with each other once all are there.
    const flips = job.embeds ? tile("Changed", found.done < job.rows ? "–" : number(job.changed.length, 9), "rows, seen among each other")
      : tile("Flips", number(job.changed.length, 9), `of ${number(found.done, 9)} rows`);
    shown.unshift(tile(name, share, "of 8 bits with float"), flips);
  }
  if (job.metric && found.metrics.int8 !== undefined) {
    const floating = found.metrics.float === undefined ? "8 bits" : `8 bits; float ${number(found.metrics.float, 4)}`;
    shown.push(tile(job.metric, number(found.metrics.int8, 4), floating));
  }
  byId("tiles").replaceChildren(...shown);
  byId("tiles").hidden = false;
}

function chart(job, likeness) {
  const made = page.chart(figure, `${likeness} over the rows so far`, (width) => ({
    width, height: 200, marginLeft: 56, marginTop: 26, marginBottom: 38,
    x: { label: "rows", domain: [0, job.rows] },
    y: { label: likeness, grid: true, ticks: 4, domain: [Math.min(0.99, d3.min(job.points, (p) => p.agreement)), 1], tickFormat: likeness === "agreement" ? (y) => `${number(100 * y, 4)} %` : undefined },
    marks: [
      Plot.line(job.points, { x: "rows", y: "agreement", stroke: "var(--int8)", strokeWidth: 2 }),
      Plot.dot(job.points.slice(-1), { x: "rows", y: "agreement", fill: "var(--int8)" }),
    ],
  }));
  figure.append(page.csv("agreement.csv", ["rows", "agreement", "flips", "float rows/s", "int8 rows/s"], () => job.points));
  return made;
}

function speeds(job) {
  const { domain, range } = scale(job.sides);
  const points = () => job.sides.flatMap((side) => job.points.map((p) => ({ rows: p.rows, model: side.title, speed: p[`${side.name} rows/s`] })));
  return page.chart(speed, "Rows per second over the rows so far, by model", (width) => ({
    width, height: 200, marginLeft: 48, marginTop: 26, marginBottom: 38,
    x: { label: "rows", domain: [0, job.rows] },
    y: { label: "rows/s", grid: true, zero: true, ticks: 4 },
    color: { domain, range, legend: true },
    marks: [
      Plot.line(points(), { x: "rows", y: "speed", z: "model", stroke: "model", strokeWidth: 2 }),
    ],
  }));
}

function list(job, changed) {
  const holder = byId("changed");
  const texts = d3.max(job.changed, (row) => row.texts.length);
  const header = ["row", ...d3.range(texts).map((i) => (texts > 1 ? `text ${i + 1}` : "text")), "expected", "float", "8 bits", "float score", "8-bit score"];
  const cells = (row) => [row.row, ...d3.range(texts).map((i) => row.texts[i] ?? ""), row.expected ?? "", row.float, row.int8, row.float_score, row.int8_score];
  if (holder.hidden) {
    holder.querySelector("thead").replaceChildren(element("tr", {}, ...header.map((name) => element("th", { scope: "col" }, name))));
    holder.querySelector(".csv")?.remove();
    holder.append(page.csv("rows-that-differ.csv", header, () => job.changed.map(cells)));
    holder.hidden = false;
  }
  const body = holder.querySelector("tbody");
  for (const row of changed.slice(0, Math.max(0, LISTED - body.rows.length))) {
    body.append(element("tr", {}, ...cells(row).map((value, i) => element("td", { className: i > 0 && i <= texts ? "text" : "" }, shown(value)))));
  }
  const more = job.changed.length > LISTED ? `, of which ${LISTED} are listed; the CSV file has all` : "";
  holder.querySelector("h3").textContent = `${number(job.changed.length, 9)} rows differ${more}`;
}

function shown(value) {
  if (typeof value === "number") return Number.isInteger(value) ? value : value.toFixed(4);
  const text = String(value ?? "");
  return text.length > 600 ? `${text.slice(0, 600)} …` : text;
}

function reset() {
  byId("tiles").hidden = byId("changed").hidden = figure.hidden = speed.hidden = true;
  speed.replaceChildren(speed.querySelector("figcaption"));
  byId("changed").querySelector("tbody").replaceChildren();
  figure.replaceChildren(figure.querySelector("figcaption"));
  byId("rows-status").textContent = "";
  shownJob = null;
}

function drops() {
  const zone = byId("drop");
  const over = (event) => { event.preventDefault(); zone.classList.add("over"); };
  zone.addEventListener("dragover", over);
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    [dropped] = event.dataTransfer.files;
    if (dropped) compare();
  });
  // Whichever was given last counts.
  byId("file").addEventListener("change", () => { dropped = null; });
  byId("pasted").addEventListener("input", () => { dropped = null; byId("file").value = ""; });
}

drops();
byId("start").addEventListener("click", compare);
byId("cancel").addEventListener("click", () => work?.abort());
onModel(() => { work?.abort(); reset(); });
