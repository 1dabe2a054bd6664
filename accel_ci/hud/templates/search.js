// All tests by any part of their addresses; `search.html?q=…`.
const results = document.getElementById("results"), told = document.getElementById("told"), facts = results.dataset;
const SHOWN = 30, MOST = 500, BAD = "fink";
const parts = []; // of each script of names: the lines, the same in lower case, where each line begins, letters of states
let loaded = null, soon = 0;

function makePart(lines, letters) {
  let lower = lines.toLowerCase();
  if (lower.length !== lines.length) lower = lines.replace(/[A-Z]/g, (letter) => letter.toLowerCase()); // places must agree
  const begins = new Uint32Array(letters.length + 1);
  for (let line = 1, at = lines.indexOf("\n"); line < letters.length; line++, at = lines.indexOf("\n", at + 1)) begins[line] = at + 1;
  begins[letters.length] = lines.length + 1;
  const isBad = new Uint8Array(letters.length);
  for (let line = 0; line < letters.length; line++) isBad[line] = BAD.includes(letters[line]) ? 1 : 0;
  return { lines, lower, begins, letters, isBad };
}

async function loadNames() {
  const [stamp, letters] = JSON.parse(await load("states", facts.stamp));
  if (stamp !== facts.names) throw new Error("The data are being written; load the page again.");
  const size = Number(facts.size);
  await Promise.all(Array.from({ length: Number(facts.files) }, async (_, file) => {
    const lines = await load(`names/${file}`, stamp);
    parts[file] = makePart(lines, letters.slice(file * size, (file + 1) * size));
    cancelAnimationFrame(soon);
    soon = requestAnimationFrame(run);
  }));
  performance.mark("all names");
}

// Calls `onLine` for each line of a part that has all words. Each word's next place is only ever looked for onwards.
function scan(part, words, onLine) {
  const { lower, begins } = part, last = begins.length - 1, places = words.map(() => -1);
  let line = 0;
  search: while (line < last) {
    const begin = begins[line], end = begins[line + 1];
    for (let i = 0; i < words.length; i++) {
      if (places[i] < begin) places[i] = lower.indexOf(words[i], begin);
      if (places[i] < 0) return;
      if (places[i] >= end) {
        line = lineAt(begins, places[i], line + 1, last);
        continue search;
      }
    }
    onLine(line++);
  }
}

// The line of a place, at `line` or after it: by doubling steps, then halving.
function lineAt(begins, place, line, last) {
  let step = 1;
  while (line + step < last && begins[line + step] <= place) { line += step; step *= 2; }
  let end = Math.min(last, line + step);
  while (end - line > 1) {
    const middle = (line + end) >> 1;
    if (begins[middle] <= place) line = middle; else end = middle;
  }
  return line;
}

// The number of tests that have all words, and the first of them; those in a bad state come first.
function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => word.replaceAll("\\", "\\\\"));
  words.sort((a, b) => b.length - a.length);
  const bad = [], others = [];
  let matches = 0;
  for (const part of parts) {
    if (!part) continue;
    scan(part, words, (line) => {
      matches++;
      const list = part.isBad[line] ? bad : others;
      if (list.length < MOST) list.push([part, line]);
    });
  }
  return { matches, found: [...bad, ...others].slice(0, MOST) };
}

const unescaped = (line) => line.replace(/\\(\\|u([0-9a-f]{4}))/g, (_, all, code) => code ? String.fromCharCode(parseInt(code, 16)) : "\\");

function result([part, line]) {
  const address = unescaped(part.lines.slice(part.begins[line], part.begins[line + 1] - 1)), letter = part.letters[line];
  const words = letter === ABSENT ? "not in the newest builds" : verdictOf(letter);
  return make("li", {}, testLink(address), " ", chip(letter, words), " ", make("span", { class: "dim" }, oneLine(address.slice(0, address.indexOf("/")), 80)));
}

function run() {
  const query = field.value.trim();
  const tests = parts.reduce((sum, part) => sum + part.letters.length, 0), whole = tests === Number(facts.tests);
  if (!query) {
    results.replaceChildren();
    told.textContent = `Search ${count(Number(facts.tests), "test")} by any parts of their names or suites, in any order.`;
    return;
  }
  const { matches, found } = find(query), rest = found.slice(SHOWN), left = matches - found.length;
  results.replaceChildren(...found.slice(0, SHOWN).map(result));
  if (rest.length) {
    results.append(make("li", {}, more(`${number(rest.length)} more`, () => {
      results.lastElementChild.replaceWith(...rest.map(result), ...(left ? [make("li", {}, `${number(left)} more; add words to the search`)] : []));
    })));
  }
  const order = rest.length ? "; those that did not pass come first" : "";
  told.textContent = `${count(matches, "test")} of ${number(tests)}${whole ? "" : " that are loaded so far"}${order}`;
}

function search() {
  const query = field.value.trim();
  const url = query ? `search.html?q=${encodeURIComponent(query)}` : "search.html";
  try {
    history.replaceState(null, "", url);
  } catch { // some browsers refuse that for files
  }
  document.title = `${query ? oneLine(query, 80) : "Search"} · ${facts.project}`;
  loaded ??= loadNames().catch((error) => { told.textContent = String(error.message); });
  run();
}

function move(event) {
  const links = [...results.querySelectorAll("a")], at = links.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !links.length || (at < 0 && document.activeElement !== field)) return;
  event.preventDefault();
  if (at + step < 0) field.focus();
  else links[Math.min(at + step, links.length - 1)].focus();
}

field.value = new URLSearchParams(location.search).get("q") || "";
field.addEventListener("input", search);
field.form.addEventListener("submit", (event) => { event.preventDefault(); search(); results.querySelector("a")?.focus(); });
addEventListener("keydown", move);
field.focus();
search();
