// What is shared by the parts of the page: the packages of the folder, the chosen one, and the fragment of the address.
import { get } from "./api.js";

const byId = (id) => document.getElementById(id);
const listeners = [];
let models = [];
let opened = "";

export const state = {
  get model() {
    return models.find((model) => model.name === byId("model").value);
  },
};

// Call a function now and whenever another package is chosen.
export function onModel(listener) {
  listeners.push(listener);
}

// Say what is wrong beside the control that was used: place is the id of a paragraph there.
export function fail(error, place = "error") {
  byId(place).textContent = error.message;
  byId(place).hidden = false;
}

export function clear(place = "error") {
  byId(place).hidden = true;
}

// Say where a package was opened again. Returns whether it was.
export function reopened(event) {
  const key = `${state.model.name} ${event.opened}`;
  const again = opened.startsWith(`${state.model.name} `) && opened !== key;
  opened = key;
  byId("note").textContent = "The package has changed, and was opened again. Its times start anew.";
  byId("note").hidden = !again;
  return again;
}

// Read what the folder holds; the choice stays where it can.
export async function refresh() {
  const found = (await get("models")).models;
  if (JSON.stringify(found) === JSON.stringify(models)) return;
  const select = byId("model");
  const usable = found.filter((model) => model.problem === null);
  if (!usable.length) throw new Error(found[0].problem);
  const wanted = [select.value, fragment().get("model"), usable[0]?.name];
  models = found;
  select.replaceChildren(
    ...found.map((model) => page.element("option", { value: model.name, disabled: model.problem !== null }, model.name)),
  );
  select.value = wanted.find((name) => usable.some((model) => model.name === name)) ?? "";
  changed();
}

export function changed() {
  const { model } = state;
  if (!model) return;
  const others = models.filter((each) => each.problem !== null).map((each) => ` ${each.problem}`);
  byId("title").textContent = `${model.model}: float against INT8, live`;
  document.title = `${model.model} – octobert compare`;
  byId("about").textContent = `${model.task} on ${model.target}.${others.join("")}`;
  byId("note").hidden = true;
  document.querySelectorAll("section > .problem").forEach((each) => clear(each.id));
  listeners.forEach((listener) => listener(model));
}

// What the address says after its #. The token stands before it.
export function fragment() {
  return new URLSearchParams(location.hash.slice(1));
}

export function remember(values) {
  history.replaceState(null, "", `#${new URLSearchParams({ model: state.model.name, ...values })}`);
}

// The address without its token: the fragment works behind the address of any octobert compare.
export function link() {
  return `${location.origin}/${location.hash}`;
}

export function number(value, digits = 3) {
  return value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toLocaleString("en");
}
