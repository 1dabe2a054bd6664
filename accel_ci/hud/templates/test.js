// The page of one test; `test.html#<suite>/<test>`.
const page = document.getElementById("test"), settings = page.dataset;
const SHOWN_ROWS = 40, SHOWN_FAILURES = 20, FIRST_WEEKS = 2;
let site = null, turn = 0;

function addressOf(hash) {
  try {
    return decodeURIComponent(hash.replace(/^#/, ""));
  } catch {
    return hash.replace(/^#/, "");
  }
}

// The seconds that a character stands for: a quarter of a doubling from one to the next.
function secondsOf(character) {
  if (!character || character === " ") return null;
  const code = character.charCodeAt(0);
  return 0.001 * 2 ** ((code - 35 - (code > 92 ? 1 : 0)) / 4);
}

// What a test did in the builds of a week, from the records of its bucket.
function readWeek(records, builds, suite, test) {
  const names = [], bases = new Map(), told = new Map(), found = [];
  for (const [kind, name, ...rest] of records) {
    if (kind === "tests" && name === suite) names.push(...rest[0]);
    else if (kind === "base" && name === suite) bases.set(rest[0], rest.slice(1));
    else if (kind === "build") told.set(name, rest);
  }
  const place = names.indexOf(test);
  if (place < 0) return found;
  for (const [id, revision, variant, ofSuite, day, base] of builds) {
    if (site.suites[ofSuite] !== suite) continue;
    const [letters, reasons] = bases.get(base) || ["", {}];
    const [exceptions, characters] = told.get(id) || [[], ""];
    const exception = exceptions.find((each) => each[0] === place);
    const letter = exception ? exception[1] : letters[place] || ABSENT;
    if (letter === ABSENT) continue;
    const reason = exception && exception[1] !== letters[place] ? null : reasons[place];
    found.push({ id, revision, variant, letter, reason, attempts: exception?.[2], seconds: secondsOf(characters[place]) });
  }
  return found;
}

async function openTest() {
  const own = ++turn, address = addressOf(location.hash), slash = address.indexOf("/");
  const suite = address.slice(0, Math.max(0, slash)), test = address.slice(slash + 1);
  const title = document.querySelector("h1");
  title.replaceChildren(address ? testName(slash < 0 ? address : test) : "Test", " ", make("span", { class: "dim" }, oneLine(suite, 80)));
  document.title = `${address ? oneLine(test, 120) : "Test"} · ${settings.project}`;
  if (!address) return tell("The address names no test. ", make("a", { href: "search.html" }, "Search for one"), ".");
  tell("Loading …");
  try {
    site ??= JSON.parse(await load("index", settings.stamp));
    const parts = site.weeks.map(([week, buckets, stamp]) => [`tests/${week}/${bucketName(address, buckets)}`, stamp]);
    const facts = load(`facts/${bucketName(address, site.facts)}`, settings.stamp).then(JSON.parse);
    let results = [];
    for (const range of [[0, FIRST_WEEKS], [FIRST_WEEKS, parts.length]]) {
      const texts = await Promise.all(parts.slice(...range).map((part) => load(...part)));
      if (own !== turn) return; // another test was opened meanwhile
      texts.forEach((text, i) => {
        const [week, , , builds] = site.weeks[range[0] + i];
        results.push(...readWeek(JSON.parse(text), builds, suite, test).map((each) => ({ ...each, week })));
      });
      const known = (await facts).tests[address] || {};
      const all = range[1] >= parts.length;
      if (results.length || all) show(address, suite, test, results, known, (await facts).incidents, all);
      if (range[0] === 0) performance.mark("newest results");
      if (all) {
        performance.mark("all results");
        return;
      }
    }
  } catch (error) {
    if (own === turn) tell(String(error.message), " Is the folder of the HUD whole?");
  }
}

const tell = (...words) => page.replaceChildren(make("p", { class: "none" }, ...words));
const section = (id, title, ...children) => make("section", {}, make("h2", { id }, ...title), ...children);
const scroll = (label, child) => make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, child);
const row = (kind, cells) => make("tr", {}, ...cells.map((cell) => cell instanceof Element && /^T[DH]$/.test(cell.tagName.toUpperCase()) ? cell : make(kind, {}, cell)));
const buildName = (result) => `${site.revisions[result.revision][0]}~${site.variants[result.variant]}`;
const isBad = (result) => "fink".includes(result.letter);

function show(address, suite, test, results, facts, incidents, all) {
  if (!results.length) {
    const rest = test.split("::").pop();
    tell(
      `There is no such test in the builds of the last ${settings.days} days. `,
      make("a", { href: `search.html?q=${encodeURIComponent(rest.slice(0, 200))}` }, "Search for its name"), ".",
    );
    return page.append(...quality(facts, incidents));
  }
  results.sort((a, b) => a.revision - b.revision || a.variant - b.variant);
  const open = new Set([...page.querySelectorAll("details[open]")].map((item) => item.dataset.build));
  page.replaceChildren(
    summary(results, all),
    ...quality(facts, incidents),
    section("history", ["History"], grid(results), ...(all ? [] : [make("p", { class: "dim" }, "Loading older builds …")])),
    failures(results, test),
    variants(results, facts),
    commands(results, test),
  );
  for (const item of page.querySelectorAll("details")) item.open ||= open.has(item.dataset.build);
  const worst = results.find((each) => isBad(each) && each.attempts);
  if (worst) alike(worst, address);
}

// The newest result of each variant.
const newestOf = (results) => [...new Map([...results].reverse().map((each) => [each.variant, each])).values()];

function summary(results, all) {
  const letters = newestOf(results).map((each) => each.letter.toLowerCase());
  const worst = [...WORST_FIRST].find((letter) => letters.includes(letter));
  const same = letters.filter((letter) => letter === worst).length;
  const words = letters.length === 1 ? VERDICTS[worst] : `${VERDICTS[worst]} in ${same === letters.length ? "all" : `${same} of`} ${count(letters.length, "variant")}`;
  return make("p", {}, chip(worst, words), make("span", { class: "dim" },
    ` in the newest builds; ${count(results.length, "result")}${all ? ` in the last ${settings.days} days` : " so far"}`));
}

function quality(facts, incidents) {
  const found = [];
  if (facts.incidents?.length) {
    found.push(section("incidents", ["Incidents ", make("span", { class: "count" }, number(facts.incidents.length))],
      make("ul", { class: "names" }, ...facts.incidents.map(([id, now]) => {
        const [cause, state, title, first, last] = incidents[id];
        return make("li", {}, make("span", { class: `cause c-${cause}` }, cause), make("a", { href: incidentAddress(id) }, oneLine(title)),
          make("span", { class: "dim" }, ` ${now ? state : "no longer hits this test"} · ${oneLine(first, 80)} to ${oneLine(last, 80)}`));
      }))));
  }
  if (facts.quarantine?.length) {
    found.push(section("quarantine", ["Quarantine"],
      make("ul", { class: "names" }, ...facts.quarantine.map(([variant, state, by, since, expires, reason, owner]) =>
        make("li", {}, make("b", {}, state), ` in ${oneLine(variant, 80)} by a ${by}, since ${since}, until ${expires}: ${oneLine(reason)}`,
          make("span", { class: "dim" }, owner ? ` · ${oneLine(owner, 80)}` : ""))))));
  }
  return found;
}

function grid(results) {
  const used = [...new Set(results.map((each) => each.variant))].sort((a, b) => a - b);
  const rows = new Map();
  for (const each of results) rows.has(each.revision) ? rows.get(each.revision).set(each.variant, each) : rows.set(each.revision, new Map([[each.variant, each]]));
  const head = make("thead", {}, row("th", [make("th", { scope: "col" }, "Revision"),
    ...used.map((variant) => make("th", { scope: "col", class: "up" }, make("span", {}, oneLine(site.variants[variant], 60))))]));
  const body = make("tbody");
  const ordered = [...rows.keys()];
  const add = (keys) => body.append(...keys.map((key) => {
    const [name, , time, sections] = site.revisions[key];
    return row("td", [
      make("th", { scope: "row" }, oneLine(name, 60), " ", make("time", { class: "dim", datetime: time }, time.slice(0, 16).replace("T", " "))),
      ...used.map((variant) => mark(rows.get(key).get(variant), sections.includes(variant))),
    ]);
  }));
  add(ordered.slice(0, SHOWN_ROWS));
  const whole = make("div", {}, legend(results), scroll("History", make("table", { class: "marks" }, head, body)));
  if (ordered.length > SHOWN_ROWS) whole.append(more(`${number(ordered.length - SHOWN_ROWS)} older revisions`, () => add(ordered.slice(SHOWN_ROWS))));
  return whole;
}

function mark(result, hasSection) {
  if (!result) return make("td", {}, "");
  const words = `${buildName(result)}: ${verdictOf(result.letter)}${isCached(result.letter) ? ", cached" : ""}`;
  const attributes = { class: `mark k-${kindOf(result.letter)}${isCached(result.letter) ? " cached" : ""}`, title: visible(words), "aria-label": visible(words) };
  const [revision, variant] = [site.revisions[result.revision][0], site.variants[result.variant]];
  if (hasSection) return make("td", {}, make("a", { ...attributes, href: buildAddress(revision, variant) }, icon(kindOf(result.letter))));
  return make("td", {}, make("span", { ...attributes, role: "img" }, icon(kindOf(result.letter))));
}

function legend(results) {
  const letters = [...WORST_FIRST].filter((letter) => results.some((each) => each.letter.toLowerCase() === letter));
  const cached = results.some((each) => isCached(each.letter)) ? [make("li", {}, "dashed: a cached result of an earlier build")] : [];
  return make("ul", { class: "legend" }, ...letters.map((letter) => make("li", {}, chip(letter, VERDICTS[letter]))), ...cached);
}

function failures(results, test) {
  const told = results.filter((each) => each.attempts || isBad(each));
  const list = make("div", { class: "list" });
  const add = (some) => list.append(...some.map((each) => failure(each, test)));
  const found = section("failures", ["Builds in which it did not simply pass ", make("span", { class: "count" }, number(told.length))]);
  add(told.slice(0, SHOWN_FAILURES));
  list.firstElementChild?.setAttribute("open", "");
  found.append(told.length ? list : make("p", { class: "none" }, "It passed at once in every build, or did as expected."));
  if (told.length > SHOWN_FAILURES) found.append(more(`${number(told.length - SHOWN_FAILURES)} older builds`, () => add(told.slice(SHOWN_FAILURES))));
  const reasons = newestOf(results).filter((each) => each.reason);
  if (reasons.length) {
    found.append(make("h3", {}, "Why it does not pass"), make("ul", { class: "names" }, ...reasons.map((each) =>
      make("li", {}, `${verdictOf(each.letter)} in ${oneLine(site.variants[each.variant], 80)}: `, make("span", { class: "dim" }, oneLine(each.reason))))));
  }
  return found;
}

function failure(result, test) {
  const message = result.attempts?.map((attempt) => attempt[5] || attempt[7]).find(Boolean) || "";
  const item = make("details", { class: "item", "data-build": result.id }, make("summary", {},
    make("span", { class: "line" }, chip(result.letter, verdictOf(result.letter)), " ", make("b", {}, oneLine(site.revisions[result.revision][0], 80)), ` ${oneLine(site.variants[result.variant], 80)}`),
    make("span", { class: "reason" }, message ? oneLine(message.split("\n")[0], 160) : "no message")));
  const build = buildName(result);
  if (!result.attempts) item.append(make("p", { class: "dim" }, "So many tests failed in this build that its attempts are not told here."));
  else {
    item.append(scroll(`Attempts in ${oneLine(build, 160)}`, make("table", { class: "data attempts" },
      make("thead", {}, row("th", ["Round", "Outcome", "Duration", "Card", "Host", "Message"])),
      make("tbody", {}, ...result.attempts.map(([round, outcome, seconds, card, host, text, , infra]) => row("td", [
        String(round), oneLine(outcome, 40), duration(seconds), card && host ? make("a", { class: "to-card", href: cardAddress(host, card) }, oneLine(card, 60)) : card ? oneLine(card, 60) : "–", host ? oneLine(host, 60) : "–",
        make("td", {}, make("pre", {}, visible([infra && `Lost to the infrastructure: ${infra}`, text !== infra && text].filter(Boolean).join("\n")) || "no message")),
      ]))))));
    item.append(make("p", { class: "alike" }));
  }
  item.append(command(`accel-ci reproduce ${quoted(build)} ${quoted(test)}`));
  return item;
}

// Name the tests that failed with the signature of a result, in the same build.
async function alike(result, address) {
  const signature = result.attempts.map((attempt) => attempt[6]).find((each) => each !== undefined && each !== null);
  const place = [...page.querySelectorAll("details")].find((each) => each.dataset.build === result.id)?.querySelector(".alike");
  if (signature === undefined || !place) return;
  try {
    const suite = address.slice(0, address.indexOf("/"));
    const [text, tests, some] = JSON.parse(await load(`failures/${result.week}/${result.id}`, settings.stamp))[signature];
    const others = some.filter((name) => `${suite}/${name}` !== address);
    const left = tests - 1 - others.length;
    place.replaceChildren("Signature ", make("code", {}, oneLine(text)), tests === 1 ? ": no other test of the build failed with it." : `: ${count(tests - 1, "other test")} of the build failed with it.`);
    if (others.length) place.after(make("ul", { class: "names" }, ...others.map((name) => make("li", {}, testLink(`${suite}/${name}`))), ...(left > 0 ? [make("li", { class: "dim" }, `${number(left)} more`)] : [])));
  } catch (error) {
    place.replaceChildren(String(error.message));
  }
}

function variants(results, facts) {
  const rows = newestOf(results).sort((a, b) => a.variant - b.variant).map((newest) => {
    const own = results.filter((each) => each.variant === newest.variant);
    const ran = own.filter((each) => !"sinSIN".includes(each.letter));
    const times = own.filter((each) => each.seconds !== null).map((each) => each.seconds).reverse();
    const name = site.variants[newest.variant], rate = facts.flaky?.find((each) => each[0] === name);
    const right = (text) => make("td", { class: "n" }, text);
    return row("td", [
      oneLine(name, 80), chip(newest.letter, verdictOf(newest.letter)), right(number(ran.length)),
      right(number(ran.filter((each) => each.letter === "f").length)), right(number(ran.filter((each) => each.letter === "k").length)),
      right(rate ? `${percent(rate[1])} (${percent(rate[2])} to ${percent(rate[3])})` : "none known"),
      right(times.length ? `about ${duration(times.at(-1))}` : "–"), make("td", {}, times.length > 1 ? trend(times, name) : ""),
    ]);
  });
  const heads = ["Variant", "Newest", "Ran", "Failed", "Flaky", "Flake rate, 95 % interval", "Duration", "Trend"];
  return section("variants", ["By variant"],
    make("p", { class: "dim" }, `Builds of the last ${settings.days} days. The flake rate is that of the last ${site.window} days: the share of builds that ran the test in which it both failed and passed. Durations are known to 9 %.`),
    scroll("By variant", make("table", { class: "data" },
      make("thead", {}, row("th", heads.map((each, i) => make("th", { scope: "col", ...(i > 1 && i < 7 ? { class: "n" } : {}) }, each)))), make("tbody", {}, ...rows))));
}

// A line of durations, on a scale from nothing to the longest.
function trend(times, name) {
  const width = 180, height = 28, longest = Math.max(...times);
  const points = times.map((seconds, i) => [2 + (width - 4) * i / (times.length - 1), height - 3 - (height - 6) * seconds / longest]);
  const words = `Durations in ${name}: ${duration(Math.min(...times))} to ${duration(longest)}`;
  return make("svg", { class: "line-trend", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": visible(words) },
    make("title", {}, visible(words)),
    make("path", { d: `M${points.map((point) => point.map((value) => value.toFixed(1)).join(" ")).join("L")}` }),
    make("circle", { cx: points.at(-1)[0].toFixed(1), cy: points.at(-1)[1].toFixed(1), r: 2 }));
}

// A word of a shell command. Control characters are spelt out, so that none acts on a terminal.
function quoted(word) {
  if (/^[\w@%+=:,./~-]+$/.test(word) && !word.startsWith("~")) return word;
  if (!/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(word)) return `'${word.replaceAll("'", `'"'"'`)}'`;
  const escaped = word.replace(/[\\']/g, "\\$&").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (character) => `\\U${character.codePointAt(0).toString(16).padStart(8, "0")}`);
  return `$'${escaped}'`;
}

function command(text) {
  const code = make("code", {}, visible(text));
  const button = make("button", { type: "button", "aria-label": `Copy ${visible(text).slice(0, 80)}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch { // not allowed: then it can be copied by hand
      getSelection().selectAllChildren(code);
    }
  });
  return make("p", { class: "command" }, code, " ", button);
}

function commands(results, test) {
  const worst = results.find((each) => isBad(each)), build = buildName(worst || results[0]);
  return section("commands", ["Commands"],
    ...(worst ? [command(`accel-ci causes ${quoted(build)} --test ${quoted(test)}`), command(`accel-ci reproduce ${quoted(build)} ${quoted(test)}`)] : []),
    command(`accel-ci results history ${quoted(test)}`));
}

addEventListener("hashchange", openTest);
openTest();
