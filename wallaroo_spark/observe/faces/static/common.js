"use strict";
// What the pages of receivers and of applications share: texts, elements, and asking the driver once a second. All texts of
// peers (names, errors) are set as text nodes, so no name can become markup. A page defines show(answer), flow(answer),
// pageQuery(), nameOf(status), about(status), PHASES, STAGES and QUIET, and calls begin().

const POLL_MS = 1000;
const ANSWER_MS = 15000; // more than the server's own limit for an answer
const LOST_AFTER = 5; // seconds without an answer until the figures count as old
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
let paused = false;
let asked = null; // the running request
let answeredAt = 0; // when the last answer came
let unansweredSince = null; // when the first request was sent that has no answer; null when all have one
let last = null; // the last answer

// ---- texts

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 100000 ? short.format(value) : whole.format(value);
}

function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many || one + "s"}`;
}

function rate(value) {
  if (value === null || value === undefined) return "–";
  return `${value > 0 && value < 10 ? value.toFixed(1) : count(value)}/s`;
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  // A snapshot's parts are looked at one after another, so a time may be later than that of the snapshot.
  if (value < 0) return "0 ms";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} days`;
}

function bytes(value) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${(value / size).toFixed(value >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${value} B`;
}

function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB");
}

// The columns of a table's plain figures, which the driver lists with name, heading and unit. `other` gives the text of a
// row that has no such figure.
function figures(answer, of, other = () => undefined) {
  const write = { s: seconds, By: bytes };
  return answer.columns[of].map(({ name, label, unit }) => ({
    label, kind: "n", value: (row) => other(row, name) ?? (write[unit] || count)(row[name]),
  }));
}

// ---- elements

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A column is {label, value(row), kind}; kind is "n" for figures, "w" for a wide cell, "name" for a name. A value is a
// text, or [text, second line]. Rows are kept by key, so that focus, selection and a screen reader's place stay.
function table(id, label, columns, rows, key, isBad) {
  const box = byId(id);
  box.hidden = rows.length === 0;
  let body = box.querySelector("tbody");
  if (!body) {
    const heads = columns.map((column) => make("th", { scope: "col", role: "columnheader", class: column.kind || "" }, column.label));
    body = make("tbody", { role: "rowgroup" });
    box.append(make("table", { role: "table", "aria-label": label }, make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), body));
  }
  const before = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let place = body.firstElementChild;
  for (const row of rows) {
    const name = key(row);
    let line = before.get(name);
    before.delete(name);
    if (!line) {
      line = make("tr", { role: "row" });
      line.dataset.key = name;
      for (const column of columns) {
        line.append(make("td", { role: "cell", class: column.kind || "", "data-label": column.label }, make("span")));
      }
    }
    columns.forEach((column, index) => {
      const cell = line.children[index].firstElementChild;
      const value = column.value(row);
      const [first, second] = Array.isArray(value) ? value : [value, ""];
      if (cell.dataset.first !== first || cell.dataset.second !== second) {
        cell.dataset.first = first;
        cell.dataset.second = second;
        cell.replaceChildren(first, ...(second ? [make("span", { class: "sub" }, second)] : []));
      }
    });
    const style = isBad(row) ? "bad" : "";
    if (line.className !== style) line.className = style;
    if (line === place) place = place.nextElementSibling;
    else body.insertBefore(line, place);
  }
  for (const gone of before.values()) gone.remove();
}

// A curve over the time of the history; gaps where a value is not known.
function spark(svg, times, values, label, write) {
  const known = values.filter((value) => value !== null);
  const highest = Math.max(...known, 0);
  const text = known.length
    ? `${label}: now ${write(values[values.length - 1])}, highest ${write(highest)} in the last ${seconds(times[times.length - 1] - times[0])}`
    : `${label}: no history yet`;
  if (svg.getAttribute("aria-label") !== text) svg.setAttribute("aria-label", text);
  const from = times[0], span = Math.max(times[times.length - 1] - from, 1);
  let path = "", area = "", open = null;
  const close = () => { if (open) area += `M${open.first} 100${open.path.replace("M", "L")}L${open.last} 100Z`; open = null; };
  values.forEach((value, index) => {
    if (value === null) return close();
    const x = (((times[index] - from) / span) * 300).toFixed(1);
    const y = (97 - (value / (highest || 1)) * 92).toFixed(1);
    if (!open) open = { first: x, path: "" };
    const step = `${open.path ? "L" : "M"}${x} ${y}`;
    open.path += step;
    open.last = x;
    path += step;
  });
  close();
  const [areaPath, linePath] = svg.querySelectorAll("path");
  areaPath.setAttribute("d", area);
  linePath.setAttribute("d", path);
  return known.length ? `highest ${write(highest)} in ${seconds(times[times.length - 1] - times[0])}` : "";
}

// ---- parts of both pages

const REST = ["rest", "everything else"];


function showHead(answer) {
  const status = answer.status;
  set(byId("name"), nameOf(status));
  set(byId("about"), about(status));
  const cause = byId("cause");
  cause.className = `cause ${status.cause.healthy ? "good" : "bad"}`;
  // The sentence has figures that change each second; a screen reader hears it again when the code changes.
  cause.setAttribute("aria-live", cause.dataset.code === status.cause.code ? "off" : "polite");
  cause.dataset.code = status.cause.code;
  set(byId("sentence"), status.cause.sentence || "No cause is known yet.");
  set(byId("cure"), status.cause.cure || "");
  const others = status.causes.slice(1);
  byId("others").hidden = !others.length;
  byId("others").replaceChildren(...others.map((one) =>
    make("li", { class: one.healthy ? "good" : "bad" }, make("span", {}, one.sentence), one.cure ? ` – ${one.cure}` : "", ` (${one.code})`)));
  set(byId("code"), status.cause.code ? `More: wallaroo-spark explain ${status.cause.code}` : "");
  document.title = `${status.cause.healthy ? "✓" : "✗"} ${nameOf(status)}`;
}

// The flow of a page: flow(answer) has its boxes, STAGES and QUIET say at which box a cause is at work.
function showFlow(answer) {
  const box = byId("flow");
  const { code, healthy } = answer.status.cause;
  const here = healthy && !QUIET.includes(code) ? -1 : STAGES[code];
  flow(answer).forEach((stage, index) => {
    let item = box.children[index];
    if (!item) {
      const lines = [draw("line", { x1: 0, y1: 97, x2: 300, y2: 97 }), draw("path", { class: "area" }), draw("path", {})];
      item = make("li", {}, make("h3"), make("p", { class: "big" }), make("p", { class: "sub" }),
        draw("svg", { class: "spark", role: "img", viewBox: "0 0 300 100", preserveAspectRatio: "none" }, ...lines), make("p", { class: "trend" }));
      box.append(item);
    }
    const [title, big, sub, svg, trend] = item.children;
    set(title, stage.title + (index === here ? " – here" : ""));
    set(big, stage.big);
    set(sub, stage.sub);
    item.className = index !== here ? "" : healthy ? "here" : "bad";
    const times = stage.times || answer.history.time;
    const highest = spark(svg, times.length ? times : [0], stage.values, stage.label, stage.write);
    set(trend, highest ? `${stage.label}: ${highest}` : stage.label);
  });
  set(byId("window"), answer.rates.seconds ? `Rates are means over the last ${seconds(answer.rates.seconds)}.` : "");
}

function parts(durations) {
  const total = durations.triggerExecution || 0;
  const known = PHASES.map(([name]) => durations[name] || 0);
  return [...known, Math.max(0, total - known.reduce((sum, value) => sum + value, 0))];
}

function showBatches(answer) {
  const batches = answer.batches;
  const newest = batches[batches.length - 1];
  const phases = byId("phases"), chart = byId("batches");
  phases.hidden = chart.hidden = !newest;
  if (!newest) return set(byId("batch-note"), "No batch has ended yet.");
  const total = Math.max(newest.durations.triggerExecution || 0, 1);
  set(byId("batch-note"), `The last reported batch, ${count(newest.batch)}: ${plural(newest.rows, "row")} in ${seconds(total / 1000)}.`);
  const names = [...PHASES, REST].map(([, text]) => text);
  const values = parts(newest.durations);
  const sum = Math.max(values.reduce((one, other) => one + other, 0), 1);
  let x = 0;
  const bars = values.map((value, index) => {
    const bar = draw("rect", { class: `k${index}`, x: ((x / sum) * 1000).toFixed(1), y: 0, width: ((value / sum) * 1000).toFixed(1), height: 10 });
    x += value;
    return bar;
  });
  const legend = names.map((name, index) =>
    make("li", {}, draw("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, draw("rect", { class: `k${index}`, width: 10, height: 10 })),
      `${name} `, make("b", {}, seconds(values[index] / 1000))));
  phases.replaceChildren(
    draw("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" }, ...bars),
    make("ul", { class: "legend", "aria-label": "Time of each phase" }, ...legend.filter((_, index) => values[index] > 0)));
  const highest = Math.max(...batches.map((batch) => parts(batch.durations).reduce((one, other) => one + other, 0)), 1);
  const width = 600 / Math.max(batches.length, 20);
  const columns = batches.flatMap((batch, place) => {
    let y = 100;
    return parts(batch.durations).map((value, index) => {
      const height = (value / highest) * 94;
      y -= height;
      return draw("rect", { class: `k${index}`, x: (place * width).toFixed(2), y: y.toFixed(2), width: (width * 0.85).toFixed(2), height: height.toFixed(2) });
    });
  });
  chart.replaceChildren(
    draw("svg", { viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img",
      "aria-label": `The last ${batches.length} batches; the longest took ${seconds(highest / 1000)}` }, ...columns),
    make("p", { class: "note" }, `The last ${plural(batches.length, "batch", "batches")}, oldest first; the longest took ${seconds(highest / 1000)}.`));
}

function shownOf(shown, all, kind) {
  if (!all) return `No ${kind}s.`;
  return shown < all ? `${count(shown)} of ${plural(all, kind)} are shown.` : "";
}

function showEvents(answer) {
  set(byId("events-note"), answer.events.length ? "" : "Nothing has happened.");
  table("events", "Events", [
    { label: "Time", value: (event) => clock(event.time) },
    { label: "Kind", value: (event) => event.kind },
    { label: "Where", value: (event) => event.where },
    { label: "Text", kind: "w", value: (event) => event.text },
  ], answer.events, (event) => `${event.number}`, (event) => event.bad);
}

// ---- asking

function showFreshness() {
  const now = performance.now();
  const silent = unansweredSince === null ? 0 : (now - unansweredSince) / 1000;
  const age = last ? last.age + (now - answeredAt) / 1000 : 0;
  const lost = byId("lost");
  let text = "";
  if (paused || !byId("login").hidden) {
    text = "";
  } else if (silent > LOST_AFTER) {
    text = `No answer from the driver since ${seconds(Math.floor(silent)).replace(".0", "")}` + (last ? `; the figures are those of ${clock(last.status.time)}.` : ".");
  } else if (last && last.age > last.patience) {
    text = `The driver has no newer figures than those of ${clock(last.status.time)}.`;
  }
  // The alert is spoken once, so the part that counts the seconds is not announced each time.
  lost.setAttribute("aria-live", lost.hidden ? "assertive" : "off");
  lost.hidden = !text;
  set(lost, text);
  document.body.classList.toggle("lost", Boolean(text));
  if (text) document.title = `✗ ${last ? nameOf(last.status) : "driver"}: no answer`;
  set(byId("fresh"), paused ? `paused at ${last ? clock(last.status.time) : "–"}` : last ? `${clock(last.status.time)}, ${seconds(age)} old` : "Loading…");
}

async function ask() {
  if (asked) return;
  const query = new URLSearchParams(pageQuery());
  asked = new AbortController();
  if (unansweredSince === null) unansweredSince = performance.now();
  const limit = setTimeout(() => asked && asked.abort(), ANSWER_MS);
  try {
    const response = await fetch(`api/status?${query}`, { signal: asked.signal, credentials: "same-origin" });
    if (response.status === 401) {
      unansweredSince = null;
      return showLogin(true);
    }
    if (!response.ok) throw new Error(`status ${response.status}`);
    const answer = await response.json();
    answeredAt = performance.now();
    unansweredSince = null;
    showLogin(false);
    last = answer;
    show(answer);
  } catch (error) {
    console.debug("no answer", error);
  } finally {
    clearTimeout(limit);
    asked = null;
    showFreshness();
  }
}

function showLogin(needed) {
  const form = byId("login");
  if (needed && form.hidden) {
    form.hidden = false;
    byId("main").hidden = true;
    byId("token").focus();
  } else if (!needed && !form.hidden) {
    form.hidden = true;
    byId("main").hidden = false;
    byId("main").focus();
  }
}

async function login(event) {
  event.preventDefault();
  const token = byId("token");
  set(byId("refused"), "");
  try {
    const response = await fetch("login", { headers: { Authorization: `Bearer ${token.value}` } });
    if (response.ok) {
      token.value = "";
      await ask();
    } else {
      set(byId("refused"), response.status === 401 ? "This is not the token." : `The driver answered with status ${response.status}.`);
    }
  } catch {
    set(byId("refused"), "No answer from the driver, or the token has characters that no token has.");
  }
}

function tick() {
  showFreshness();
  if (!paused && !document.hidden && byId("login").hidden) ask();
}

function begin() {
  byId("login").addEventListener("submit", login);
  byId("find").addEventListener("submit", (event) => event.preventDefault());
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    unansweredSince = null;
    byId("pause").setAttribute("aria-pressed", String(paused));
    tick();
  });
  document.addEventListener("visibilitychange", () => {
    unansweredSince = null;
    tick();
  });
  setInterval(tick, POLL_MS);
  tick();
}
