// Stands in a page's head, before its own scripts: notes every error, and when the page is there uses it as a reader
// would: looks at every picture, points at it, presses keys, drags, clicks. What it finds is written into an
// element of the page, `page-check`, whose last line is "N passed, M failed". For run.sh.
(() => {
  'use strict';
  const errors = [], lines = [];
  let passed = 0;
  addEventListener('error', e => errors.push(e.message || 'cannot load ' + (e.target.src || e.target.href)), true);
  addEventListener('unhandledrejection', e => errors.push(String(e.reason)));
  console.error = (...words) => errors.push(words.join(' '));

  const check = (is_met, what) => { if (is_met) ++passed; else lines.push('FAILED: ' + what); return is_met; };
  const frame = () => new Promise(done => setTimeout(done, 50));

  const send = (type, target, x, y) => {
    const box = target.getBoundingClientRect();
    target.dispatchEvent(new PointerEvent(type, {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
  };
  const press = (target, key, shiftKey = false) =>
    target.dispatchEvent(new KeyboardEvent('keydown', {key, shiftKey, bubbles: true, cancelable: true}));
  const told = figure => {
    const tip = figure.querySelector('.tip');
    return !tip.hidden && tip.offsetWidth > 0 && tip.querySelectorAll('tr').length > 0 ? tip.textContent : '';
  };
  // A tip within a quarter of a picture's height or width from any of a grid's points.
  const hovered = (target, figure, columns = 24, rows = 16) => {
    const box = target.getBoundingClientRect();
    for (let i = 1; i < columns; ++i) {
      for (let j = 1; j < rows; ++j) {
        send('pointermove', target, box.width * i / columns, box.height * j / rows);
        if (told(figure)) return told(figure);
      }
    }
    return '';
  };
  const keys_tell = (target, figure, name) => {
    target.focus();
    press(target, 'ArrowRight');
    const first = told(figure);
    press(target, 'ArrowRight', true);
    const later = told(figure);
    press(target, 'ArrowLeft', true);
    const back = told(figure);
    check(first !== '', name + ': the arrow keys tell nothing');
    return check(first === '' || (later !== first && back !== later), name + ': the arrow keys do not move') && first !== '';
  };

  // ---- Pictures: SVG that the program drew and the script adds to ----
  const data_of = figure => JSON.parse(figure.querySelector('script').textContent);
  const pictures_of = figure => [...figure.querySelectorAll('.scroll>svg')];
  // What is painted between the axes, in the colours of the page.
  const pixels = async svg => {
    const [left, top, right, bottom] = data_of(svg.closest('figure')).frame, box = svg.viewBox.baseVal;
    const copy = svg.cloneNode(true), sheet = document.createElementNS(svg.namespaceURI, 'style');
    sheet.textContent = [...document.querySelectorAll('style')].map(made => made.textContent).join('\n');
    copy.prepend(sheet);
    copy.setAttribute('width', box.width);
    copy.setAttribute('height', box.height);
    const image = new Image(), canvas = document.createElement('canvas');
    image.src = 'data:image/svg+xml,' + encodeURIComponent(new XMLSerializer().serializeToString(copy));
    await image.decode();
    [canvas.width, canvas.height] = [box.width, box.height];
    const g = canvas.getContext('2d');
    g.drawImage(image, 0, 0);
    return g.getImageData(left, top, right - left, bottom - top).data;
  };
  const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
  const painted = (all, kind, name) => {
    const pixel_count = all.length / 4;
    let area = 0, bytes = 0;
    for (let i = 0; i < all.length; i += 4) {
      if (all[i + 3] < 128) continue;
      const colour = [all[i], all[i + 1], all[i + 2]];
      ++area;
      // Bytes are drawn in colours; axes and words are shades of one.
      if (Math.max(...colour) - Math.min(...colour) >= 40) ++bytes;
    }
    check(area > .02 * pixel_count, name + ': blank, ' + area + ' of ' + pixel_count + ' pixels are painted');
    check(bytes > (kind === 'plot' ? .0005 : .01) * pixel_count, name + ': no bytes are drawn, only axes and words (' + bytes + ' pixels in colour)');
  };
  const looks_closer = async (svg, figure, name) => {
    const data = data_of(figure), scale = svg.clientWidth / svg.viewBox.baseVal.width;
    const others = [...document.querySelectorAll('.scroll>svg')].filter(other => {
      const step = data_of(other.closest('figure')).step;
      return step && step === data.step && other !== svg;
    });
    const axis = () => svg.querySelector('.x-axis').textContent, whole_axis = axis();
    const windows = () => others.map(other => other.querySelector('.window').getAttribute('viewBox')).join();
    const whole = await pixels(svg), width = svg.clientWidth, whole_windows = windows();
    for (const y of [data.frame[1] + 5, data.frame[3] - 10].map(y => y * scale)) {  // from where nothing is, from a block
      send('pointerdown', svg, width * .3, y);
      send('pointermove', svg, width * .5, y);
      send('pointerup', svg, width * .5, y);
      send('pointerleave', svg, -1, -1);
      const closer = await pixels(svg);
      check(!same(whole, closer), name + ': dragging across at ' + y + ' does not look closer');
      check(axis() !== whole_axis && axis() !== '', name + ': the axis says "' + axis() + '" also when one looks closer');
      check(others.length === 0 || windows() !== whole_windows, name + ': other pictures of the step do not look closer');
      painted(closer, data.kind, name + ', closer');
      svg.dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));
      check(same(whole, await pixels(svg)) && axis() === whole_axis, name + ': a double click does not show all again');
      check(windows() === whole_windows, name + ': a double click does not show all of the step\'s other pictures again');
    }
  };
  const use_pictures = async () => {
    for (const figure of document.querySelectorAll('figure[data-kind]')) {
      if (figure.hidden) continue;
      for (const svg of pictures_of(figure)) {
        const kind = figure.dataset.kind, name = kind + ' "' + svg.getAttribute('aria-label').slice(0, 60) + '"';
        svg.scrollIntoView();
        await frame();
        painted(await pixels(svg), kind, name);
        const shown = [...svg.querySelectorAll('path,rect,circle,polyline,text')].filter(part => {
          const box = part.getBoundingClientRect();
          return box.width + box.height > 1 && getComputedStyle(part).visibility === 'visible';
        });
        check(shown.length > 8, name + ': blank, ' + shown.length + ' visible parts');
        const tip = document.body.classList.contains('plan') ? hovered(svg, figure) : hovered(svg, figure, 48, 32);
        check(tip !== '', name + ': nothing is told under the pointer');
        check(!/undefined|NaN/.test(tip), name + ': tells "' + tip + '"');
        send('pointerleave', svg, -1, -1);
        check(!told(figure), name + ': the tip stays when the pointer has left');
        keys_tell(svg, figure, name);
        svg.blur();
        check(!told(figure), name + ': the tip stays when the focus has left');
        if (kind === 'timeline' || kind === 'map') await looks_closer(svg, figure, name);
      }
    }
  };

  // ---- How it is laid out ----
  const is_shown = part => part.getBoundingClientRect().width > 0;
  const lay_out = () => {
    const is_narrow = innerWidth < 500;
    for (const table of document.querySelectorAll('table')) {
      if (!is_shown(table) || (is_narrow && table.closest('.scroll'))) continue;  // those one may scroll
      const room = table.parentElement.getBoundingClientRect(), box = table.getBoundingClientRect();
      check(box.right <= room.right + 1, 'a table is ' + Math.round(box.right - room.right) + ' px wider than its place: ' + table.textContent.slice(0, 60));
    }
    for (const row of document.querySelectorAll('.rows tr.more')) check(is_shown(row), 'a line below a row is not shown');
    for (const part of document.querySelectorAll('svg.legend, .scroll>svg')) {
      const box = part.getBoundingClientRect();
      if (box.width === 0) continue;
      check(box.left >= 0 && box.right <= innerWidth + 1, (part.matches('.legend') ? 'a legend' : 'a drawing') + ' is from ' + Math.round(box.left) + ' to ' + Math.round(box.right) + ' px of ' + innerWidth);
      const scale = box.width / part.viewBox.baseVal.width;
      const sizes = [...part.querySelectorAll('text')].map(text => scale * parseFloat(getComputedStyle(text).fontSize));
      check(sizes.every(size => size >= 7.5), 'words of ' + Math.min(...sizes).toFixed(1) + ' px in ' + (part.matches('.legend') ? 'a legend' : 'a drawing'));
    }
    check(document.querySelector('svg.legend'), 'no picture has a legend');
    check(!/&(amp|lt|gt|quot|#)/.test(document.body.innerText), 'the page has words that are escaped twice');
  };

  // ---- What only one of the pages has ----
  const plan_page = async () => {
    const figures = () => [...document.querySelectorAll('figure[data-kind=map]')].filter(figure => !figure.hidden);
    const maps = () => Promise.all(figures().flatMap(pictures_of).map(pixels));
    let before = await maps();
    check(before.length === 2, before.length + ' maps are shown, not two');
    for (const button of document.querySelectorAll('.choice button')) {
      const was_pressed = button.getAttribute('aria-pressed') === 'true';
      button.click();
      const after = await maps();
      check(button.getAttribute('aria-pressed') === 'true', 'button "' + button.textContent + '" is not pressed after a click');
      check(after.length === before.length, 'button "' + button.textContent + '" shows ' + after.length + ' maps');
      if (!was_pressed) check(after.every((map, i) => !same(map, before[i])), 'button "' + button.textContent + '" changes no map');
      for (const map of after) painted(map, 'map', 'map of "' + button.textContent + '"');
      before = after;
    }
  };
  const report_page = async () => {
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      check(document.getElementById(link.hash.slice(1)), 'the link ' + link.hash + ' leads nowhere');
    }
    const sections = [...document.querySelectorAll('main section[id]')].filter(s => document.querySelector('nav a[href="#' + s.id + '"]'));
    if (sections.length > 0) {
      sections[0].scrollIntoView({behavior: 'instant'});
      dispatchEvent(new Event('scroll'));  // the browser's own waits for a frame, which a busy machine may not draw
      const marked = [...document.querySelectorAll('nav a[aria-current]')].map(a => a.hash);
      check(marked.join() === '#' + sections[0].id, 'the navigation does not follow: it marks "' + marked.join() + '"');
    }
  };

  addEventListener('load', async () => {
    try {
      const is_plan = document.body.classList.contains('plan');
      const pictures = document.querySelectorAll('figure[data-kind] .scroll>svg').length;
      check(pictures > 0, 'the page has no pictures');
      lay_out();
      if (innerWidth >= 1000) {
        await use_pictures();
        await (is_plan ? plan_page() : report_page());
      }
      check(!/undefined|NaN/.test(document.body.innerText), 'the page says undefined or NaN');
      check(document.documentElement.scrollWidth <= innerWidth, 'the page is wider than the window');
      lines.push((is_plan ? 'plan' : 'report') + ', ' + pictures + ' pictures');
    } catch (error) {
      errors.push(String(error));
    }
    new Set(errors).forEach(error => check(false, 'error in the page: ' + error));
    if (errors.length === 0) ++passed;
    const made = document.createElement('pre');
    made.id = 'page-check';
    made.textContent = [...lines, passed + ' passed, ' + (lines.filter(line => line.startsWith('FAILED')).length) + ' failed'].join('\n');
    document.body.append(made);
  });
})();
