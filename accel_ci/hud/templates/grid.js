// The filters of the grid, which the address keeps (`?q=…&trigger=…&changed=1`), and its keys.
const grid = document.getElementById("grid");
if (grid) {
  const rows = [...grid.querySelectorAll("tbody tr")];
  let texts = null; // read when they are first asked for
  const tools = document.createElement("div"), query = document.createElement("input"), changed = document.createElement("input");
  const label = document.createElement("label"), told = document.createElement("span");
  tools.className = "tools";
  query.type = "search";
  query.placeholder = "Filter builds";
  query.setAttribute("aria-label", "Filter builds");
  changed.type = "checkbox";
  changed.id = "only-changed";
  label.append(changed, " only what changed");
  told.setAttribute("role", "status");
  told.className = "dim";
  tools.append(query, label, told);
  grid.closest(".scroll").before(tools);
  const triggers = [...document.querySelectorAll("input[name=trigger]")], first = triggers.find((one) => one.checked);

  function wordsOf(row) {
    const titles = [...row.querySelectorAll("[title]")].map((one) => one.title);
    return [row.textContent, ...titles].join(" ").toLowerCase();
  }
  function show() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    grid.classList.toggle("only-changed", changed.checked);
    if (words.length) texts ??= rows.map(wordsOf);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word)) || (changed.checked && row.classList.contains("same"));
      shown += row.hidden ? 0 : 1;
    });
    told.textContent = words.length || changed.checked ? `${shown} of ${rows.length} revisions` : "";
  }
  function remember() {
    const asked = new URLSearchParams(), trigger = triggers.find((one) => one.checked);
    if (query.value.trim()) asked.set("q", query.value.trim());
    if (trigger && trigger !== first) asked.set("trigger", trigger.value);
    if (changed.checked) asked.set("changed", "1");
    const text = String(asked);
    history.replaceState(null, "", (text ? `?${text}` : location.pathname) + location.hash);
  }
  const asked = new URLSearchParams(location.search);
  query.value = asked.get("q") ?? "";
  changed.checked = asked.get("changed") === "1";
  const wanted = triggers.find((one) => one.value === asked.get("trigger"));
  if (wanted) wanted.checked = true;
  for (const one of [query, changed, ...triggers]) one.addEventListener("input", () => { show(); remember(); });
  show();

  // Arrow keys lead from build to build; "c" toggles what changed.
  const isShown = (row) => row && row.getClientRects().length;
  grid.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("td, th"), row = cell?.closest("tr");
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    const place = [...row.children].indexOf(cell);
    const line = rows.filter(isShown), at = line.indexOf(row);
    const to = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!to) return;
    for (let y = at + to[0], x = place + to[1]; line[y]?.children[x]; y += to[0], x += to[1]) {
      const link = line[y].children[x].querySelector("a");
      if (link) { event.preventDefault(); link.focus(); return; }
    }
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "c" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select")) return;
    changed.checked = !changed.checked;
    show();
    remember();
  });
}
