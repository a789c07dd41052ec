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
  row.append(swatch, element('td', '', name), element('td', '', value), element('td', '', other || ''));
  return row;
};
const lineOfTotal = (value, other) => { const row = line('', 'total', value, other); row.className = 'sum'; return row; };

const shift = (part, x) => { if (x) part.setAttribute('transform', 'translate(' + x + ' 0)'); else part.removeAttribute('transform'); };

// A kind of picture says what is under the pointer, hover(x, y), how many entries the arrow keys go through, `count`,
// and what it tells of one of them, at(entry). Positions are px of the picture.
const pictures = [];
class Picture {
  constructor(figure, svg, data) {
    Object.assign(this, {figure, svg, data, entry: 0, tip: figure.querySelector('.tip'), marks: shape('g')});
    [this.left, this.top, this.right, this.bottom] = data.frame;
    svg.append(this.marks);
    svg.tabIndex = 0;
    svg.addEventListener('pointermove', e => this.move(e));
    svg.addEventListener('pointerdown', e => { this.from = this.position(e)[0]; this.move(e); });
    svg.addEventListener('pointerup', e => this.release(e));
    svg.addEventListener('pointerleave', () => this.leave());
    svg.addEventListener('blur', () => this.leave());
    svg.addEventListener('keydown', e => this.key(e));
    pictures.push(this);
  }
  // px of the screen per px of the picture
  get scale() { return this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width; }
  position(e) {
    const box = this.svg.getBoundingClientRect();
    return [(e.clientX - box.left) / this.scale, (e.clientY - box.top) / this.scale];
  }
  leave() { this.from = undefined; this.untell(); }
  untell() { this.tip.hidden = true; this.marks.replaceChildren(); }  // a drag that begins where nothing is goes on
  move(e) {
    const [x, y] = this.position(e);
    if (this.from === undefined || !this.zoom || Math.abs(x - this.from) <= 6) return this.hover(x, y);
    this.untell();
    this.mark('rect', {x: Math.min(x, this.from), y: this.top, width: Math.abs(x - this.from),
                       height: this.bottom - this.top, class: 'f-accent', opacity: .2});
  }
  release(e) {
    const [x] = this.position(e), from = this.from;
    this.from = undefined;
    if (from !== undefined && this.zoom && Math.abs(x - from) > 6) this.zoom(Math.min(x, from), Math.max(x, from));
  }
  key(e) {
    const step = {ArrowLeft: -1, ArrowRight: 1}[e.key] * (e.shiftKey ? 25 : 1);
    const wanted = e.key === 'Home' ? 0 : e.key === 'End' ? this.count - 1 : this.entry + step;
    if (Number.isNaN(wanted)) return;
    e.preventDefault();
    this.at(between(0, wanted, this.count - 1));
  }
  mark(name, attributes) { this.marks.append(shape(name, attributes)); }
  vertical(x) { this.mark('line', {x1: x, x2: x, y1: this.top, y2: this.bottom, class: 's-ink', opacity: .5}); }
  // Fills the figure's tip and shows it beside (x, y).
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
}

// A picture over the events of a step. Its `.window`, an <svg> within the picture, holds what moves with the axis: event
// times across, px upwards. A group with data-time stands at an event time, `.x-axis` holds the marks below.
class Timed extends Picture {
  constructor(figure, svg, data) {
    super(figure, svg, data);
    this.window = svg.querySelector('.window');
    this.axis = svg.querySelector('.x-axis');
    this.wholeAxis = [...this.axis.childNodes];
    [this.begin, this.end] = [0, data.count];
    svg.addEventListener('dblclick', () => this.look(0, data.count));
  }
  x(time) { return this.left + (time - this.begin) / (this.end - this.begin) * (this.right - this.left); }
  timeOf(x) { return this.begin + between(0, (x - this.left) / (this.right - this.left), 1) * (this.end - this.begin); }
  y(bytes) { return this.bottom - bytes / this.data.high * (this.bottom - this.top); }
  zoom(left, right) {
    const begin = this.timeOf(left), end = this.timeOf(right);
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
