"use strict";
// The status page: asks the driver for the receiver's state once a second and shows it. All texts of peers (names of
// instances and streams, errors) are set as text nodes, so no name can become markup.

const POLL_MS = 1000;
const ANSWER_MS = 15000; // more than the server's own limit for an answer
const LOST_AFTER = 5; // seconds without an answer until the figures count as old
const SVG = "http://www.w3.org/2000/svg";

const PHASES = [
  ["latestOffset", "asking the workers"],
  ["getBatch", "preparing the read"],
  ["queryPlanning", "Spark's planning"],
  ["walCommit", "writing the offsets"],
  ["addBatch", "reading, query and sink"],
  ["commitOffsets", "writing the commit"],
];
const REST = ["rest", "everything else"];

// The stage of the flow at which each cause is at work.
const STAGES = {
  "no-connector": 0, "no-data": 0, "connector-gone": 0, "wrong-cookie": 0, "refused": 0, "session-pending": 0,
  "worker-frozen": 1, "worker-lost": 1, "worker-unreachable": 1, "worker-starting": 1, "worker-stopping": 1,
  "slot-vacant": 1, "memory-full": 1, "registry-away": 1,
  "query-not-started": 2, "query-starting": 2, "query-stopped": 2, "query-failed": 2, "planning-slow": 2,
  "sink-slow": 2, "resend-awaited": 2, "trigger-awaited": 2, "batch-running": 2,
  "checkpoint-unwritable": 3, "checkpoint-unreadable": 3,
  "driver-lost": 4, "driver-error": 4, "no-credits": 4,
};

// Healthy causes that are marked at their stage, in a quieter colour than a trouble. The others change with each batch.
const QUIET = ["sink-slow", "no-data", "no-connector", "connector-gone"];

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

// A sentence without its subject, which stands in the same row. Names of strangers may contain anything, so the subject
// is compared and not searched for.
function sentence(cause, subject) {
  if (!cause.sentence.startsWith(subject)) return cause.sentence || "–";
  return cause.sentence.slice(subject.length).replace(/^( waits)?: /, "");
}

// The cause of a row that waits for the receiver's own cause, which stands on top of the page.
function waitsFor(answer, cause, subject, isTrouble) {
  const own = sentence(cause, subject);
  const above = sentence(answer.status.cause, answer.status.name);
  if (isTrouble || above.length < 60 || !own.startsWith(above)) return own;
  return `the cause above${own.slice(above.length)}`;
}

function title(stream) {
  return stream.name || `stream ${stream.stream_id}`;
}

// Whether a row is itself a place of trouble. Rows that only wait for a trouble elsewhere are not marked.
const isTrouble = {
  slot: (slot) => (!slot.answers && slot.state !== "starting") || slot.registry_away || slot.pressure === "hard",
  instance: (one) => one.paused || one.state === "gone",
  stream: (one) => one.state === "resending",
};

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

// ---- the parts of the page

function showHead(answer) {
  const status = answer.status;
  set(byId("name"), status.name);
  set(byId("about"), status.query.checkpoint ? `checkpoint ${status.query.checkpoint}` : "no query yet");
  const cause = byId("cause");
  cause.className = `cause ${status.cause.healthy ? "good" : "bad"}`;
  // The sentence has figures that change each second; a screen reader hears it again when the code changes.
  cause.setAttribute("aria-live", cause.dataset.code === status.cause.code ? "off" : "polite");
  cause.dataset.code = status.cause.code;
  set(byId("sentence"), status.cause.sentence || "No cause is known yet.");
  set(byId("cure"), status.cause.cure || "");
  set(byId("code"), status.cause.code ? `More: wallaroo-spark explain ${status.cause.code}` : "");
  document.title = `${status.cause.healthy ? "✓" : "✗"} ${status.name}`;
}

function flow(answer) {
  const { status, history } = answer;
  const { totals, query } = status;
  const busy = query.batch !== null;
  const since = query.since === null ? null : status.time - query.since;
  const committed = query.committed_at === null ? "" : `${seconds(status.time - query.committed_at)} ago`;
  return [
    {
      title: "Connectors", big: rate(answer.rates.rows_in),
      sub: `${plural(totals.sessions, "connector")} ${totals.sessions === 1 ? "is" : "are"} connected` + (totals.waiting ? `, ${count(totals.waiting)} wait` : ""),
      label: "Rows that arrive a second", values: history.rows_in, write: rate,
    },
    {
      title: "Workers", big: `${count(totals.serving)} of ${count(totals.slots)} serve`,
      sub: `${plural(totals.rows, "row")} held, ${totals.budget ? Math.round((100 * totals.bytes) / totals.budget) : 0} % of the memory`,
      label: "Held rows", values: history.rows, write: count,
    },
    {
      title: "Batch", big: busy ? `${count(query.batch)} ${query.phase}` : query.state === "running" ? "between batches" : query.state === "none" ? "no query" : `query ${query.state}`,
      sub: busy && since !== null ? `for ${seconds(since)}` : query.trigger ? `trigger: ${query.trigger}` : "",
      label: "Time of a batch", values: answer.batches.map((batch) => (batch.durations.triggerExecution || 0) / 1000),
      times: answer.batches.map((batch) => batch.time), write: seconds,
    },
    {
      title: "Commit", big: query.committed_batch === null ? "none yet" : `batch ${count(query.committed_batch)}`,
      sub: [committed, rate(answer.rates.rows_out)].filter((text) => text && text !== "–").join(", "),
      label: "Rows that are committed a second", values: history.rows_out, write: rate,
    },
    {
      title: "ACK", big: totals.ack_age === null ? "nothing waits" : seconds(totals.ack_age),
      sub: totals.ack_age === null ? "all received rows are acknowledged" : "age of the oldest row without ACK",
      label: "Age of the oldest row without ACK", values: history.ack_age, write: seconds,
    },
  ];
}

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

function showSlots(answer) {
  const { slots, totals } = answer.status;
  const states = Object.entries(answer.states).map(([state, number]) => `${count(number)} ${state}`).join(", ");
  set(byId("slots-note"), [states && `${states}.`, shownOf(slots.length, answer.shown.slots, "slot")].filter(Boolean).join(" "));
  table("slots", "Slots", [
    { label: "Slot", kind: "n", value: (slot) => count(slot.slot) },
    { label: "State", value: (slot) => [slot.state, slot.host && `${slot.host}${slot.executor ? `, executor ${slot.executor}` : ""}`] },
    { label: "What it waits for", kind: "w", value: (slot) => [waitsFor(answer, slot.cause, `${answer.status.name} slot ${slot.slot}`, isTrouble.slot(slot)), slot.state === "lost" ? "" : slot.error || (slot.answers ? "" : slot.last_error)] },
    { label: "In", kind: "n", value: (slot) => rate(slot.rate_in) },
    { label: "Committed", kind: "n", value: (slot) => rate(slot.rate_out) },
    { label: "Memory", kind: "n", value: (slot) => [slot.memory_budget ? `${Math.round((100 * slot.memory_used) / slot.memory_budget)} %` : "–", slot.memory_used ? bytes(slot.memory_used) : ""] },
    { label: "ACK age", kind: "n", value: (slot) => seconds(slot.ack_age) },
    { label: "Deaths", kind: "n", value: (slot) => [count(slot.died), slot.submissions ? `of ${plural(slot.submissions, "start")}` : ""] },
    { label: "Instances", value: (slot) => [slot.connected.join(", ") || "–", slot.instances > slot.connected.length ? `${plural(slot.instances, "instance")} in all` : ""] },
  ], slots, (slot) => String(slot.slot), isTrouble.slot);
}

function showStreams(answer) {
  const { instances, streams } = answer.status;
  const sought = byId("search").value.trim();
  const limits = (shown, found, all, kind) =>
    sought ? `${plural(found, kind)} found among the ${count(answer.searched[kind])} that were looked at, of ${count(all)}.` : shownOf(shown, all, kind);
  set(byId("instances-note"), limits(instances.length, answer.shown.instances, answer.status.totals.instances, "instance"));
  table("instances", "Instances", [
    { label: "Instance", kind: "name", value: (one) => [one.name, [one.program, one.revision, one.peer].filter(Boolean).join(", ")] },
    { label: "Slot", kind: "n", value: (one) => count(one.slot) },
    { label: "State", value: (one) => [one.state, one.paused ? "its socket is not read" : ""] },
    { label: "What it waits for", kind: "w", value: (one) => waitsFor(answer, one.cause, `${answer.status.name}/${one.name}`, isTrouble.instance(one)) },
    { label: "In", kind: "n", value: (one) => rate(one.rate_in) },
    { label: "Credits", kind: "n", value: (one) => count(one.credits) },
    { label: "Held", kind: "n", value: (one) => [count(one.rows), one.bytes ? bytes(one.bytes) : ""] },
    { label: "Streams", kind: "n", value: (one) => count(one.open_streams) },
    { label: "ACK age", kind: "n", value: (one) => seconds(one.ack_age) },
  ], instances, (one) => `${one.slot}/${one.name}`, isTrouble.instance);
  set(byId("streams-note"), limits(streams.length, answer.shown.streams, answer.status.totals.streams, "stream"));
  table("streams", "Streams", [
    { label: "Stream", kind: "name", value: (one) => [title(one), one.instance] },
    { label: "Slot", kind: "n", value: (one) => count(one.slot) },
    { label: "State", value: (one) => one.state },
    { label: "What it waits for", kind: "w", value: (one) => waitsFor(answer, one.cause, `${answer.status.name}/${one.instance}/${title(one)}`, isTrouble.stream(one)) },
    { label: "In", kind: "n", value: (one) => rate(one.rate_in) },
    { label: "Received", kind: "n", value: (one) => one.received ?? "–" },
    { label: "Planned", kind: "n", value: (one) => one.planned ?? "–" },
    { label: "Committed", kind: "n", value: (one) => one.committed ?? "–" },
    { label: "Lag", kind: "n", value: (one) => count(one.lag_rows) },
    { label: "ACK age", kind: "n", value: (one) => seconds(one.ack_age) },
  ], streams, (one) => `${one.slot}/${one.scope}/${one.stream_id}`, isTrouble.stream);
}

function showSinks(answer) {
  const { sinks, topics, unread } = answer.status;
  const none = sinks.length || topics.length ? "" : "No transactional sink of the query and no topic of its registry is known.";
  set(byId("sinks-note"), unread.length ? unread.map((reason) => `${reason}.`).join(" ") : none);
  table("sinks", "Sinks", [
    { label: "Sink", kind: "name", value: (sink) => sink.sink },
    { label: "State", value: (sink) => sink.state },
    { label: "Newest decided batch", kind: "n", value: (sink) => count(sink.batch) },
  ], sinks, (sink) => sink.sink, (sink) => sink.state === "aborted");
  table("topics", "Topics", [
    { label: "Topic", kind: "name", value: (topic) => [topic.topic, topic.driver] },
    { label: "Partitions that serve", kind: "n", value: (topic) => `${topic.partitions.filter((one) => one.state === "serving").length} of ${topic.partitions.length}` },
    { label: "Newest epoch", kind: "n", value: (topic) => count(Math.max(...topic.partitions.map((one) => one.newest ?? -1))) },
    { label: "Subscribers", kind: "n", value: (topic) => count(topic.partitions.reduce((sum, one) => sum + one.subscribers, 0)) },
  ], topics, (topic) => topic.topic, (topic) => topic.partitions.some((one) => one.state !== "serving"));
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

function show(answer) {
  showHead(answer);
  showFlow(answer);
  showBatches(answer);
  showSlots(answer);
  showStreams(answer);
  showSinks(answer);
  showEvents(answer);
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
  if (text) document.title = `✗ ${last ? last.status.name : "receiver"}: no answer`;
  set(byId("fresh"), paused ? `paused at ${last ? clock(last.status.time) : "–"}` : last ? `${clock(last.status.time)}, ${seconds(age)} old` : "Loading…");
}

async function ask() {
  if (asked) return;
  const query = new URLSearchParams({ top: byId("top").value, search: byId("search").value.trim() });
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

byId("login").addEventListener("submit", login);
byId("find").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["search", "top"]) byId(id).addEventListener("input", ask);
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
