// The kinds of picture, by the data-kind of their figures. What their data is stands where the program draws them.

class PlotPicture extends Picture {
  constructor(figure, svg, data) {
    super(figure, svg, data);
    this.points = data.series.flatMap(series => series.points.map(point => ({series, point})));
    this.points.sort((a, b) => a.point[0] - b.point[0]);
  }
  get count() { return this.points.length; }
  hover(x, y) {
    let near = -1, nearest = 90;
    this.points.forEach(({point}, i) => {
      const distance = Math.hypot(point[0] - x, (point[1] - y) / 2);  // across counts more than along
      if (distance < nearest) { nearest = distance; near = i; }
    });
    if (near < 0) return this.untell();
    this.at(near);
  }
  at(entry) {
    const near = this.points[this.entry = entry].point, [x, y, xText, , details] = near, rows = [];
    for (const {series, point} of this.points) {
      if (point[2] !== xText) continue;
      rows.push(line(series.paint, series.name, ...split(point[3])));
      if (point === near) rows[rows.length - 1].className = 'near';
    }
    for (const [name, value] of details) rows.push(line('', name, ...split(value)));
    this.untell();
    this.vertical(x);
    this.mark('circle', {cx: x, cy: y, r: 8, fill: 'none', class: 's-ink'});
    this.tell(x, y, (this.data.x ? this.data.x + ' ' : '') + xText, '', rows);
  }
}

class BarsPicture extends Picture {
  get count() { return this.data.bars.length; }
  hover(x, y) {
    const entry = Math.floor((y - this.top) / this.data.pitch);
    if (entry < 0 || entry >= this.count || x > this.right + 90) return this.untell();
    this.at(entry, Math.max(x, this.left), y);
  }
  at(entry, x = (this.left + this.right) / 2, y = this.top + (entry + .5) * this.data.pitch) {
    const bar = this.data.bars[this.entry = entry];
    const rows = bar.parts.map(([name, paint, text]) => line(paint, name, ...split(text)));
    this.tell(x, y, bar.label, '', [...rows, lineOfTotal(...split(bar.total))]);
  }
}

class TimelinePicture extends Timed {
  constructor(figure, svg, data) {
    super(figure, svg, data);
    this.events = running(data.event);
    this.bytes = data.bytes.map(running);
    this.totals = this.events.map((_, i) => this.bytes.reduce((sum, bytes) => sum + bytes[i], 0));
  }
  get count() { return this.events.length; }
  hover(x) {
    if (x < this.left || x > this.right) return this.untell();
    this.at(lastAtMost(this.events, this.timeOf(x)));
  }
  at(entry) {
    this.entry = entry;
    const {categories, paths, path, count, before} = this.data;
    const event = this.events[entry], x = this.x(event + .5), rows = [];
    categories.forEach(([name, paint], i) => {
      if (this.bytes[i][entry] > 0) rows.push(line(paint, name, ...exact(this.bytes[i][entry])));
    });
    this.untell();
    if (x >= this.left && x <= this.right) this.vertical(x);
    this.tell(between(this.left, x, this.right), (this.top + this.bottom) / 2,
              before && event === 0 ? 'before the step' :
                'event ' + grouped(event) + (before ? ' of ' + grouped(count - 1) : ''),
              paths[path[entry]], [...rows, lineOfTotal(...exact(this.totals[entry]))]);
  }
}

class MapPicture extends Timed {
  constructor(figure, svg, data, index) {
    super(figure, svg, data);
    this.offset = data.offsets[index];
    // A block is drawn in pieces, one per category it had.
    this.pieces = data.blocks.lower.map((lower, i) => [[lower, data.blocks.category[i]]]);
    for (const [block, time, category] of data.relabels) this.pieces[block].push([time, category]);
  }
  get count() { return this.data.blocks.lower.length; }
  hover(x, y) {
    const blocks = this.data.blocks, time = this.timeOf(x);
    let found = -1;
    blocks.lower.forEach((lower, i) => {
      if (lower <= time && time < blocks.upper[i] && y <= this.y(this.offset[i]) + .5 &&
          y > this.y(this.offset[i] + blocks.bytes[i]) - .5 && (found < 0 || blocks.bytes[i] > blocks.bytes[found])) found = i;
    });
    if (x < this.left || x > this.right || found < 0) return this.untell();
    this.at(found, x, y, time);
  }
  at(found, x, y, time = this.data.blocks.lower[found]) {
    const {blocks, categories, paths, count} = this.data;
    const [name, paint] = categories[this.pieces[found].filter(p => p[0] <= time).pop()[1]];
    const lower = blocks.lower[found], upper = blocks.upper[found], last = count - 1;
    const left = between(this.left, this.x(lower), this.right), right = between(this.left, this.x(upper), this.right);
    const top = this.y(this.offset[found] + blocks.bytes[found]), bottom = this.y(this.offset[found]);
    this.entry = found;
    this.untell();
    if (right > left) this.mark('rect', {x: left, y: top, width: right - left, height: bottom - top, fill: 'none', class: 's-ink', 'stroke-width': 2});
    const life = lower === 0 && upper > last ? 'the whole step' :
      (lower === 0 ? 'from before the step' : 'event ' + grouped(lower)) + ' to ' + (upper > last ? 'after it' : grouped(upper));
    this.tell(x === undefined ? (left + right) / 2 : x, y === undefined ? (top + bottom) / 2 : y, name, paths[blocks.path[found]],
              [line(paint, 'size', ...exact(blocks.bytes[found])),
               line('', 'offset', ...exact(this.offset[found])), line('', 'lives', life)]);
  }
}

class SchedulePicture extends Picture {
  get count() { return this.data.made.length; }
  x(n) { return this.left + n / this.count * (this.right - this.left); }
  hover(x, y) {
    const n = Math.floor((x - this.left) / (this.right - this.left) * this.count);
    if (n < 0 || n >= this.count) return this.untell();
    this.at(n, x, y);
  }
  at(n, x = this.x(n + .5), y = (this.top + this.bottom) / 2) {
    const {names, name, paths, path, made, kept, fates, fate, segments} = this.data;
    this.entry = n;
    this.untell();
    this.mark('rect', {x: this.x(n), y: this.top, width: this.x(n + 1) - this.x(n), height: this.bottom - this.top, class: 'f-ink', opacity: .16});
    const rows = [line(fates[fate[n]][0], 'fate', fates[fate[n]][1]), line('', 'makes', ...exact(made[n])), line('', 'keeps', ...exact(kept[n]))];
    for (const s of segments.filter(s => s.first <= n && n < s.end)) {
      rows.push(line('muted', 'segment of ' + s.first + '\u2013' + (s.end - 1), 'keeps ' + grouped(s.kept) + ' bytes',
                     s.dropped + ' of ' + (s.end - s.first) + ' dropped'));
    }
    this.tell(x, y, names[name[n]] + ' \u00b7 operator ' + grouped(n), paths[path[n]], rows);
  }
}
