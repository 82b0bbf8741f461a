// The times of one text at several lengths.
import { post, wasCancelled } from "./api.js";
import { input } from "./ask.js";
import { clear, fail, number, onModel, reopened, state } from "./state.js";
import { medians, scale, times } from "./times.js";

const byId = (id) => document.getElementById(id);
const figure = document.querySelector("#lengths figure");
let work = null;

async function measure() {
  clear("lengths-error");
  reset();
  work = new AbortController();
  byId("measure").disabled = true;
  byId("stop-lengths").hidden = false;
  const points = [];
  let sides = [];
  let lengths = [];
  let chart = null;
  const status = (text) => { byId("lengths-status").textContent = text; };
  status("Opening the models …");
  try {
    await post("lengths", JSON.stringify({ model: state.model.name, input: input() }), { signal: work.signal, onEvent: (found) => {
      if (found.sides) {
        ({ sides, lengths } = found);
        if (reopened(found)) times.clear();
        chart = start(sides, points);
        return;
      }
      for (const side of sides) found.ms[side.name].forEach((ms, round) => points.push({ tokens: found.length, model: side.title, round: round + 1, ms }));
      status(`${lengths.indexOf(found.length) + 1} of ${lengths.length} lengths are timed.`);
      chart.redraw();
    } });
  } catch (error) {
    status(wasCancelled(error) ? "Cancelled." : "");
    if (!wasCancelled(error)) fail(error, "lengths-error");
  } finally {
    byId("measure").disabled = false;
    byId("stop-lengths").hidden = true;
  }
}

function start(sides, points) {
  const { domain, range } = scale(sides);
  reset();
  figure.hidden = false;
  const options = (width) => ({
    width, height: Math.min(340, Math.max(240, width * 0.5)), marginLeft: 48, marginTop: 26, marginBottom: 38,
    x: { label: "tokens", type: "log", base: 2, ticks: [...new Set(points.map((p) => p.tokens))], tickFormat: (x) => String(x) },
    y: { label: "ms", grid: true, zero: true },
    color: { domain, range, legend: true },
    marks: [
      Plot.dot(points, { x: "tokens", y: "ms", stroke: "model", strokeOpacity: 0.45, r: 2.5 }),
      Plot.line(medians(points), { x: "tokens", y: "ms", z: "model", stroke: "model", strokeWidth: 2.5 }),
      Plot.tip(points, Plot.pointer({ x: "tokens", y: "ms", title: (d) => `${d.model}\n${d.tokens} tokens: ${number(d.ms)} ms` })),
    ],
  });
  const chart = page.chart(figure, "Milliseconds against tokens, by model", options);
  figure.append(page.csv("lengths.csv", ["tokens", "model", "round", "ms"], () => points));
  return chart;
}

function reset() {
  figure.hidden = true;
  figure.replaceChildren(figure.querySelector("figcaption"));
  byId("lengths-status").textContent = "";
}

byId("measure").addEventListener("click", measure);
byId("stop-lengths").addEventListener("click", () => work?.abort());
onModel(() => { work?.abort(); reset(); });
