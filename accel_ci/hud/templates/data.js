// What the pages on tests share: loading data, texts, addresses. Text of tests only ever becomes text nodes.
const waiting = new Map();
// Data scripts call this: the content is JSON or text, compressed and in base64.
globalThis.accelCi = (name, packed) => waiting.get(name)?.(packed);

function load(name, stamp) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    waiting.set(name, (packed) => resolve(unpack(packed)));
    script.src = `data/${name}.js?${stamp}`;
    script.onload = () => { waiting.delete(name); script.remove(); };
    script.onerror = () => { waiting.delete(name); reject(new Error(`data/${name}.js cannot be loaded.`)); };
    document.head.append(script);
  });
}

async function unpack(packed) {
  const binary = atob(packed);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

const VERDICTS = { p: "passed", f: "failed", k: "flaky", s: "skipped", x: "xfailed", y: "xpassed", i: "infra", n: "not run" };
const WORST_FIRST = "finkyxsp";
const ABSENT = "-";
const isCached = (letter) => letter !== letter.toLowerCase();
const verdictOf = (letter) => VERDICTS[letter.toLowerCase()];

function crc32(text) {
  let crc = -1;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc >>> 0;
}
const bucketName = (address, buckets) => (crc32(address) & (buckets - 1)).toString(16).padStart(3, "0");

// Addresses: the same as in addresses.py.
const testAddress = (address) => `test.html#${encodeURIComponent(address).replaceAll("%2F", "/").replaceAll("%3A", ":")}`;
const incidentAddress = (incident) => `incidents.html#i-${incident}`;
const anchor = (name) => name.replace(/[^A-Za-z0-9._~-]/gu, "-");
const buildAddress = (revision, variant) => `builds/${anchor(`${revision}~${variant}`)}.html`;
const cardAddress = (host, card) => `cards.html#card-${anchor(`${host}:${card}`)}`;

const visible = (text) => text.replaceAll("\r\n", "\n").replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) =>
  "\n\t".includes(character) ? character : `[U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
function oneLine(text, limit = 240) {
  const head = Math.floor(limit * 2 / 3);
  const short = text.length > limit ? `${text.slice(0, head)} … ${text.slice(head - limit)}` : text;
  return visible(short).replaceAll("\n", "\\n").replaceAll("\t", "\\t");
}
const number = (value) => value.toLocaleString("en-US");
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.01 ? 2 : 1)} %`;
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return seconds >= 0.0005 || seconds === 0 ? `${Math.round(seconds * 1000)} ms` : "<1 ms";
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
  return whole < 3600 ? `${Math.floor(whole / 60)} m ${two(whole % 60)} s` : `${Math.floor(whole / 3600)} h ${two(Math.floor(whole % 3600 / 60))} m`;
}

// An element with attributes and children; a string is text.
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "use", "path", "circle", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const icon = (name) => make("svg", { class: "icon", "aria-hidden": "true" }, make("use", { href: `#i-${name}` }));
const kindOf = (letter) => letter === ABSENT ? "absent" : verdictOf(letter).replace(" ", "-");
const chip = (letter, words) => make("span", { class: `state k-${kindOf(letter)}` }, icon(kindOf(letter)), make("b", {}, words));
function testName(name) {
  const [file, ...rest] = name.split("::");
  const separator = rest.length ? "::" : "";
  return make("code", { class: "test" }, make("span", { class: "file" }, oneLine(file, 120) + separator), oneLine(rest.join("::")));
}
function more(words, action) {
  const button = make("button", { type: "button" }, words);
  button.addEventListener("click", () => { button.remove(); action(); });
  return button;
}
const testLink = (address) => make("a", { class: "to-test", href: testAddress(address) }, testName(address.slice(address.indexOf("/") + 1)));
