// What all pictures of a page share. The program draws them as SVG; here they answer the pointer and the keys, and those
// with a time axis look closer where the pointer is dragged across. All files of this folder are one script, in the
// order of their names.
'use strict';

const grouped = n => n.toLocaleString('en-US');
const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
const readable = bytes => {
  let unit = 0;
  while (unit < 6 && (bytes >= 1024 || (unit > 0 && bytes.toFixed(2) === '1024.00'))) { bytes /= 1024; ++unit; }
  return bytes.toFixed(unit ? 2 : 0) + ' ' + units[unit];
};
const exact = bytes => [grouped(bytes) + ' bytes', readable(bytes)];
const split = text => {  // "5,358 bytes (5.23 KiB)" -> its two halves
  const found = /^(.*) \((.*)\)$/.exec(text);
  return found ? [found[1], found[2]] : [text, ''];
};
const between = (low, value, high) => Math.max(low, Math.min(high, value));
const running = differences => { let sum = 0; return differences.map(d => sum += d); };

const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
// An element of a picture.
const shape = (name, attributes, text) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
};
// One line of a tip: a swatch, a name, a value and the value in other words.
const line = (paint, name, value, other) => {
  const row = element('tr'), swatch = element('td');
  if (paint) { swatch.append(element('span', 'swatch')); swatch.firstChild.style.background = 'var(--' + paint + ')'; }
  if (name === 'total') row.className = 'sum';
  row.append(swatch, element('td', '', name), element('td', '', value), element('td', '', other || ''));
  return row;
};

const shift = (part, x) => { if (x) part.setAttribute('transform', 'translate(' + x + ' 0)'); else part.removeAttribute('transform'); };

// A picture and the entries that the program wrote for it (hover.h). The pointer and the arrow keys go through them.
// Boxes are in the picture's units, positions in px of the picture. A picture whose frame is a `.window`, an <svg> in
// it, looks closer where the pointer is dragged across: the window holds what moves with the axis, units across and px
// upwards. A group with data-time stands at a unit of the axis, `.x-axis` holds the marks below.
const pictures = [];
class Picture {
  constructor(figure, svg, data, index) {
    const column = given => Array.isArray(given) ? running(given) : Array(data.entries).fill(given);
    Object.assign(this, {figure, svg, data, entry: 0, tip: figure.querySelector('.tip'), marks: shape('g'), begin: 0, end: data.count});
    [this.left, this.top, this.right, this.bottom] = data.frame;
    for (const name of ['from', 'to', 'size', 'heading', 'path']) this[name] = column(data[name]);
    this.low = column(index ? data.other_low : data.low);
    this.rows = data.rows.map(row => ({...row, paint: column(row.paint), values: row.values.length === 0 ? this.low : column(row.values)}));
    this.window = svg.querySelector('.window');
    this.axis = svg.querySelector('.x-axis');
    this.wholeAxis = this.axis ? [...this.axis.childNodes] : [];
    svg.append(this.marks);
    svg.tabIndex = 0;
    svg.addEventListener('pointermove', e => this.move(e));
    svg.addEventListener('pointerdown', e => { this.pressed = this.position(e)[0]; this.move(e); });
    svg.addEventListener('pointerup', e => this.release(e));
    svg.addEventListener('pointerleave', () => this.leave());
    svg.addEventListener('blur', () => this.leave());
    svg.addEventListener('keydown', e => this.key(e));
    if (this.window) svg.addEventListener('dblclick', () => this.look(0, data.count));
    pictures.push(this);
  }
  // px of the screen per px of the picture
  get scale() { return this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width; }
  position(e) {
    const box = this.svg.getBoundingClientRect();
    return [(e.clientX - box.left) / this.scale, (e.clientY - box.top) / this.scale];
  }
  x(unit) { return this.left + (unit - this.begin) / (this.end - this.begin) * (this.right - this.left); }
  unitOf(x) { return this.begin + between(0, (x - this.left) / (this.right - this.left), 1) * (this.end - this.begin); }
  y(unit) { return this.bottom - unit / this.data.high * (this.bottom - this.top); }
  box(i) { return [this.x(this.from[i]), this.y(this.low[i] + this.size[i]), this.x(this.to[i]), this.y(this.low[i])]; }
  leave() { this.pressed = undefined; this.untell(); }
  untell() { this.tip.hidden = true; this.marks.replaceChildren(); }  // a drag that begins where nothing is goes on
  move(e) {
    const [x, y] = this.position(e);
    if (this.pressed === undefined || !this.window || Math.abs(x - this.pressed) <= 6) return this.hover(x, y);
    this.untell();
    this.mark('rect', {x: Math.min(x, this.pressed), y: this.top, width: Math.abs(x - this.pressed),
                       height: this.bottom - this.top, class: 'f-accent', opacity: .2});
  }
  release(e) {
    const [x] = this.position(e), pressed = this.pressed;
    this.pressed = undefined;
    if (pressed !== undefined && this.window && Math.abs(x - pressed) > 6) this.zoom(Math.min(x, pressed), Math.max(x, pressed));
  }
  // The entry whose box is nearest and near enough; of several the highest one.
  hover(x, y) {
    let found = -1, nearest = this.data.reach;
    if (!this.window || (x >= this.left && x <= this.right)) this.from.forEach((_, i) => {
      const [left, top, right, bottom] = this.box(i);
      const distance = Math.hypot(Math.max(left - x, 0, x - right), Math.max(top - y, 0, y - bottom) / 2);
      if (distance < nearest || found >= 0 && distance === nearest && this.size[i] > this.size[found]) { nearest = distance; found = i; }
    });
    if (found < 0) return this.untell();
    this.at(found, x, y);
  }
  key(e) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[e.key] * (e.shiftKey ? 25 : 1), last = this.data.entries - 1;
    const wanted = e.key === 'Home' ? 0 : e.key === 'End' ? last : this.entry + step;
    if (Number.isNaN(wanted)) return;
    e.preventDefault();
    this.at(between(0, wanted, last));
  }
  mark(name, attributes) { this.marks.append(shape(name, attributes)); }
  // Outlines an entry, a point with a circle, and fills the tip beside (x, y).
  at(entry, x, y) {
    const {texts, event, is_sum, spans} = this.data, [left, top, right, bottom] = this.box(this.entry = entry);
    const [begin, end] = this.window ? [between(this.left, left, this.right), between(this.left, right, this.right)] : [left, right];
    this.untell();
    if (left === right) {
      this.mark('line', {x1: left, x2: left, y1: this.top, y2: this.bottom, class: 's-ink', opacity: .5});
      this.mark('circle', {cx: left, cy: top, r: 8, fill: 'none', class: 's-ink'});
    } else if (end > begin) {
      this.mark('rect', {x: begin, y: top, width: end - begin, height: bottom - top, fill: 'none', class: 's-ink', 'stroke-width': 1.5});
    }
    const rows = [];
    let sum = 0;
    for (const {name, paint, values, is_text} of this.rows) {
      const value = values[entry];
      sum += value;
      if (value || !is_sum) rows.push(line(texts[paint[entry]], name || texts[this.heading[entry]], ...(is_text ? split(texts[value]) : exact(value))));
    }
    for (const [first, end, paint, name, value] of spans) if (first <= entry && entry < end) rows.push(line(paint, name, ...split(value)));
    if (is_sum) rows.push(line('', 'total', ...exact(sum)));
    const from = this.from[entry];
    this.tell(x === undefined ? (begin + end) / 2 : x, y === undefined ? (top + bottom) / 2 : y,
              !event ? texts[this.heading[entry]] : from === 0 && event.first || 'event ' + grouped(from) + event.after,
              texts[this.path[entry]], rows);
  }
  tell(x, y, heading, path, rows) {
    const tip = this.tip, table = element('table');
    table.append(...rows);
    tip.replaceChildren(element('b', '', heading));
    if (path) tip.append(element('span', 'path', path));
    tip.append(table);
    tip.hidden = false;
    const inner = this.svg.getBoundingClientRect(), outer = this.figure.getBoundingClientRect();
    const left = inner.left - outer.left + x * this.scale, top = inner.top - outer.top + y * this.scale;
    const isRoomy = left + 16 + tip.offsetWidth <= outer.width - 8;
    tip.style.left = Math.max(8, isRoomy ? left + 16 : left - 16 - tip.offsetWidth) + 'px';
    tip.style.top = Math.max(8, Math.min(top - tip.offsetHeight / 2, outer.height - tip.offsetHeight - 8)) + 'px';
  }
  zoom(left, right) {
    const begin = this.unitOf(left), end = this.unitOf(right);
    if (end - begin >= 2) this.look(begin, end);
  }
  // All pictures of a step look at the same events.
  look(begin, end) {
    this.untell();
    for (const other of pictures) if (other === this || other.data.step && other.data.step === this.data.step) other.show(begin, end);
  }
  show(begin, end) {
    Object.assign(this, {begin, end});
    const isWhole = begin === 0 && end === this.data.count, width = this.right - this.left;
    this.window.setAttribute('viewBox', [begin, this.top, end - begin, this.bottom - this.top].join(' '));
    this.axis.replaceChildren(...(isWhole ? this.wholeAxis : this.axisMarks()));
    for (const group of this.svg.querySelectorAll('[data-time]')) {
      const time = Number(group.dataset.time), from = this.left + time / this.data.count * width;
      shift(group, this.x(time) - from);
      group.setAttribute('visibility', time < begin || time > end ? 'hidden' : 'visible');
      // Its words, 9 px away, stand on the side with more room.
      const middle = this.left + width / 2, isLeft = this.x(time) >= middle, isOther = isLeft !== from >= middle;
      for (const text of group.querySelectorAll('text:not([text-anchor=middle])')) {
        text.setAttribute('text-anchor', isLeft ? 'end' : 'start');
        shift(text, isOther ? isLeft ? -18 : 18 : 0);
      }
    }
  }
  // Ten or so round numbers.
  axisMarks() {
    const raw = (this.end - this.begin) / 8, power = 10 ** Math.floor(Math.log10(raw)), marks = [];
    const step = Math.max(1, [1, 2, 5, 10].map(k => k * power).find(k => k >= raw));
    for (let time = Math.ceil(this.begin / step) * step; time <= this.end; time += step) {
      const x = this.x(time);
      marks.push(shape('line', {x1: x, x2: x, y1: this.bottom, y2: this.bottom + 5, class: 's-axis'}),
                 shape('text', {x, y: this.bottom + 20, 'text-anchor': 'middle', 'font-size': 12.5, class: 'f-muted'}, grouped(time)));
    }
    return marks;
  }
}
