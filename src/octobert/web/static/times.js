// The times of all questions to the chosen package: one row of points for each model, with its median.
import { number } from "./state.js";

const figure = document.getElementById("times");
const COLOURS = { float: "var(--float)", int8: "var(--int8)" };
let samples = [];
let drawn = null;
let question = 0;

// [{title, colour}] of sides, in their order: what charts of both models use.
export function scale(sides) {
  return { domain: sides.map((side) => side.title), range: sides.map((side) => COLOURS[side.name]) };
}

function add(sides, found) {
  if (found.warm) question += 1;
  for (const side of sides) {
    samples.push({ question, model: side.title, ms: found.ms[side.name], warm: Boolean(found.warm), counted: found.warm ? "warm-up" : "counted" });
  }
  figure.hidden = false;
  if (drawn === null) start(sides);
  drawn.redraw();
}

function start(sides) {
  const { domain, range } = scale(sides);
  const counted = () => samples.filter((sample) => !sample.warm);
  drawn = page.chart(figure, "Milliseconds of each question, by model", (width) => ({
    width, height: 56 + 64 * domain.length, marginLeft: 108, marginBottom: 38,
    x: { label: "ms, text to answer", grid: true, type: "log", ticks: Math.max(2, width / 110), tickFormat: (x) => number(x) },
    y: { domain, label: null, tickSize: 0 },
    color: { domain, range },
    marks: [
      Plot.dot(samples, { x: "ms", y: "model", stroke: "model", symbol: "counted", r: 4, strokeOpacity: 0.8, tip: true, channels: { question: "question" } }),
      Plot.tickX(counted(), Plot.groupY({ x: "median" }, { x: "ms", y: "model", stroke: "currentColor", strokeWidth: 3, insetTop: 8, insetBottom: 8 })),
      Plot.text(counted(), Plot.groupY({ x: "median", text: (values) => `median ${number(d3.median(values))} ms of ${values.length}` },
        { x: "ms", y: "model", text: "ms", dy: -24, fill: "currentColor", textAnchor: "middle" })),
    ],
    symbol: { domain: ["counted", "warm-up"], range: ["circle", "times"] },
  }));
  figure.append(page.csv("times.csv", ["question", "model", "ms", "counted"], () => samples));
}

function clear() {
  samples = [];
  question = 0;
  drawn = null;
  figure.hidden = true;
  figure.replaceChildren(figure.querySelector("figcaption"));
}

export const times = { add, clear };
