// An answer as a card, by its form; see octobert.Predictor. Everything in it is text.
import { number } from "./state.js";

const { element } = page;
const NAMES = { float: "Float", int8: "8 bits" };

// facts are those of a side; found has the answers, scores and likeness of both; input is what was asked.
export function side(facts, found, input) {
  const answer = found.answers[facts.name];
  return element("article", { className: `side of-${facts.name}` }, heading(facts), ...body(answer, found, facts.name, input),
    element("p", { className: "ms" }), facts.name === "int8" && found.likeness ? like(found.likeness, answer) : null);
}

export function heading(facts) {
  const megabytes = `${number(facts.bytes / 1e6)} MB`;
  const tuned = facts.tuned ? ", with settings of octobert tune" : "";
  return element("header", {}, element("h3", {}, `${NAMES[facts.name]}: ${facts.title}`),
    element("span", { className: "muted" }, `${facts.device}, ${facts.precision}, ${megabytes}${tuned}`));
}

function body(answer, found, name, input) {
  if ("answer" in answer) return span(answer, input);
  if ("entities" in answer) return entities(answer);
  if ("masks" in answer) return answer.masks.flatMap((fillers) => [bars(fillers.map(({ text, token, score }) => [text || token, score]))]);
  if ("labels" in answer) return [said(answer.labels.join(", "), "(no label)"), bars(Object.entries(answer.scores))];
  if ("label" in answer) {
    const scores = Object.entries(found.scores[name]).sort(([, a], [, b]) => b - a).slice(0, 20);
    return [said(answer.label), bars(scores.length ? scores : [[answer.label, answer.score]])];
  }
  if ("indices" in answer) return [said(answer.tokens.slice(0, 20).map((token, i) => `${token} ${number(answer.values[i], 2)}`).join(", "), "(no terms)")];
  if ("embeddings" in answer) return vector(answer.embeddings[0], `first of ${answer.embeddings.length} token vectors of ${answer.embeddings[0].length} numbers`);
  if ("embedding" in answer) return vector(answer.embedding, `${answer.embedding.length} numbers`);
  if ("states" in answer) return vector(answer.states[0], `first of ${answer.states.length} token states of ${answer.size} numbers`);
  return [said(number(answer.score, 4))];
}

function said(text, empty = "") {
  return element("p", { className: text ? "answer" : "answer empty" }, text || empty);
}

function bars(scores) {
  const cells = scores.flatMap(([name, score]) => [element("span", {}, name),
    element("meter", { min: 0, max: 1, value: score, ariaLabel: `Score of ${name}` }), element("span", {}, score.toFixed(4))]);
  return element("div", { className: "bars" }, ...cells);
}

// The answer in its article; other answers below.
function span(answer, input) {
  const context = [...input.context];
  const marked = answer.start === null ? [input.context] : [
    context.slice(Math.max(0, answer.start - 400), answer.start).join(""),
    element("mark", {}, context.slice(answer.start, answer.end).join("")),
    context.slice(answer.end, answer.end + 400).join("")];
  const all = [answer, ...answer.others].map((each) => [each.answer || "(no answer)", each.score]);
  return [said(answer.answer, "(no answer)"), element("p", { className: "context" }, ...marked), bars(all)];
}

// The words with their entities marked, each with its type.
function entities(answer) {
  const words = [...answer.words];
  const parts = answer.entities.map(({ text, type, score }) => element("li", {}, element("mark", {}, text, element("b", {}, type)), ` ${score.toFixed(4)}`));
  return [said(parts.length ? "" : "(nothing)"), element("ol", {}, ...parts),
    element("p", { className: "context muted" }, words.map((word, i) => (answer.tags[i] === "O" ? word : `${word}/${answer.tags[i]}`)).join(" "))];
}

function vector(numbers, size) {
  return [element("p", { className: "context" }, `[${numbers.slice(0, 6).map((x) => x.toFixed(4)).join(", ")}, …]`), element("p", { className: "muted" }, size)];
}

// How near the outputs of both are. Of single answers, agreement is what the sentence above says already.
function like(likeness, answer) {
  const cosine = ["embedding", "embeddings", "indices", "states"].some((key) => key in answer);
  const text = cosine ? `cosine with float: ${likeness.agreement?.toFixed(5) ?? "–"}` : `outputs differ by ${number(likeness.error)} (root mean square)`;
  return element("p", { className: "muted" }, text);
}
