// The times of all questions to the chosen package against their tokens, with the median at each length.
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

// tokens is how many were read.
function add(sides, found, tokens) {
  if (found.warm) question += 1;
  for (const side of sides) {
    samples.push({ question, tokens, model: side.title, ms: found.ms[side.name], counted: found.warm ? "warm-up" : "counted" });
  }
  figure.hidden = false;
  if (drawn === null) start(sides);
  drawn.redraw();
}

// One point for each model and length: times of different lengths have no median that says anything.
export function medians(points) {
  const groups = d3.rollups(points, (own) => d3.median(own, (p) => p.ms), (p) => p.model, (p) => p.tokens);
  return groups.flatMap(([model, lengths]) => d3.sort(lengths, ([tokens]) => tokens).map(([tokens, ms]) => ({ model, tokens, ms })));
}

function start(sides) {
  const { domain, range } = scale(sides);
  drawn = page.chart(figure, "Milliseconds of each question against its tokens, by model", (width) => {
    const middle = medians(samples.filter((sample) => sample.counted === "counted"));
    const at = { x: "tokens", y: "ms", stroke: "model" };
    return {
      width, height: 240, marginLeft: 56, marginTop: 26, marginBottom: 38,
      x: { label: "tokens →", domain: [0, 1.08 * d3.max(samples, (sample) => sample.tokens)], ticks: Math.max(3, width / 90) },
      y: { label: "↑ ms, text to answer", grid: true, type: "log", ticks: 5, tickFormat: (y) => number(y) },
      color: { domain, range, legend: true },
      symbol: { domain: ["counted", "warm-up"], range: ["circle", "times"] },
      marks: [
        Plot.dot(samples, { ...at, symbol: "counted", r: 3.5, strokeOpacity: 0.7 }),
        Plot.line(middle, { ...at, z: "model", strokeWidth: 2 }),
        Plot.dot(middle, { ...at, fill: "model", r: 5 }),
        Plot.tip(samples, Plot.pointer({ x: "tokens", y: "ms", title: (d) => `${d.model}, question ${d.question}\n${d.tokens} tokens: ${number(d.ms)} ms${d.counted === "counted" ? "" : " (warm-up)"}` })),
      ],
    };
  });
  figure.append(page.csv("times.csv", ["question", "tokens", "model", "ms", "counted"], () => samples));
}

function clear() {
  samples = [];
  question = 0;
  drawn = null;
  figure.hidden = true;
  figure.replaceChildren(figure.querySelector("figcaption"));
}

export const times = { add, clear };
