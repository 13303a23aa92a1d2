"use strict";
// The page of a receiver: its figures, once a second. What it shares with the page of an application is in common.js.

const PHASES = [
  ["latestOffset", "asking the workers"],
  ["getBatch", "preparing the read"],
  ["queryPlanning", "Spark's planning"],
  ["walCommit", "writing the offsets"],
  ["addBatch", "reading, query and sink"],
  ["commitOffsets", "writing the commit"],
];
// The stage of the flow at which each cause is at work.
const STAGES = {
  "no-connector": 0, "no-data": 0, "connector-gone": 0, "wrong-cookie": 0, "refused": 0, "session-pending": 0,
  "door-refused": 0, "kafka-wrong-node": 0, "kafka-unreadable": 2, "door-given-up": 2, "door-waits": 2,
  "worker-frozen": 1, "worker-lost": 1, "worker-unreachable": 1, "worker-starting": 1, "worker-stopping": 1,
  "slot-vacant": 1, "memory-full": 1, "registry-away": 1,
  "query-not-started": 2, "query-starting": 2, "standby-waits": 2, "query-stopped": 2, "query-failed": 2, "planning-slow": 2,
  "sink-slow": 2, "resend-awaited": 2, "trigger-awaited": 2, "batch-running": 2,
  "checkpoint-unwritable": 3, "checkpoint-unreadable": 3,
  "driver-lost": 4, "driver-error": 4, "no-credits": 4,
};

// Healthy causes that are marked at their stage, in a quieter colour than a trouble. The others change with each batch.
const QUIET = ["sink-slow", "no-data", "no-connector", "connector-gone", "door-refused", "door-given-up"];

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
  slot: (slot) => slot.trouble,
  instance: (one) => one.paused || one.state === "gone",
  stream: (one) => one.state === "resending",
};

// ---- the parts of the page

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
    ...figures(answer, "slots"),
    { label: "Deaths", kind: "n", value: (slot) => [count(slot.died), slot.submissions ? `of ${plural(slot.submissions, "start")}` : ""] },
    { label: "Instances", value: (slot) => [slot.connected.join(", ") || "–", slot.instances > slot.connected.length ? `${plural(slot.instances, "instance")} in all` : ""] },
  ], slots, (slot) => String(slot.slot), isTrouble.slot);
}

function showDoors(answer) {
  const { doors } = answer.status;
  byId("doors-section").hidden = !answer.shown.doors;
  set(byId("doors-note"), shownOf(doors.length, answer.shown.doors, "door"));
  table("doors", "Doors", [
    { label: "Door", kind: "name", value: (door) => [door.door, door.address] },
    { label: "Slot", kind: "n", value: (door) => count(door.slot) },
    { label: "Ports", kind: "n", value: (door) => [...new Set([door.ports[0], door.ports.at(-1)])].join("–") },
    ...figures(answer, "doors"),
    { label: "Requests wait of", value: (door) => Object.keys(door.waiting_by).slice(0, 5).join(", ") || "–" },
  ], doors, (door) => `${door.slot}/${door.door}`, () => false);
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
    { label: "Held", kind: "n", value: (one) => [count(one.rows), one.bytes ? bytes(one.bytes) : ""] },
    { label: "Streams", kind: "n", value: (one) => count(one.open_streams) },
    ...figures(answer, "instances", (one, name) => (name === "credits" && one.of_door ? "–" : undefined)),
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

function show(answer) {
  showHead(answer);
  showFlow(answer);
  showBatches(answer);
  showSlots(answer);
  showDoors(answer);
  showStreams(answer);
  showSinks(answer);
  showEvents(answer);
}

// ---- asking

const nameOf = (status) => status.name;
const about = (status) => (status.query.checkpoint ? `checkpoint ${status.query.checkpoint}` : "no query yet") + (status.standby && `, standby ${status.standby}`);
const pageQuery = () => ({ top: byId("top").value, search: byId("search").value.trim() });

for (const id of ["search", "top"]) byId(id).addEventListener("input", ask);
begin();
