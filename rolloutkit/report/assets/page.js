// Puts the page together from its content.

function figure(value, name, note, main = false) {
  return el("div", { class: main ? "figure main" : "figure" }, el("b", {}, value), el("span", {}, name), note ? el("span", {}, note) : null);
}

function figures(page) {
  const it = page.summary;
  const bad = [it.num_failed && `${count(it.num_failed)} failed`, it.num_cancelled && `${count(it.num_cancelled)} cancelled`].filter(Boolean);
  const missing = it.num_samples - it.num_completed - it.num_failed - it.num_cancelled;
  if (missing > 0) bad.push(`${count(missing)} did not end`);
  const cached = it.cached_tokens !== null && it.prompt_tokens ? `${percent(it.cached_tokens / it.prompt_tokens)} of the prompts cached` : "";
  return el(
    "div", { class: "figures" },
    figure(seconds(it.makespan_seconds), "makespan", null, true),
    figure(seconds(it.lower_bound_seconds), "lower bound", it.binding_resource && `set by ${it.binding_resource}`, true),
    figure(it.gap === null ? "unknown" : it.gap.toFixed(2), "gap", "makespan / lower bound", true),
    figure(`${count(it.num_completed)} of ${count(it.num_samples)}`, "completed", bad.join(", ") || "none failed"),
    figure(it.score_mean === null ? "none" : it.score_mean.toFixed(3), "mean score"),
    figure(count(it.num_turns), "turns", it.action_wait_seconds.p90 === null ? null : `slot wait p90 ${seconds(it.action_wait_seconds.p90)}`),
    figure(count(it.output_tokens), "output tokens", cached),
    figure(percent(it.environment_utilization), "environment busy", `engine ${percent(it.engine_utilization)}`),
  );
}

function heading(page) {
  const it = page.summary;
  const facts = [`${page.run.time} time`, `seed ${page.run.seed}`];
  if (page.run.max_samples !== null) facts.push(`${count(page.run.max_samples)} samples admitted at most`);
  const notes = [];
  if (it.ended_early !== null) notes.push(`The run ended early: ${it.ended_early}.`);
  if (!it.trace_complete) notes.push("The trace is incomplete: everything here covers what was recorded.");
  return el(
    "header", {}, el("h1", {}, `${count(it.num_samples)} samples in ${seconds(it.makespan_seconds)}`),
    el("p", {}, page.verdict), ...notes.map((note) => el("p", { class: "bad" }, note)),
    it.order === null ? null : el("p", { class: "quiet" }, `Order of actions: ${it.order}${it.order_reason ? ` – ${it.order_reason}` : ""}.`),
    el("p", { class: "quiet small" }, facts.join(" · ")),
  );
}

function tail(page) {
  const longest = Math.max(1e-9, ...page.tail.map((row) => row.seconds.reduce((a, b) => a + b, 0)));
  const rows = page.tail.map((row) => {
    const parts = row.seconds.map((value, i) => [i, value]).filter(([, value]) => value > 0).reverse();
    const told = parts.map(([i, value]) => `${page.states[i]} ${seconds(value)}`).join(", ");
    const stack = el("div", { class: "stack", role: "img", "aria-label": told });
    for (const [i, value] of parts) {
      const part = el("i", { class: `s${i}` });
      part.style.width = `${(100 * value) / longest}%`;
      part.addEventListener("pointermove", (event) => showTip(event, `${page.states[i]}: ${seconds(value)}`));
      part.addEventListener("pointerleave", hideTip);
      stack.append(part);
    }
    return el(
      "div", { class: "bar-row" }, el("div", { class: "name" }, row.sample_id), stack, el("div", { class: "end" }, seconds(row.ended_at)),
      el("div", { class: "said" }, row.advice), el("div", { class: "said" }, told),
    );
  });
  return section("The last samples, and where their time went", "The run was waiting for these. The time at which each ended stands at the right.", ...rows);
}

function table(head, rows) {
  const header = el("tr", {}, ...head.map((name) => el("th", { scope: "col", class: name === "samples" ? "number" : "" }, name)));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, header), el("tbody", {}, ...rows)));
}

function endings(page) {
  const rows = page.endings.map((it) => el(
    "tr", {}, el("td", { class: it.status === "failed" ? "bad" : "" }, it.status), el("td", {}, it.reason), el("td", { class: "number" }, count(it.count)),
    el("td", {}, it.example), el("td", { class: "message" }, it.message),
  ));
  const rest = page.num_other_endings ? `${count(page.num_other_endings)} rarer endings are left out.` : "";
  return section("How samples ended", rest, table(["status", "reason", "samples", "first one", "message"], rows));
}

function orders(page) {
  if (page.orders.length < 2) return null;
  const rows = page.orders.map((it) => el("tr", {}, el("td", {}, seconds(it.t)), el("td", {}, it.order), el("td", {}, it.reason)));
  return section("How the order was chosen", "", table(["at", "order", "reason"], rows));
}

function runPage(page) {
  // State 0 is the moments between operations: explained where somebody would see them.
  page.used = page.states.map((_, i) => page.doing[i].some((value) => value > (i === 0 ? 0.5 : 0)));
  const spread = Object.entries(page.distributions).map(([name, given]) => histogram(name, given));
  return [
    heading(page), figures(page), gantt(page),
    section("Samples alive", "How many of the admitted samples were in each state, in the colours above. A sample gives its place to the next one before it is scored.", doing(page)),
    section("Pools", "How much of each was in use; the busiest first.", pools(page)),
    page.tail.length ? tail(page) : null,
    section("Distributions", "", el("div", { class: "cells" }, ...spread)),
    endings(page), orders(page),
  ];
}

function comparisonPage(page) {
  const rows = Object.entries(page.figures).map(([name, texts]) => el(
    "tr", {}, el("th", { scope: "row" }, name), ...texts.map((text) => el("td", {}, text)),
  ));
  const used = page.names.map((_, i) => `l${i % 6}`);
  return [
    el("header", {}, el("h1", {}, `${page.names.length} runs side by side`)),
    section("Figures", "Changes are against the first run.", table(["", ...page.names], rows)),
    section("Samples that had not ended", "Where a line goes on flat, everybody waits for a few.", legend(page.names, used), unfinished(page.lines)),
  ];
}

function main() {
  const page = JSON.parse(document.getElementById("content").textContent);
  const parts = page.kind === "comparison" ? comparisonPage(page) : runPage(page);
  document.getElementById("page").append(...parts.filter((part) => part !== null));
}

main();
