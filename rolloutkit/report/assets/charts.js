// Charts as SVG: areas over time, histograms, lines. Coordinates are those of a fixed view box.

const ADMISSION = 1; // number of that state
const WIDE = Math.max(320, Math.min(1180, window.innerWidth - 90)); // so that texts keep their size

function frame(width, height, label, left = 46) {
  const box = { width, height, left, right: width - 12, top: 8, bottom: height - 22 };
  return { ...box, node: svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }) };
}

function yAxis(box, largest, text, most = 4) {
  const y = (value) => box.bottom - (value / Math.max(1e-9, largest)) * (box.bottom - box.top);
  for (const at of ticks(0, largest, most)) {
    box.node.append(
      svg("line", { class: "grid-line", x1: box.left, x2: box.right, y1: y(at), y2: y(at) }),
      svg("text", { x: box.left - 7, y: y(at) + 4, "text-anchor": "end" }, text(at)),
    );
  }
  return y;
}

function timeAxis(box, range) {
  const most = Math.max(2, Math.round((box.right - box.left) / 90));
  const x = (t) => box.left + (t / Math.max(1e-9, range)) * (box.right - box.left);
  for (const at of timeTicks(0, range, most)) {
    const anchor = x(at) > box.right - 20 ? "end" : x(at) < box.left + 4 ? "start" : "middle";
    box.node.append(svg("text", { x: x(at), y: box.bottom + 16, "text-anchor": anchor }, tickLabel(at, range)));
  }
  return x;
}

function steps(values, base, x, y, bin) {
  const parts = [];
  values.forEach((value, i) => parts.push(`${x(i * bin).toFixed(1)},${y(value).toFixed(1)}`, `${x((i + 1) * bin).toFixed(1)},${y(value).toFixed(1)}`));
  for (let i = base.length - 1; i >= 0; i--) parts.push(`${x((i + 1) * bin).toFixed(1)},${y(base[i]).toFixed(1)}`, `${x(i * bin).toFixed(1)},${y(base[i]).toFixed(1)}`);
  return `M${parts.join("L")}Z`;
}

function hover(box, range, bins, tell) {
  const line = svg("line", { class: "mark", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const area = svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top, fill: "transparent" });
  box.node.append(line, area);
  area.addEventListener("pointermove", (event) => {
    const rect = area.getBoundingClientRect();
    const share = Math.min(0.9999, Math.max(0, (event.clientX - rect.left) / rect.width));
    const at = box.left + share * (box.right - box.left);
    fill(line, { x1: at, x2: at, visibility: "visible" }, []);
    showTip(event, `at ${seconds(share * range)}\n${tell(Math.floor(share * bins))}`);
  });
  area.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    hideTip();
  });
}

// How many living samples were in each state: states stacked, work below, waits above.
function doing(page) {
  const bins = page.doing[0].length;
  const order = page.states.map((_, i) => i).reverse().filter((i) => i !== ADMISSION && (i === 0 || page.used[i]));
  const totals = Array.from({ length: bins }, (_, k) => order.reduce((sum, i) => sum + page.doing[i][k], 0));
  const limit = page.run.max_samples;
  const largest = Math.max(1, ...totals, limit !== null && limit <= 1.25 * Math.max(...totals) ? 1.1 * limit : 0);
  const box = frame(WIDE, 240, `Living samples by state over time, at most ${Math.round(Math.max(...totals))} at once`);
  const y = yAxis(box, largest, count);
  const x = timeAxis(box, page.seconds);
  let base = new Array(bins).fill(0);
  for (const i of order) {
    const top = base.map((value, k) => value + page.doing[i][k]);
    box.node.append(svg("path", { class: `s${i}`, d: steps(top, base, x, y, page.seconds / bins) }));
    base = top;
  }
  if (limit !== null && limit <= 1.25 * largest) {
    box.node.append(svg("line", { class: "mark", x1: box.left, x2: box.right, y1: y(limit), y2: y(limit) }));
    box.node.append(svg("text", { x: box.right - 4, y: y(limit) - 5, "text-anchor": "end", style: "fill: var(--ink)" }, `${count(limit)} admitted at most`));
  }
  hover(box, page.seconds, bins, (k) =>
    [...order, ADMISSION].filter((i) => page.doing[i][k] >= 0.05).map((i) => `${page.doing[i][k].toFixed(1)} ${page.states[i]}`).join("\n") || "nobody");
  return box.node;
}

function pools(page) {
  const used = page.pools.filter((pool) => pool.busy.some((value) => value > 0));
  return el("div", { class: "cells" }, ...used.map((pool) => poolCell(page, pool)));
}

function poolCell(page, pool) {
  const mean = pool.busy.reduce((sum, value) => sum + value, 0) / pool.busy.length;
  const most = Math.max(...pool.busy);
  const known = pool.capacity !== null;
  const told = known
    ? `${percent(mean / pool.capacity)} of ${count(pool.capacity)} busy on average`
    : `${mean.toFixed(1)} at once on average, no limit known`;
  const box = frame(370, 104, `${pool.name}: ${told}`);
  const y = yAxis(box, known ? 1 : Math.max(1, most), known ? percent : count, 2);
  const x = timeAxis(box, page.seconds);
  const class_ = pool.name === "engine" ? "s7" : /\.set_up$/.test(pool.name) ? "s6" : /\.score$/.test(pool.name) ? "s5" : /\.close$/.test(pool.name) ? "s1" : "s8";
  box.node.append(svg("path", { class: class_, d: steps(pool.busy.map((value) => (known ? value / pool.capacity : value)), pool.busy.map(() => 0), x, y, page.seconds / pool.busy.length) }));
  hover(box, page.seconds, pool.busy.length, (k) => `${pool.busy[k].toFixed(1)} busy${known ? ` of ${count(pool.capacity)}` : ""}`);
  return el("div", {}, el("h3", {}, pool.name, " ", el("span", { class: "quiet" }, told)), box.node);
}

function histogram(name, given) {
  const largest = Math.max(1, ...given.counts);
  const box = frame(420, 170, `${name}: median ${given.median}, largest ${given.largest}`);
  const y = yAxis(box, largest, count, 3);
  const each = (box.right - box.left) / given.counts.length;
  const every = Math.ceil(given.edges.length / 9);
  given.counts.forEach((number, i) => {
    const left = box.left + i * each;
    const bar = svg("rect", { class: "s7", x: left + 0.5, width: Math.max(1, each - 1), y: y(number), height: box.bottom - y(number), rx: 1.5 });
    const hit = svg("rect", { fill: "transparent", x: left, width: each, y: box.top, height: box.bottom - box.top });
    hit.addEventListener("pointermove", (event) => showTip(event, `${range(given.edges, i)}: ${count(number)}`));
    hit.addEventListener("pointerleave", hideTip);
    box.node.append(bar, hit);
  });
  given.edges.forEach((edge, i) => {
    if (i % every === 0) box.node.append(svg("text", { x: box.left + i * each, y: box.bottom + 16, "text-anchor": "middle" }, short(edge)));
  });
  const told = given.median === null ? "none" : `median ${short(given.median)}, most ${short(given.largest)}`;
  return el("div", {}, el("h3", {}, name, " ", el("span", { class: "quiet" }, told)), box.node);
}

function range(edges, i) {
  const whole = edges[i + 1] - edges[i] === 1 && Number.isInteger(edges[i]);
  return whole ? short(edges[i]) : `${short(edges[i])} to below ${short(edges[i + 1])}`;
}

function short(value) {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (value >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return String(Number(value.toPrecision(3)));
}

// Samples that had not ended, one line per run: the flat end of a line is its tail.
function unfinished(lines) {
  const longest = Math.max(...lines.map((line) => line.seconds));
  const most = Math.max(1, ...lines.map((line) => line.total));
  const box = frame(WIDE, 280, "Samples that had not ended over time, by run");
  const y = yAxis(box, most, count);
  const x = timeAxis(box, longest);
  lines.forEach((line, i) => {
    const bin = line.seconds / line.num_left.length;
    const points = [line.total, ...line.num_left].map((left, k) => `${x(k * bin).toFixed(1)},${y(left).toFixed(1)}`);
    box.node.append(svg("path", { class: `line l${i % 6}`, d: `M${points.join("L")}` }));
  });
  hover(box, longest, 1000, (k) => lines.map((line) => {
    const at = Math.floor(((k / 1000) * longest / line.seconds) * line.num_left.length);
    return `${count(at < line.num_left.length ? line.num_left[at] : 0)} left in ${line.name}`;
  }).join("\n"));
  return box.node;
}
