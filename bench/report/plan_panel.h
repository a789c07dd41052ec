#pragma once
// What all pictures of a plan's page share: the style sheet, and the script's base of a panel: a canvas drawn in the
// colours of the page's style sheet and at the screen's own resolution, with axes, marks, a tip and a window of time.

#include <string_view>

namespace thimble::report {

inline constexpr std::string_view plan_style = R"css(
body.plan{display:block}
.plan main{max-width:1180px;margin:0 auto}
.plan h4{margin:18px 0 2px;font-size:14px;color:var(--muted);font-weight:600}
.plan canvas{display:block;width:100%;touch-action:pan-y;cursor:crosshair}
.plan .chips{border:0;padding:0;margin:0 0 6px}
.plan .choice{display:flex;gap:8px;margin:0 0 12px}
.plan .choice button{font:inherit;font-size:14px;padding:4px 14px;border:1px solid var(--axis);border-radius:8px;background:var(--surface);color:var(--ink);cursor:pointer}
.plan .choice button[aria-pressed=true]{background:var(--ink);color:var(--surface);border-color:var(--ink)}
.plan figure{margin:0 0 24px}
.plan .stats{grid-template-columns:repeat(auto-fit,minmax(180px,1fr))}
.plan .stats dd{font-size:26px}
.plan table th[scope=row]{border-bottom:1px solid var(--hairline);padding:8px 10px 8px 0;color:var(--ink);vertical-align:top}
.plan tbody tr:last-child th{border-bottom:0}
)css";

/// The part of the script between script_helpers and plan_script_kinds.
inline constexpr std::string_view plan_script_panel = R"js(
const data = JSON.parse(document.getElementById('data').textContent);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
const paintOf = category => data.categories[category][1];

for (const step of data.steps) {
  step.at = running(step.at);
  step.bytes = step.bytes.map(running);
  step.total = step.at.map((_, i) => step.bytes.reduce((sum, b) => sum + b[i], 0));
  step.window = [0, step.count + 1];  // the event times that are shown
  // A block is drawn in pieces, one per category it had.
  step.pieces = step.blocks.lower.map((lower, i) => [[lower, step.blocks.category[i]]]);
  for (const [block, time, category] of step.relabels || []) step.pieces[block].push([time, category]);
}

const panels = [];
class Panel {
  constructor(canvas, height) {
    Object.assign(this, {canvas, height, left: 78, right: 14, top: 10, bottom: 34, entry: 0});
    this.figure = canvas.closest('figure');
    this.tip = this.figure.querySelector('.tip');
    canvas.style.height = height + 'px';
    canvas.addEventListener('pointermove', e => this.move(e));
    canvas.addEventListener('pointerdown', e => { this.from = this.position(e)[0]; this.move(e); });
    canvas.addEventListener('pointerup', e => this.release(e));
    canvas.addEventListener('pointerleave', () => this.leave());
    canvas.addEventListener('blur', () => this.leave());
    canvas.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => this.draw()).observe(canvas);
    panels.push(this);
  }
  position(e) { const box = this.canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; }
  get x0() { return this.left; }
  get x1() { return this.width - this.right; }
  get y0() { return this.height - this.bottom; }
  get y1() { return this.top; }
  draw() {
    const scale = devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.base = document.createElement('canvas');
    this.base.width = this.canvas.width;
    this.base.height = this.canvas.height;
    this.scale = scale;
    const g = this.base.getContext('2d');
    g.setTransform(scale, 0, 0, scale, 0, 0);
    this.paint(g);
    this.refresh();
  }
  // The picture, and on it what the pointer marks.
  refresh(mark) {
    const g = this.canvas.getContext('2d');
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    g.drawImage(this.base, 0, 0);
    g.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (mark) mark(g);
  }
  leave() { this.from = undefined; this.untell(); }
  untell() { this.tip.hidden = true; this.refresh(); }  // a drag that begins where nothing is goes on
  move(e) {
    const [x, y] = this.position(e);
    if (this.from !== undefined && this.step && Math.abs(x - this.from) > 6) {
      this.tip.hidden = true;
      return this.refresh(g => {
        g.globalAlpha = .2; g.fillStyle = colour('accent');
        g.fillRect(Math.min(x, this.from), this.y1, Math.abs(x - this.from), this.y0 - this.y1);
        g.globalAlpha = 1;
      });
    }
    this.hover(x, y);
  }
  release(e) {
    const [x] = this.position(e), from = this.from;
    this.from = undefined;
    if (from === undefined || !this.step || Math.abs(x - from) <= 6) return;
    const ends = [this.timeOf(Math.min(x, from)), this.timeOf(Math.max(x, from))];
    if (ends[1] - ends[0] >= 2) this.zoom(ends);
  }
  // The arrow keys go through what a panel shows, entry by entry of its `count`; `at` tells of one.
  key(e) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[e.key];
    if (!by || !this.count) return;
    e.preventDefault();
    this.at(Math.max(0, Math.min(this.count - 1, this.entry + by * (e.shiftKey ? 25 : 1))));
  }
  zoom(ends) { this.step.window = ends; for (const panel of panels) if (panel.step === this.step) panel.draw(); }
  tell(x, y, heading, path, rows) { showTip(this.figure, this.canvas, x, y, heading, path, rows); }
  text(g, text, x, y, {align = 'left', paint = 'ink', bold = false, halo = true} = {}) {
    g.font = (bold ? '600 ' : '') + '12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,"Liberation Sans",sans-serif';
    g.textAlign = align;
    if (halo) { g.lineWidth = 4; g.lineJoin = 'round'; g.strokeStyle = colour('surface'); g.strokeText(text, x, y); }
    g.fillStyle = colour(paint);
    g.fillText(text, x, y);
  }
  rule(g, x1, y1, x2, y2, paint, dashes = [], width = 1) {
    g.strokeStyle = colour(paint); g.lineWidth = width; g.setLineDash(dashes);
    g.beginPath(); g.moveTo(x1, y1); g.lineTo(x2, y2); g.stroke(); g.setLineDash([]);
  }
  // Bytes upwards from y0, marked at powers of two.
  yAxis(g, high, title) {
    this.high = high;
    const step = 2 ** Math.ceil(Math.log2(high / 5)), unit = 1024 ** unitOf(high);
    for (let value = 0; value <= high; value += step) {
      this.rule(g, this.x0, this.y(value), this.x1, this.y(value), value ? 'hairline' : 'axis');
      this.text(g, String(+(value / unit).toFixed(3)) + ' ' + units[unitOf(high)], this.x0 - 8, this.y(value) + 4,
                {align: 'right', paint: 'muted', halo: false});
    }
    if (title) this.text(g, title, this.x0, this.y1, {paint: 'muted', halo: false});
  }
  y(bytes) { return this.y0 - bytes / this.high * (this.y0 - this.y1); }
  // Ten or so round numbers across.
  xAxis(g, low, high, title, label = grouped) {
    const raw = (high - low) / 8, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw);
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) {
      const x = this.x0 + (value - low) / (high - low) * (this.x1 - this.x0);
      this.rule(g, x, this.y0, x, this.y0 + 4, 'axis');
      if (x < this.x1 - 12) this.text(g, label(value), x, this.y0 + 17, {align: 'center', paint: 'muted', halo: false});
    }
    this.text(g, title, this.x1, this.height - 3, {align: 'right', paint: 'muted', halo: false});
  }
  // Across: event times of the step's window.
  x(time) { const [a, b] = this.step.window; return this.x0 + (time - a) / (b - a) * (this.x1 - this.x0); }
  timeOf(x) {
    const [a, b] = this.step.window;
    return a + Math.max(0, Math.min(1, (x - this.x0) / (this.x1 - this.x0))) * (b - a);
  }
  level(g, bytes, text, paint, dashes, align, below) {
    if (bytes > this.high) return;
    this.rule(g, this.x0, this.y(bytes), this.x1, this.y(bytes), paint, dashes, 1.5);
    this.text(g, text, align === 'left' ? this.x0 + 6 : this.x1 - 6, this.y(bytes) + (below ? 15 : -6), {align, paint});
  }
}
)js";

}  // namespace thimble::report
