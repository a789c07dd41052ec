#pragma once
// The script of report.html: exact values under the pointer, and the current section in the navigation. The page is
// complete without it. Figures bring their data as JSON (hover_json in figures.h); positions are px of the picture. It
// stands on script_helpers.h.

#include <string_view>

namespace thimble::report {

inline constexpr std::string_view page_script = R"js(
const svgNamespace = 'http://www.w3.org/2000/svg';
const split = text => {  // "5,358 bytes (5.23 KiB)" -> its two halves
  const found = /^(.*) \((.*)\)$/.exec(text);
  return found ? [found[1], found[2]] : [text, ''];
};

class Hover {
  constructor(figure) {
    this.figure = figure;
    this.svg = figure.querySelector('svg');
    this.tip = figure.querySelector('.tip');
    this.data = JSON.parse(figure.querySelector('script').textContent);
    this.guide = document.createElementNS(svgNamespace, 'line');
    this.guide.setAttribute('class', 's-ink');
    this.guide.setAttribute('opacity', .5);
    this.ring = document.createElementNS(svgNamespace, 'circle');
    this.ring.setAttribute('class', 's-ink');
    this.ring.setAttribute('fill', 'none');
    this.ring.setAttribute('r', 8);
    this.hide();
    this.svg.append(this.guide, this.ring);
    const move = event => this.move(event);
    this.svg.addEventListener('pointermove', move);
    this.svg.addEventListener('pointerdown', move);
    this.svg.addEventListener('pointerleave', () => this.hide());
  }
  // px of the picture -> px of the figure
  scale() { return this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width; }
  move(event) {
    const box = this.svg.getBoundingClientRect();
    this.at((event.clientX - box.left) / this.scale(), (event.clientY - box.top) / this.scale());
  }
  hide() {
    this.tip.hidden = true;
    for (const part of [this.guide, this.ring]) part.setAttribute('visibility', 'hidden');
  }
  show(x, y, heading, path, rows) {
    showTip(this.figure, this.svg, x * this.scale(), y * this.scale(), heading, path, rows);
  }
  mark(part, attributes) {
    for (const name in attributes) part.setAttribute(name, attributes[name]);
    part.setAttribute('visibility', 'visible');
  }
  vertical(x) { this.mark(this.guide, {x1: x, x2: x, y1: this.data.top, y2: this.data.bottom}); }
}

class PlotHover extends Hover {
  at(x, y) {
    let near = null, nearest = Infinity;
    for (const series of this.data.series) {
      for (const point of series.points) {
        const distance = Math.hypot(point[0] - x, (point[1] - y) / 2);  // across counts more than along
        if (distance < nearest) { nearest = distance; near = {series, point}; }
      }
    }
    if (!near || nearest > 90) return this.hide();
    const rows = [];
    for (const series of this.data.series) {
      for (const point of series.points.filter(p => p[2] === near.point[2])) {
        const row = line(series.paint, series.name, ...split(point[3]));
        if (point === near.point) row.className = 'near';
        rows.push(row);
      }
    }
    this.vertical(near.point[0]);
    this.mark(this.ring, {cx: near.point[0], cy: near.point[1]});
    this.show(near.point[0], near.point[1], (this.data.x ? this.data.x + ' ' : '') + near.point[2], '', rows);
  }
}

class BarsHover extends Hover {
  at(x, y) {
    const index = Math.floor((y - this.data.top) / this.data.pitch);
    const bar = this.data.bars[index];
    if (!bar || x > this.data.right + 90) return this.hide();
    const rows = bar.parts.map(([name, paint, text]) => line(paint, name, ...split(text)));
    this.show(Math.max(x, this.data.left), y, bar.label, '', [...rows, lineOfTotal(...split(bar.total))]);
  }
}

class TimelineHover extends Hover {
  constructor(figure) {
    super(figure);
    this.events = running(this.data.event);
    this.bytes = this.data.bytes.map(running);
    this.svg.tabIndex = 0;
    this.entry = 0;
    this.svg.addEventListener('keydown', event => this.key(event));
    this.svg.addEventListener('blur', () => this.hide());
  }
  at(x) {
    const {left, right, count} = this.data;
    if (x < left || x > right) return this.hide();
    const wanted = Math.min(count - 1, Math.floor((x - left) / (right - left) * count));
    this.tell(lastAtMost(this.events, wanted));
  }
  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key] * (event.shiftKey ? 25 : 1);
    const target = event.key === 'Home' ? 0 : event.key === 'End' ? this.events.length - 1 : this.entry + step;
    if (Number.isNaN(target)) return;
    event.preventDefault();
    this.tell(Math.max(0, Math.min(this.events.length - 1, target)));
  }
  tell(entry) {
    this.entry = entry;
    const {left, right, count, top, bottom, categories, phases, paths, path} = this.data;
    const event = this.events[entry];
    const x = left + (right - left) * (event + .5) / count;
    let sum = 0;
    const rows = [];
    categories.forEach(([name, paint], i) => {
      const bytes = this.bytes[i][entry];
      sum += bytes;
      if (bytes > 0) rows.push(line(paint, name, ...exact(bytes)));
    });
    const phase = phases.filter(p => p[1] <= event).pop();
    this.vertical(x);
    this.show(x, (top + bottom) / 2, 'event ' + grouped(event) + (phase ? ' \u00b7 ' + phase[0] : ''),
              paths[path[entry]], [...rows, lineOfTotal(...exact(sum))]);
  }
}

const kinds = {plot: PlotHover, bars: BarsHover, timeline: TimelineHover};
for (const figure of document.querySelectorAll('figure[data-kind]')) new kinds[figure.dataset.kind](figure);

const links = new Map([...document.querySelectorAll('nav a')].map(a => [a.hash.slice(1), a]));
const sections = [...document.querySelectorAll('main section[id]')];
const follow = () => {
  const passed = sections.filter(s => s.getBoundingClientRect().top < innerHeight * .4);
  const current = passed.length ? passed[passed.length - 1].id : '';
  for (const [id, a] of links) {
    if (id === current) a.setAttribute('aria-current', 'true'); else a.removeAttribute('aria-current');
  }
};
addEventListener('scroll', follow, {passive: true});
follow();
)js";

}  // namespace thimble::report
