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

  // ---- A plan's page: canvases ----
  const pixels = canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = canvas => {
    const count = new Map(), all = pixels(canvas);
    for (let i = 0; i < all.length; i += 4) {
      if (all[i + 3] < 128) continue;
      const colour = all[i] << 16 | all[i + 1] << 8 | all[i + 2];
      count.set(colour, (count.get(colour) || 0) + 1);
    }
    return count;
  };
  const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
  const painted = (canvas, name) => {
    const count = colours(canvas), all = canvas.width * canvas.height;
    const area = [...count.values()].reduce((sum, n) => sum + n, 0);
    check(area > .02 * all, name + ': blank, ' + area + ' of ' + all + ' pixels are painted');
    // Bytes are drawn in colours; axes and words are shades of one.
    const is_grey = colour => Math.max(...[16, 8, 0].map(s => colour >> s & 255)) - Math.min(...[16, 8, 0].map(s => colour >> s & 255)) < 40;
    const bytes = [...count].filter(([colour]) => !is_grey(colour)).reduce((sum, [, n]) => sum + n, 0);
    check(bytes > (canvas.dataset.panel === 'curve' ? .0005 : .01) * all, name + ': no bytes are drawn, only axes and words (' + bytes + ' pixels in colour)');
  };
  const plan_page = async () => {
    for (const canvas of document.querySelectorAll('canvas')) {
      const figure = canvas.closest('figure'), name = canvas.dataset.panel + ' (' + canvas.getAttribute('aria-label').slice(0, 60) + ')';
      canvas.scrollIntoView();
      await frame();
      painted(canvas, name);
      check(hovered(canvas, figure) !== '', name + ': nothing is told under the pointer');
      send('pointerleave', canvas, -1, -1);
      check(!told(figure), name + ': the tip stays when the pointer has left');
      keys_tell(canvas, figure, name);
      canvas.blur();
      check(!told(figure), name + ': the tip stays when the focus has left');
      if (canvas.dataset.panel !== 'time' && canvas.dataset.panel !== 'map') continue;
      const whole = pixels(canvas), width = canvas.clientWidth;
      for (const y of [20, canvas.clientHeight - 60]) {  // from where nothing is, from a block
        send('pointerdown', canvas, width * .4, y);
        send('pointermove', canvas, width * .6, y);
        send('pointerup', canvas, width * .6, y);
        send('pointerleave', canvas, -1, -1);
        check(!same(whole, pixels(canvas)), name + ': dragging across at ' + y + ' does not look closer');
        painted(canvas, name + ', closer');
        canvas.dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));
        check(same(whole, pixels(canvas)), name + ': a double click does not show all again');
      }
    }
    const maps = () => [...document.querySelectorAll('canvas[data-panel=map]')].map(pixels);
    let before = maps();
    for (const button of document.querySelectorAll('.choice button')) {
      const was_pressed = button.getAttribute('aria-pressed') === 'true';
      button.click();
      const after = maps();
      check(button.getAttribute('aria-pressed') === 'true', 'button "' + button.textContent + '" is not pressed after a click');
      if (!was_pressed) check(after.every((map, i) => !same(map, before[i])), 'button "' + button.textContent + '" changes no map');
      for (const canvas of document.querySelectorAll('canvas[data-panel=map]')) painted(canvas, 'map of "' + button.textContent + '"');
      before = after;
    }
  };

  // ---- report.html: pictures in SVG ----
  const report_page = async () => {
    for (const figure of document.querySelectorAll('figure[data-kind]')) {
      const svg = figure.querySelector('svg'), name = figure.dataset.kind + ' "' + figure.querySelector('h3').textContent + '"';
      svg.scrollIntoView();
      await frame();
      const shown = [...svg.querySelectorAll('path,rect,circle,polyline,text')].filter(part => {
        const box = part.getBoundingClientRect();
        return box.width + box.height > 1 && getComputedStyle(part).visibility === 'visible';
      });
      check(shown.length > 8, name + ': blank, ' + shown.length + ' visible parts');
      const tip = hovered(svg, figure, 48, 32);
      check(tip !== '', name + ': nothing is told under the pointer');
      check(!/undefined|NaN/.test(tip), name + ': tells "' + tip + '"');
      send('pointerleave', svg, -1, -1);
      check(!told(figure), name + ': the tip stays when the pointer has left');
      if (figure.dataset.kind === 'timeline') keys_tell(svg, figure, name);
    }
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
      // A canvas is drawn when the browser has told its size.
      const is_drawn = canvas => canvas.width === Math.round(canvas.clientWidth * devicePixelRatio);
      for (let i = 0; i < 100 && ![...document.querySelectorAll('canvas')].every(is_drawn); ++i) await frame();
      const pictures = document.querySelectorAll(is_plan ? 'canvas' : 'figure[data-kind]').length;
      check(pictures > 0, 'the page has no pictures');
      await (is_plan ? plan_page() : report_page());
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
