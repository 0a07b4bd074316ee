// The Gantt: a canvas on which each sample is a row of coloured spans. With more rows than lines of
// the canvas each line shows that of its samples which ended last. Drag to zoom; double click, or 0, shows everything.

const AXIS = 24; // pixels below the rows
const LABELLED = 13; // pixels of a row that has room for its name

function gantt(page) {
  const rows = page.gantt.ids.map((id, i) => readRow(page.gantt, i, id));
  const view = { rows, from: 0, to: page.seconds, first: 0, last: rows.length };
  const height = Math.max(90, Math.min(560, rows.length * 15)) + AXIS;
  const canvas = el("canvas", {
    tabindex: "0", role: "img",
    "aria-label": `Gantt of ${rows.length} samples over ${seconds(page.seconds)}; the table of the last samples below tells the same in numbers`,
  });
  canvas.style.height = `${height}px`;
  const redraw = () => drawGantt(canvas, height, view, page);
  const tools = ganttTools(view, page, redraw);
  attachPointer(canvas, height, view, page, redraw);
  attachKeys(canvas, view, page, redraw);
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  requestAnimationFrame(redraw);
  const order = page.states.map((_, i) => i).filter((i) => page.used[i]).reverse();
  return section(
    "What each sample was doing", ganttNote(page),
    legend(order.map((i) => page.states[i]), order.map((i) => `s${i}`)), tools, canvas,
  );
}

function ganttNote(page) {
  const { ids, num_samples: all } = page.gantt;
  const some = ids.length < all ? `${count(ids.length)} of ${count(all)} samples, evenly chosen, the last five among them. ` : "";
  const lines = ids.length > 560 ? "Where several share a line, the one that ended last is shown. " : "";
  return `${some}A row is a sample. ${lines}Drag over an area to zoom in, double click to see everything again.`;
}

function readRow(source, index, id) {
  const tick = source.seconds_per_tick;
  const flat = source.spans[index];
  const [edges, states] = [[source.starts[index] * tick], []];
  let at = source.starts[index];
  for (let i = 0; i < flat.length; i += 2) {
    at += flat[i + 1];
    states.push(flat[i]);
    edges.push(at * tick);
  }
  return { id, index, edges, states, outcome: source.outcomes[index], end: edges[edges.length - 1], alive: aliveSeconds(edges, states) };
}

function aliveSeconds(edges, states) {
  const from = states[0] === ADMISSION ? edges[1] : edges[0];
  return edges[edges.length - 1] - from;
}

function ganttTools(view, page, redraw) {
  const orders = {
    "as admitted": (a, b) => a.index - b.index,
    "by end": (a, b) => a.end - b.end,
    "longest life first": (a, b) => b.alive - a.alive,
  };
  const choice = el("select", { id: "order" }, ...Object.keys(orders).map((name) => el("option", {}, name)));
  choice.addEventListener("change", () => {
    view.rows = [...view.rows].sort(orders[choice.value]);
    redraw();
  });
  const button = (text, label, act) => {
    const made = el("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", () => { act(); redraw(); });
    return made;
  };
  return el(
    "div", { class: "tools" }, el("label", { for: "order" }, "rows "), choice, el("span", { class: "push" }),
    button("+", "zoom in", () => zoom(view, page, 0.5)), button("−", "zoom out", () => zoom(view, page, 2)),
    button("all", "show everything", () => showAll(view, page)),
  );
}

function showAll(view, page) {
  Object.assign(view, { from: 0, to: page.seconds, first: 0, last: view.rows.length });
}

function zoom(view, page, factor) {
  const range = Math.min(page.seconds, (view.to - view.from) * factor);
  moveTo(view, page, (view.from + view.to - range) / 2, range);
  const many = Math.max(Math.min(4, view.rows.length), Math.min(view.rows.length, Math.round((view.last - view.first) * factor)));
  showRows(view, Math.round((view.first + view.last - many) / 2), many);
}

function moveTo(view, page, from, range) {
  view.from = Math.max(0, Math.min(page.seconds - range, from));
  view.to = view.from + range;
}

function showRows(view, first, many) {
  view.first = Math.max(0, Math.min(view.rows.length - many, first));
  view.last = view.first + many;
}

// Where things are, in pixels of the page.
function layout(canvas, height, view) {
  const each = (height - AXIS) / Math.max(1, view.last - view.first);
  const left = each >= LABELLED ? 128 : 52;
  const width = Math.max(50, canvas.clientWidth - left - 10);
  return {
    each, left, width, bottom: height - AXIS,
    x: (t) => left + ((t - view.from) / Math.max(1e-9, view.to - view.from)) * width,
    time: (x) => view.from + ((x - left) / width) * (view.to - view.from),
    row: (y) => view.first + Math.floor(y / each),
  };
}

// The row shown at `y`: of those that share the line, the one that ended last, so that no tail is hidden.
function rowAt(view, place, y) {
  const line = 1 / (window.devicePixelRatio || 1);
  const top = Math.floor(y / line) * line;
  const shared = view.rows.slice(place.row(top), Math.max(place.row(top) + 1, place.row(top + line)));
  return shared.reduce((last, row) => (row.end > last.end ? row : last), shared[0]);
}

function drawGantt(canvas, height, view, page) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colours = page.states.map((_, i) => style.getPropertyValue(`--s${i}`).trim());
  const place = layout(canvas, height, view);
  context.font = '11.5px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";
  if (place.each >= 1) drawRows(context, view, place, colours);
  else drawLines(context, view, place, colours, scale);
  drawLabels(context, view, place, style);
  drawAxis(context, view, place, page, style);
}

function drawRows(context, view, place, colours) {
  const gap = place.each > 5 ? 2 : place.each > 2.5 ? 0.6 : 0;
  for (let i = view.first; i < view.last; i++) {
    drawSpans(context, view, place, colours, view.rows[i], (i - view.first) * place.each, place.each - gap);
  }
}

function drawLines(context, view, place, colours, scale) {
  const thick = 1 / scale;
  for (let line = 0; line < place.bottom * scale; line++) {
    const y = (line + 0.5) * thick;
    const row = rowAt(view, place, y);
    if (row) drawSpans(context, view, place, colours, row, line * thick, thick);
  }
}

function drawSpans(context, view, place, colours, row, y, thick) {
  for (let i = 0; i < row.states.length; i++) {
    if (row.edges[i + 1] < view.from || row.edges[i] > view.to) continue;
    const from = place.x(Math.max(view.from, row.edges[i]));
    const to = place.x(Math.min(view.to, row.edges[i + 1]));
    context.fillStyle = colours[row.states[i]];
    context.fillRect(from, y, Math.max(0.35, to - from), thick);
  }
}

function drawLabels(context, view, place, style) {
  context.textAlign = "right";
  if (place.each < LABELLED) {
    context.fillStyle = style.getPropertyValue("--quiet");
    for (const at of ticks(view.first, view.last, 8)) {
      const y = Math.max(7, (at - view.first) * place.each);
      if (Number.isInteger(at) && y < place.bottom - 4) context.fillText(count(at), place.left - 8, y);
    }
    return;
  }
  for (let i = view.first; i < view.last; i++) {
    const row = view.rows[i];
    context.fillStyle = style.getPropertyValue(row.outcome === "failed" ? "--bad" : "--quiet");
    const name = row.id.length > 18 ? `…${row.id.slice(-17)}` : row.id;
    context.fillText(row.outcome === "failed" ? `✕ ${name}` : name, place.left - 8, (i - view.first + 0.5) * place.each - 0.5);
  }
}

function drawAxis(context, view, place, page, style) {
  context.textAlign = "center";
  context.fillStyle = style.getPropertyValue("--quiet");
  for (const at of timeTicks(view.from, view.to, Math.max(2, Math.round(place.width / 90)))) {
    context.fillRect(place.x(at), place.bottom, 1, 4);
    context.fillText(tickLabel(at, view.to), place.x(at), place.bottom + 14);
  }
  const bound = page.summary.lower_bound_seconds;
  if (bound === null || bound < view.from || bound > view.to) return;
  context.strokeStyle = context.fillStyle = style.getPropertyValue("--ink");
  context.setLineDash([4, 3]);
  context.beginPath();
  context.moveTo(place.x(bound), 0);
  context.lineTo(place.x(bound), place.bottom + 4);
  context.stroke();
  context.setLineDash([]);
  const text = "lower bound";
  const wide = context.measureText(text).width + 8;
  const left = Math.max(place.left, place.x(bound) - wide - 2);
  context.fillStyle = style.getPropertyValue("--card");
  context.fillRect(left, 2, wide, 16);
  context.textAlign = "left";
  context.fillStyle = style.getPropertyValue("--ink");
  context.fillText(text, left + 4, 10);
}

function attachPointer(canvas, height, view, page, redraw) {
  let start = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: Math.min(height - AXIS - 1, event.clientY - box.top) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0) return;
    start = at(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = at(event);
    const place = layout(canvas, height, view);
    const text = ganttTip(view, page, place, here);
    if (text) showTip(event, text);
    else hideTip();
    if (start === null) return;
    redraw();
    const context = canvas.getContext("2d");
    context.strokeStyle = getComputedStyle(canvas).color;
    context.strokeRect(start.x, start.y, here.x - start.x, here.y - start.y);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, at(event)];
    start = null;
    if (Math.abs(to.x - from.x) > 6) zoomInto(view, page, layout(canvas, height, view), from, to);
    redraw();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => { showAll(view, page); redraw(); });
}

function zoomInto(view, page, place, from, to) {
  const times = [place.time(from.x), place.time(to.x)].sort((a, b) => a - b);
  const found = [place.row(from.y), place.row(to.y)].sort((a, b) => a - b);
  moveTo(view, page, times[0], Math.max(page.seconds / 1e4, Math.min(page.seconds, times[1]) - Math.max(0, times[0])));
  showRows(view, found[0], Math.min(view.rows.length, Math.max(1, found[1] - found[0] + 1)));
}

function ganttTip(view, page, place, here) {
  const row = rowAt(view, place, here.y);
  const time = place.time(here.x);
  if (!row || time < row.edges[0] || time > row.end) return null;
  const i = row.edges.findIndex((edge, k) => k < row.states.length && time < row.edges[k + 1]);
  if (i < 0) return null;
  const [from, to] = [row.edges[i], row.edges[i + 1]];
  return `${row.id} (${row.outcome})\n${page.states[row.states[i]]} for ${seconds(to - from)}, from ${seconds(from)}\nended at ${seconds(row.end)}`;
}

function attachKeys(canvas, view, page, redraw) {
  const by = (share) => moveTo(view, page, view.from + share * (view.to - view.from), view.to - view.from);
  const down = (share) => {
    const many = view.last - view.first;
    showRows(view, view.first + Math.sign(share) * Math.max(1, Math.round(Math.abs(share) * many)), many);
  };
  const acts = {
    "+": () => zoom(view, page, 0.5), "=": () => zoom(view, page, 0.5), "-": () => zoom(view, page, 2),
    0: () => showAll(view, page), ArrowLeft: () => by(-0.2), ArrowRight: () => by(0.2),
    ArrowUp: () => down(-0.2), ArrowDown: () => down(0.2),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
    redraw();
  });
}
