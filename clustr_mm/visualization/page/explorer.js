'use strict';
/* One state for all cards: they show the same place and the same depth. */
const $ = (id) => document.getElementById(id);
const sources = [...document.querySelectorAll('script.picture')];
const state = { picture: 0, step: 0, point: null, held: false, view: 'means' };
let cards = [];
let numSteps = Infinity;
let timer = null;

/* ---------------------------------------------------------------- data -- */

/* Integers of 32 bits, deflated, in base64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes])
    .stream()
    .pipeThrough(new DecompressionStream('deflate'));
  return new Uint32Array(await new Response(inflated).arrayBuffer());
}

/* Which token stands for which patch, and for how many each token does. */
class Partition {
  constructor(labels, numNumbered) {
    this.labels = labels;
    this.numNumbered = numNumbered;
    const number = labels.reduce((a, b) => Math.max(a, b), 0) + 1;
    this.sizes = new Uint32Array(number);
    this.first = new Uint32Array(number).fill(labels.length);
    labels.forEach((label, patch) => {
      this.sizes[label] += 1;
      this.first[label] = Math.min(this.first[label], patch);
    });
  }

  size(patch) {
    return this.sizes[this.labels[patch]];
  }

  hasLeft(patch) {
    return this.labels[patch] >= this.numNumbered;
  }

  isShared(patch) {
    return this.size(patch) > 1 && !this.hasLeft(patch);
  }
}

/* Tokens that each patch could see: the partition's, or all there are. */
const total = (block) => block.grid[0] * block.grid[1];
const numTokens = (block) =>
  block.scales.length
    ? block.scales.reduce((sum, scale) => sum + scale.tokens, 0)
    : total(block);

function macs(number) {
  return number >= 1e7
    ? `${(number / 1e9).toFixed(2)} G`
    : `${(number / 1e6).toFixed(2)} M`;
}

const others = (n) => `${n - 1} other${n === 2 ? '' : 's'}`;

/* ---------------------------------------------------------------- card -- */

class Card {
  constructor(model, picture, photo, maps) {
    Object.assign(this, { model, picture, photo });
    this.blocks = model.blocks;
    this.partitions = model.blocks.map((block) =>
      block.scales.map(
        (scale) => new Partition(maps[scale.map], scale.numbered)
      )
    );
    this.scale = 0;
    this.means = new Map();
    this.root = $('card').content.firstElementChild.cloneNode(true);
    this.canvas = this.find('canvas');
    this.canvas.width = photo.naturalWidth;
    this.canvas.height = photo.naturalHeight;
    this.backdrop = document.createElement('canvas');
    this.pen = this.canvas.getContext('2d', { willReadFrequently: true });
    this.find('h2').textContent = model.config.replace(/\.py$/, '');
    this.fillAbout();
    this.fillScales();
    this.fillChart();
    this.fillTable();
    this.listen();
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  get index() {
    return Math.ceil((state.step / numSteps) * this.blocks.length) - 1;
  }

  get block() {
    return this.blocks[this.index];
  }

  /* Of a block with fewer scales, the last one it has. */
  partition(i = this.index) {
    const scales = this.partitions[i];
    return scales[Math.min(this.scale, scales.length - 1)];
  }

  fillAbout() {
    const { backbone, weights, macs: all, sheet } = this.model;
    this.find('.about').textContent =
      `${backbone}, ${weights} weights, ${macs(all)} MACs`;
    this.find('.sheet').hidden = !sheet;
    this.find('.sheet').href = sheet;
  }

  fillScales() {
    const most = Math.max(...this.blocks.map((b) => b.scales.length));
    const select = this.find('.scale select');
    this.find('.scale').hidden = most < 2;
    for (let i = 0; i < most; i += 1) select.add(new Option('', i));
    select.addEventListener('change', () => {
      this.scale = Number(select.value);
      refresh();
    });
  }

  fillChart() {
    const chart = this.find('.chart');
    const names = add(chart, 'names');
    ['tokens', 'MACs', 'point'].forEach((name) => {
      add(names, '').textContent = name;
    });
    this.columns = this.blocks.map((block, i) => {
      const column = add(chart, 'column');
      const share = Math.min(numTokens(block) / total(block), 1);
      add(column, 'bar').style.setProperty('--share', share);
      const cost = block.macs / this.picture.mostMacs;
      add(column, 'bar macs').style.setProperty('--share', cost);
      add(column, 'cell');
      column.addEventListener('click', () => goTo(this.stepOf(i)));
      return column;
    });
  }

  fillTable() {
    const body = this.find('tbody');
    this.rows = this.blocks.map((block) => {
      const row = body.insertRow();
      const head = document.createElement('th');
      head.scope = 'row';
      head.textContent = block.title;
      row.append(head);
      row.insertCell().textContent =
        block.scales.map((scale) => scale.tokens).join(' + ') || total(block);
      row.insertCell().textContent = macs(block.macs);
      row.insertCell();
      return row;
    });
  }

  /* The first step at which this block is shown. */
  stepOf(i) {
    return Math.floor((i / this.blocks.length) * numSteps) + 1;
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const inside = (n) => Math.min(Math.max(n, 0), 0.9999);
      return {
        x: inside((event.clientX - box.left) / box.width),
        y: inside((event.clientY - box.top) / box.height),
      };
    };
    this.canvas.addEventListener('pointermove', (event) => {
      const drags = event.pointerType !== 'mouse';
      if (drags || !state.held) point(at(event), drags);
    });
    this.canvas.addEventListener('pointerleave', (event) => {
      if (event.pointerType === 'mouse' && !state.held) point(null);
    });
    this.canvas.addEventListener('click', (event) => {
      const place = at(event);
      const again =
        state.held && this.patchAt(place) === this.patchAt(state.point);
      point(place, !again);
    });
    this.canvas.addEventListener('keydown', (event) => this.onKey(event));
  }

  onKey(event) {
    const moves = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const [rows, columns] = this.gridInSight();
    const { x, y } = state.point || { x: 0.5, y: 0.5 };
    const go = (value, by, number) => {
      const cell = Math.floor(value * number) + (state.point ? by : 0);
      return (Math.min(Math.max(cell, 0), Math.ceil(number) - 1) + 0.5) / number;
    };
    const inside = (n) => Math.min(n, 0.9999);
    point(
      { x: inside(go(x, move[0], columns)), y: inside(go(y, move[1], rows)) },
      true
    );
  }

  /* Patches of the image without what was padded; not whole numbers. */
  gridInSight() {
    return this.model.seen.map((n) => n / this.block.stride);
  }

  patchAt({ x, y }, block = this.block) {
    const [height, width] = this.model.seen;
    const row = Math.floor((y * height) / block.stride);
    const column = Math.floor((x * width) / block.stride);
    return row * block.grid[1] + column;
  }

  /* Left, top, width and height of a patch on the canvas. */
  box(patch) {
    const { grid, stride } = this.block;
    const [height, width] = this.model.seen;
    const left = (n) => Math.round((n * stride * this.canvas.width) / width);
    const top = (n) => Math.round((n * stride * this.canvas.height) / height);
    const column = patch % grid[1];
    const row = (patch - column) / grid[1];
    return [
      left(column),
      top(row),
      left(column + 1) - left(column),
      top(row + 1) - top(row),
    ];
  }

  /* Sums of red, green, blue and their number, of each patch. */
  patchSums() {
    const { grid, stride } = this.block;
    const key = `${grid} ${stride}`;
    if (!this.means.has(key)) {
      const { width, height } = this.canvas;
      this.pen.drawImage(this.photo, 0, 0);
      const pixels = this.pen.getImageData(0, 0, width, height).data;
      const sums = new Float64Array(4 * total(this.block));
      for (let i = 0, y = 0; y < height; y += 1) {
        for (let x = 0; x < width; x += 1, i += 4) {
          const place = { x: (x + 0.5) / width, y: (y + 0.5) / height };
          const patch = 4 * this.patchAt(place);
          for (let c = 0; c < 3; c += 1) sums[patch + c] += pixels[i + c];
          sums[patch + 3] += 1;
        }
      }
      this.means.set(key, sums);
    }
    return this.means.get(key);
  }

  /* The mean colour of all pixels of each token. */
  meanColours(partition) {
    const sums = this.patchSums();
    const tokens = new Float64Array(4 * partition.sizes.length);
    partition.labels.forEach((label, patch) => {
      for (let c = 0; c < 4; c += 1) tokens[4 * label + c] += sums[4 * patch + c];
    });
    return (patch) => {
      const [r, g, b, n] = tokens.subarray(4 * partition.labels[patch]);
      return `rgb(${r / n} ${g / n} ${b / n})`;
    };
  }

  /* The same for a token in all blocks, as it goes by its first patch. */
  ownColours(partition) {
    return (patch) => {
      const n = partition.first[partition.labels[patch]];
      const [hue, light] = [(n * 137.508) % 360, 35 + ((n * 61.8) % 40)];
      return `hsl(${hue} 75% ${light}% / .8)`;
    };
  }

  draw() {
    const { pen, canvas } = this;
    const partition = this.partition();
    this.drawBackdrop(partition);
    if (!state.point) return;
    const chosen = this.companions();
    pen.fillStyle = 'rgb(8 10 16 / .55)';
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.save();
    pen.beginPath();
    chosen.forEach((patch) => pen.rect(...this.box(patch)));
    pen.clip();
    pen.drawImage(this.photo, 0, 0);
    pen.restore();
    this.stroke(chosen, partition, '#000', 5);
    this.stroke(chosen, partition, '#ff5c93', 2.5);
    this.drawPoint();
  }

  /* The tokens, kept as they are while one points. */
  drawBackdrop(partition) {
    const { pen, canvas, backdrop } = this;
    const key = [this.index, this.scale, state.view].join();
    if (this.drawn === key) {
      pen.drawImage(backdrop, 0, 0);
      return;
    }
    pen.drawImage(this.photo, 0, 0);
    if (partition) {
      if (state.view !== 'outlines') this.drawShared(partition);
      this.drawLeft(partition);
      if (state.view === 'outlines') {
        this.stroke(partition.labels.keys(), partition, '#fff', 1.5);
      }
    }
    Object.assign(backdrop, { width: canvas.width, height: canvas.height });
    backdrop.getContext('2d').drawImage(canvas, 0, 0);
    this.drawn = key;
  }

  drawShared(partition) {
    const colour =
      state.view === 'means'
        ? this.meanColours(partition)
        : this.ownColours(partition);
    partition.labels.forEach((label, patch) => {
      if (!partition.isShared(patch)) return;
      this.pen.fillStyle = colour(patch);
      this.pen.fillRect(...this.box(patch));
    });
  }

  /* What left is grey and hatched. */
  drawLeft(partition) {
    const { pen, canvas } = this;
    const gone = [...partition.labels.keys()].filter((patch) =>
      partition.hasLeft(patch)
    );
    if (!gone.length) return;
    pen.save();
    pen.beginPath();
    gone.forEach((patch) => pen.rect(...this.box(patch)));
    pen.clip();
    const fill = (style) => {
      pen.fillStyle = style;
      pen.fillRect(0, 0, canvas.width, canvas.height);
    };
    pen.globalCompositeOperation = 'saturation';
    fill('#888');
    pen.globalCompositeOperation = 'source-over';
    fill('rgb(150 155 165 / .78)');
    pen.strokeStyle = 'rgb(60 65 75 / .4)';
    pen.beginPath();
    for (let x = -canvas.height; x < canvas.width; x += 7) {
      pen.moveTo(x, canvas.height);
      pen.lineTo(x + canvas.height, 0);
    }
    pen.stroke();
    pen.restore();
  }

  /* Edges of patches beyond which another token begins. */
  stroke(patches, partition, colour, width) {
    const { pen } = this;
    const [rows, columns] = this.block.grid;
    const token = (patch) => (partition ? partition.labels[patch] : patch);
    pen.strokeStyle = colour;
    pen.lineWidth = (width * this.canvas.width) / 512;
    pen.lineCap = 'round';
    pen.beginPath();
    for (const patch of patches) {
      const [x, y, w, h] = this.box(patch);
      const column = patch % columns;
      const row = (patch - column) / columns;
      const differs = (inside, other) =>
        !inside || token(other) !== token(patch);
      const line = (x1, y1, x2, y2) => {
        pen.moveTo(x1, y1);
        pen.lineTo(x2, y2);
      };
      if (differs(row > 0, patch - columns)) line(x, y, x + w, y);
      if (differs(row < rows - 1, patch + columns)) line(x, y + h, x + w, y + h);
      if (differs(column > 0, patch - 1)) line(x, y, x, y + h);
      if (differs(column < columns - 1, patch + 1)) line(x + w, y, x + w, y + h);
    }
    pen.stroke();
  }

  drawPoint() {
    const { pen, canvas } = this;
    const radius = canvas.width / 90;
    pen.beginPath();
    pen.arc(
      state.point.x * canvas.width,
      state.point.y * canvas.height,
      radius,
      0,
      2 * Math.PI
    );
    pen.lineWidth = radius / 2;
    pen.strokeStyle = '#000';
    pen.fillStyle = '#fff';
    pen.stroke();
    pen.fill();
  }

  /* The patches that share the token of the one at the point. */
  companions() {
    const patch = this.patchAt(state.point);
    const partition = this.partition();
    if (!partition) return [patch];
    const label = partition.labels[patch];
    return [...partition.labels.keys()].filter(
      (other) => partition.labels[other] === label
    );
  }

  /* What became of the patch at the point: alone, shared or gone. */
  fate(i) {
    const partition = this.partition(i);
    const patch = this.patchAt(state.point, this.blocks[i]);
    if (!partition) return { kind: 'alone', size: 1 };
    const size = partition.size(patch);
    if (partition.hasLeft(patch)) return { kind: 'gone', size };
    return { kind: size > 1 ? 'shared' : 'alone', size };
  }

  describeFate() {
    const { kind, size } = this.fate(this.index);
    const patch = this.patchAt(state.point);
    const [, columns] = this.block.grid;
    const where = `The patch in row ${Math.floor(patch / columns) + 1}, column ${
      (patch % columns) + 1
    }`;
    /* A pyramid clusters anew in each block; elsewhere it is for good. */
    let since = this.index;
    while (since > 0 && this.fate(since - 1).kind === kind) since -= 1;
    const from = this.model.anew
      ? ''
      : ` since ${this.blocks[since].title}`;
    if (kind === 'alone') return `${where} has a token of its own.`;
    const noun = this.model.anew ? 'cluster' : 'token';
    const company = `shares its ${noun} with ${others(size)}`;
    if (kind === 'shared') {
      const first = this.fate(since).size;
      const grown =
        from && first !== size ? `${from} (at first ${others(first)})` : from;
      return `${where} ${company}${grown}.`;
    }
    const shared = size > 1 ? `, a token for ${size} patches` : '';
    return `${where} has left${shared}: it keeps its value${from}.`;
  }

  describeBlock() {
    const block = this.block;
    const tokens = block.scales.length
      ? block.scales.map((scale) => scale.tokens).join(' + ')
      : 'all';
    const what = this.model.anew && block.scales.length ? 'clusters' : 'tokens';
    return (
      `${block.title[0].toUpperCase()}${block.title.slice(1)} of ` +
      `${this.model.anew ? 'the pyramid' : this.blocks.length}: ${tokens} ` +
      `${what === 'clusters' ? 'clusters of' : 'of'} ${total(block)} tokens, ` +
      `${macs(block.macs)} MACs.`
    );
  }

  update() {
    this.draw();
    const now = this.describeBlock();
    const fate = state.point ? this.describeFate() : '';
    this.find('.now').textContent = now;
    this.find('.fate').textContent = fate;
    /* Whoever listens hears of the photograph that has the focus alone. */
    const focused = document.activeElement === this.canvas;
    this.find('.status').setAttribute('aria-live', focused ? 'polite' : 'off');
    this.canvas.setAttribute(
      'aria-label',
      `${this.picture.name} as ${this.model.config} sees it. ${now} ${fate} ` +
        'Arrow keys move the point.'
    );
    const options = this.find('.scale select').options;
    [...options].forEach((option, i) => {
      const scale = this.block.scales[i];
      option.disabled = !scale;
      option.textContent = scale
        ? `scale ${i + 1}: ${scale.tokens}`
        : `scale ${i + 1}: none here`;
    });
    this.columns.forEach((column, i) => {
      const fate = state.point && this.fate(i);
      column.classList.toggle('current', i === this.index);
      column.lastChild.className = `cell ${fate ? fate.kind : ''}`;
      column.title =
        `${this.blocks[i].title}: ${numTokens(this.blocks[i])} of ` +
        `${total(this.blocks[i])} tokens, ${macs(this.blocks[i].macs)} MACs`;
      const row = this.rows[i];
      row.classList.toggle('current', i === this.index);
      row.lastChild.textContent = !fate
        ? ''
        : {
            alone: 'its own',
            shared: `1 for ${fate.size}`,
            gone: 'left',
          }[fate.kind];
    });
  }
}

function add(parent, kind) {
  const element = document.createElement('div');
  element.className = kind;
  parent.append(element);
  return element;
}

/* --------------------------------------------------------------- state -- */

function point(place, held = false) {
  state.point = place;
  state.held = held;
  refresh();
}

function goTo(step) {
  state.step = Math.min(Math.max(step, 1), numSteps);
  refresh();
}

let isDue = false;
function refresh() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    $('step').value = state.step;
    $('where').textContent = `${state.step} of ${numSteps}`;
    $('step').setAttribute('aria-valuetext', $('where').textContent);
    document.querySelector(`[name=view][value=${state.view}]`).checked = true;
    cards.forEach((card) => card.update());
    remember();
  });
}

/* The address leads back to what is in sight. */
function remember() {
  const words = new URLSearchParams(location.hash.slice(1));
  words.set('picture', state.picture + 1);
  words.set('step', state.step);
  words.set('view', state.view);
  words.delete('at');
  if (state.held) {
    words.set('at', [state.point.x, state.point.y].map((n) => n.toFixed(3)));
  }
  history.replaceState(null, '', `#${words}`);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name, most, usual) => {
    const value = Number.parseInt(words.get(name), 10);
    return value >= 1 && value <= most ? value : usual;
  };
  document.documentElement.dataset.theme = words.get('theme') || '';
  document.body.classList.toggle('embedded', words.has('embedded'));
  state.picture = number('picture', sources.length, 1) - 1;
  state.step = number('step', numSteps, state.step);
  if (['means', 'colours', 'outlines'].includes(words.get('view'))) {
    state.view = words.get('view');
  }
  const at = (words.get('at') || '').split(',').map(Number);
  if (at.length === 2 && at.every((n) => n >= 0 && n < 1)) {
    [state.point, state.held] = [{ x: at[0], y: at[1] }, true];
  }
}

async function show(number) {
  state.picture = number;
  const picture = JSON.parse(sources[number].textContent);
  const photo = new Image();
  photo.src = picture.photo;
  photo.alt = '';
  const maps = await Promise.all(picture.maps.map(unpack));
  await photo.decode();
  const blocks = picture.models.flatMap((model) => model.blocks);
  picture.mostMacs = Math.max(...blocks.map((block) => block.macs));
  numSteps = Math.max(...picture.models.map((model) => model.blocks.length));
  $('step').max = numSteps;
  /* A third of the way, where most have begun to thin. */
  state.step = Math.min(state.step || Math.ceil(numSteps / 3), numSteps);
  cards = picture.models.map((model) => new Card(model, picture, photo, maps));
  $('cards').replaceChildren(...cards.map((card) => card.root));
  $('picture').value = number;
  document.documentElement.dataset.ready = number + 1;
  refresh();
}

/* ------------------------------------------------------------ controls -- */

function play(on) {
  clearInterval(timer);
  timer = on
    ? setInterval(() => goTo((state.step % numSteps) + 1), 900)
    : null;
  $('play').textContent = on ? 'Stop' : 'Play';
  $('play').setAttribute('aria-pressed', on);
}

function start() {
  sources.forEach((source, i) => {
    $('picture').add(new Option(source.dataset.name, i));
  });
  $('choice').hidden = sources.length < 2;
  $('picture').addEventListener('change', (event) => {
    point(null);
    show(Number(event.target.value));
  });
  $('step').addEventListener('input', (event) => {
    goTo(Number(event.target.value));
  });
  $('back').addEventListener('click', () => goTo(state.step - 1));
  $('forth').addEventListener('click', () => goTo(state.step + 1));
  $('play').addEventListener('click', () => play(!timer));
  document.querySelectorAll('[name=view]').forEach((input) => {
    input.addEventListener('change', () => {
      state.view = input.value;
      refresh();
    });
  });
  $('theme').addEventListener('click', () => {
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const now = document.documentElement.dataset.theme;
    const next = (now || (dark ? 'dark' : 'light')) === 'dark' ? 'light' : 'dark';
    const words = new URLSearchParams(location.hash.slice(1));
    words.set('theme', next);
    location.hash = words;
  });
  document.addEventListener('keydown', (event) => {
    if (event.target.matches('select')) return;
    if (event.key === ',') goTo(state.step - 1);
    if (event.key === '.') goTo(state.step + 1);
    if (event.key === 'Escape') point(null);
  });
  document.addEventListener('focusin', refresh);
  /* A page that has this one in a frame may have colours of its own. */
  addEventListener('message', ({ data }) => {
    if (data && ['dark', 'light'].includes(data.theme)) {
      document.documentElement.dataset.theme = data.theme;
    }
  });
  addEventListener('hashchange', () => {
    const before = state.picture;
    recall();
    if (before === state.picture) refresh();
    else show(state.picture);
  });
  recall();
  show(state.picture);
}

start();
