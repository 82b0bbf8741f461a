// Puts the page together: its parts register what they do with the chosen package.
import "./ask.js";
import "./lengths.js";
import "./open.js";
import "./rows.js";
import "./search.js";
import { changed, clear, fail, fragment, link, refresh, state } from "./state.js";

const byId = (id) => document.getElementById(id);

async function update() {
  try {
    await refresh();
  } catch (error) {
    fail(error);
  }
}

function follow() {
  const wanted = fragment().get("model");
  if ([...byId("model").options].some((option) => option.value === wanted && !option.disabled)) byId("model").value = wanted;
  byId("fields").replaceChildren();
  if (state.model) changed();
}

async function copy() {
  try {
    await navigator.clipboard.writeText(link());
    byId("copied").textContent = "Copied, without the token: put the part from # on behind the address of any octobert compare.";
  } catch {
    fail(new Error("The browser does not let this page copy: take the part of the address from # on."));
  }
}

byId("model").addEventListener("change", () => { clear(); changed(); });
byId("copy").addEventListener("click", copy);
window.addEventListener("hashchange", follow);
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
await update();
document.documentElement.dataset.ready = "true";
