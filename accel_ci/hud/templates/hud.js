"use strict";
// Only conveniences: the page is complete without them.
for (const time of document.querySelectorAll("[data-age]")) {
  const minutes = Math.round((Date.now() - Date.parse(time.dateTime)) / 60000);
  if (minutes < 2) continue;
  const age = minutes < 120 ? `${minutes} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} d`;
  time.append(` (${age} ago)`);
}
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
    rows.forEach((row, i) => { row.hidden = !texts[i].includes(wanted); });
  });
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Open all";
  button.addEventListener("click", () => {
    const open = button.textContent === "Open all";
    rows.forEach((row) => { row.open = open; });
    button.textContent = open ? "Close all" : "Open all";
  });
  tools.append(input, button);
  list.prepend(tools);
}
