// Brings a page's pictures to life, the buttons that choose among figures, and the current section in the navigation.
// A page is complete without it.

for (const figure of document.querySelectorAll('figure[data-kind]')) {
  const data = JSON.parse(figure.querySelector('script').textContent);
  figure.querySelectorAll('.scroll>svg').forEach((svg, index) => new Picture(figure, svg, data, index));
}

const buttons = [...document.querySelectorAll('.choice button')];
for (const button of buttons) {
  button.addEventListener('click', () => {
    for (const other of buttons) {
      other.setAttribute('aria-pressed', other === button);
      document.getElementById(other.dataset.figure).hidden = other !== button;
    }
  });
}

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
