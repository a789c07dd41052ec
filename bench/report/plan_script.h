#pragma once
// The four kinds of picture on a plan's page. They stand on plan_panel.h and draw the data of plan_data.h.

#include <string_view>

namespace thimble::report {

inline constexpr std::string_view plan_script_kinds = R"js(
const highest = (...bytes) => {
  const high = Math.max(...bytes);
  const near = [data.budget, data.theory].filter(level => level && level <= 2 * high);
  return 1.24 * Math.max(high, ...near);
};

class TimePanel extends Panel {
  constructor(canvas) {
    super(canvas, 280);
    this.step = data.steps[canvas.dataset.step];
    canvas.addEventListener('dblclick', () => this.zoom([0, this.step.count + 1]));
  }
  get count() { return this.step.at.length; }
  paint(g) {
    const step = this.step;
    this.yAxis(g, highest(...data.steps.map(s => s.peak)));
    this.xAxis(g, ...step.window, 'allocation events of the step');
    // One column per pixel of the screen; of the events in it, the one with the most bytes.
    const begin = Math.round(this.x0 * this.scale), end = Math.round(this.x1 * this.scale);
    let from = lastAtMost(step.at, this.timeOf(begin / this.scale));
    for (let column = begin; column < end; ++column) {
      const next = this.timeOf((column + 1) / this.scale);
      let shown = from, last = from;
      while (last + 1 < step.at.length && step.at[last + 1] < next) {
        ++last;
        if (step.total[last] > step.total[shown] || shown === from && step.at[last] <= next - 1) shown = last;
      }
      for (let i = from; i <= last; ++i) if (step.total[i] > step.total[shown]) shown = i;
      let sum = 0;
      data.stack.forEach((category, k) => {
        const bytes = step.bytes[k][shown];
        g.fillStyle = this.colours[k];
        g.fillRect(column / this.scale, this.y(sum + bytes), 1 / this.scale, this.y(sum) - this.y(sum + bytes));
        sum += bytes;
      });
      from = last;
    }
    // The budget first: the words of the others stand over its line.
    if (data.budget) this.level(g, data.budget, 'budget ' + readable(data.budget), 'alarm', [7, 5], 'right', false);
    this.level(g, step.load, 'lower bound ' + readable(step.load), 'ink', [2, 3], 'left', true);
    if (data.theory && step.name === 'keep everything') {
      this.level(g, data.theory, 'textbook, by formula ' + readable(data.theory), 'muted', [1, 4], 'left', false);
    }
    this.mark(g);
  }
  mark(g) {
    const {peakAt, peak, window} = this.step;
    if (peakAt + .5 < window[0] || peakAt + .5 > window[1]) return;
    const x = this.x(peakAt + .5), isLeft = x > (this.x0 + this.x1) / 2;
    this.rule(g, x, this.y(peak), x, this.y1 + 2, 'ink');
    g.fillStyle = colour('ink');
    g.beginPath(); g.arc(x, this.y(peak), 4, 0, 7); g.fill();
    const path = data.paths[this.step.path[lastAtMost(this.step.at, peakAt)]];
    this.text(g, 'peak ' + readable(peak) + ' \u00b7 event ' + grouped(peakAt) + (path ? ' \u00b7 ' + path : ''),
              x + (isLeft ? -8 : 8), this.y1 + 11, {align: isLeft ? 'right' : 'left', bold: true});
  }
  draw() { this.colours = data.stack.map(c => colour(paintOf(c))); super.draw(); }
  hover(x) {
    if (x < this.x0 || x > this.x1) return this.untell();
    this.at(lastAtMost(this.step.at, this.timeOf(x)));
  }
  at(entry) {
    this.entry = entry;
    const step = this.step, x = this.x(step.at[entry] + .5);
    const rows = [];
    [...data.stack.keys()].reverse().forEach(k => {
      if (step.bytes[k][entry]) rows.push(line(paintOf(data.stack[k]), data.categories[data.stack[k]][0], ...exact(step.bytes[k][entry])));
    });
    this.refresh(g => { g.globalAlpha = .6; this.rule(g, x, this.y1, x, this.y0, 'ink'); g.globalAlpha = 1; });
    this.tell(x, (this.y0 + this.y1) / 2,
              step.at[entry] ? 'event ' + grouped(step.at[entry]) + ' of ' + grouped(step.count) : 'before the step',
              data.paths[step.path[entry]], [...rows, lineOfTotal(...exact(step.total[entry]))]);
  }
}

class MapPanel extends Panel {
  constructor(canvas) {
    super(canvas, 300);
    this.choose(data.steps[data.steps.length - 1]);
    canvas.addEventListener('dblclick', () => this.zoom([0, this.step.count + 1]));
  }
  choose(step) { this.step = step; this.layout = step.layouts[this.canvas.dataset.layout]; this.entry = 0; }
  get count() { return this.step.blocks.lower.length; }
  rectangle(block, lower, upper) {
    const bottom = this.layout.offset[block], x = Math.max(this.x0, this.x(lower)), y = this.y(bottom + this.step.blocks.bytes[block]);
    return [x, y, Math.min(this.x1, this.x(upper)) - x, this.y(bottom) - y];
  }
  paint(g) {
    const {blocks, pieces, window} = this.step;
    this.yAxis(g, highest(...data.steps.flatMap(s => s.layouts.map(l => l.height))));
    this.xAxis(g, ...window, 'allocation events of the step');
    const colours = data.categories.map(c => colour(c[1])), edge = colour('surface');
    blocks.lower.forEach((lower, i) => {
      if (lower > window[1] || blocks.upper[i] < window[0]) return;
      pieces[i].forEach(([from, category], k) => {
        const [x, y, width, height] = this.rectangle(i, from, k + 1 < pieces[i].length ? pieces[i][k + 1][0] : blocks.upper[i]);
        if (width <= 0) return;
        g.fillStyle = colours[category];
        g.fillRect(x, y, Math.max(width, .5), Math.max(height, .5));
      });
      const [x, y, width, height] = this.rectangle(i, lower, blocks.upper[i]);
      if (width > 3 && height > 3) { g.strokeStyle = edge; g.lineWidth = .7; g.strokeRect(x, y, width, height); }
    });
    const height = this.layout.height;
    if (data.budget) this.level(g, data.budget, 'budget ' + readable(data.budget), 'alarm', [7, 5], 'right', false);
    this.level(g, height, 'height ' + readable(height), 'ink', [2, 3], 'left', false);
    if (data.theory && this.step.name === 'keep everything') {
      this.level(g, data.theory, 'textbook, by formula ' + readable(data.theory), 'muted', [1, 4], 'left', false);
    }
  }
  hover(x, y) {
    const blocks = this.step.blocks, time = this.timeOf(x), at = (this.y0 - y) / (this.y0 - this.y1) * this.high;
    const slack = this.high / (this.y0 - this.y1) / 2;
    let found = -1;
    blocks.lower.forEach((lower, i) => {
      const bottom = this.layout.offset[i];
      if (lower <= time && time < blocks.upper[i] && bottom - slack <= at && at < bottom + blocks.bytes[i] + slack &&
          (found < 0 || blocks.bytes[i] > blocks.bytes[found])) found = i;
    });
    if (x < this.x0 || x > this.x1 || found < 0) return this.untell();
    this.at(found, x, y, time);
  }
  at(found, x, y, time = this.step.blocks.lower[found]) {
    const {blocks, pieces, count} = this.step;
    const category = pieces[found].filter(p => p[0] <= time).pop()[1];
    const lower = blocks.lower[found], upper = blocks.upper[found], box = this.rectangle(found, lower, upper);
    this.entry = found;
    if (x === undefined) [x, y] = [Math.max(this.x0, Math.min(this.x1, box[0] + box[2] / 2)), box[1] + box[3] / 2];
    this.refresh(g => { g.strokeStyle = colour('ink'); g.lineWidth = 2; if (box[2] > 0) g.strokeRect(...box); });
    const life = lower === 0 && upper > count ? 'the whole step' :
      (lower === 0 ? 'from before the step' : 'event ' + grouped(lower)) + ' to ' + (upper > count ? 'after it' : grouped(upper));
    this.tell(x, y, data.categories[category][0], data.paths[blocks.path[found]],
              [line(paintOf(category), 'size', ...exact(blocks.bytes[found])),
               line('', 'offset', ...exact(this.layout.offset[found])), line('', 'lives', life)]);
  }
}

const fates = [['series0', 'kept'], ['series2', 'result kept, extras made again'],
               ['series1', 'what backward reads kept, result made again'], ['', 'dropped, runs again'],
               ['', 'backward does not need it']];
class SchedulePanel extends Panel {
  constructor(canvas) {
    const depth = data.segments.reduce((most, s) => Math.max(most, s.depth + 1), 0);
    super(canvas, 240 + 13 * depth);
    this.bottom = 52 + 13 * depth;
  }
  get count() { return data.nodes.name.length; }
  nodeX(n) { return this.x0 + n / data.nodes.name.length * (this.x1 - this.x0); }
  paint(g) {
    const {made, kept, fate} = data.nodes;
    this.yAxis(g, 1.05 * Math.max(1, ...made));
    const box = (n, m, bottom, top, fill, stroke, dashes = []) => {
      const x = this.nodeX(n), width = this.nodeX(m) - x, gap = width > 4 ? 1 : 0;
      if (fill) { g.fillStyle = colour(fill); g.fillRect(x, top, width - gap, bottom - top); }
      if (stroke && width > 2) { g.strokeStyle = colour(stroke); g.lineWidth = 1; g.setLineDash(dashes); g.strokeRect(x + .5, top + .5, width - gap - 1, bottom - top - 1); g.setLineDash([]); }
    };
    made.forEach((bytes, n) => {
      if (bytes > kept[n] && fate[n] !== 4) box(n, n + 1, this.y(kept[n]), this.y(bytes), 'hairline', 'axis');
      if (kept[n]) box(n, n + 1, this.y0, this.y(kept[n]), fates[fate[n]][0] || 'series0');
      const strip = this.y0 + 12;
      if (fate[n] === 4) box(n, n + 1, strip + 10, strip, '', 'axis', [1, 2]);
      else box(n, n + 1, strip + 10, strip, fates[fate[n]][0] || 'hairline', fate[n] === 3 ? 'axis' : '');
    });
    for (const s of data.segments) {
      const top = this.y0 + 26 + 13 * s.depth;
      box(s.first, s.end, top + 9, top, 'muted');
    }
    const count = made.length;
    this.text(g, 'operators in order of execution, 0 to ' + grouped(count - 1), this.x1, this.height - 3, {align: 'right', paint: 'muted', halo: false});
    this.text(g, 'fate', this.x0 - 8, this.y0 + 21, {align: 'right', paint: 'muted', halo: false});
    if (data.segments.length) this.text(g, 'segments', this.x0 - 8, this.y0 + 35, {align: 'right', paint: 'muted', halo: false});
  }
  hover(x, y) {
    const n = Math.floor((x - this.x0) / (this.x1 - this.x0) * this.count);
    if (n < 0 || n >= this.count) return this.untell();
    this.at(n, x, y);
  }
  at(n, x = this.nodeX(n + .5), y = this.y(data.nodes.made[n])) {
    const {names, name, path, made, kept, fate} = data.nodes;
    this.entry = n;
    this.refresh(g => {
      g.globalAlpha = .16; g.fillStyle = colour('ink');
      g.fillRect(this.nodeX(n), this.y1, this.nodeX(n + 1) - this.nodeX(n), this.height - this.y1 - 20); g.globalAlpha = 1;
    });
    const rows = [line(fates[fate[n]][0], 'fate', fates[fate[n]][1]), line('', 'makes', ...exact(made[n])), line('', 'keeps', ...exact(kept[n]))];
    for (const s of data.segments.filter(s => s.first <= n && n < s.end)) {
      rows.push(line('muted', 'segment of ' + s.first + '\u2013' + (s.end - 1), 'keeps ' + grouped(s.kept) + ' bytes',
                     s.dropped + ' of ' + (s.end - s.first) + ' dropped'));
    }
    this.tell(x, y, names[name[n]] + ' \u00b7 operator ' + grouped(n), data.paths[path[n]], rows);
  }
}

class CurvePanel extends Panel {
  constructor(canvas) { super(canvas, 300); this.bottom = 40; this.top = 24; }
  paint(g) {
    const peaks = data.plans.map(p => p.peak), low = Math.min(...peaks), high = Math.max(...peaks);
    const margin = (high - low || high) * .06, unit = 1024 ** unitOf(high);
    const isBudgetShown = data.budget && data.budget <= high + 8 * margin && data.budget >= low - 4 * margin;
    this.range = [Math.min(low, isBudgetShown ? data.budget : low) - margin, Math.max(high, isBudgetShown ? data.budget : high) + margin];
    this.most = Math.max(.01, ...data.plans.map(p => p.overhead)) * 1.12;
    const raw = this.most / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
    for (let value = 0; value <= this.most; value += step) {
      this.rule(g, this.x0, this.py(value), this.x1, this.py(value), value ? 'hairline' : 'axis');
      this.text(g, +(100 * value).toFixed(2) + ' %', this.x0 - 8, this.py(value) + 4, {align: 'right', paint: 'muted', halo: false});
    }
    this.text(g, 'more time than keeping everything', this.x0 - 60, 12, {paint: 'muted', halo: false});
    this.xAxis(g, this.range[0] / unit, this.range[1] / unit, 'bytes committed', v => +v.toFixed(2) + ' ' + units[unitOf(high)]);
    if (isBudgetShown) {
      const x = this.px(data.budget), isLeft = x > (this.x0 + this.x1) / 2;
      this.rule(g, x, this.y1, x, this.y0, 'alarm', [7, 5], 1.5);
      this.text(g, 'budget ' + readable(data.budget), x + (isLeft ? -6 : 6), this.y1 + 12, {align: isLeft ? 'right' : 'left', paint: 'alarm'});
    }
    g.strokeStyle = colour('series0'); g.lineWidth = 2; g.beginPath();  // a staircase: a budget between two plans takes the left one
    const plans = data.plans.slice().sort((a, b) => a.peak - b.peak);
    plans.forEach((p, i) => {
      if (i) g.lineTo(this.px(p.peak), this.py(plans[i - 1].overhead)); else g.moveTo(this.px(p.peak), this.py(p.overhead));
      g.lineTo(this.px(p.peak), this.py(p.overhead));
    });
    g.stroke();
    for (const p of data.plans) this.dot(g, p, 3.5, 'series0');
    if (data.current !== null) {
      const p = data.plans[data.current];
      this.dot(g, p, 6, 'ink');
      const isLeft = this.px(p.peak) > (this.x0 + this.x1) / 2;
      this.text(g, 'this plan', this.px(p.peak) + (isLeft ? -10 : 10), this.py(p.overhead) - 10, {align: isLeft ? 'right' : 'left', bold: true});
    }
  }
  px(bytes) { return this.x0 + (bytes - this.range[0]) / (this.range[1] - this.range[0]) * (this.x1 - this.x0); }
  py(overhead) { return this.y0 - overhead / this.most * (this.y0 - this.y1); }
  dot(g, p, radius, paint) { g.fillStyle = colour(paint); g.beginPath(); g.arc(this.px(p.peak), this.py(p.overhead), radius, 0, 7); g.fill(); }
  get count() { return data.plans.length; }
  hover(x, y) {
    const distance = p => Math.hypot(this.px(p.peak) - x, (this.py(p.overhead) - y) / 3);  // across counts more
    const near = data.plans.reduce((a, b) => distance(b) < distance(a) ? b : a);
    if (distance(near) > 80) return this.untell();
    this.at(data.plans.indexOf(near));
  }
  at(entry) {
    const near = data.plans[entry];
    this.entry = entry;
    this.refresh(g => { g.strokeStyle = colour('ink'); g.lineWidth = 1.5; g.beginPath(); g.arc(this.px(near.peak), this.py(near.overhead), 9, 0, 7); g.stroke(); });
    this.tell(this.px(near.peak), this.py(near.overhead), near.segments ? near.segments + ' segments' : 'keep everything', '',
              [line('', 'peak', ...exact(near.peak)), line('', 'lower bound', ...exact(near.load)),
               line('', 'more time', (100 * near.overhead).toFixed(2) + ' %', near.seconds.toPrecision(4) + ' s per step')]);
  }
}

const kinds = {time: TimePanel, map: MapPanel, schedule: SchedulePanel, curve: CurvePanel};
for (const canvas of document.querySelectorAll('canvas')) new kinds[canvas.dataset.panel](canvas);
const buttons = [...document.querySelectorAll('.choice button')];
const choose = index => {
  for (const button of buttons) button.setAttribute('aria-pressed', button.dataset.step === String(index));
  for (const panel of panels) if (panel instanceof MapPanel) { panel.choose(data.steps[index]); if (panel.width) panel.draw(); }
};
for (const button of buttons) button.addEventListener('click', () => choose(button.dataset.step));
choose(data.steps.length - 1);
const redraw = () => { for (const panel of panels) panel.draw(); };
matchMedia('(prefers-color-scheme:dark)').addEventListener('change', redraw);
)js";

}  // namespace thimble::report
