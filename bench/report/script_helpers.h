#pragma once
// What the scripts of both pages, report.html and a plan's, stand on: bytes in words, elements, and the tip that tells
// exact values under the pointer.

#include <string_view>

namespace thimble::report {

/// The first part of a page's script.
inline constexpr std::string_view script_helpers = R"js(
'use strict';
const grouped = n => n.toLocaleString('en-US');
const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
// The unit that bytes are told in: the largest of which they are at least one after rounding.
const unitOf = bytes => {
  let unit = 0;
  while (unit < 6 && (bytes >= 1024 || (unit > 0 && bytes.toFixed(2) === '1024.00'))) { bytes /= 1024; ++unit; }
  return unit;
};
const readable = bytes => { const u = unitOf(bytes); return (bytes / 1024 ** u).toFixed(u ? 2 : 0) + ' ' + units[u]; };
const exact = bytes => [grouped(bytes) + ' bytes', readable(bytes)];
const running = differences => { let sum = 0; return differences.map(d => sum += d); };
// The last index whose value is at most `wanted`; 0 where there is none.
const lastAtMost = (ascending, wanted) => {
  let low = 0, high = ascending.length - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (ascending[middle] <= wanted) low = middle; else high = middle - 1; }
  return low;
};
const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
// One line of a tip: a swatch, a name, a value and the value in other words.
const line = (paint, name, value, other) => {
  const row = element('tr'), swatch = element('td');
  if (paint) { swatch.append(element('span', 'swatch')); swatch.firstChild.style.background = 'var(--' + paint + ')'; }
  row.append(swatch, element('td', '', name), element('td', '', value), element('td', '', other || ''));
  return row;
};
const lineOfTotal = (value, other) => { const row = line('', 'total', value, other); row.className = 'sum'; return row; };
// Fills a figure's tip and shows it beside the point (x, y) of `picture`, in px of the screen.
const showTip = (figure, picture, x, y, heading, path, rows) => {
  const tip = figure.querySelector('.tip'), table = element('table');
  table.append(...rows);
  tip.replaceChildren(element('b', '', heading));
  if (path) tip.append(element('span', 'path', path));
  tip.append(table);
  tip.hidden = false;
  const inner = picture.getBoundingClientRect(), outer = figure.getBoundingClientRect();
  const left = inner.left - outer.left + x, top = inner.top - outer.top + y;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  const isRoomy = left + 16 + width <= outer.width - 8;
  tip.style.left = Math.max(8, isRoomy ? left + 16 : left - 16 - width) + 'px';
  tip.style.top = Math.max(8, Math.min(top - height / 2, outer.height - height - 8)) + 'px';
};
)js";

}  // namespace thimble::report
