// The page of a release of SGMRI-VQA: its questions, their frames, and boxes on frames.
// Boxes are half-open pixels of the stored image and are drawn at the edges of these pixels; frames count from 0.
import { $, el, get, numbers, toast } from './state.js'
import { scroller } from './scroll.js'

const COLUMNS = { uint8: Uint8Array, uint32: Uint32Array, float32: Float32Array }
const NAMES = { split: 'splits', anatomy: 'anatomies', level: 'levels', task: 'tasks' } // filter -> its names in the index
const FILTERS = ['text', ...Object.keys(NAMES), 'model', 'sort', 'verdict', 'words']
const MARKS = { right: '✓', wrong: '✗', unread: '?', 'no answer': '·', 'in part': '◐' }
const FULL = [0, 255]
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
const state = { index: null, columns: {}, shown: new Uint32Array(0), place: -1, row: -1, about: null, frames: null, frame: 0, window: FULL, zoom: 1, pan: [0, 0], boxes: true, smooth: true, pointer: null }
const value = name => $(`#f-${name}`).value
const column = name => state.columns[name]
const of = (row, name) => state.index[NAMES[name]][column(name)[row]]
const volumeOf = row => state.index.volumes[column('volume')[row]]
let list

// ---- the list
async function load() {
  const found = await Promise.all(Object.entries(state.index.columns).map(async ([name, type]) => [name, new COLUMNS[type](await (await get(`column/${name}`)).arrayBuffer())]))
  state.columns = Object.fromEntries(found)
  const option = (to, text) => el('option', { value: to, textContent: text })
  const fill = (name, all, names) => $(`#f-${name}`).replaceChildren(option('', all), ...names.map(n => option(n, n)))
  const there = name => state.index[NAMES[name]].filter((_, i) => column(name).includes(i))
  fill('split', 'all splits', there('split'))
  fill('anatomy', 'knee and brain', there('anatomy'))
  fill('level', 'slices and volumes', there('level'))
  fill('task', 'all tasks', there('task'))
  fill('verdict', 'right or wrong', state.index.verdicts)
  $('#f-model').replaceChildren(...state.index.models.map((name, i) => option(String(i), name)))
  $('#of-model').style.display = state.index.models.length ? '' : 'none'
  if (state.index.models.length) { $('#f-sort').value = 'worst'; if (there('split').includes('test')) $('#f-split').value = 'test' }
  list = scroller(item, openPlace)
  $('#filters').onsubmit = e => e.preventDefault()
  $('#filters').oninput = e => { if (e.target.type !== 'search') apply(true) }
  for (const name of ['text', 'words']) $(`#f-${name}`).onchange = () => apply(true)
}
function item(place) {
  const row = state.shown[place], verdict = column(`verdict.${value('model') || 0}`), mark = verdict ? state.index.verdicts[verdict[row]] : ''
  const frame = column('frame')[row], where = frame < 0 ? 'all frames' : `frame ${frame}`
  return list.element(place, place === state.place, mark, el('b', { textContent: MARKS[mark] || '' }),
    el('span', {}, of(row, 'task'), el('small', { textContent: `${volumeOf(row)} · ${where}` })), el('small', { textContent: of(row, 'anatomy') }))
}
async function spoken(words, model) { // texts are not here, so the server looks
  const more = model === null ? '' : `&model=${model}`
  return new Set(new Uint32Array(await (await get(`search?words=${encodeURIComponent(words)}${more}`)).arrayBuffer()))
}
async function apply(openFirst = false) {
  const f = Object.fromEntries(FILTERS.map(name => [name, value(name)])), model = f.model || '0', sets = []
  try {
    if (f.text.trim()) sets.push(await spoken(f.text.trim(), null))
    if (f.words.trim()) sets.push(await spoken(f.words.trim(), model))
  } catch (error) { toast(error.message); return }
  const wanted = Object.keys(NAMES).filter(name => f[name]).map(name => [column(name), state.index[NAMES[name]].indexOf(f[name])])
  if (f.verdict && column(`verdict.${model}`)) wanted.push([column(`verdict.${model}`), state.index.verdicts.indexOf(f.verdict)])
  const kept = []
  for (let r = 0; r < state.index.rows; r++) if (wanted.every(([c, n]) => c[r] === n) && sets.every(s => s.has(r))) kept.push(r)
  const worth = column(`worth.${model}`), least = r => Number.isNaN(worth[r]) ? 2 : worth[r]
  if (f.sort && worth) kept.sort((a, b) => least(a) - least(b) || a - b)
  state.shown = Uint32Array.from(kept)
  state.place = state.shown.indexOf(state.row)
  $('#count').textContent = `${kept.length.toLocaleString('en')} of ${state.index.rows.toLocaleString('en')}`
  list.resize(kept.length)
  if (openFirst && state.place < 0 && kept.length) await openPlace(0)
  list.reveal(state.place)
  remember()
}

// ---- a question
let opening = 0
async function openPlace(place, at = null) {
  if (place < 0 || place >= state.shown.length) return
  state.place = place
  await openRow(state.shown[place], at)
  list.reveal(state.place)
}
async function openRow(row, at = null) {
  const turn = ++opening
  state.row = row
  list.render()
  let about, frames = null
  try {
    about = await (await get(`row/${row}`)).json()
    frames = await pixels(await get(`frames/${row}`))
  } catch (error) { toast(error.message); if (!about) return }
  if (turn !== opening) return
  Object.assign(state, { about, frames, frame: 0 })
  $('#slider').min = frames ? frames.start : 0
  $('#slider').max = frames ? frames.start + frames.count - 1 : 0
  go(at ?? about.frame ?? boxes()[0]?.box[0] ?? (frames ? frames.start + (frames.count >> 1) : 0))
  card()
  document.title = `${about.task} · ${about.volume_id}`
  requestAnimationFrame(() => requestAnimationFrame(() => { document.body.dataset.open = about.id }))
}
async function pixels(answer) {
  if (answer.status === 204) return null
  const [count, high, wide, start] = answer.headers.get('X-Frames').split(',').map(Number), data = new Uint8Array(await answer.arrayBuffer())
  if (data.length !== count * high * wide) throw Error('the pixels do not fit their shape')
  return { count, high, wide, start, data }
}
function boxes() { // all of them, the true ones first
  if (!state.about) return []
  const true_ = state.about.findings.flatMap(f => f.boxes.map(b => ({ name: f.label, box: [b.frame, b.y0, b.y1, b.x0, b.x1], colour: colour('truth'), dash: [] })))
  return [...true_, ...state.about.models.flatMap((m, i) => m.boxes.map(box => ({ name: m.name, box, colour: colour(`model-${i}`), dash: i ? [3, 6] : [8, 5] })))]
}
function go(frame) {
  const { frames } = state
  state.frame = frames ? Math.max(frames.start, Math.min(frames.start + frames.count - 1, frame)) : frame
  $('#slider').value = state.frame
  redraw()
}
function toBox(by) { // the next frame on which a box lies
  const on = [...new Set(boxes().map(b => b.box[0]))].sort((a, b) => a - b)
  if (!on.length) { toast('No box lies on this question.'); return }
  const next = by > 0 ? on.find(f => f > state.frame) : on.findLast(f => f < state.frame)
  go(next ?? (by > 0 ? on[0] : on.at(-1)))
}

// ---- drawing
const off = document.createElement('canvas')
function fit(canvas) {
  const d = devicePixelRatio, [wide, high] = [Math.round(canvas.clientWidth * d), Math.round(canvas.clientHeight * d)]
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high }
  return [wide, high, d]
}
function size() { // of the picture, in pixels of the stored image
  const { frames, about } = state
  return frames ? [frames.high, frames.wide] : about?.shape ? [about.shape.height, about.shape.width] : [1, 1]
}
function geometry() {
  const canvas = $('#frame'), [high, wide] = size(), scale = Math.min(canvas.width / wide, canvas.height / high) * 0.96 * state.zoom
  return { scale, left: (canvas.width - wide * scale) / 2 + state.pan[0] * scale, top: (canvas.height - high * scale) / 2 + state.pan[1] * scale }
}
export function rectangle([, y0, y1, x0, x1]) { // edges on the canvas
  const g = geometry()
  return { xs: [g.left + x0 * g.scale, g.left + x1 * g.scale], ys: [g.top + y0 * g.scale, g.top + y1 * g.scale] }
}
function draw() {
  const canvas = $('#frame'), c = canvas.getContext('2d'), [wide, high, d] = fit(canvas)
  c.fillStyle = '#000'
  c.fillRect(0, 0, wide, high)
  if (!state.about || !wide || !high) return
  const g = geometry(), { frames } = state, [rows, columns] = size()
  if (frames) {
    const image = new ImageData(frames.wide, frames.high), out = new Uint32Array(image.data.buffer), [lo, hi] = state.window, k = 255 / (hi - lo)
    const first = (state.frame - frames.start) * frames.wide * frames.high
    for (let i = 0; i < out.length; i++) {
      const v = (frames.data[first + i] - lo) * k
      out[i] = 0xff000000 | (v < 0 ? 0 : v > 255 ? 255 : v | 0) * 0x10101
    }
    off.width = frames.wide
    off.height = frames.high
    off.getContext('2d').putImageData(image, 0, 0)
    c.imageSmoothingEnabled = state.smooth
    c.imageSmoothingQuality = 'high'
    c.drawImage(off, g.left, g.top, columns * g.scale, rows * g.scale)
  } else {
    c.strokeStyle = '#3a4552'
    c.strokeRect(g.left, g.top, columns * g.scale, rows * g.scale)
  }
  if (state.boxes) for (const { name, box, colour: ink, dash } of boxes()) {
    if (box[0] !== state.frame) continue
    const { xs, ys } = rectangle(box)
    c.setLineDash(dash.map(n => n * d))
    c.strokeStyle = c.fillStyle = ink
    c.lineWidth = 2 * d
    c.strokeRect(xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0])
    c.setLineDash([])
    c.font = `${12 * d}px system-ui`
    c.lineWidth = 3 * d
    c.strokeStyle = 'rgba(0,0,0,.75)'
    c.strokeText(name, xs[0], ys[0] - 5 * d)
    c.fillText(name, xs[0], ys[0] - 5 * d)
  }
  strip()
  tell()
}
function strip() { // under the slider: on which frames boxes lie
  const canvas = $('#strip'), c = canvas.getContext('2d'), [wide, high] = fit(canvas), { frames } = state
  c.clearRect(0, 0, wide, high)
  if (!frames) return
  for (const { box, colour: ink, dash } of boxes()) {
    c.fillStyle = ink
    c.fillRect((box[0] - frames.start) / frames.count * wide, dash.length ? high / 2 : 0, Math.max(2, wide / frames.count - 1), high / 2 - 1)
  }
}
function tell() {
  const { frames, pointer, window: win } = state, parts = []
  if (frames) parts.push(`frame ${state.frame} of ${frames.start} to ${frames.start + frames.count - 1}`)
  if (frames && pointer) {
    const [y, x] = pointer
    if (y >= 0 && y < frames.high && x >= 0 && x < frames.wide) parts.push(`y ${y}  x ${x}   value ${frames.data[((state.frame - frames.start) * frames.high + y) * frames.wide + x]}`)
  }
  if (win.some((v, i) => v !== FULL[i])) parts.push(`window ${win.map(Math.round).join(' to ')}`)
  if (state.zoom !== 1) parts.push(`zoom ${state.zoom.toFixed(1)}`)
  if (!frames) parts.push('no pixels of this question are in the release')
  $('#status').textContent = parts.join('   ')
}
let queued = false
function redraw() {
  remember()
  if (queued) return
  queued = true
  requestAnimationFrame(() => { queued = false; draw() })
}

// ---- in words
const part = (title, ...kids) => el('details', { open: true }, el('summary', { textContent: title }), ...kids)
const pre = text => el('pre', { textContent: text })
const place = b => `frame ${b[0]}: rows ${b[1]} to ${b[2]}, columns ${b[3]} to ${b[4]}`
const jumps = all => el('ul', { className: 'problems' }, ...all.map(b => el('li', {}, el('button', { type: 'button', textContent: place(b), onclick: () => go(b[0]) }))))
function words(m) {
  if (m.status === 'missing') return part(m.name, el('p', { className: 'problems', textContent: 'No answer to this question is in the file.' }))
  const many = m.boxes.length, boxes = many ? [`${many} box${many > 1 ? 'es' : ''}`] : []
  const read = [...Object.entries(m.read).map(([name, read]) => `${name}: ${read}`), ...boxes].join('; ') || (m.words ? 'nothing but words' : 'nothing')
  const table = el('table', {}, ...Object.entries(m.numbers).map(([name, n]) => el('tr', {}, el('td', { textContent: name }), el('td', { textContent: n.toFixed(3) }))))
  return part(`${m.name}: ${m.status}`, pre(m.words + (m.more ? `\n… ${m.more.toLocaleString('en')} characters more` : '') || '(no text)'), el('p', { textContent: `Read: ${read}` }), table,
    many ? jumps(m.boxes) : null, m.problems.length ? el('ul', { className: 'problems' }, ...m.problems.map(p => el('li', { textContent: p }))) : null)
}
function card() {
  const { about } = state
  const facts = [about.anatomy, about.split, about.level, about.frame === null ? 'all frames' : `frame ${about.frame}`, about.sequence, about.shape ? `${about.shape.frames} × ${about.shape.height} × ${about.shape.width}` : null, about.source]
  const found = about.findings.map(f => el('li', {}, f.label, f.boxes.length ? jumps(f.boxes.map(b => [b.frame, b.y0, b.y1, b.x0, b.x1])) : ' (of the whole study)'))
  $('#card').replaceChildren(el('h1', { textContent: about.task }), el('p', { className: 'id', textContent: about.id }), el('p', { className: 'visits', textContent: facts.filter(Boolean).join(' · ') }),
    part('Question', pre(about.question)), ...(about.choices.length ? [el('ul', {}, ...about.choices.map(c => el('li', { textContent: `${c.letter}. ${c.text}` })))] : []),
    part('Answer', pre(about.answer.text)), ...(found.length ? [part('Findings', el('ul', {}, ...found))] : []), ...about.models.map(words),
    ...(about.reasoning.length ? [part('Reasoning of the dataset', el('ol', { className: 'steps' }, ...about.reasoning.map(s => el('li', { textContent: s }))))] : []))
}

// ---- the address
function link() {
  const parts = new URLSearchParams()
  if (state.about) { parts.set('id', state.about.id); parts.set('frame', state.frame) }
  for (const name of FILTERS) if (value(name) && !(name === 'model' && value(name) === '0')) parts.set(name, value(name))
  if (state.window.some((v, i) => v !== FULL[i])) parts.set('window', state.window.map(Math.round).join(','))
  return '#' + parts
}
let saving
function remember() {
  clearTimeout(saving)
  saving = setTimeout(() => history.replaceState(null, '', link()), 120)
}
async function fromAddress(hash = location.hash) {
  clearTimeout(saving)
  const asked = new URLSearchParams(hash.slice(1)), id = asked.get('id')
  if ([...asked.keys()].length) for (const name of FILTERS) { $(`#f-${name}`).value = asked.get(name) || (name === 'model' && state.index.models.length ? '0' : '') }
  state.window = numbers(asked.get('window'), 2) || FULL
  await apply()
  if (id) {
    const frame = asked.has('frame') ? Number(asked.get('frame')) : null
    try {
      const { row } = await (await get(`find?id=${encodeURIComponent(id)}`)).json()
      state.place = state.shown.indexOf(row)
      await openRow(row, Number.isInteger(frame) ? frame : null)
      list.reveal(state.place)
      return
    } catch { toast(`There is no question ${id}.`) }
  }
  await openPlace(0)
}

// ---- hands
function zoom(by) { state.zoom = Math.max(0.5, Math.min(24, state.zoom * by)); redraw() }
function contrast(wider, higher) {
  const [lo, hi] = state.window, width = Math.max(2, hi - lo + wider), level = (lo + hi) / 2 + higher
  state.window = [level - width / 2, level + width / 2]
  redraw()
}
const drawer = name => { const on = !document.body.classList.contains(name); document.body.classList.remove('list', 'card'); document.body.classList.toggle(name, on); list.render() }
const KEYS = [
  [['j', 'ArrowDown'], 'next question', () => openPlace(state.place + 1)],
  [['k', 'ArrowUp'], 'previous question', () => openPlace(state.place - 1)],
  [['Home'], 'first question', () => openPlace(0)],
  [['End'], 'last question', () => openPlace(state.shown.length - 1)],
  [[']', 'ArrowRight'], 'next frame', () => go(state.frame + 1)],
  [['[', 'ArrowLeft'], 'previous frame', () => go(state.frame - 1)],
  [['c'], 'next frame with a box', () => toBox(1)],
  [['C'], 'previous frame with a box', () => toBox(-1)],
  [['b'], 'boxes on or off', () => { state.boxes = !state.boxes; redraw() }],
  [['<', '>'], 'window: narrower, wider', key => contrast(key === '<' ? -10 : 10, 0)],
  [[',', '.'], 'level: brighter, darker', key => contrast(0, key === ',' ? -10 : 10)],
  [['+', '='], 'zoom in', () => zoom(1.25)],
  [['-'], 'zoom out', () => zoom(0.8)],
  [['p'], 'pixels or smooth', () => { state.smooth = !state.smooth; redraw() }],
  [['r'], 'reset window, zoom and pan', () => { Object.assign(state, { window: FULL, zoom: 1, pan: [0, 0] }); redraw() }],
  [['/'], 'search', () => { if (innerWidth <= 1150) document.body.classList.add('list'); $('#f-text').focus() }],
  [['Backspace'], 'clear the filters', () => { for (const name of FILTERS) if (name !== 'model') $(`#f-${name}`).value = ''; apply() }],
  [['l'], 'list, in a small window', () => drawer('list')],
  [['i'], 'answer, in a small window', () => drawer('card')],
  [['y'], 'copy a link to what you see', async () => { history.replaceState(null, '', link()); try { await navigator.clipboard.writeText(location.href); toast('The link is copied.') } catch { toast('The address of this page is the link.') } }],
  [['?'], 'this page', () => $('#help').showModal()],
]
const actions = new Map(KEYS.flatMap(([keys, , run]) => keys.map(key => [key, run])))
addEventListener('keydown', e => {
  if ($('#help').open || e.ctrlKey || e.metaKey || e.altKey) return
  if (e.target.matches('input:not([type=range]), select')) { if (e.key === 'Escape') e.target.blur(); return }
  if (e.key === 'Escape') { document.body.classList.remove('list', 'card'); return }
  const run = actions.get(e.key)
  if (run && state.about) { e.preventDefault(); run(e.key) }
})
addEventListener('resize', redraw)
addEventListener('hashchange', e => fromAddress(new URL(e.newURL).hash))
function listen() {
  const canvas = $('#frame'), under = e => { const g = geometry(), d = devicePixelRatio; return [Math.floor((e.offsetY * d - g.top) / g.scale), Math.floor((e.offsetX * d - g.left) / g.scale)] }
  canvas.onpointerdown = e => canvas.setPointerCapture(e.pointerId)
  canvas.onpointermove = e => {
    state.pointer = under(e)
    if (e.buttons & 2) contrast(e.movementX, e.movementY)
    else if (e.buttons) { const { scale } = geometry(); state.pan[0] += e.movementX * devicePixelRatio / scale; state.pan[1] += e.movementY * devicePixelRatio / scale; redraw() }
    else tell()
  }
  canvas.onpointerleave = () => { state.pointer = null; tell() }
  canvas.oncontextmenu = e => e.preventDefault()
  canvas.onwheel = e => { e.preventDefault(); if (e.ctrlKey) zoom(e.deltaY < 0 ? 1.1 : 1 / 1.1); else go(state.frame + Math.sign(e.deltaY)) }
  $('#slider').oninput = e => go(Number(e.target.value))
}
async function start() {
  listen()
  $('#show-list').onclick = () => drawer('list')
  $('#show-card').onclick = () => drawer('card')
  $('#show-help').onclick = () => $('#help').showModal()
  const arrows = { ArrowUp: '↑', ArrowDown: '↓', ArrowLeft: '←', ArrowRight: '→' }
  $('#keys').append(...KEYS.map(([keys, text]) => el('div', {}, el('dt', { textContent: keys.map(k => arrows[k] || k).join('  ') }), el('dd', { textContent: text }))))
  try { state.index = await (await get('index')).json() } catch (error) {
    $('#note').textContent = error.message
    return
  }
  $('#name').textContent = state.index.name
  $('#note').textContent = state.index.note
  const entry = (kind, text) => el('span', { className: kind }, el('i', { className: kind }), text)
  $('#legend').replaceChildren(entry('truth', 'truth'), ...state.index.models.map((name, i) => entry(`model-${i}`, name)))
  await load()
  await fromAddress()
  document.body.dataset.ready = '1'
}
window.reasonknee = { state, boxes, rectangle, go } // for tests and for the curious
start()
