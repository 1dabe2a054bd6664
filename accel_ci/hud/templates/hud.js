"use strict";
// Only conveniences: the page is complete without them.
const moments = [...document.querySelectorAll("[data-age]")].map((time) => [time, time.textContent]);
function showAges() {
  for (const [time, absolute] of moments) {
    const minutes = Math.floor((Date.now() - Date.parse(time.dateTime)) / 60000);
    const age = minutes < 120 ? `${minutes} min` : minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} d`;
    time.textContent = minutes < 1 ? absolute : `${absolute} (${age} ago)`;
  }
}
// The search of tests, on every page of a site that has one; "/" leads to it.
const form = document.createElement("form"), field = document.createElement("input");
function addSearch() {
  form.setAttribute("role", "search");
  field.type = "search";
  field.placeholder = "Search tests ( / )";
  field.setAttribute("aria-label", "Search tests");
  form.append(field);
  document.querySelector("nav").append(form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!document.getElementById("results")) location.href = `${document.body.dataset.root}search.html?q=${encodeURIComponent(field.value.trim())}`;
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
    event.preventDefault();
    field.focus();
  });
}
if ("search" in document.body.dataset) addSearch();
showAges();
setInterval(showAges, 30000);
// A long text in a box that scrolls can be reached by the keyboard; no browser has a size for it before it is opened.
function reachLongTexts(root) {
  for (const text of root.querySelectorAll("pre")) if (text.scrollHeight > text.clientHeight) text.tabIndex = 0;
}
reachLongTexts(document);
document.addEventListener("toggle", (event) => reachLongTexts(event.target), true);
for (const list of document.querySelectorAll("[data-filter]")) {
  const rows = [...list.querySelectorAll("[data-row]")];
  if (rows.length < 4) continue;
  const tools = document.createElement("div");
  tools.className = "tools";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = `Filter ${list.dataset.filter.toLowerCase()}`;
  input.setAttribute("aria-label", input.placeholder);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    rows.forEach((row, i) => {
      row.hidden = !texts[i].includes(wanted);
      if (row.hidden || !wanted) return;
      for (let outer = row.parentElement.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
    });
  });
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Open all";
  button.addEventListener("click", () => {
    const open = button.textContent === "Open all";
    list.querySelectorAll("details").forEach((details) => { details.open = open; });
    button.textContent = open ? "Close all" : "Open all";
  });
  tools.append(input);
  if (list.querySelector("details")) tools.append(button);
  list.prepend(tools);
}
