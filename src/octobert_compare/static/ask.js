// One text: the fields of the task, both answers, tokens, and the times of all questions so far.
import { post } from "./api.js";
import { side } from "./answers.js";
import { clear, fail, fragment, number, onModel, remember, reopened, state } from "./state.js";
import { times } from "./times.js";

const byId = (id) => document.getElementById(id);
const { element } = page;

// Fields by what a model reads: name in the fragment, label, and whether it may stay empty.
function fieldsOf(model) {
  if (model.head === "question-answering") return [["text", "Question"], ["second", "Article"]];
  if (model.head === "masked-lm") return [["text", "Text with a mask, such as [MASK] or <mask>"]];
  const single = model.texts === 1 || ["token-classification", "embedding"].includes(model.head);
  if (single) return [["text", "Text"]];
  return [["text", "First text"], ["second", model.texts === 2 ? "Second text" : "Second text, where the model reads pairs", model.texts !== 2]];
}

function drawFields(model) {
  const kept = { ...Object.fromEntries(fragment()), ...values() };
  const fields = fieldsOf(model);
  byId("fields").className = fields.length === 2 && model.head !== "question-answering" ? "two" : "";
  byId("fields").replaceChildren(
    ...fields.map(([name, label]) => element("div", {},
      element("label", { htmlFor: `field-${name}` }, label),
      element("textarea", { id: `field-${name}`, name, value: kept[name] ?? "", rows: name === "second" && model.head === "question-answering" ? 6 : 3, onkeydown: sends }))),
    ...(model.prompts.length ? [promptField(model, kept.prompt)] : []),
  );
  forget();
  times.clear();
}

// What was answered before is not the answer to what the fields say now.
function forget() {
  byId("sides").replaceChildren();
  byId("read").hidden = true;
  say("");
}

function promptField(model, chosen) {
  const options = ["", ...model.prompts].map((name) => element("option", { value: name, selected: name === chosen }, name || "the model's own"));
  return element("p", { className: "controls" }, element("label", { htmlFor: "field-prompt" }, "Prompt"),
    element("select", { id: "field-prompt", name: "prompt" }, ...options));
}

function values() {
  const found = [...byId("fields").querySelectorAll("[name]")].map((field) => [field.name, field.value]);
  return Object.fromEntries(found.filter(([, value]) => value !== ""));
}

// The fields as octobert predict takes them.
export function input() {
  const { text = "", second, prompt } = values();
  if (state.model.head === "question-answering") return { question: text, context: second ?? "" };
  if (prompt) return { text, prompt };
  return second === undefined && state.model.texts !== 2 ? text : [text, second ?? ""];
}

function sends(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("question").requestSubmit();
}

async function ask(event) {
  event.preventDefault();
  const button = byId("question").querySelector("button");
  clear("ask-error");
  button.disabled = true;
  byId("sides").classList.add("old");
  say("Asking …");
  remember(values());
  const asked = { model: state.model.name, input: input(), rounds: Number(byId("rounds").value) || 5 };
  try {
    let sides = [];
    let rounds = [];
    let read = 0;
    await post("ask", JSON.stringify(asked), { onEvent: (found) => {
      if (found.sides) {
        sides = found.sides;
        if (reopened(found)) times.clear();
        tokens(found);
        ({ read } = found);
      }
      if (found.answers) rounds = [];
      if (found.answers) byId("sides").classList.remove("old");
      if (found.answers) byId("sides").replaceChildren(...sides.map((each) => side(each, found, asked.input)));
      if (found.ms) times.add(sides, found, read);
      if (found.ms && !found.warm) took(sides, rounds = [...rounds, found.ms]);
      if (found.sentence) say(found.sentence, found.same === false);
    } });
  } catch (error) {
    forget();
    fail(error, "ask-error");
  } finally {
    button.disabled = false;
    byId("sides").classList.remove("old");
  }
}

function say(text, warns = false) {
  byId("sentence").textContent = text;
  byId("sentence").className = warns ? "warn" : "";
}

function took(sides, rounds) {
  for (const { name } of sides) {
    const own = rounds.map((round) => round[name]);
    byId("sides").querySelector(`.of-${name} .ms`).textContent = `${number(d3.median(own))} ms (${number(d3.min(own))} to ${number(d3.max(own))})`;
  }
}

function tokens(found) {
  const details = byId("read");
  const parts = found.rows > 1 ? `, in ${found.rows} windows, of which this is the first` : "";
  const left = found.whole === null ? "" : ` of the ${found.whole} in the text`;
  const cut = found.truncated ? `: the text was cut, the model reads ${found.limit}${left}` : "";
  details.querySelector("summary").textContent = `${found.read} tokens read${parts}${cut}`;
  const listed = found.tokens.map(({ id, piece }) => element("span", { className: "token" }, piece, element("small", {}, id)));
  const mark = found.truncated ? element("span", { className: "token cut" }, "cut here") : null;
  details.querySelector(".tokens").replaceChildren(...listed, ...(mark ? [mark] : []));
  details.hidden = false;
}

byId("question").addEventListener("submit", ask);
onModel(drawFields);
