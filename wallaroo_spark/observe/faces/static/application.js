"use strict";
// The page of an application: its figures, once a second. What it shares with the page of a receiver is in common.js.

const PHASES = [
  ["latestOffset", "looking at the inbox"],
  ["getBatch", "preparing the read"],
  ["queryPlanning", "Spark's planning"],
  ["walCommit", "writing the offsets"],
  ["addBatch", "controllers, functions and outputs"],
  ["commitOffsets", "writing the commit"],
];

// The box of the flow at which each cause is at work.
const STAGES = {
  "gateway-not-served": 0, "registry-away": 0, "driver-slow": 2,
  "application-not-running": 2, "query-failed": 2, "query-starting": 2, "query-stopped": 2, "query-stuck": 2,
  "checkpoint-unwritable": 2, "application-error": 3, "stage-without-member": 4,
  "members-hang": 4, "members-full": 4, "stage-failing": 4, "group-failing": 4, "instances-failed": 4, "clients-refused": 0,
};
const QUIET = ["query-starting", "instances-failed", "clients-refused"];

const nameOf = (status) => status.application;
const about = (status) => `folder ${status.folder}${status.schema === null ? "" : `, schema version ${status.schema}`}${status.standby && `, standby ${status.standby}`}`;
const pageQuery = () => ({});
const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

function flow(answer) {
  const { status, history, rates } = answer;
  const { query, gateways, pipelines } = status;
  const busy = query.batch !== null;
  const serving = gateways.filter((one) => one.state === "serving").length;
  const calls = sum(gateways, (one) => one.requests);
  const unread = sum(gateways, (one) => one.unread_events);
  return [
    {
      title: "Gateways", big: `${count(serving)} of ${count(gateways.length)} serve`,
      sub: `${plural(sum(gateways, (one) => one.members), "member")}, ${plural(calls, "call")} wait${calls === 1 ? "s" : ""} for a commit`,
      label: "Events that arrive a second", values: history.events, write: rate,
    },
    {
      title: "Inbox", big: plural(unread, "unread event"),
      sub: `in ${plural(sum(gateways, (one) => one.unread_files), "file")}; ${count(sum(gateways, (one) => one.queued))} queued`,
      label: "Unread events", values: history.unread, write: count,
    },
    {
      title: "Batch", big: busy ? `${count(query.batch)} runs` : query.state === "running" ? "between batches" : `query ${query.state}`,
      sub: busy && query.since !== null ? `for ${seconds(status.time - query.since)}` : "",
      label: "Time of a batch", values: answer.batches.map((batch) => (batch.durations.triggerExecution || 0) / 1000),
      times: answer.batches.map((batch) => batch.time), write: seconds,
    },
    {
      title: "Commit", big: query.committed_batch === null ? "none yet" : `batch ${count(query.committed_batch)}`,
      sub: [status.commit_age === null ? "" : `${seconds(status.commit_age)} ago`, rates.records === null ? "" : `${rate(rates.records)} of records`].filter(Boolean).join(", "),
      label: "Records a second", values: history.records, write: rate,
    },
    {
      title: "Pipelines", big: `${count(sum(pipelines, (one) => one.active))} active`,
      sub: [`${plural(sum(pipelines, (one) => one.lag), "record")} wait`, rates.outputs === null ? "" : `${rate(rates.outputs)} of outputs`].filter(Boolean).join(", "),
      label: "Outputs of stages a second", values: history.outputs, write: rate,
    },
  ];
}

// ---- the graph of a pipeline: a box for each stage, one column for each step from the event

const BOX = { width: 172, height: 66, across: 56, down: 20, margin: 10 };

function columnsOf(stages) {
  const depth = new Map();
  const of = (name, seen) => {
    if (depth.has(name)) return depth.get(name);
    const stage = stages.find((one) => one.stage === name);
    if (!stage || seen.includes(name)) return 0;
    const found = 1 + Math.max(0, ...stage.after.map((before) => of(before, [...seen, name])));
    depth.set(name, found);
    return found;
  };
  for (const stage of stages) of(stage.stage, []);
  return depth;
}

// A text that does not fit into a box is cut; the table below has the whole name.
function fit(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function graphBox(x, y, style, lines) {
  const texts = lines.map((line, index) =>
    draw("text", { x: x + 10, y: y + 20 + index * 18, class: index ? "figures" : "title" }, fit(line, index ? 26 : 20)));
  return draw("g", { class: style }, draw("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6 }), ...texts);
}

function graph(pipeline) {
  const { stages } = pipeline;
  const depth = columnsOf(stages);
  const columns = [[null]];
  for (const stage of stages) (columns[depth.get(stage.stage)] ||= []).push(stage);
  const tallest = Math.max(...columns.map((column) => column.length));
  const height = tallest * (BOX.height + BOX.down) - BOX.down + 2 * BOX.margin;
  const width = columns.length * (BOX.width + BOX.across) - BOX.across + 2 * BOX.margin;
  const places = new Map();
  columns.forEach((column, across) => {
    const used = column.length * (BOX.height + BOX.down) - BOX.down;
    column.forEach((stage, down) => {
      places.set(stage ? stage.stage : "", {
        x: BOX.margin + across * (BOX.width + BOX.across),
        y: (height - used) / 2 + down * (BOX.height + BOX.down),
      });
    });
  });
  const lines = stages.flatMap((stage) => (stage.after.length ? stage.after : [""]).map((before) => {
    const from = places.get(before), to = places.get(stage.stage);
    if (!from) return null;
    const x1 = from.x + BOX.width, y1 = from.y + BOX.height / 2, x2 = to.x, y2 = to.y + BOX.height / 2;
    return draw("g", { class: "edge" },
      draw("path", { d: `M${x1} ${y1}C${x1 + BOX.across / 2} ${y1} ${x2 - BOX.across / 2} ${y2} ${x2 - 6} ${y2}` }),
      draw("path", { class: "head", d: `M${x2 - 8} ${y2 - 4}L${x2} ${y2}L${x2 - 8} ${y2 + 4}Z` }));
  })).filter(Boolean);
  const start = places.get("");
  const boxes = [
    graphBox(start.x, start.y, "input", [pipeline.input, `${count(pipeline.lag)} wait`, `${count(pipeline.began)} begun`]),
    ...stages.map((stage) => {
      const { x, y } = places.get(stage.stage);
      const style = stage.bad ? "bad" : stage.running || stage.waiting ? "busy" : "";
      const now = stage.in_spark ? "in Spark" : `${count(stage.waiting)} wait, ${count(stage.running)} run`;
      const trouble = stage.unserved !== null ? "no member, " : stage.bad ? "fails, " : "";
      const done = `${trouble}${count(stage.done)} done`;
      return graphBox(x, y, style, [stage.stage, now, done]);
    }),
  ];
  const label = `${pipeline.pipeline}: ${stages.map((stage) =>
    `${stage.stage} ${stage.in_spark ? "in Spark" : `${stage.waiting} wait, ${stage.running} run`}, ${stage.done} done`).join("; ")}`;
  return make("figure", { class: "graph" },
    make("figcaption", {}, pipeline.pipeline),
    make("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `Graph of ${pipeline.pipeline}` },
      draw("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, width, height }, ...lines, ...boxes)));
}

// Idle pipelines are folded when there are more than these.
const FEW = 3;

// The pipelines that are sought: those that work or fail, and the idle ones that are folded.
function divided(answer) {
  const sought = byId("search").value.trim().toLowerCase();
  const found = answer.status.pipelines.filter((one) => one.pipeline.toLowerCase().includes(sought));
  const works = (one) => found.length <= FEW || one.active || one.lag || one.stages.some((stage) => stage.bad);
  return { found, busy: found.filter(works), idle: found.filter((one) => !works(one)) };
}

// A graph is drawn anew only when it changes, so that scrolling in it goes on.
function showGraphs(id, pipelines) {
  const place = byId(id);
  const text = JSON.stringify(pipelines.map((one) => ({ ...one, stages: one.stages.map(({ oldest, unserved, failing, note, ...rest }) => rest) })));
  if (place.dataset.text === text) return;
  const scrolled = [...place.querySelectorAll(".wide")].map((box) => box.scrollLeft);
  const focused = [...place.querySelectorAll(".wide")].indexOf(document.activeElement);
  place.replaceChildren(...pipelines.map(graph));
  [...place.querySelectorAll(".wide")].forEach((box, index) => {
    box.scrollLeft = scrolled[index] || 0;
    if (index === focused) box.focus();
  });
  place.dataset.text = text;
}

function showPipelines(answer) {
  const { found, busy, idle } = divided(answer);
  const all = answer.status.pipelines.length;
  set(byId("pipelines-note"), all ? `Counts since batch ${count(answer.status.counted_from)}. ${shownOf(found.length, all, "pipeline")}` : "The schema declares no pipeline.");
  byId("find").hidden = all <= FEW;
  byId("idle").hidden = !idle.length;
  set(byId("idle-note"), plural(idle.length, "idle pipeline"));
  showGraphs("graphs", busy);
  showGraphs("idle-graphs", idle);
  table("pipelines", "Pipelines", [
    { label: "Pipeline", kind: "name", value: (one) => [one.pipeline, `of ${one.input}`] },
    { label: "Active", kind: "n", value: (one) => [count(one.active), `at most ${count(one.most)} a partition`] },
    ...figures(answer, "pipelines"),
  ], found, (one) => one.pipeline, () => false);
}

function showStages(answer) {
  const { found, busy } = divided(answer);
  const rows = (byId("idle").open ? found : busy).flatMap((one) => one.stages.map((stage) => ({ ...stage, pipeline: one.pipeline })));
  const folded = rows.length && busy.length < found.length && !byId("idle").open ? " Those of idle pipelines are not shown." : "";
  set(byId("stages-note"), rows.length ? `Members and deliveries are counted for each partition.${folded}` : "No stages.");
  table("stages", "Stages", [
    { label: "Stage", kind: "name", value: (one) => [one.stage, one.pipeline] },
    { label: "After", value: (one) => one.after.join(", ") || "the event" },
    ...figures(answer, "stages", (one, name) => (one.in_spark ? { members: "in Spark", waiting: "–", running: "–" }[name] : undefined)),
    { label: "Note", kind: "w", value: (one) => one.note },
  ], rows, (one) => `${one.pipeline} ${one.stage}`, (one) => one.bad);
}

function showGateways(answer) {
  const { gateways } = answer.status;
  set(byId("gateways-note"), gateways.length ? "" : "No gateways.");
  table("gateways", "Gateways", [
    { label: "Gateway", kind: "name", value: (one) => [one.gateway, one.host] },
    { label: "State", value: (one) => [one.state, one.state === "serving" ? "" : one.last_error] },
    { label: "Address", kind: "name", value: (one) => one.address || "–" },
    { label: "Generation", kind: "n", value: (one) => (one.generation ? count(one.generation) : "–") },
    ...figures(answer, "gateways"),
    { label: "Calls", kind: "n", value: (one) => [count(one.requests), one.oldest_request === null ? "" : `oldest ${seconds(one.oldest_request)}`] },
    { label: "Unread", kind: "n", value: (one) => [plural(one.unread_events, "event"), plural(one.unread_files, "file")] },
  ], gateways, (one) => one.gateway, (one) => one.state !== "serving");
}

function showStreams(answer) {
  const { partitions } = answer.status;
  set(byId("streams-note"), shownOf(partitions.length, answer.shown.partitions, "partition"));
  table("streams", "Streams", [
    { label: "Stream", kind: "name", value: (one) => one.stream },
    { label: "Partition", kind: "n", value: (one) => count(one.partition) },
    ...figures(answer, "streams"),
    { label: "Groups", kind: "n", value: (one) => count(one.groups.length) },
  ], partitions, (one) => `${one.stream}/${one.partition}`, () => false);
  const { groups } = answer;
  set(byId("groups-note"), shownOf(groups.length, answer.shown.groups, "group"));
  table("groups", "Groups", [
    { label: "Group", kind: "name", value: (one) => [one.group, one.durable ? "" : "ends with its last member"] },
    { label: "Stream", kind: "name", value: (one) => one.stream },
    { label: "Partition", kind: "n", value: (one) => count(one.partition) },
    ...figures(answer, "groups"),
    { label: "Members", kind: "n", value: (one) => [count(one.members), one.lag && !one.members ? "nobody reads" : ""] },
    { label: "Open delivery", kind: "n", value: (one) => [seconds(one.oldest), one.attempts > 1 ? `delivered ${count(one.attempts)} times` : ""] },
    { label: "Note", kind: "w", value: (one) => one.note },
  ], groups, (one) => `${one.stream}/${one.partition}/${one.group}`, () => false);
}

function show(answer) {
  showHead(answer);
  showFlow(answer);
  showBatches(answer);
  showPipelines(answer);
  showStages(answer);
  showGateways(answer);
  showStreams(answer);
  showEvents(answer);
}

const showAgain = () => {
  if (!last) return;
  showPipelines(last);
  showStages(last);
};
byId("search").addEventListener("input", showAgain);
byId("idle").addEventListener("toggle", showAgain);
begin();
