"use strict";
// Elements, texts of numbers and the one tooltip. Texts of a run only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function section(title, note, ...children) {
  const said = note ? el("p", { class: "small quiet" }, note) : null;
  return el("section", {}, el("h2", {}, title), said, ...children);
}

function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(rest)} s`;
}

function count(value) {
  return value === null || value === undefined ? "unknown" : value.toLocaleString("en-US");
}

function percent(value) {
  return value === null || value === undefined ? "unknown" : value > 0 && value < 0.005 ? "<1%" : `${Math.round(value * 100)}%`;
}

// Round numbers at most `most` of which lie between `from` and `to`.
function ticks(from, to, most) {
  const span = Math.max(to - from, 1e-9);
  const power = 10 ** Math.floor(Math.log10(span / most));
  const step = [1, 2, 5, 10].map((it) => it * power).find((it) => span / it <= most);
  const found = [];
  for (let at = Math.max(0, Math.ceil(from / step - 1e-9)); at * step <= to + span * 1e-9; at++) found.push(at * step);
  return found;
}

function timeTicks(from, to, most) {
  const steps = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 36000, 86400, 172800];
  const step = to - from > 240 ? steps.find((it) => (to - from) / it <= most) : undefined;
  if (step === undefined) return ticks(from, to, most);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

function tickLabel(value, range) {
  if (value === 0) return "0";
  if (range > 7200) return `${Number((value / 3600).toFixed(2))} h`;
  if (range > 240) return `${Number((value / 60).toFixed(2))} min`;
  return `${Number(value.toPrecision(6))} s`;
}

function showTip(event, text) {
  const tip = document.getElementById("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16;
  const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function legend(names, classes) {
  const items = names.map((name, i) => el("span", {}, el("i", { class: classes[i] }), name));
  return el("div", { class: "legend" }, ...items);
}
